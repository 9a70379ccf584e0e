"""The reconciler of one MasterQueue: tracks its pools, and writes its objects and status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final

import msgspec

from fluence_plugins.master_queue.api.flavors_in_use import FlavorsInUse
from fluence_plugins.master_queue.api.informer_store import (
    FLAVORS,
    MASTERS,
    QUEUES,
    UNLISTED,
    Observed,
    ObservedFlavor,
    ObservedQueue,
    Store,
)
from fluence_plugins.master_queue.api.master_queue import MasterQueue, MasterQueueSpec, MasterQueueStatus
from fluence_plugins.master_queue.api.server_side_apply import MANAGER, Applier, kind_of, plain
from fluence_plugins.master_queue.controller.cluster_queues import empty_flavor
from fluence_plugins.master_queue.controller.desired_state import ClusterView, Desired, desired
from fluence_plugins.master_queue.controller.pools import Pools
from fluence_plugins.master_queue.controller.rate_limit import RateLimit
from fluence_plugins.master_queue.controller.validation import problems
from fluence_plugins.master_queue.messages import Message
from fluence_plugins.master_queue.metrics import PoolSample
from session_scheduler.sdk.backoff import backoff
from session_scheduler.sdk.dynamic_client import ClusterError, KubeApi, NotFound
from session_scheduler.sdk.dynamic_informer import Resource

log = logging.getLogger("master-queue")

DROP_SECONDS: Final = 10.0
"""How long a flavor must be in no queue before it is deleted: Kueue may be admitting a Workload to it."""
_CONNECT_SECONDS: Final = 1.0
"""How long the first pass waits for connections, so that a restart does not report them as missing."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
"""The pauses after a pass with a failure; doubled each time."""


class ReconcilerContext(msgspec.Struct, frozen=True):
    """The dependencies that all reconcilers share. `now` gives Unix seconds that never go back; `away` gives the reason
    for each connector without a connection.
    """

    api: KubeApi
    store: Store
    applier: Applier
    in_use: FlavorsInUse
    writes: asyncio.Semaphore
    now: Callable[[], float]
    ahead: Callable[[], float]
    """How many seconds the wall clock is ahead of `now`."""
    away: Callable[[], Mapping[str, str]]
    unknown: Callable[[], Collection[type]]
    """The kinds whose objects are unknown."""
    observe: Callable[[MasterQueue], None]
    """Processes a MasterQueue from a response, which may contain an edit before its event arrives."""
    status_seconds: float
    """How old the time of a last message may be in the status."""


