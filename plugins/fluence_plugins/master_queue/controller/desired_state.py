"""The desired state of a MasterQueue: its ResourceFlavors and ClusterQueues, and its status.

Pure and deterministic: the same MasterQueue, pools and time give the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fluence_plugins.master_queue.api.kueue import MOST_FLAVORS, ClusterQueue, ResourceFlavor, ResourceFlavorSpec
from fluence_plugins.master_queue.api.master_queue import (
    Condition,
    Flavor,
    MasterQueue,
    MasterQueueStatus,
    NatsFlavor,
    PoolStatus,
)
from fluence_plugins.master_queue.controller.cluster_queues import Offer, QueueMaker, local_offer, pool_offer
from fluence_plugins.master_queue.controller.pools import Pool, Pools, PoolState, time_text
from fluence_plugins.master_queue.controller.validation import problems
from fluence_plugins.master_queue.messages import VIRTUAL_NODE_TAINT
from session_scheduler.errors import plain
from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.objects import Toleration

HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
POOL_KEY: Final = "pool.vk.io"
_MOST_PROBLEMS: Final = 64
"""The maximum number of lines in a MasterQueue's problems; each pool also has its own."""
READY, NATS_CONNECTED, POOLS_ACTIVE = "Ready", "NatsConnected", "PoolsActive"


class ClusterView(msgspec.Struct, frozen=True):
    """What a MasterQueue needs to know of the cluster: names of objects, and why connectors are not connected."""

    foreign_queues: Collection[str] = ()
    """ClusterQueues of other owners, which are not changed."""
    own_queues: Collection[str] = ()
    """Its own ClusterQueues. A branch that the spec no longer names is held, not deleted."""
    foreign_flavors: Collection[str] = ()
    """ResourceFlavors of other owners, including those that its local flavors name."""
    leaving: Collection[tuple[str, str]] = ()
    """Kind and name of other owners' objects that are being deleted, as after a MasterQueue of the same name."""
    away: Mapping[str, str] = {}
    ahead: float = 0.0
    """Seconds to add to times in the status, if the wall clock was changed."""
    failures: Sequence[str] = ()
    """Failed writes, one line each."""
    lacking: Collection[str] = ()
    """Desired ResourceFlavors that cannot be created: Kueue would deactivate a whole queue that named one."""


class Desired(msgspec.Struct, frozen=True):
    """The objects to apply, in the order of the spec, and the status to write.

    Flavors of silent pools are omitted; they are deleted once no Workload names them. If the spec is `wrong`, only the
    status is written.
    """

    status: MasterQueueStatus
    flavors: tuple[ResourceFlavor, ...] = ()
    queues: tuple[ClusterQueue, ...] = ()
    wrong: bool = False


def desired(master: MasterQueue, pools: Pools, now: float, view: ClusterView | None = None) -> Desired:
    """The desired state now. `pools` are those of the last valid spec."""
    view = view or ClusterView()
    wrong = problems(master.spec, master.key)
    if wrong:
        conditions = _conditions(master, pools, now, view, "InvalidSpec", wrong, _active(master.status.pools))
        status = msgspec.structs.replace(master.status, conditions=conditions, problems=wrong)
        return Desired(status, wrong=True)
    found = _Layout(master, pools.at(now), view)
    wrong = (*view.failures, *found.problems)
    reason = "WriteFailed" if view.failures else "Conflict"
    active, known = _active(found.statuses)
    status = MasterQueueStatus(
        conditions=_conditions(master, pools, now, view, reason, wrong, (active, known)),
        pools=found.statuses,
        problems=(*_first(wrong), *pools.refusals(now)),
        active_pools=active,
        known_pools=known,
    )
    return Desired(status, tuple(found.flavors), tuple(found.queues))


