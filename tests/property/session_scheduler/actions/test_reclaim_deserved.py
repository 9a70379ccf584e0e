"""What queues deserve, with pods of several sizes in random clusters: they get it, and reclaim becomes stable."""

from __future__ import annotations

import random

import pytest

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.testing.builders import gang, pod, pod_group
from session_scheduler.testing.fake_cluster import FakeCluster

from ....tools.examples import first
from .reclaiming_world import RecreatingWorld

LABEL = "fluence.flux-framework.org/queue"
GPU = "nvidia.com/gpu"
Work = tuple[str, int, int, str, int, str]
"""The queue, the number of pods, the GPUs and CPUs of each, the priority, the group's disruption mode."""


class World(RecreatingWorld[Work]):
    """Queues that request more GPUs and CPUs than the cluster has, some with children, some without weight."""

    def __init__(self, seed: int, *, nodes: int, simple: bool, evaluation: str = "heap") -> None:
        """`simple`: only GPUs are scarce and deserved, there are no child queues and no groups."""
        self.chance = chance = random.Random(seed)
        self.simple = simple
        sizes = [chance.choice([2, 3, 4]) for _ in range(nodes)]
        self.deserved: dict[str, int] = {}
        config = SchedulerConfig(
            bindings_in_flight=1_000,
            actions=("allocate", "preempt", "reclaim"),
            seed=seed,
            queues=self._queues(sum(sizes)),
        )
        self.cluster = FakeCluster(config=config, evaluation=evaluation)
        for number, size in enumerate(sizes):
            cpu = "64" if simple else str(size + chance.choice([0, 2]))
            self.cluster.node(f"n{number + 1}", cpu=cpu, offers={GPU: size})
        self._number = 0
        self._work: dict[str, Work] = {}

    def _queues(self, gpus: int) -> tuple[QueueConfig, ...]:
        chance, left, found = self.chance, gpus, []
        if not self.simple:
            found += [QueueConfig(name="top", deserved=chance.choice([{}, {GPU: gpus // 2}]))]
        for name in "abc":
            self.deserved[name] = most = chance.randint(0, left)
            left -= most
            kinds = [{GPU: most}] if self.simple else [{}, {GPU: most}, {"cpu": most}, {GPU: most, "cpu": most}]
            parent = "" if self.simple else chance.choice(["", "top"])
            weight = chance.choice([0, 1, 1, 3])
            found += [QueueConfig(name=name, deserved=chance.choice(kinds), parent=parent, over_quota_weight=weight)]
        return tuple(found)

    def load(self) -> None:
        """Add pods, and groups of pods, to each queue."""
        chance = self.chance
        names = [name for name in "abc" for _ in range(chance.randint(2, 6))]
        chance.shuffle(names)
        for name in names:
            size = 1 if self.simple else chance.choice([1, 1, 1, 2, 3])
            gpus = chance.choice([1, 1, 2, 3]) if self.simple else chance.choice([0, 1, 1, 2])
            cpu = "100m" if self.simple else chance.choice(["100m", "1", "2"])
            self.add((name, size, gpus, cpu, chance.choice([0, 10, 50]), chance.choice(["Pod", "PodGroup"])))

    def add(self, work: Work) -> None:
        """Add a pod or a gang."""
        queue, size, gpus, cpu, priority, mode = work
        self._number += 1
        name = f"{queue}-{self._number}"
        self._work[name] = work
        requests = {GPU: gpus} if gpus else {}
        if size == 1:
            self.cluster.add(pod(name, queue=queue, cpu=cpu, priority=priority, requests=requests))
            return
        _, *pods = gang(name, size, queue=queue, cpu=cpu, priority=priority, requests=requests)
        self.cluster.add(pod_group(name, size, labels={LABEL: queue}, disruption_mode=mode), *pods)


@pytest.mark.parametrize("seed", first(range(60)))
def test_reclaim_with_pods_of_several_sizes_reaches_a_stable_state(seed: int) -> None:
    world = World(seed, nodes=random.Random(seed).choice([1, 2, 3]), simple=False)
    for _ in range(2):
        world.load()
        ended = [world.turn() for _ in range(25)]
    assert ended[-8:] == [0] * 8


@pytest.mark.parametrize("seed", first(range(60)))
def test_no_pod_waits_that_its_queue_deserves(seed: int) -> None:
    """On one node all GPUs that queues have beyond their deserved amounts are enough."""
    world = World(seed, nodes=1, simple=True)
    for _ in range(2):
        world.load()
        ended = [world.turn() for _ in range(20)]
    assert ended[-5:] == [0] * 5
    has = dict.fromkeys("abc", 0)
    waits: dict[str, list[int]] = {name: [] for name in "abc"}
    for task in world.cluster.scheduler.cache.tasks.values():
        gpus = task.cls.requests[GPU]
        if task.node is None:
            waits[task.group.queue].append(gpus)
        else:
            has[task.group.queue] += gpus
    for name, sizes in waits.items():
        assert all(has[name] + size > world.deserved[name] for size in sizes), (name, has, waits, world.deserved)


@pytest.mark.parametrize("seed", first(range(15)))
def test_with_pods_of_several_sizes_cached_results_change_no_decision(seed: int) -> None:
    worlds = [World(seed, nodes=2, simple=False, evaluation=evaluation) for evaluation in ("heap", "naive")]
    for world in worlds:
        world.load()
    for _ in range(6):
        one, other = (world.turn() for world in worlds)
        assert one == other
        nodes = [{task.name: task.node for task in world.cluster.scheduler.cache.tasks.values()} for world in worlds]
        assert nodes[0] == nodes[1]
