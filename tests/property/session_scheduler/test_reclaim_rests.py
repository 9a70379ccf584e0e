"""Queues under load: whatever is made to end comes anew, as a controller would have it, and it comes to rest."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from session_scheduler.config import QueueConfig, SchedulerConfig
from session_scheduler.model.objects import Pod
from session_scheduler.testing.builders import gang, pod
from session_scheduler.testing.fake_cluster import FakeCluster

LABEL = "fluence.flux-framework.org/queue"
Work = tuple[str, int, int, int]
"""The queue, how many pods, the CPUs of each, the priority."""


class World:
    """Queues of which each wants more than there is."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        names = "abc"[: chance.choice([2, 2, 3])]
        queues = [
            QueueConfig(name=name, deserved={"cpu": chance.choice([0, 2, 4])}, over_quota_weight=chance.choice([1, 2]))
            for name in names
        ]
        config = SchedulerConfig(
            bindings_in_flight=1_000, actions=("allocate", "preempt", "reclaim"), queues=tuple(queues), seed=seed
        )
        self.cluster = FakeCluster(config=config)
        self.cluster.nodes(chance.choice([1, 2, 3]), cpu=str(chance.choice([3, 4, 6])))
        self.load = list(self._load(names))
        chance.shuffle(self.load)
        self._number = 0
        self._work: dict[str, Work] = {}

    def _load(self, names: str) -> Iterator[Work]:
        for name in names:
            for _ in range(self.chance.randint(3, 7)):
                yield (
                    name,
                    self.chance.choice([1, 1, 2, 3]),
                    self.chance.choice([1, 1, 2]),
                    self.chance.choice([0, 10, 50]),
                )

    def add(self, work: Work) -> None:
        queue, size, cpu, priority = work
        self._number += 1
        name = f"{queue}-{self._number}"
        self._work[name] = work
        labels = {LABEL: queue}
        if size == 1:
            self.cluster.add(pod(name, cpu=str(cpu), priority=priority, labels=labels))
        else:
            self.cluster.add(*gang(name, size, cpu=str(cpu), priority=priority, labels=labels))

    def turn(self) -> int:
        """One cycle; some of what was made to end does, and what has lost a pod starts anew. How many were."""
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


@pytest.mark.parametrize("seed", range(40))
def test_queues_under_load_come_to_rest(seed: int) -> None:
    world = World(seed)
    late = len(world.load) // 2
    for work in world.load[:late]:
        world.add(work)
    ended = [world.turn()]
    for work in world.load[late:]:
        world.add(work)
    ended += [world.turn() for _ in range(24)]
    assert ended[-8:] == [0] * 8
