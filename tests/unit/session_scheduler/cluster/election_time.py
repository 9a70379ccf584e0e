"""Virtual time for several replicas, and a cluster that fails for one of them."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from session_scheduler.cluster.errors import NotLeading, Unavailable
from session_scheduler.cluster.leader_election import Elector
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import LeaderElection
from session_scheduler.model.objects import Lease

_Got = TypeVar("_Got")
SETTINGS = LeaderElection(lease_seconds=15, renew_seconds=10.0, retry_seconds=2.0)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
_TURNS = 30
"""Iterations of the event loop that finish everything that needs no time."""


class Time:
    """A clock that moves only in `pass_by`, and resumes waiting coroutines in order."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0
        self.each: list[Callable[[], None]] = []
        """Called after each step."""

    def now(self) -> float:
        return self._now

    def wall(self) -> datetime:
        return NOON + timedelta(seconds=self._now)

    async def sleep(self, seconds: float) -> None:
        self._count += 1
        resumed = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + max(0.0, seconds), self._count, resumed))
        await resumed

    async def run_pending(self) -> None:
        """Run everything that needs no time."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        for call in self.each:
            call()

    async def pass_by(self, seconds: float) -> None:
        """Move the clock, from one waiting coroutine to the next."""
        end = self._now + seconds
        await self.run_pending()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, resumed = heapq.heappop(self._sleepers)
            if not resumed.done():
                resumed.set_result(None)
            await self.run_pending()
        self._now = end
        await self.run_pending()


class Link:
    """One replica's connection to the cluster."""

    def __init__(self, cluster: MemoryCluster, time: Time) -> None:
        self._cluster = cluster
        self._time = time
        self.down = False
        """Requests fail, and are not executed."""
        self.deaf = False
        """Requests are executed, but their responses are lost."""
        self.hangs = False
        """Requests are neither executed nor answered."""
        self.seconds = 0.0
        """Delay of a response, after its request was executed."""
        self.asked = 0

    async def get(self, *arguments: Any, **options: Any) -> Any:
        return await self._send(self._cluster.get(*arguments, **options))

    async def create(self, obj: Any) -> Any:
        return await self._send(self._cluster.create(obj))

    async def replace(self, obj: Any) -> Any:
        return await self._send(self._cluster.replace(obj))

    async def _send(self, request: Awaitable[_Got]) -> _Got:
        self.asked += 1
        if self.hangs or self.down:
            request.close()  # type: ignore[attr-defined]
            if self.hangs:
                await asyncio.Event().wait()
            raise Unavailable("down")
        answer = await request
        if self.seconds:
            await self._time.sleep(self.seconds)
        if self.deaf:
            raise Unavailable("no answer")
        return answer


class Replica:
    """A candidate that leads when it can, and becomes a candidate again after it has lost the lease."""

    def __init__(self, name: str, cluster: MemoryCluster, time: Time, settings: LeaderElection = SETTINGS,
                 wall: Callable[[], datetime] | None = None) -> None:  # fmt: skip
        self.link = Link(cluster, time)
        self.elector = Elector(self.link, settings, identity=name, clock=time, now=wall or time.wall, sleep=time.sleep)  # type: ignore[arg-type]
        self.terms: list[float] = []
        """The times at which it began to lead."""
        self.losses: list[str] = []
        self._time = time
        self._task: asyncio.Task[None] | None = None

    @property
    def leading(self) -> bool:
        return self.elector.fence.leading

    def start(self) -> Replica:
        self._task = asyncio.ensure_future(self._run())
        return self

    async def kill(self) -> None:
        """End it without a release, as SIGKILL does."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def stop(self) -> None:
        await self.kill()
        await self.elector.release()

    async def _run(self) -> None:
        while True:
            await self.elector.acquire()
            self.terms.append(self._time.now())
            try:
                await self.elector.keep()
            except NotLeading as lost:
                self.losses.append(str(lost))


async def lease_in(cluster: MemoryCluster) -> Lease:
    """Return the current Lease."""
    return await cluster.get(Lease, SETTINGS.namespace, SETTINGS.name)


def check_one_leads(*replicas: Replica) -> None:
    assert sum(replica.leading for replica in replicas) <= 1