class Reconciler:
    """Reconciles one MasterQueue. `run` is its task; the other methods record changes and schedule a pass."""

    def __init__(self, master: MasterQueue, context: ReconcilerContext) -> None:
        self._context = context
        self._master = master
        self._pools: Pools | None = None
        """The pools of the last valid spec; None before there was one."""
        self._spec: MasterQueueSpec | None = None
        self._due = asyncio.Event()
        self._rate_limit = RateLimit(context.now)
        self._wrote = False
        """Whether this pass has written something."""
        self._failures: list[str] = []
        self._failed = 0
        """The number of consecutive passes with a failure."""
        self._retry_at: float | None = None
        """When to retry what failed or had to wait."""
        self._status_at = 0.0
        self._desired_at = context.now()
        """When the last pass computed the pools' states. The next pass applies later changes."""
        self._messages_pending = False
        """Whether messages arrived that the status does not show yet."""
        self._stale: dict[str, float] = {}
        """Own flavors that no queue names, and since when."""
        self._lacking: frozenset[str] = frozenset()
        """Flavors that this pass could not create. No queue may name them, because Kueue would deactivate the whole
        queue.
        """
        self._unreported: set[str] = set()
        """Connectors whose state is not known yet."""
        self._follow(master)

    # ------------------------------------------------------------------ events

    def follow(self, master: MasterQueue) -> None:
        """The MasterQueue has changed. An echo of its own status is ignored."""
        if (master.spec, master.status) != (self._master.spec, self._master.status):
            self._follow(master)

    def _follow(self, master: MasterQueue) -> None:
        self._master = master
        now = self._context.now()
        if master.spec != self._spec and not problems(master.spec, master.key):
            if self._pools is None:
                self._pools = Pools(master.spec)
                self._pools.restore(master.status.pools)
            else:
                self._pools.follow(master.spec, now)
            self._spec = master.spec
            self._unreported |= {connector for connector, _ in self.sources}
        self.requeue()

    @property
    def sources(self) -> frozenset[tuple[str, str]]:
        """The connectors and subjects to listen to."""
        return self._pools.sources if self._pools is not None else frozenset()

    def connected(self, connector: str) -> None:
        """The connector is connected: count silence."""
        self._unreported.discard(connector)
        if self._pools is not None:
            self._pools.connected(connector, self._context.now())
            self.requeue()

    def lost(self, connector: str, unheard: float) -> None:
        """The connector is not connected; it may have been down for `unheard` seconds."""
        self._unreported.discard(connector)
        if self._pools is not None:
            self._pools.lost(connector, self._context.now() - unheard)
            self.requeue()

    def receive(self, source: tuple[str, str], name: str, message: Message) -> str:
        """Process a pool's message. Returns why it does not apply; empty if it does."""
        if self._pools is None:
            return "the spec has problems"
        revision = self._pools.revision
        why = self._pools.receive(source, name, message, self._context.now())
        if self._pools.revision != revision or (not why and not self._messages_pending):
            self.requeue()
        self._messages_pending |= not why
        return why

    def refused(self, name: str, why: str) -> None:
        """Record an invalid message under this name."""
        if self._pools is None:
            return
        revision = self._pools.revision
        self._pools.refused(name, why, self._context.now())
        if self._pools.revision != revision:
            self.requeue()

    def requeue(self) -> None:
        """Schedule a pass."""
        self._due.set()

    def samples(self) -> list[PoolSample]:
        """The current pools of the MasterQueue."""
        if self._pools is None:
            return []
        now = self._context.now()
        return [
            PoolSample(self._master.key, pool.name, pool.state, None if pool.heard_at is None else now - pool.heard_at)
            for pool in self._pools.at(now)
        ]

    # ------------------------------------------------------------------ the task

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Run passes until cancelled."""
        await self._await_connections()
        while True:
            await self._wait()
            self._due.clear()
            try:
                await self._reconcile()
            except Exception:  # a bug with one MasterQueue must not stop the others
                log.exception("[master-queue] %s: reconciling failed", self._master.key)
                self._failed += 1
                self._retry_in(_LONGEST_PAUSE)
            rest = self._rate_limit.rest(wrote=self._wrote)
            await sleep(_FIRST_PAUSE if self._failed else rest)

    async def _await_connections(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                while self._unreported:
                    await self._due.wait()
                    self._due.clear()
        except TimeoutError:
            pass
        self.requeue()

    async def _wait(self) -> None:
        now = self._context.now()
        times = [self._retry_at]
        if self._pools is not None:
            times += [self._pools.next_silent(self._desired_at), self._pools.next_forgotten(self._desired_at)]
        if self._messages_pending and not self._failed:  # otherwise the retry writes it
            times.append(self._status_at + self._context.status_seconds)
        due = min((time for time in times if time is not None), default=None)
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                await self._due.wait()
        except TimeoutError:
            return

    async def _reconcile(self) -> None:
        self._retry_at = None
        self._failures = []
        self._wrote = False
        self._lacking = frozenset()
        found = self._desired()
        if not found.wrong:
            self._failures += [f"{one.plural}: {UNLISTED}" for one in (FLAVORS, QUEUES) if one.kind in self._unknown]
            if not self._failures:
                await self._apply_objects(found)
            found = self._desired() if self._failures else found
        await self._write_status(found.status)
        if self._failures:
            pause = backoff(_FIRST_PAUSE, self._failed, _LONGEST_PAUSE)
            self._failed += 1
            self._retry_in(pause)
        else:
            self._failed = 0

    def _retry_in(self, seconds: float) -> None:
        at = self._context.now() + seconds
        self._retry_at = at if self._retry_at is None else min(self._retry_at, at)

    def _desired(self) -> Desired:
        master, store = self._master, self._context.store
        uid = master.metadata.uid
        queues, flavors = list(store.all(ObservedQueue)), list(store.all(ObservedFlavor))
        local = {one.name for one in master.spec.flavors if one.local_flavor is not None}
        foreign = {one.key for one in flavors if one.owner != uid}
        view = ClusterView(
            foreign_queues=frozenset(one.key for one in queues if one.owner != uid),
            own_queues=frozenset(one.key for one in queues if one.owner == uid),
            foreign_flavors=local if FLAVORS.kind in self._unknown else foreign,
            leaving=frozenset(
                (kind_of(one), one.key)
                for one in (*queues, *flavors)
                if one.owner != uid and one.metadata.deletion_timestamp
            ),
            away=self._context.away(),
            ahead=self._context.ahead(),
            failures=tuple(self._failures),
            lacking=self._lacking,
        )
        self._desired_at = self._context.now()
        return desired(master, self._pools or Pools(MasterQueueSpec()), self._desired_at, view)

    @property
    def _unknown(self) -> Collection[type]:
        return self._context.unknown()

    # ------------------------------------------------------------------ objects

    async def _apply_objects(self, found: Desired) -> None:
        """Create flavors before the queues that name them, and delete flavors after the queues that named them."""
        await self._apply(FLAVORS, found.flavors)
        existing = {one.key for one in self._context.store.all(ObservedFlavor) if not one.metadata.deletion_timestamp}
        self._lacking = frozenset(one.metadata.name for one in found.flavors) - existing
        await self._apply(QUEUES, self._desired().queues if self._lacking else found.queues)
        if not self._failures:
            await self._delete_unused({empty_flavor(self._master.key), *(one.metadata.name for one in found.flavors)})

    async def _apply(self, resource: Resource[Any], wanted: Iterable[Any]) -> None:
        leaving = {one.key for one in self._context.store.all(resource.kind) if one.metadata.deletion_timestamp}
        async with asyncio.TaskGroup() as group:
            for one in wanted:
                if one.metadata.name in leaving:  # created again after its deletion event
                    self._failures.append(f"{resource.plural} {one.metadata.name}: is being deleted")
                else:
                    group.create_task(self._write(self._context.applier.apply(resource, one)))

    async def _write(self, write: Coroutine[Any, Any, bool]) -> None:
        try:
            async with self._context.writes:
                wrote = await write
            self._wrote = self._wrote or wrote
        except ClusterError as error:
            self._failures.append(str(error))

    async def _delete_unused(self, wanted: set[str]) -> None:
        """Delete its flavors that are no longer desired, except those that a Workload names."""
        context, now = self._context, self._context.now()
        own = context.store.owned(ObservedFlavor, self._master.metadata.uid)
        stale = {one.key: one for one in own if one.key not in wanted and not one.metadata.deletion_timestamp}
        self._stale = {name: self._stale.get(name, now) for name in stale}
        if not stale:
            return
        ripe = [name for name, since in self._stale.items() if now - since >= DROP_SECONDS]
        try:
            used = await context.in_use.of(ripe, now) if ripe else frozenset()
        except ClusterError as error:
            self._failures.append(f"cannot delete flavors of silent pools: {error}")
            return
        async with asyncio.TaskGroup() as group:
            for name in ripe:
                if name not in used:
                    group.create_task(self._write(self._delete_flavor(stale[name])))
        self._retry_in(context.in_use.seconds if used else DROP_SECONDS)

    async def _delete_flavor(self, one: Observed) -> bool:
        await self._context.applier.delete(FLAVORS, one)
        log.info("[master-queue] %s: deleted ResourceFlavor %s: no queue names it", self._master.key, one.key)
        return True

    # ------------------------------------------------------------------ status

    async def _write_status(self, status: MasterQueueStatus) -> None:
        """Write the status if it changed. If only times of messages changed, write it every `status_seconds`."""
        now, before = self._context.now(), self._master.status
        if status == before:
            self._messages_pending = False
            return
        if _without_times(status) == _without_times(before) and now < self._status_at + self._context.status_seconds:
            return
        meta = self._master.metadata
        body = {
            "apiVersion": self._master.api_version,
            "kind": "MasterQueue",
            "metadata": {"name": meta.name, "uid": meta.uid},
            "status": plain(status),
        }
        try:
            path = MASTERS.path("", meta.name, "status")
            answer = await self._context.api.apply(path, body, manager=MANAGER, force=True)
        except ClusterError as error:
            if self._failed or not isinstance(error, NotFound):  # a deleted MasterQueue has no status
                log.warning("[master-queue] %s: cannot write the status: %s", meta.name, error)
            self._failures.append(str(error))
            return
        self._status_at, self._messages_pending, self._wrote = now, False, True
        written = msgspec.convert(answer, MasterQueue)
        self._master = msgspec.structs.replace(self._master, status=written.status)
        self._context.observe(written)


def _without_times(status: MasterQueueStatus) -> MasterQueueStatus:
    pools = tuple(msgspec.structs.replace(pool, last_message="") for pool in status.pools)
    return msgspec.structs.replace(status, pools=pools)
