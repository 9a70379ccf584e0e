"""A recorder on a cluster in memory that can fail, with a stopped clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial

from session_scheduler.base.clock import StoppedClock
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.model.objects import Pod, PodCondition, PodGroup
from session_scheduler.reporting.metrics import ReportMetrics
from session_scheduler.reporting.recorder import Recorder
from session_scheduler.testing.builders import pod, pod_group

PATIENCE = 10.0
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Meter(ReportMetrics):
    """Records its calls."""

    def __init__(self):
        self.wrote = []
        self.lost = []

    def written(self, kind):
        self.wrote.append(kind)

    def dropped(self, kind, why):
        self.lost.append((kind, why))


class FaultyCluster(MemoryCluster):
    """Records the requested writes, and fails or delays those that a test names."""

    def __init__(self, objects, now):
        super().__init__(objects, now=now)
        self.asked = []
        self.faults = {}
        """By kind of write: the exceptions of the next writes; None lets one through."""
        self.done_but_lost = False
        """Whether a failing write takes effect all the same."""
        self.held = None
        """While this is an Event, writes wait for it."""
        self.held_kinds = {"condition", "event", "repeat"}
        """The kinds of writes that wait."""

    async def _meet(self, kind, write):
        self.asked.append(kind)
        if self.held is not None and kind in self.held_kinds:
            await self.held.wait()
        fault = self.faults[kind].pop(0) if self.faults.get(kind) else None
        if fault is None:
            return await write()
        if self.done_but_lost:
            await write()
        raise fault

    async def patch_status(self, obj, **fields):
        return await self._meet("condition", partial(super().patch_status, obj, **fields))

    async def record_event(self, event):
        return await self._meet("event", partial(super().record_event, event))

    async def repeat_event(self, namespace, name, series):
        return await self._meet("repeat", partial(super().repeat_event, namespace, name, series))


class World:
    """Two pods, two groups, and their recorder."""

    def __init__(self, **options):
        self.clock = StoppedClock()
        self.cluster = FaultyCluster([pod("one"), pod("two"), pod_group("gang", 2), pod_group("crew", 2)], self.now)
        self.meter = Meter()
        self.slept = []
        self.gate = None
        """While this is an Event, delays between tries last until it is set."""
        self.recorder = Recorder(
            self.cluster, clock=self.clock, now=self.now, meter=self.meter, sleep=self._sleep, **options
        )

    def now(self):
        return START + timedelta(seconds=self.clock.now())

    async def _sleep(self, seconds):
        self.slept.append(seconds)
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()

    async def pod(self, name: str = "one") -> Pod:
        return await self.cluster.get(Pod, "default", name)

    async def group(self, name: str = "gang") -> PodGroup:
        return await self.cluster.get(PodGroup, "default", name)

    async def bind(self, pod: Pod) -> None:
        await self.cluster.bind("default", pod.metadata.name, node="n1", uid=pod.metadata.uid,
                                resource_version=pod.metadata.resource_version, annotations={})  # fmt: skip

    async def run_pending(self) -> None:
        await asyncio.wait_for(self.recorder.flush(), PATIENCE)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        writing = asyncio.create_task(self.recorder.run())
        try:
            yield
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing

    def notes(self) -> list[str]:
        return [event.note for event in self.cluster.events]

    def counts(self) -> list[int]:
        """The reported number of occurrences of each event."""
        return [series.count if series else 1 for series in self.cluster.series.values()]


def shown(conditions: Iterable[PodCondition]) -> list[tuple[str, ...]]:
    return [(c.type, c.status, c.reason, c.message) for c in conditions]


async def turns(count: int = 20) -> None:
    """Let all ready tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)
