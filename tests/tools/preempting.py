"""Clusters in which pods are evicted for others: the victims, and work that stays in flight across turns."""

from __future__ import annotations

import asyncio
from typing import Any

from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster


def ended(cluster: FakeCluster) -> list[str]:
    """The names of the pods that are being deleted."""
    return sorted(one.metadata.name for one in cluster.memory.objects(Pod) if one.metadata.deletion_timestamp)


class OneLoop(FakeCluster):
    """Turns of the scheduler in one event loop. A turn does not wait for work that it or an earlier turn has begun."""

    def __init__(self, runner: asyncio.Runner, **options: Any) -> None:
        super().__init__(checked=False, **options)
        self._runner = runner

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self._runner.run(self._turn())

    async def _turn(self) -> None:
        await self._deliver()
        await self.scheduler.complete_finished()
        await self.scheduler.decide()
        for _ in range(200):
            await asyncio.sleep(0)

    def get(self, name: str) -> Pod:
        found: Pod = self.find(Pod, name)
        return found

    def ending(self) -> list[str]:
        return ended(self)
