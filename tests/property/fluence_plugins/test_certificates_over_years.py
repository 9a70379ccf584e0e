"""Replicas that share one Secret and one configuration over years: each serves only trusted certificates."""

import asyncio
import random
from datetime import datetime, timedelta

import pytest

from fluence_plugins.env_injection.certificates import LIFETIMES, signer

from ...tools.examples import first
from ...unit.fluence_plugins.env_injection.keeping_world import PLACE, START, Replica, World

MINUTE = timedelta(minutes=1)
LAG = timedelta(seconds=10)
"""How long an API server may use an outdated configuration."""


class History:
    """The bundles so far, each with its start."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: list[tuple[datetime, frozenset[bytes]]] = []

    def note(self) -> None:
        self._seen = [*self._seen[-100:], (self._world.now, self._world.api.bundle())]

    def believed(self) -> list[frozenset[bytes]]:
        """The bundles that some API server may use now."""
        since = self._world.now - LAG
        older = [bundle for at, bundle in self._seen if at < since][-1:]
        return older + [bundle for at, bundle in self._seen if at >= since]


def assert_trusted(history: History, replicas: list[Replica]) -> None:
    believed = frozenset[bytes].intersection(*history.believed())
    for replica in replicas:
        assert replica.problems() or signer(replica.now) in believed


async def live_through(world: World, chance: random.Random, replicas: list[Replica], history: History) -> None:
    """Minutes in which each replica checks once, in any order or two at once, while a change happens at the start."""
    for minute in range(5):
        chance.shuffle(replicas)
        for replica in replicas:
            world.now += MINUTE / len(replicas)
            if minute < 2 and chance.random() < 0.1:
                world.api.objects.pop(PLACE.path, None)
            elif minute < 2 and chance.random() < 0.02 and PLACE.path in world.api.objects:
                world.api.objects[PLACE.path]["data"] = {}
            await asyncio.gather(*(each.check() for each in {replica, chance.choice(replicas)}))
            history.note()
            assert_trusted(history, replicas)
    assert all(not replica.problems() for replica in replicas)


@pytest.mark.parametrize("seed", first(range(3)))
async def test_over_eight_years_each_ready_replica_serves_a_trusted_certificate(seed: int) -> None:
    chance, world = random.Random(seed), World()
    replicas = [world.replica() for _ in range(3)]
    history = History(world)
    history.note()
    await asyncio.gather(*(replica.check() for replica in replicas))
    history.note()
    cas = set[bytes]()
    while world.now < START + timedelta(days=8 * 365):
        await live_through(world, chance, replicas, history)
        cas |= world.api.bundle()
        if chance.random() < 0.2:
            replicas[0] = world.replica()
        world.now += chance.choice(
            [timedelta(days=110), timedelta(days=110), timedelta(hours=2), LIFETIMES.overlap / 2]
        )
    assert len(cas) >= 2
