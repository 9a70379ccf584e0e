"""Backfill in random clusters: a gang with a reservation starts no later than its first reservation said."""

from __future__ import annotations

import random

import pytest

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.testing.builders import gang, pod
from session_scheduler.testing.fake_cluster import FakeCluster

from ....tools.examples import first

DURATION = "fluence.flux-framework.org/duration"
HOUR = 3600
_BACKOFF = 20.0
"""Seconds after which the scheduler retries pending groups."""


class _World:
    """A cluster where pods end exactly after their duration and new ones are added all the time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        config = SchedulerConfig(bindings_in_flight=1_000, actions=("allocate", "preempt", "backfill"), seed=seed)
        self.nodes = self.random.randint(2, 5)
        self.cluster = FakeCluster(config=config).nodes(self.nodes, cpu="8")
        self.seconds: dict[str, int] = {}
        self.ends: dict[str, float] = {}
        self.number = 0

    def add_pods(self, count: int, annotated: float = 1.0) -> None:
        """Add pods; `annotated` is the probability that a pod has a duration."""
        for _ in range(count):
            name, hours = f"p{self.number}", self.random.randint(1, 12)
            self.number += 1
            has_duration = self.random.random() < annotated
            self.seconds[name] = hours * HOUR if has_duration else 20 * HOUR
            annotations = {DURATION: f"{hours}h"} if has_duration else {}
            self.cluster.add(pod(name, cpu=str(self.random.randint(1, 8)), annotations=annotations))

    def turn(self) -> None:
        self.cluster.advance(_BACKOFF)
        self.cluster.run(cycles=2)
        for name in self.seconds:
            if name not in self.ends and self.cluster.node_of(name):
                self.ends[name] = self.cluster.clock.wall() + self.seconds[name]

    def until_next_end(self) -> None:
        """Advance the clock to the end of the next pod, and end it."""
        name = min((name for name in self.ends if name in self.seconds), key=lambda name: (self.ends[name], name))
        self.cluster.advance(max(0.0, self.ends[name] - self.cluster.clock.wall()))
        self.cluster.end(name)
        del self.seconds[name]

    def promised(self) -> float | None:
        return next(iter(self.cluster.scheduler.cache.nominations.starts.values()), None)


@pytest.mark.parametrize("seed", first(range(30)))
def test_backfilled_pods_do_not_delay_a_gang_beyond_its_first_reservation(seed: int) -> None:
    world = _World(seed)
    world.add_pods(world.nodes * 3, annotated=0.8)
    world.turn()
    size = world.random.randint(2, world.nodes)
    world.cluster.add(gang("g", size, cpu=str(world.random.randint(5, 8))))
    world.turn()
    promised = world.promised()
    filled = 0
    for _ in range(200):
        if world.cluster.node_of("g-0"):
            break
        promised = promised or world.promised()
        running = len(world.ends)
        world.add_pods(2)
        world.turn()
        filled += len(world.ends) - running
        world.until_next_end()
        world.turn()
    assert all(world.cluster.node_of(f"g-{number}") for number in range(size))
    late = world.cluster.clock.wall() - (promised or world.cluster.clock.wall())
    assert late < HOUR / 2, f"{late / HOUR:.1f} h late, after {filled} backfilled pods"