class _Layout:
    """The objects of a MasterQueue with a valid spec."""

    def __init__(self, master: MasterQueue, pools: Sequence[Pool], view: ClusterView) -> None:
        self._master = master
        self._foreign_flavors = view.foreign_flavors
        self._leaving = view.leaving
        self._lacking = view.lacking
        self._ahead = view.ahead
        self.problems: list[str] = []
        self.flavors: list[ResourceFlavor] = []
        self._statuses: dict[str, PoolStatus] = {}
        self._used: set[str] = {flavor.name for flavor in master.spec.flavors if flavor.local_flavor is not None}
        self._maker = QueueMaker(master)
        offers = self._offers(pools)
        named = tuple(dict.fromkeys(lend.queue for one in master.spec.flavors for lend in one.can_lend_to))
        gone = sorted({*view.own_queues} - {*named, master.key})
        self.queues: list[ClusterQueue] = []
        for name in (master.key, *named, *gone):
            if name in view.foreign_queues:
                self.problems.append(
                    f"ClusterQueue {plain(name)}: {self._clash('ClusterQueue', name, 'choose another name')}"
                )
            elif name == master.key:
                self.queues.append(self._maker.main(offers))
            else:
                self.queues.append(self._maker.branch(name, offers))
        if self._maker.used_empty:
            self.flavors.append(ResourceFlavor(metadata=self._meta(self._maker.empty)))
        self.statuses = tuple(self._statuses[pool.name] for pool in pools if pool.name in self._statuses)

    def _clash(self, kind: str, name: str, remedy: str) -> str:
        """The problem with another owner's object of this name."""
        if (kind, name) in self._leaving:
            return "belongs to an earlier MasterQueue; the controller replaces it once no job uses it"
        return f"has another owner; {remedy}"

    def _offers(self, pools: Sequence[Pool]) -> list[Offer]:
        """The offers of each local flavor and each active pool, in the spec's order."""
        offers: list[Offer] = []
        free = MOST_FLAVORS - len(self._used)
        for flavor in self._master.spec.flavors:
            if flavor.nats_flavor is None:
                offers.extend(self._local(flavor))
            for pool in pools:
                if pool.flavor == flavor.name and flavor.nats_flavor is not None:
                    offers.extend(self._pool(flavor, flavor.nats_flavor, pool, room=len(self.flavors) < free))
        return offers

    def _local(self, flavor: Flavor) -> Iterable[Offer]:
        """The offer of a local flavor; none if its ResourceFlavor does not exist: Kueue would deactivate a queue that
        names it.
        """
        if flavor.name in self._foreign_flavors:
            return (local_offer(flavor),)
        self.problems.append(f"localFlavor {plain(flavor.name)}: the ResourceFlavor does not exist; create it")
        return ()

    def _pool(self, flavor: Flavor, nats: NatsFlavor, pool: Pool, *, room: bool) -> Iterable[Offer]:
        name = f"{self._master.key}-{flavor.name}-{pool.name}"
        wrong = ""
        if pool.state == PoolState.ACTIVE:
            if name in self._foreign_flavors:
                wrong = f"ResourceFlavor {name} {self._clash('ResourceFlavor', name, 'rename the pool')}"
            elif name in self._used:
                wrong = f"ResourceFlavor {name} is also the flavor of another pool; rename one of the two pools"
            elif name in self._lacking:
                wrong = (
                    f"ResourceFlavor {name} does not exist and cannot be created yet: the queues will use it once "
                    "it exists"
                )
            elif not room:
                wrong = (
                    f"other pools use all {MOST_FLAVORS} flavors that Kueue allows in a queue; use a second MasterQueue"
                )
        faults = (wrong, *pool.conflicts) if wrong else pool.conflicts
        self.problems.extend(f"pool {pool.name}: {fault}" for fault in faults)
        self._statuses[pool.name] = _pool_status(pool, faults, self._ahead)
        if wrong or pool.state != PoolState.ACTIVE:
            return ()
        self._used.add(name)
        self.flavors.append(self._flavor(name, nats, pool))
        return (pool_offer(name, flavor, pool.message.quotas),)

    def _flavor(self, name: str, nats: NatsFlavor, pool: Pool) -> ResourceFlavor:
        spec = ResourceFlavorSpec(
            node_labels={HOSTNAME_LABEL: nats.virtual_node},
            node_taints=(VIRTUAL_NODE_TAINT, *pool.message.taints),
            tolerations=(Toleration(key=POOL_KEY, operator="Equal", value=pool.name, effect="NoSchedule"),),
        )
        return ResourceFlavor(metadata=self._meta(name, pool.message.labels), spec=spec)

    def _meta(self, name: str, labels: dict[str, str] | None = None) -> ObjectMeta:
        return ObjectMeta(name=name, labels=labels or {}, owner_references=(self._master.owner,))


