"""Evictions in random clusters with elastic gangs: none runs with fewer members than its minimum."""

from __future__ import annotations

import random
from typing import Any

import pytest

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.testing.builders import gang, pod, pod_group
from session_scheduler.testing.fake_cluster import FakeCluster

from ....tools.examples import first

LABEL = "fluence.flux-framework.org/queue"


class World:
    """Elastic gangs and pods in two queues, whose members controllers recreate."""

    def __init__(self, seed: int, evaluation: str = "heap") -> None:
        self.chance = chance = random.Random(seed)
        queues = tuple(QueueConfig(name=name, deserved={"cpu": chance.randint(1, 5)}) for name in "ab")
        config = SchedulerConfig(
            bindings_in_flight=1_000,
            actions=chance.choice([("allocate", "preempt", "reclaim"), ("allocate", "reclaim", "preempt")]),
            queues=queues,
            seed=seed,
        )
        self.cluster = FakeCluster(config=config, evaluation=evaluation)
        self.cluster.nodes(chance.randint(2, 4), cpu=chance.choice(["2", "3"]))
        self._number = 0
        self._options: dict[str, dict[str, Any]] = {}

    def add(self) -> None:
        """Add a gang, or a pod."""
        chance = self.chance
        self._number += 1
        name = f"g{self._number}"
        options: dict[str, Any] = {"cpu": "1", "queue": chance.choice("ab"), "priority": chance.choice([0, 5, 9])}
        size = chance.choice([1, 1, 2, 3, 4])
        if size == 1:
            self.cluster.add(pod(name, **options))
            return
        minimum = chance.randint(1, size)
        divided = minimum > 1 and chance.random() < 0.4
        sub_groups = f"leader=1,worker={minimum - 1}" if divided else None
        self.cluster.add(pod_group(name, minimum, labels={LABEL: options["queue"]}, sub_groups=sub_groups))
        _, *pods = gang(name, size, **options)
        for number, one in enumerate(pods):
            named = ("leader" if number == 0 else "worker") if divided else ""
            self._options[one.metadata.name] = {**options, "group": name, "sub_group": named}
            self.cluster.add(pod(one.metadata.name, **self._options[one.metadata.name]))

    def turn(self) -> list[str]:
        """Run a cycle. Returns the gangs that an eviction left with too few members; then recreates members."""
        self.cluster.run()
        cache = self.cluster.scheduler.cache
        wrong = []
        for group in {task.group: None for task in cache.tasks.values() if not task.group.single}:
            there = [task for task in group.tasks.values() if task.node is not None]
            stay = [task for task in there if task.pod.metadata.deletion_timestamp is None]
            if stay and len(stay) < len(there) and not group.suffice(stay):
                wrong.append(group.name)
        ended = {task.name for task in cache.tasks.values() if task.pod.metadata.deletion_timestamp}
        if self.chance.random() < 0.7:
            self.cluster.finish_deletions()
            for name in sorted(ended & self._options.keys()):
                self._number += 1
                again = f"{name.split('.')[0]}.{self._number}"
                self._options[again] = self._options.pop(name)
                self.cluster.add(pod(again, **self._options[again]))
        self.cluster.advance(11.0)
        return wrong

    def placements(self) -> dict[str, tuple[str | None, bool]]:
        """By pod: its node, and whether it terminates."""
        tasks = self.cluster.scheduler.cache.tasks.values()
        return {task.name: (task.node, task.pod.metadata.deletion_timestamp is not None) for task in tasks}


@pytest.mark.parametrize("seed", first(range(60)))
def test_no_eviction_leaves_a_gang_below_its_minimum(seed: int) -> None:
    world = World(seed)
    for _ in range(12):
        for _ in range(world.chance.randint(0, 3)):
            world.add()
        assert not world.turn()


@pytest.mark.parametrize("seed", first(range(15)))
def test_with_elastic_gangs_cached_results_change_no_decision(seed: int) -> None:
    worlds = [World(seed, evaluation) for evaluation in ("heap", "naive")]
    for _ in range(8):
        for world in worlds:
            for _ in range(world.chance.randint(0, 3)):
                world.add()
            world.turn()
        assert worlds[0].placements() == worlds[1].placements()
