"""Clusters whose controllers recreate evicted pods, for the properties of reclaim."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from session_scheduler.model.objects import Pod
from session_scheduler.testing.fake_cluster import FakeCluster

Work = TypeVar("Work")


class RecreatingWorld(ABC, Generic[Work]):
    """A cluster with work by the name of its pod or gang."""

    cluster: FakeCluster
    chance: random.Random
    _work: dict[str, Work]

    @abstractmethod
    def add(self, work: Work) -> None:
        """Add a pod or a gang."""

    def turn(self) -> int:
        """Run a cycle, finish some deletions, and recreate groups with evicted pods. Returns the number of victims."""
        self.cluster.run()
        tasks = self.cluster.scheduler.cache.tasks.values()
        ending = [task for task in tasks if task.pod.metadata.deletion_timestamp]
        broken = sorted({task.group.name for task in ending} & self._work.keys())
        if self.chance.random() < 0.7:
            self.cluster.finish_deletions()
        for name in broken:
            for task in list(tasks):
                if task.group.name == name and not task.pod.metadata.deletion_timestamp:
                    self.cluster.delete(Pod, task.name)
            self.add(self._work.pop(name))
        self.cluster.advance(11.0)
        return len(ending)
