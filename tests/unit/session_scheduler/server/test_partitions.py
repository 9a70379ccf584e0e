"""Two replicas of two partitions over one cluster in memory: they never book a node twice, even if it moves.

Joining nodes wait for a number of turns of the event loop, and moves are apart by numbers of turns. So the speed of
the machine does not matter.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from msgspec.structs import replace

from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.partition import Partition
from session_scheduler.config.partition import PartitionConfig
from session_scheduler.config.settings import LeaderElection, Profile, SchedulerConfig, Serving
from session_scheduler.model.objects import Node, Pod
from session_scheduler.registry.validation import hook_calls
from session_scheduler.server import source
from session_scheduler.server.replica import Replica
from session_scheduler.testing import node, pod

from ..sdk.leading_cluster import Cluster, live

CPUS = 4
PATIENCE = 20.0
JOIN_TURNS = 200
"""Far more than a Binding in memory takes."""


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
                await self.turns(10)
                await asyncio.sleep(0.001)

    async def turns(self, number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)
            assert all(count <= CPUS for count in self.used().values()), self.used()


async def wait_turns(_: float) -> None:
    for _turn in range(JOIN_TURNS):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def settling_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "Partition", partial(Partition, sleep=wait_turns))


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
    bound = set()
    async with world.running():
        await world.until(lambda: world.cluster.asked_to_list.is_set())
        for _ in range(40):
            world.label(chance.choice(["a1", "a2", "b1", "b2"]), chance.choice("ab"))
            world.add(chance.choice("ab"), chance.randrange(2))
            await world.turns(chance.choice([0, 5, JOIN_TURNS // 2, 2 * JOIN_TURNS]))
            bound.add(world.used().total())
        assert len(bound) > 3  # pods were bound between the moves
        world.label("a1", "a")
        world.label("b1", "b")
        world.add("a", 4 * CPUS)
        world.add("b", 4 * CPUS)
        await world.until(lambda: world.used().total() == 4 * CPUS)
