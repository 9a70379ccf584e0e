"""The Proportion plugin: orders queues by their fair shares and enforces their limits, like KAI-Scheduler's proportion.

Without queues it registers no callbacks. The cache counts what each queue has allocated (`session.queues`), with the
session's placements and their undo, so that a queue never exceeds its limit, not even within a gang.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from session_scheduler.builtin.reclaiming import Reclaiming, needs_of, required_tasks
from session_scheduler.config.settings import PluginArguments
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Prepared, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.device_amounts import claim_amounts
from session_scheduler.model.device_resources import DeviceLimit, DeviceResource
from session_scheduler.model.devices import DeviceClass, ResourceClaim, ResourceSlice
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.groups import PREEMPTIBILITY_LABEL, SYSTEM_CRITICAL, Group, Task, unique_classes
from session_scheduler.model.objects import Node, Pod, PodGroup
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.queue_shares import QueueShares
from session_scheduler.model.queues import QUEUE_LABEL, Amounts, add_each, is_in_thousandths, shown_amount
from session_scheduler.state.queue_use import NominatedKind, QueueUse, no_device_limits

_OF_PODS = ("allocated", "pending")
"""The metrics that also cover queues without a Queue object, which only pods name."""
_REMEMBERED = 10_000
"""How many classes, and queues for each, keep a reason for their rejection. Any deleted pod requeues the others."""


class ProportionArguments(PluginArguments):
    """Arguments of Proportion."""

    larger_victims: bool = True
    """Whether a queue that deserves what it requests may evict a pod or gang that is larger than what its queue has
    beyond its share, if no smaller ones help.
    """


class Proportion:
    """Orders queues by their shares. Rejects pods above a limit, and non-preemptible pods above the deserved amount."""

    Arguments = ProportionArguments
    name = "Proportion"
    weight = 1
    filter_scope = Scope.ANY

    def __init__(self, arguments: ProportionArguments | None = None) -> None:
        self._arguments = arguments or ProportionArguments()
        self._use: QueueUse | None = None
        self._session: Session | None = None
        self._shares: QueueShares | None = None
        self._refused: dict[TaskClass, dict[str, int]] = {}
        """By class, the full queues, each with the value of its `freed` counter at the rejection."""

    # ------------------------------------------------------------------ a session

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Register the callbacks if there are queues."""
        use = self._use = session.queues
        self._session = session
        if use.active:
            session.add_over_capacity(self._over_capacity)
            if use.devices.by_device:
                use.device_limits = self._device_limits
            shares = self._shares = use.shares(session.table)
            order = QueueOrder(session, shares)
            session.add_queue_order(order.key, changed=None if session.evaluator.naive else order.changed)
            session.add_queue_allocated(lambda queue: use.counts(queue).allocated)
            session.add_queue_deserved(lambda queue: use.tree.specs[queue].deserved if use.tree.usable(queue) else None)
            session.add_queue_fair_share(shares.fair.get)
            reclaiming = Reclaiming(session, shares, larger_victims=self._arguments.larger_victims)
            session.add_preemptable(_may_preempt, alike=True, queues=_preempts_in)
            session.add_preempt_validator(reclaiming.exceeded_bound, alike=True)
            session.add_can_reclaim(reclaiming.refusal)
            session.add_reclaimable(reclaiming.is_reclaimable, alike=reclaiming.alike, together=reclaiming.together,
                                    queues=reclaiming.queues)  # fmt: skip
            session.add_reclaim_validator(reclaiming.objection, alike=True)

    @hookimpl
    def on_session_close(self) -> None:
        """Drop the reference to the session."""
        if self._session is not None:
            self._session.queues.device_limits = no_device_limits
        self._session = None

    def _over_capacity(self, group: Group, tasks: Sequence[Task]) -> Sequence[str | None]:
        use = self._use
        if use is None:
            return [None] * len(tasks)
        why = use.tree.why_not(group.queue)
        if why is not None:
            self._note(unique_classes(tasks), group.queue, -1)
            return [why] * len(tasks)
        bounds = list(_bounds(use, group))
        if not bounds or not tasks:
            return [None] * len(tasks)
        session = self._session
        nominated = session.nominated.kinds_yielded_to(tasks) if session is not None and session.nominations else {}
        for bound in bounds if nominated else ():
            bound.add_nominated(nominated)
        return [self._exceeded(task, bounds) for task in tasks]

    def _device_limits(self, group: Group, claims: Collection[str]) -> list[DeviceLimit]:
        """What the group may still get by the allocation of these claims; what they already count with is included."""
        use, session = self._use, self._session
        if use is None or session is None:
            return []
        bounds, known = list(_bounds(use, group)), session.snapshot.cache.tasks
        tasks = [known[uid] for uid in group.tasks if uid in known] if session.nominations else []
        for bound in bounds if tasks else ():
            bound.add_nominated(session.nominated.kinds_yielded_to(tasks))
        return [DeviceLimit(one, bound.left(one.name, claims), bound.full(one.name)) for bound in bounds
                for one in use.devices.by_device if one.name in bound.most]  # fmt: skip

    def _exceeded(self, task: Task, bounds: Sequence[_Bound]) -> str | None:
        """The reason if a task exceeds a bound; else adds what it needs to each bound."""
        for bound in bounds:
            why = bound.exceeded_by(task.cls)
            if why is not None:
                self._note((task.cls,), bound.queue, bound.freed)
                return why
        for bound in bounds:
            bound.add(task.cls)
        return None

    # ------------------------------------------------------------------ device resources by node

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Prepared | Skip:
        """The bounds on device resources that a task has on some nodes only. A class of such tasks has one queue."""
        if not session.queues.active or not session.queues.devices.by_node:
            return SKIP
        found = _on_nodes(session, cls, {})
        if not found:
            return SKIP
        # without a key for claims, because the filter notes the class that it rejects
        return Prepared(found, Scope.ANY, SKIP, claims_key=lambda: None, counts_nominated=True)

    @hookimpl
    def filter(self, session: Session, cls: TaskClass, nodes: NodeView, mask: BoolColumn, state: _OnNodes) -> None:
        """Clear the nodes on which a task would exceed a bound on a device resource."""
        for bound, one, need in _with_ahead(session, cls, state):
            if bound.why_not(one.name, need) is not None:
                freed = session.queues.counts(bound.queue).freed
                self._note((cls,), bound.queue, _BY_NOMINATIONS if bound.freed == _BY_NOMINATIONS else freed)
                mask &= ~one.mask(nodes)

    @hookimpl
    def reasons(self, session: Session, cls: TaskClass, nodes: NodeView, state: _OnNodes) -> Mapping[str, BoolColumn]:
        """The message of the exceeded bound."""
        found: dict[str, BoolColumn] = {}
        for bound, one, need in _with_ahead(session, cls, state):
            why = bound.why_not(one.name, need)
            if why is not None:
                found[why] = one.mask(nodes)
        return found

    def _note(self, classes: Iterable[TaskClass], queue: str, freed: int) -> None:
        for cls in classes:
            known = self._refused.setdefault(cls, {})
            known[queue] = freed
            if len(self._refused) > _REMEMBERED or len(known) > _REMEMBERED:
                self._refused.clear()

    # ------------------------------------------------------------------ metrics

    @hookimpl
    def metrics(self) -> Iterable[Any]:
        """The gauges by queue and resource; none without queues."""
        use, shares = self._use, self._shares
        if use is None or shares is None:
            return ()
        from prometheus_client.core import GaugeMetricFamily

        specs = use.tree.specs
        families: tuple[tuple[str, str, Callable[[str], Mapping[str, int]]], ...] = (
            ("allocated", "Resources allocated to the queue's pods", lambda name: use.counts(name).allocated),
            ("pending", "Requests of the queue's pending pods", lambda name: use.counts(name).pending),
            ("deserved", "Deserved resources of the queue", lambda name: specs[name].deserved),
            ("limit", "Resource limit of the queue", lambda name: specs[name].limit),
            ("fair_share", "Fair share of the queue in the last session", lambda name: shares.fair.get(name, {})),
        )
        found = []
        for what, text, amounts in families:
            family = GaugeMetricFamily(f"fluence_queue_{what}", f"{text}, CPU in cores.", labels=["queue", "resource"])
            for name in (*use.tree, *(use.deleted() if what in _OF_PODS else ())):
                for resource, amount in sorted(amounts(name).items()):
                    family.add_metric([name, resource], amount / 1000 if is_in_thousandths(resource) else amount)
            found.append(family)
        return found

    # ------------------------------------------------------------------ queueing hints

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when a pod of a full queue is deleted, queues change, or a pod or group changes its queue."""
        return [
            ClusterEventWithHint(Pod, ActionType.DELETE, self._frees),
            ClusterEventWithHint(Pod, ActionType.UPDATE_POD_LABEL, _changes_queue),
            ClusterEventWithHint(Pod, ActionType.UPDATE_POD_SCALE_DOWN),
            ClusterEventWithHint(PodGroup, ActionType.UPDATE | ActionType.DELETE, _changes_queue),
            ClusterEventWithHint(Queue, ActionType.ALL, _changes_spec),
            ClusterEventWithHint(Node, ActionType.ADD | ActionType.UPDATE_NODE_LABEL, self._offers_devices),
            ClusterEventWithHint(ResourceClaim, ActionType.UPDATE | ActionType.DELETE, self._claim_frees),
            ClusterEventWithHint(ResourceSlice, ActionType.UPDATE | ActionType.DELETE, self._devices_change),
            ClusterEventWithHint(DeviceClass, ActionType.ALL, self._devices_change),
        ]

    def _offers_devices(self, cls: TaskClass, _: ClusterEvent) -> bool:
        """Whether the pod may count with devices of a model: the limit of the model rejects it on some nodes, and pods
        on the node may count with another one.
        """
        use = self._use
        if use is None:
            return True
        possible = use.devices.possible(cls)
        return any(one.name in possible for one in use.devices.by_node)

    def _devices_change(self, cls: TaskClass, event: ClusterEvent) -> bool:
        """Whether claims count with less than before, because devices or the selectors of classes changed."""
        return self._use is None or (bool(self._use.devices.by_device) and self._frees(cls, event))

    def _claim_frees(self, cls: TaskClass, event: ClusterEvent) -> bool:
        """Whether a claim counts with less than before, such as with one of several alternatives."""
        before, after = (claim_amounts(one) if one is not None else {} for one in (event.old, event.new))
        less = any(amount > after.get(name, 0) for name, amount in before.items())
        return less and self._frees(cls, event)

    def _frees(self, cls: TaskClass, _: ClusterEvent) -> bool:
        use, refused = self._use, self._refused.get(cls)
        if use is None or refused is None:
            return True
        return any(
            freed == _BY_NOMINATIONS or (freed >= 0 and use.counts(queue).freed != freed)
            for queue, freed in refused.items()
        )


class QueueOrder:
    """The sort keys of queues in one session, by their shares with their next groups. The naive evaluation computes
    each key again, without `changed`.

    The key of a queue depends on the queues below the same top-level queue only.
    """

    def __init__(self, session: Session, shares: QueueShares) -> None:
        self._session = session
        self._shares = shares
        self._needs: dict[str, dict[str, Amounts]] = {}
        """By top-level queue, for each queue below it with groups left: what the next group needs."""
        self._keys: dict[str, tuple[object, ...]] = {}
        self._version = session.queues.version
        self._moved = {name: shares.has[name].moved for name in shares.tree.children[""]}
        """By top-level queue: how many pods were moved when the keys were computed."""

    def key(self, queue: str) -> tuple[object, ...]:
        """The sort key of a queue: empty, so first, if the queue is not usable."""
        tree = self._shares.tree
        if not tree.usable(queue):
            return ()
        if queue in self._keys:
            return self._keys[queue]
        top = tree.path(queue)[-1]
        beside = self._needs.get(top, {}) if not self._session.evaluator.naive else {
            name: self._needs_of_next(group) for name, group in self._session.next_groups.items()
            if tree.usable(name) and tree.path(name)[-1] == top
        }  # fmt: skip
        return self._shares.order({queue: {}, **beside})[queue]

    def changed(self, unlike: Collection[str]) -> list[str]:
        """Compute the keys below the top-level queues in which pods were moved, or next groups have other needs.
        `unlike` are all queues whose next groups may have other needs. Returns the queues with another key.
        """
        shares, version = self._shares, self._session.queues.version
        tops = dict.fromkeys(shares.tree.path(queue)[-1] for queue in unlike if self._has_other_needs(queue))
        if self._version != version:
            self._version = version
            tops |= dict.fromkeys(top for top, moved in self._moved.items() if shares.has[top].moved != moved)
        found: list[str] = []
        for top in tops:
            self._moved[top] = shares.has[top].moved
            keys = shares.order(self._needs.get(top, {}))
            found += [queue for queue, key in keys.items() if self._keys.get(queue) is not key]
            self._keys |= keys
        return found

    def _has_other_needs(self, queue: str) -> bool:
        """Whether the next group of a queue has other requests than the last one, or no group is left."""
        tree, group = self._shares.tree, self._session.next_groups.get(queue)
        if not tree.usable(queue):
            return False
        known = self._needs.setdefault(tree.path(queue)[-1], {})
        before = known.pop(queue, None)
        if group is None:
            self._keys.pop(queue, None)
            return before is not None
        known[queue] = self._needs_of_next(group)
        return before != known[queue]

    def _needs_of_next(self, group: Group) -> Amounts:
        return needs_of(self._session.queues, required_tasks(group, attrgetter("key")))


def _may_preempt(group: Group, victim: Group) -> bool:
    """Within a queue priorities decide over preemptible pods, between queues shares. System-critical pods may preempt
    any pod of lower priority.

    Otherwise a queue could reclaim its share and lose it to another queue's priority, again and again.
    """
    return (group.queue == victim.queue and victim.preemptible) or group.priority >= SYSTEM_CRITICAL


def _preempts_in(group: Group) -> Iterable[str] | None:
    """The queues in which a group may preempt; None for all."""
    return None if group.priority >= SYSTEM_CRITICAL else (group.queue,)


_BY_NOMINATIONS = -2
"""In place of a `freed` counter: nominated pods fill the queue, and their nominations can end without a deletion."""


class _Bound:
    """The limit or deserved amounts of one queue on the path to the root."""

    def __init__(self, use: QueueUse, queue: str, *, non_preemptible: bool = False) -> None:
        """`non_preemptible`: the deserved amounts, and only non-preemptible pods count; else the limit."""
        spec, counts = use.tree.specs[queue], use.counts(queue)
        self.queue = queue
        self.most = spec.deserved if non_preemptible else spec.limit
        self.freed = counts.freed
        self._use = use
        self._non_preemptible = non_preemptible
        self._counts_in = "kept" if non_preemptible else "allocated"
        self._allocated: Mapping[str, int] = getattr(counts, self._counts_in)
        self._more: Amounts = {}
        """What nominated and other tasks need in addition to the allocated amounts."""
        self._claims: set[str] = set()
        """The claims in `_more`."""

    def add_nominated(self, nominated: _Nominated) -> None:
        """Count the tasks, by queue and kind, that are nominated in this queue and those below it."""
        for queue, kinds in nominated.items():
            for (_, kept, cls, devices), count in kinds.items() if self.queue in self._use.tree.path(queue) else ():
                if kept or not self._non_preemptible:
                    self._add(cls, self._needs(cls, dict(devices)), count)
        self.freed = _BY_NOMINATIONS

    def leave_out_victims(self, session: Session) -> None:
        """Do not count the device resources of victims: nominated pods replace them."""
        if self._non_preemptible:
            return
        add_each(self._more, self._use.counts(self.queue).leaving, -1)
        preempted, path = session.snapshot.cache.preempted, self._use.tree.path
        of_attempt = (task for uid, task in session.ledger.to_end.items() if uid not in preempted)
        for task in filter(self._use.concerns, of_attempt):
            if task.node is not None and self.queue in path(task.group.queue):
                add_each(self._more, self._use.devices_of(task), -1)

    def add(self, cls: TaskClass) -> None:
        """Count a further task of a class."""
        self._add(cls, self._needs(cls, self._use.devices.certain(cls)), 1)

    def _add(self, cls: TaskClass, needs: Mapping[str, int], count: int) -> None:
        add_each(self._more, needs, count)
        self._claims.update(cls.claims)

    def _needs(self, cls: TaskClass, devices: Mapping[str, int]) -> Mapping[str, int]:
        """What a task of this class with these device resources adds. A claim that pods of the queue already use adds
        nothing.
        """
        counted = self._use.claims
        new = [claim for claim in cls.claims
               if claim not in self._claims and not counted.counts_in(claim, self.queue, self._counts_in)]  # fmt: skip
        if not new and not devices:
            return cls.queue_amounts
        needs = {**cls.queue_amounts, **devices}
        for claim in new:
            add_each(needs, counted.amounts(claim))
        return needs

    def exceeded_by(self, cls: TaskClass) -> str | None:
        """The reason if one more task of the class exceeds the bound: queue, resource, and amounts."""
        needs = self._needs(cls, self._use.devices.certain(cls))
        for resource in self.most:
            need = needs.get(resource, 0)
            why = self.why_not(resource, need) if need else None
            if why is not None:
                return why
        return None

    def why_not(self, resource: str, need: int) -> str | None:
        """The reason if so much more of a resource exceeds the bound."""
        if self._now(resource) + need <= self.most[resource]:
            return None
        return f"{self.full(resource)}, requested {shown_amount(resource, need)}"

    def full(self, resource: str) -> str:
        """The reason, without what is requested."""
        most, allocated = (shown_amount(resource, amount) for amount in (self.most[resource], self._now(resource)))
        name, what = "limit", f"limit of {resource}"
        if self._non_preemptible:
            name, what = "deserved", f"deserved {resource} for non-preemptible pods"
        return f"queue {self.queue!r} has reached its {what}: {name} {most}, allocated {allocated}"

    def left(self, resource: str, claims: Iterable[str]) -> int:
        """How much of a resource is left, including what these claims count with."""
        counted = self._use.claims
        own = sum(counted.amounts(claim).get(resource, 0) for claim in claims
                  if claim in self._claims or counted.counts_in(claim, self.queue, self._counts_in))  # fmt: skip
        return self.most[resource] - self._now(resource) + own

    def _now(self, resource: str) -> int:
        return self._allocated.get(resource, 0) + self._more.get(resource, 0)


_Nominated = Mapping[str, Mapping[NominatedKind, int]]
"""By queue: the number of nominated tasks of each kind."""
_OnNodes = Sequence[tuple[_Bound, DeviceResource, int]]
"""The bounds on device resources that depend on the node, each with what one task has of it there."""


def _on_nodes(session: Session, cls: TaskClass, nominated: _Nominated) -> _OnNodes:
    """The bounds of a class that depend on the node, with the nominated pods for which a task must leave room."""
    use, found = session.queues, list[tuple[_Bound, DeviceResource, int]]()
    for bound in _bounds(use, session.snapshot.cache.group_of_class(cls)):
        if nominated:
            bound.add_nominated(nominated)
            bound.leave_out_victims(session)
        found += [(bound, one, need) for one, need in use.devices.decided_by_node(cls, bound.most)]
    return found


def _with_ahead(session: Session, cls: TaskClass, bounds: _OnNodes) -> _OnNodes:
    """The same bounds, with the nominated pods that are counted while the filters run."""
    nominated = session.nominated.kinds_ahead()
    return _on_nodes(session, cls, nominated) if nominated else bounds


def _bounds(use: QueueUse, group: Group) -> Iterator[_Bound]:
    """The bounds that apply to the group in its queue and those above it."""
    for name in use.tree.path(group.queue) if use.tree.usable(group.queue) else ():
        spec = use.tree.specs[name]
        if spec.limit:
            yield _Bound(use, name)
        if spec.deserved and not group.preemptible:
            yield _Bound(use, name, non_preemptible=True)


def _changes_queue(_: TaskClass, event: ClusterEvent) -> bool:
    return event.own or event.new is None or _queue_traits(event.old) != _queue_traits(event.new)


def _queue_traits(obj: Any) -> tuple[object, ...]:
    """What decides how a pod, or a group's pods, count in queues."""
    labels: Mapping[str, str] = obj.metadata.labels
    priority = obj.spec.priority if isinstance(obj, PodGroup) else None
    return labels.get(QUEUE_LABEL), labels.get(PREEMPTIBILITY_LABEL), priority


def _changes_spec(_: TaskClass, event: ClusterEvent) -> bool:
    """Whether more than the queue's status changed."""
    return event.old is None or event.new is None or event.old.spec != event.new.spec
