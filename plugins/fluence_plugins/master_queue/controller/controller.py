"""Keeps every MasterQueue of a cluster: hears pools over NATS, follows the API server, and has a task for each.

Nothing is known here that the API server would not tell another replica: its pools are in a MasterQueue's status.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from fluence_plugins.master_queue.api.flavors_in_use import FlavorsInUse
from fluence_plugins.master_queue.api.informer_store import (
    RESOURCES,
    Seen,
    SeenFlavor,
    SeenLocalQueue,
    SeenNamespace,
    SeenQueue,
    Store,
)
from fluence_plugins.master_queue.api.master_queue import MasterQueue
from fluence_plugins.master_queue.api.server_side_apply import Applier
from fluence_plugins.master_queue.controller.local_queue_reconciler import LocalQueueKeeper
from fluence_plugins.master_queue.controller.local_queues import ANNOTATION
from fluence_plugins.master_queue.controller.reconciler import Keeper, Shared
from fluence_plugins.master_queue.errors import MessageError
from fluence_plugins.master_queue.messages import decoded, pool_of
from fluence_plugins.master_queue.metrics import Measured, PoolFigure
from fluence_plugins.master_queue.nats.connections import Connections, Listener
from session_scheduler.sdk.dynamic_client import KubeApi
from session_scheduler.sdk.dynamic_informer import Change, Follower
from session_scheduler.sdk.signals import background, first_of

log = logging.getLogger("master-queue")

STATUS_SECONDS: Final = 30.0
_WRITES: Final = 8
"""To the API server at once."""
_AGAIN_SECONDS: Final = 5.0
"""Before all is begun anew after a failure that nobody expected."""


class Links(Protocol):
    """What of Connections is used here."""

    def follow(self, wanted: Mapping[str, list[str]]) -> None:
        """Want these subjects of these connectors."""

    def problem(self, connector: str) -> str | None:
        """Why a connector is not connected."""

    def states(self) -> Mapping[str, bool]:
        """Whether each wanted connector is connected, by its label."""

    async def run(self) -> None:
        """Keep the connections."""


class Following(Protocol):
    """What of a Follower is used here."""

    @property
    def refused(self) -> Collection[type]:
        """The types of which nothing is known."""

    async def start(self) -> list[Any]:
        """All objects that there are."""

    async def run(self) -> None:
        """Tell of every change since."""


Take = Callable[[Change, Any], None]


def steady_clock() -> Callable[[], float]:
    """Unix seconds that never go back nor jump: those of now, and what has passed since."""
    began, wall = time.monotonic(), time.time()
    return lambda: wall + time.monotonic() - began


def wall_ahead(now: Callable[[], float], wall: Callable[[], float] = time.time) -> Callable[[], float]:
    """By how many seconds the time of day is ahead of `now`, as after it was set; less than a second is none."""
    ahead = 0.0

    def found() -> float:
        nonlocal ahead
        seconds = wall() - now()
        ahead = ahead if abs(seconds - ahead) < 1 else seconds
        return ahead

    return found


class Controller:
    """All MasterQueues. `run` is its task."""

    def __init__(
        self,
        api: KubeApi,
        connect: Callable[[Listener], Links],
        *,
        meter: Measured,
        status_seconds: float = STATUS_SECONDS,
        now: Callable[[], float] | None = None,
        follow: Callable[[Take], Following] | None = None,
    ) -> None:
        """`now` and `follow` are for tests: Unix seconds that never go back, and what follows the API server."""
        self._follower = (follow or (lambda take: Follower(api, RESOURCES, take)))(self._taken)
        self._links = connect(self)
        self._meter = meter
        self._store = Store()
        clock = now or steady_clock()
        self._shared = Shared(
            api=api,
            store=self._store,
            applier=Applier(api, self._store, meter, clock),
            in_use=FlavorsInUse(api),
            writes=asyncio.Semaphore(_WRITES),
            now=clock,
            ahead=wall_ahead(clock) if now is None else lambda: 0.0,
            away=self._away,
            unknown=lambda: self._follower.refused,
            taken=lambda master: self._taken(Change.MODIFIED, master),
            status_seconds=status_seconds,
        )
        self._keepers: dict[str, tuple[Keeper, asyncio.Task[None]]] = {}
        """By the MasterQueue's uid."""
        self._ending: set[asyncio.Task[None]] = set()
        self._listening: dict[tuple[str, str], list[Keeper]] = {}
        """By connector and subject."""
        self._connected: set[str] = set()
        self._local_queues = LocalQueueKeeper(self._store, self._shared.applier, self._shared.unknown)
        meter.pools = self._figures
        meter.links = self._links.states

    async def run(self) -> None:
        """Keep them in step, until cancelled."""
        try:
            for obj in await self._follower.start():
                self._taken(Change.ADDED, obj)
            await first_of(self._follower.run(), self._links.run(), self._local_queues.run())
        finally:
            for uid in tuple(self._keepers):
                self._end(uid)
            await asyncio.gather(*self._ending, return_exceptions=True)

    def _end(self, uid: str) -> None:
        _, task = self._keepers.pop(uid)
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # ------------------------------------------------------------------ what the API server tells

    def _taken(self, change: Change, obj: Any) -> None:
        before = self._store.take(change, obj)
        if before is obj:
            return
        if isinstance(obj, MasterQueue):
            self._master(change, obj)
        elif isinstance(obj, SeenFlavor | SeenQueue):
            news = change is Change.DELETED or before is None or not obj.like(before)
            if news:
                self._wake(obj, before)
            if news or change is Change.ADDED:  # one that was made here is known before its event
                self._local_queues.wake()
        elif _asks(obj) or _asks(before):
            self._local_queues.wake()

    def _master(self, change: Change, master: MasterQueue) -> None:
        uid = master.metadata.uid
        if change is Change.DELETED or master.metadata.deletion_timestamp:
            if uid in self._keepers:
                self._end(uid)
        elif uid not in self._keepers:
            keeper = Keeper(master, self._shared)
            self._keepers[uid] = keeper, asyncio.create_task(keeper.run(), name=f"MasterQueue {master.key}")
        else:
            self._keepers[uid][0].follow(master)
        self._listen()
        self._local_queues.wake()

    def _wake(self, obj: Seen, before: Seen | None) -> None:
        """Those whose it is or was; all where it is nobody's, for it may be in the way of any."""
        uids = {obj.owner, before.owner if before is not None else obj.owner}
        for uid, (keeper, _) in self._keepers.items():
            if uid in uids or not uids <= self._keepers.keys():
                keeper.wake()

    # ------------------------------------------------------------------ what NATS tells

    def _listen(self) -> None:
        """Want the subjects of all MasterQueues, and tell those who are new to a connector what is known of it."""
        before = self._listening
        self._listening = {}
        for keeper, _ in self._keepers.values():
            for source in keeper.sources:
                self._listening.setdefault(source, []).append(keeper)
                if source[0] in self._connected and keeper not in before.get(source, ()):
                    keeper.connected(source[0])
        wanted: dict[str, list[str]] = {}
        for connector, subject in sorted(self._listening):
            wanted.setdefault(connector, []).append(subject)
        self._connected &= wanted.keys()
        self._links.follow(wanted)

    def _of(self, connector: str) -> list[Keeper]:
        return [keeper for (name, _), keepers in self._listening.items() if name == connector for keeper in keepers]

    def connected(self, connector: str) -> None:
        """See `Listener`."""
        self._connected.add(connector)
        for keeper in self._of(connector):
            keeper.connected(connector)

    def lost(self, connector: str, why: str, unheard: float) -> None:  # noqa: ARG002 (why is asked for when it is told)
        """See `Listener`."""
        self._connected.discard(connector)
        for keeper in self._of(connector):
            keeper.lost(connector, unheard)

    def message(self, connector: str, subject: str, message_subject: str, data: bytes) -> None:
        """See `Listener`."""
        keepers = self._listening.get((connector, subject), ())
        name = message_subject.removeprefix(f"{subject}.")
        try:
            name = pool_of(subject, message_subject)
            message = decoded(data)
        except MessageError as error:
            self._meter.message(subject, "refused")
            for keeper in keepers:
                keeper.refused(name, str(error))
            return
        taken = [not keeper.heard((connector, subject), name, message) for keeper in keepers]
        result = ("partial" if message.problems else "taken") if any(taken) else "unknown"
        self._meter.message(subject, result)

    def _away(self) -> Mapping[str, str]:
        connectors = {connector for connector, _ in self._listening}
        return {connector: why for connector in connectors if (why := self._links.problem(connector)) is not None}

    def _figures(self) -> list[PoolFigure]:
        return [figure for keeper, _ in self._keepers.values() for figure in keeper.figures()]


def _asks(obj: Any) -> bool:
    if isinstance(obj, SeenNamespace):
        return ANNOTATION in obj.metadata.annotations
    return isinstance(obj, SeenLocalQueue)


@asynccontextmanager
async def running(make: Callable[[], Controller]) -> AsyncGenerator[None]:
    """A controller as a task, made anew after a failure that nobody expected."""

    async def on() -> None:
        while True:
            try:
                await make().run()
            except Exception:  # it is logged; what there is stays as it is meanwhile
                log.exception("[master-queue] has failed, and begins anew")
            await asyncio.sleep(_AGAIN_SECONDS)

    async with background(on()):
        yield


def controller(
    api: KubeApi, connectors: Mapping[str, Any], meter: Measured, *, status_seconds: float = STATUS_SECONDS
) -> Controller:
    """A controller with connections of its own."""
    return Controller(
        api,
        lambda listener: Connections(connectors, listener, meter=meter),
        meter=meter,
        status_seconds=status_seconds,
    )
