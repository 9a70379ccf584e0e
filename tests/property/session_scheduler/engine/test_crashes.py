"""Gangs stay all-or-nothing and nothing is allocated twice, for any fate of writes, answers and replicas."""

from __future__ import annotations

import asyncio
import uuid
from random import Random

import pytest

from session_scheduler.model.gang_plan import PLAN_ANNOTATION
from session_scheduler.model.groups import Phase
from session_scheduler.model.objects import Pod, PodGroup

from ....tools.examples import first
from .crashing_world import World, enough, held_by


@pytest.fixture(autouse=True)
def same_attempts(monkeypatch: pytest.MonkeyPatch):
    """Attempts get the same ids in every run."""
    source = Random(5)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=source.getrandbits(128), version=4))


def partly_bound(world: World):
    """Gangs that were never complete and are partly bound. Pods of a gang that was complete keep running."""
    found = []
    for group in world.cluster.all(PodGroup):
        bound = world.cluster.bound(group.metadata.name)
        started = any(one.metadata.uid in world.cluster.veterans for one in bound)
        if bound and not enough(group, bound) and not started:
            found.append(f"{group.key} is bound with {[one.key for one in bound]} of {group.min_count}")
    return found


def across_zones(world: World):
    """Gangs that are bound in several zones."""
    zones = {group.metadata.name: set() for group in world.cluster.all(PodGroup)}
    for one in world.cluster.bound():
        zones[one.spec.scheduling_group.pod_group_name].add(int(one.spec.node_name[1:]) % 2)
    return [name for name, found in zones.items() if len(found) > 1]


def unfinished_work(replica):
    scheduler = replica.scheduler
    found = [f"{task!r} is assumed" for task in scheduler.cache.tasks.values() if task.phase is Phase.ASSUMED]
    if len(scheduler.in_flight) or scheduler.unknown_binds:
        found.append(
            f"{len(scheduler.in_flight)} works in flight, {len(scheduler.unknown_binds)} binds with unknown outcome"
        )
    live = {one.metadata.uid: held_by(one) for one in scheduler.cluster._world.cluster.bound()}
    if replica.plugin.held != live:
        found.append(f"held is {replica.plugin.held}, bound pods hold {live}")
    return found


async def end_everything(world: World, replica):
    """All pods end, and none is recreated: no plan may remain."""
    world._sizes.clear()
    for one in world.cluster.all(Pod):
        world.cluster._remove(one)
    await world.become_quiet()
    left = [group.key for group in world.cluster.all(PodGroup) if PLAN_ANNOTATION in group.metadata.annotations]
    return [f"{key} has a plan and no pods" for key in left]


async def life(seed, *, most, steps=70, topology=None, led=False):
    world = World(Random(seed), extra=seed % 2 or int(led), topology=topology, led=led)
    for _ in range(steps):
        await world.step(most)
        assert topology is None or across_zones(world) == []
        if most == 1:
            assert world.cluster.held_twice() == []
        assert world.cluster.wrong == []
    replica = await world.become_quiet()
    assert world.cluster.wrong == []
    assert partly_bound(world) == []
    if most == 1:
        assert world.cluster.held_twice() == []
        assert unfinished_work(replica) == []
    assert await end_everything(world, replica) == []
    await replica.scheduler.in_flight.abandon()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("seed", first(range(48)))
def test_with_one_replica_gangs_are_all_or_nothing_and_allocations_unique(seed):
    asyncio.run(life(seed, most=1))


@pytest.mark.parametrize("seed", first(range(28)))
def test_with_overlapping_replicas_no_gang_is_mixed_or_partly_bound(seed):
    asyncio.run(life(seed, most=3))


@pytest.mark.parametrize("seed", first(range(24)))
def test_a_gang_with_a_topology_constraint_is_in_one_domain_at_every_moment(seed):
    asyncio.run(life(seed, most=1 + 2 * (seed % 3 == 0), topology="zone"))


@pytest.mark.parametrize("seed", first(range(24)))
def test_no_gang_is_bound_without_its_leader(seed):
    asyncio.run(life(seed, most=1 + 2 * (seed % 3 == 0), led=True))
