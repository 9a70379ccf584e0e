"""The controller of MasterQueues: receives pools' messages over NATS, watches the API server, and runs a reconciler for
each MasterQueue.

All state is in the API server, so that another replica can continue: the status of a MasterQueue contains its pools.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from fluence_plugins.master_queue.api import informer_store
from fluence_plugins.master_queue.api.flavors_in_use import FlavorsInUse
from fluence_plugins.master_queue.api.master_queue import MasterQueue
from fluence_plugins.master_queue.api.server_side_apply import Applier
from fluence_plugins.master_queue.controller.local_queue_reconciler import LocalQueueReconciler
from fluence_plugins.master_queue.controller.local_queues import ANNOTATION
from fluence_plugins.master_queue.controller.message_router import MessageRouter
from fluence_plugins.master_queue.controller.reconciler import Reconciler, ReconcilerContext
from fluence_plugins.master_queue.metrics import MasterQueueMetrics, PoolSample
from fluence_plugins.master_queue.nats.connection import Listener
from fluence_plugins.master_queue.nats.connections import Connections
from session_scheduler.sdk.dynamic_client import KubeApi
from session_scheduler.sdk.dynamic_informer import Change, Follower
from session_scheduler.sdk.signals import background, first_of

log = logging.getLogger("master-queue")

STATUS_SECONDS: Final = 30.0
_WRITES: Final = 8
"""The maximum number of concurrent writes to the API server."""
_AGAIN_SECONDS: Final = 5.0
"""The pause before the controller restarts after an unexpected error."""


Handle = Callable[[Change, Any], None]


def steady_clock() -> Callable[[], float]:
    """A clock of Unix seconds that never jumps: the current time when it is created, plus the time passed since."""
    began, wall = time.monotonic(), time.time()
    return lambda: wall + time.monotonic() - began


def wall_ahead(now: Callable[[], float], wall: Callable[[], float] = time.time) -> Callable[[], float]:
    """How many seconds the wall clock is ahead of `now`, for example after it was set. Changes below a second are
    ignored.
    """
    ahead = 0.0

    def found() -> float:
        nonlocal ahead
        seconds = wall() - now()
        ahead = ahead if abs(seconds - ahead) < 1 else seconds
        return ahead

    return found


class Controller:
    """Runs the reconcilers of all MasterQueues."""

    def __init__(
        self,
        api: KubeApi,
        connect: Callable[[Listener], Connections],
        *,
        meter: MasterQueueMetrics,
        status_seconds: float = STATUS_SECONDS,
        now: Callable[[], float] | None = None,
        follow: Callable[[Handle], Follower] | None = None,
    ) -> None:
        """`now` and `follow` are for tests: a clock of Unix seconds that never go back, and the watch of the API
        server.
        """
        self._follower = (follow or (lambda handle: Follower(api, informer_store.RESOURCES, handle)))(self._observe)
        self._router = MessageRouter(meter)
        self._connections = connect(self._router)
        self._store = informer_store.Store()
        clock = now or steady_clock()
        self._context = ReconcilerContext(
            api=api,
            store=self._store,
            applier=Applier(api, self._store, meter, clock),
            in_use=FlavorsInUse(api),
            writes=asyncio.Semaphore(_WRITES),
            now=clock,
            ahead=wall_ahead(clock) if now is None else lambda: 0.0,
            away=self._disconnected,
            unknown=lambda: self._follower.refused,
            observe=lambda master: self._observe(Change.MODIFIED, master),
            status_seconds=status_seconds,
        )
        self._reconcilers: dict[str, tuple[Reconciler, asyncio.Task[None]]] = {}
        """By the MasterQueue's uid."""
        self._ending: set[asyncio.Task[None]] = set()
        self._local_queues = LocalQueueReconciler(self._store, self._context.applier, self._context.unknown)

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            for obj in await self._follower.start():
                self._observe(Change.ADDED, obj)
            await first_of(self._follower.run(), self._connections.run(), self._local_queues.run())
        finally:
            for uid in tuple(self._reconcilers):
                self._end(uid)
            await asyncio.gather(*self._ending, return_exceptions=True)

    def _end(self, uid: str) -> None:
        _, task = self._reconcilers.pop(uid)
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # ------------------------------------------------------------------ changes from the API server

    def _observe(self, change: Change, obj: Any) -> None:
        before = self._store.observe(change, obj)
        if before is obj:
            return
        if isinstance(obj, MasterQueue):
            self._master(change, obj)
        elif isinstance(obj, informer_store.ObservedFlavor | informer_store.ObservedQueue):
            relevant = change is Change.DELETED or before is None or not obj.like(before)
            if relevant:
                self._requeue(obj, before)
            if relevant or change is Change.ADDED:  # our own objects are known before their event
                self._local_queues.requeue()
        elif _concerns_local_queues(obj) or _concerns_local_queues(before):
            self._local_queues.requeue()

    def _master(self, change: Change, master: MasterQueue) -> None:
        uid = master.metadata.uid
        if change is Change.DELETED or master.metadata.deletion_timestamp:
            if uid in self._reconcilers:
                self._end(uid)
        elif uid not in self._reconcilers:
            reconciler = Reconciler(master, self._context)
            self._reconcilers[uid] = reconciler, asyncio.create_task(reconciler.run(), name=f"MasterQueue {master.key}")
        else:
            self._reconcilers[uid][0].follow(master)
        self._connections.follow(self._router.listen(reconciler for reconciler, _ in self._reconcilers.values()))
        self._local_queues.requeue()

    def _requeue(self, obj: informer_store.Observed, before: informer_store.Observed | None) -> None:
        """Requeue the reconcilers of the object's owners, old and new. An object of another owner may conflict with
        any: requeue all.
        """
        uids = {obj.owner, before.owner if before is not None else obj.owner}
        for uid, (reconciler, _) in self._reconcilers.items():
            if uid in uids or not uids <= self._reconcilers.keys():
                reconciler.requeue()

    # ------------------------------------------------------------------ metrics

    def connector_states(self) -> Mapping[str, bool]:
        """Whether each connector is connected, by its label."""
        return self._connections.states()

    def pool_samples(self) -> list[PoolSample]:
        """The current pools."""
        return [sample for reconciler, _ in self._reconcilers.values() for sample in reconciler.samples()]

    def _disconnected(self) -> Mapping[str, str]:
        problems = {connector: self._connections.problem(connector) for connector in self._router.connectors}
        return {connector: why for connector, why in problems.items() if why is not None}


def _concerns_local_queues(obj: Any) -> bool:
    if isinstance(obj, informer_store.ObservedNamespace):
        return ANNOTATION in obj.metadata.annotations
    return isinstance(obj, informer_store.ObservedLocalQueue)


@asynccontextmanager
async def running(make: Callable[[], Controller]) -> AsyncGenerator[None]:
    """Run a controller as a task; restart it after an unexpected error."""

    async def forever() -> None:
        while True:
            try:
                await make().run()
            except Exception:  # objects stay unchanged until the restart
                log.exception("[master-queue] the controller failed: restarting it")
            await asyncio.sleep(_AGAIN_SECONDS)

    async with background(forever()):
        yield
