"""Two replicas of two partitions over one cluster in memory: they never book a node twice, even if it moves."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster import partition
from session_scheduler.config.partition import PartitionConfig
from session_scheduler.config.settings import LeaderElection, Profile, SchedulerConfig, Serving
from session_scheduler.model.objects import Node, Pod
from session_scheduler.registry.validation import hook_calls
from session_scheduler.server.replica import Replica
from session_scheduler.testing import node, pod

from ..sdk.leading_cluster import Cluster, live

CPUS = 4
PATIENCE = 20.0


def replica(pool: str, clock: StoppedClock) -> Replica:
    config = SchedulerConfig(
        profiles=(Profile(scheduler_name=f"fluence-{pool}"),),
        partition=PartitionConfig(node_selector={"pool": pool}),
        leader_election=LeaderElection(name=f"fluence-{pool}", retry_seconds=0.01),
        serving=Serving(enabled=False),
    )
    calls = hook_calls([(name, builtin(None), None) for name, builtin in BUILTIN.items()])
    return Replica(config, {f"fluence-{pool}": calls}, clock)


class World:
    """Nodes a1, a2, b1 and b2 of two partitions."""

    def __init__(self) -> None:
        self.clock = StoppedClock()
        self.cluster = Cluster(
            *(node(name, labels={"pool": name[0]}, cpu=str(CPUS)) for name in ("a1", "a2", "b1", "b2"))
        )
        self.added = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        stop = asyncio.Event()
        lives = [asyncio.ensure_future(replica(pool, self.clock).run(live(self.cluster), stop)) for pool in "ab"]
        yield self
        assert not any(life.done() for life in lives)
        stop.set()
        await asyncio.wait_for(asyncio.gather(*lives), PATIENCE)

    def add(self, pool: str, count: int) -> None:
        for _ in range(count):
            self.added += 1
            self.cluster.put(pod(f"p{self.added}", cpu="1", scheduler=f"fluence-{pool}"))

    def label(self, name: str, pool: str) -> None:
        found = self.cluster._get(Node, ("", "", name))
        self.cluster.put(replace(found, metadata=replace(found.metadata, labels={"pool": pool})))

    def used(self) -> Counter[str]:
        return Counter(one.spec.node_name for one in self.cluster.objects(Pod) if one.spec.node_name)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                await asyncio.sleep(0.002)
                assert all(count <= CPUS for count in self.used().values()), self.used()


@pytest.fixture(autouse=True)
def settled_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "SETTLE_SECONDS", 0.05)


async def test_each_replica_fills_its_nodes() -> None:
    world = World()
    world.cluster.put(pod("bound-by-others", cpu="2", bound_to="a1", scheduler="another"))
    world.add("a", 10)
    world.add("b", 10)
    async with world.running():
        await world.until(lambda: world.used().total() == 1 + 2 * CPUS - 2 + 2 * CPUS)
        assert world.used() == {"a1": CPUS - 1, "a2": CPUS, "b1": CPUS, "b2": CPUS}


@pytest.mark.parametrize("seed", range(3))
async def test_nodes_that_move_are_never_booked_twice(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    async with world.running():
        for _ in range(12):
            world.label(chance.choice(["a1", "a2", "b1", "b2"]), chance.choice("ab"))
            world.add(chance.choice("ab"), chance.randrange(3))
            for _ in range(chance.randrange(20)):
                await asyncio.sleep(0.001)
                assert all(count <= CPUS for count in world.used().values())
        world.label("a1", "a")
        world.label("b1", "b")
        world.add("a", 4 * CPUS)
        world.add("b", 4 * CPUS)
        await world.until(lambda: world.used().total() == 4 * CPUS)
