"""A mirror of a cluster with scripted failures of its lists and watches, in virtual time."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from session_scheduler.cluster.errors import ClusterError
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.cluster.mirror import Mirror, MirrorMeter
from session_scheduler.cluster.port import Change, Kube, Listing, WatchEvent
from session_scheduler.model.objects import KubeObject, Node, ObjectMeta, Pod, PodGroup, PriorityClass, name_of

KINDS: tuple[type[KubeObject], ...] = (PriorityClass, Node, PodGroup, Pod)
SECOND_API = "scheduling.x-k8s.io/v1alpha1"
TURNS = 60
"""Iterations of the event loop: more than any chain of steps needs, as nothing waits outside of the loop."""


class FakeTime:
    """A clock that moves only in `advance`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self.pauses: list[float] = []

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        resumed = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, len(self.pauses), resumed))
        await resumed

    async def run_pending(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move the clock, from one waiting coroutine to the next."""
        end = self._now + seconds
        await self.run_pending()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, resumed = heapq.heappop(self._sleepers)
            if not resumed.done():
                resumed.set_result(None)
                await self.run_pending()
        self._now = end


class Faulty(MemoryCluster):
    """A cluster with scripted failures and delays of lists and watches, and with lost events."""

    def __init__(self, time: FakeTime, objects: Sequence[KubeObject] = ()) -> None:
        super().__init__(objects)
        self._time = time
        self.seconds: Callable[[], float] = lambda: 0.0
        self.passes = asyncio.Event()
        """While it is cleared, all events are held back."""
        self.passes.set()
        self.list_error: Callable[[], ClusterError | None] = lambda: None
        self.watch_error: Callable[[], ClusterError | None] = lambda: None
        self.loses: Callable[[WatchEvent[KubeObject]], bool] = lambda event: False
        self.ends_at_once = False
        self.lists: Counter[type] = Counter()
        self.watches: Counter[type] = Counter()
        self.open: Counter[type] = Counter()

    async def list(self, kind: type[Kube], **options: Any) -> Listing[Kube]:
        self.lists[kind] += 1
        error = self.list_error()
        if error is not None:
            raise error
        listing = await super().list(kind, **options)
        await self._take_time()
        return listing

    async def _take_time(self) -> None:
        """Delay of a response or an event."""
        seconds = self.seconds()
        if seconds:
            await self._time.sleep(seconds)

    async def now(self, kind: type[Kube]) -> Listing[Kube]:
        """A list that never fails and is not counted."""
        return await super().list(kind)

    async def watch(
        self, kind: type[Kube], resource_version: str, **options: Any
    ) -> AsyncGenerator[WatchEvent[Kube], None]:
        self.watches[kind] += 1
        error = self.watch_error()
        if error is not None:
            await self._take_time()
            raise error
        if self.ends_at_once:
            return
        self.open[kind] += 1
        events = super().watch(kind, resource_version, **options)
        try:
            async for event in events:
                if not self.loses(event):  # type: ignore[arg-type]
                    await self._take_time()
                    await self.passes.wait()
                    yield event
        finally:
            self.open[kind] -= 1
            await events.aclose()


@dataclass
class Meter(MirrorMeter):
    """Stores the counts."""

    events: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    lists: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)

    def event(self, kind: str) -> None:
        self.events[kind] += 1

    def watch_ended(self, kind: str, why: str) -> None:
        self.ended[kind, why] += 1

    def relisted(self, kind: str, why: str) -> None:
        self.lists[kind, why] += 1

    def missed(self, kind: str, count: int) -> None:
        self.lost[kind] += count


class Receiver:
    """Applies all changes from a mirror; raises AssertionError if they are inconsistent."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str]] = []
        self.objects: dict[object, KubeObject] = {}

    def take(self, change: Change, obj: KubeObject) -> None:
        self.changes.append((change.value, obj.metadata.name))
        name = type(obj), *name_of(obj)
        known = self.objects.get(name)
        if change is Change.ADDED:
            assert known is None, "added twice"
            self.objects[name] = obj
        elif change is Change.MODIFIED:
            assert known is not None, "modified before it was added"
            assert known.metadata.uid == obj.metadata.uid
            assert known.metadata.resource_version != obj.metadata.resource_version
            self.objects[name] = obj
        else:
            assert change is Change.DELETED
            assert known is not None, "deleted before it was added"
            assert known.metadata.uid == obj.metadata.uid
            del self.objects[name]


class World:
    """A cluster and its mirror in virtual time."""

    def __init__(self, *objects: KubeObject, kinds: Sequence[type[KubeObject]] = (Pod,), seed: int = 1,
                 optional: Sequence[type[KubeObject]] = ()) -> None:  # fmt: skip
        self.time = FakeTime()
        self.cluster = Faulty(self.time, objects)
        self.meter = Meter()
        self.reported = Receiver()
        self.kinds = kinds
        self.mirror = Mirror(self.cluster, kinds, self.reported.take, clock=self.time, sleep=self.time.sleep,
                             chance=random.Random(seed), meter=self.meter, optional=optional)  # fmt: skip

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        """Start and run the mirror, and cancel it at the end."""
        for obj in await self.mirror.start():
            self.reported.take(Change.ADDED, obj)
        self.reported.changes.clear()
        running = asyncio.create_task(self.mirror.run())
        await self.time.run_pending()
        try:
            yield self
        finally:
            ended = running.done()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            assert not ended

    async def is_mirrored(self) -> None:
        """Raise AssertionError unless the delivered changes add up to the cluster's state."""
        there = [(await self.cluster.now(kind)).items for kind in self.kinds]
        assert self.reported.objects == {(type(obj), *name_of(obj)): obj for items in there for obj in items}


def a_pod(name: str, **labels: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="ns", labels=labels))