# ------------------------------------------------------------------ status


def _first(wrong: Sequence[str]) -> Sequence[str]:
    more = len(wrong) - _MOST_PROBLEMS
    return wrong if more <= 0 else [*wrong[:_MOST_PROBLEMS], f"and {more} more; see the problems of each pool"]


def _pool_status(pool: Pool, faults: tuple[str, ...], ahead: float) -> PoolStatus:
    return PoolStatus(
        name=pool.name,
        flavor=pool.flavor,
        state=str(pool.state),
        last_message=time_text(None if pool.heard_at is None else pool.heard_at + ahead),
        quota=pool.message.quotas,
        labels=pool.message.labels,
        taints=pool.message.taints,
        problems=(*faults, *pool.message.problems, *([f"last message: {pool.refusal}"] if pool.refusal else [])),
    )


def _active(statuses: Iterable[PoolStatus]) -> tuple[int, int]:
    states = [status.state for status in statuses]
    return states.count(PoolState.ACTIVE), len(states)


def _conditions(
    master: MasterQueue,
    pools: Pools,
    now: float,
    view: ClusterView,
    reason: str,
    wrong: Sequence[str],
    active: tuple[int, int],
) -> tuple[Condition, ...]:
    count, known = active
    wanted = (flavor.nats_flavor is not None for flavor in master.spec.flavors)
    disconnected = pools.disconnected() if any(wanted) else ()
    found = (
        Condition(type=READY, status="False", reason=reason, message=_lines(wrong))
        if wrong
        else Condition(type=READY, status="True", reason="Applied", message="flavors and queues match the spec"),
        Condition(
            type=NATS_CONNECTED,
            status="False",
            reason="Disconnected",
            message=_lines(_disconnected(disconnected, view.away)),
        )
        if disconnected
        else Condition(
            type=NATS_CONNECTED, status="Unknown", reason="InvalidSpec", message="no subject is subscribed yet"
        )
        if reason == "InvalidSpec" and not pools.sources
        else Condition(type=NATS_CONNECTED, status="True", reason="Connected", message="all subjects are subscribed"),
        Condition(
            type=POOLS_ACTIVE,
            status="True" if count else "False",
            reason="Heard" if count else "NoneActive",
            message=f"{count} of {known} pools are active",
        ),
    )
    generation = master.metadata.generation
    return tuple(_since(condition, master.status.conditions, now + view.ahead, generation) for condition in found)


def _disconnected(sources: Iterable[tuple[str, str]], why: Mapping[str, str]) -> list[str]:
    """A line for each connector and subject without a connection."""
    return [
        f"no connection for {plain(subject)}: {why.get(connector) or 'connecting'}; pools keep their state"
        for connector, subject in sources
    ]


def _lines(wrong: Sequence[str]) -> str:
    return wrong[0] if len(wrong) == 1 else f"{wrong[0]} (and {len(wrong) - 1} more)"


def _since(condition: Condition, before: Iterable[Condition], now: float, generation: int) -> Condition:
    """The condition with the time of its last transition: the earlier one's if the status is the same."""
    same = (one for one in before if (one.type, one.status) == (condition.type, condition.status))
    time = next((one.last_transition_time for one in same if one.last_transition_time), time_text(now))
    return msgspec.structs.replace(condition, last_transition_time=time, observed_generation=generation)
