"""Reclaim in random clusters whose controllers recreate evicted pods: queues under load reach a stable state."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.testing.builders import gang, pod
from session_scheduler.testing.fake_cluster import FakeCluster

from ....tools.examples import first
from .reclaiming_world import RecreatingWorld

LABEL = "fluence.flux-framework.org/queue"
Work = tuple[str, int, int, int]
"""The queue, the number of pods, the CPUs of each, the priority."""


class World(RecreatingWorld[Work]):
    """Queues that each request more than the cluster has."""

    def __init__(self, seed: int, *, odd: bool = False, evaluation: str = "heap") -> None:
        """`odd`: nodes are unequal, some queues have no deserved amounts, and two may share a parent with a limit."""
        self.chance = chance = random.Random(seed)
        names = "abc"[: chance.choice([2, 2, 3])]
        top = [QueueConfig(name="top", limit={"cpu": chance.choice([4, 6, 20])})] if odd else []
        queues = [
            QueueConfig(
                name=name,
                deserved={} if odd and chance.random() < 0.3 else {"cpu": chance.choice([0, 2, 4])},
                over_quota_weight=chance.choice([1, 2]),
                parent="top" if odd and name != "c" else "",
            )
            for name in names
        ]
        config = SchedulerConfig(
            bindings_in_flight=1_000,
            actions=("allocate", "preempt", "reclaim"),
            queues=(*top, *queues),
            seed=seed,
        )
        self.cluster = FakeCluster(config=config, evaluation=evaluation)
        sizes = [chance.choice([3, 4, 6])] * chance.choice([1, 2, 3])
        for number, size in enumerate(sizes):
            self.cluster.node(f"n{number + 1}", cpu=str(size + (number % 2) * odd))
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

    def state(self) -> dict[str, tuple[str, str, bool]]:
        """By pod: its node, its nominated node, whether it terminates."""
        nominations = self.cluster.scheduler.cache.nominations
        return {
            task.name: (
                task.node or "",
                nominations.node_of(task) or "",
                task.pod.metadata.deletion_timestamp is not None,
            )
            for task in self.cluster.scheduler.cache.tasks.values()
        }


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("seed", first(range(40)))
def test_queues_under_load_reach_a_stable_state(seed: int, *, odd: bool) -> None:
    world = World(seed, odd=odd)
    late = len(world.load) // 2
    for work in world.load[:late]:
        world.add(work)
    ended = [world.turn()]
    for work in world.load[late:]:
        world.add(work)
    ended += [world.turn() for _ in range(24)]
    assert ended[-8:] == [0] * 8


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("seed", first(range(25)))
def test_queues_reach_a_stable_state_if_pods_arrive_while_victims_terminate(seed: int, *, odd: bool) -> None:
    world = World(100 + seed, odd=odd)
    load, ended = iter(world.load), []
    for work in load:
        world.add(work)
        for more in load:
            world.add(more)
            break
        ended.append(world.turn())
    ended += [world.turn() for _ in range(24)]
    assert ended[-8:] == [0] * 8


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("seed", first(range(15)))
def test_cached_trial_results_change_no_decision(seed: int, *, odd: bool) -> None:
    remembering, forgetful = World(seed, odd=odd), World(seed, odd=odd, evaluation="naive")
    for work in remembering.load:
        remembering.add(work)
        forgetful.add(work)
    for _ in range(6):
        assert remembering.turn() == forgetful.turn()
        assert remembering.state() == forgetful.state()
