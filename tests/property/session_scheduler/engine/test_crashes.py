"""Crash safety: gangs stay complete and nothing is held twice if writes, answers and replicas fail."""

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
    """Make the names of attempts the same in every run."""
    source = Random(5)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=source.getrandbits(128), version=4))


def incomplete(world: World):
    """Partially bound gangs that were never complete. Pods of a gang that was complete may keep running."""
    found = []
    for group in world.cluster.all(PodGroup):
        bound = world.cluster.bound(group.metadata.name)
        started = any(one.metadata.uid in world.cluster.veterans for one in bound)
        if bound and not enough(group, bound) and not started:
            found.append(f"{group.key} is bound with {[one.key for one in bound]} of {group.min_count}")
    return found


def in_several_zones(world: World):
    """Gangs with bound pods in several zones."""
    zones = {group.metadata.name: set() for group in world.cluster.all(PodGroup)}
    for one in world.cluster.bound():
        zones[one.spec.scheduling_group.pod_group_name].add(int(one.spec.node_name[1:]) % 2)
    return [name for name, found in zones.items() if len(found) > 1]


def leftovers(replica):
    scheduler = replica.scheduler
    found = [f"{task!r} is assumed" for task in scheduler.cache.tasks.values() if task.phase is Phase.ASSUMED]
    if len(scheduler.in_flight) or scheduler.unknown_binds:
        found.append(f"{len(scheduler.in_flight)} tasks in flight, {len(scheduler.unknown_binds)} ambiguous binds")
    live = {one.metadata.uid: held_by(one) for one in scheduler.cluster._world.cluster.bound()}
    if replica.plugin.held != live:
        found.append(f"held is {replica.plugin.held}, bound pods hold {live}")
    return found


async def delete_all_pods(world: World, replica):
    """Delete all pods for good, and return the groups that still have a plan."""
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
        assert topology is None or in_several_zones(world) == []
        if most == 1:
            assert world.cluster.held_twice() == []
        assert world.cluster.wrong == []
    replica = await world.become_quiet()
    assert world.cluster.wrong == []
    assert incomplete(world) == []
    if most == 1:
        assert world.cluster.held_twice() == []
        assert leftovers(replica) == []
    assert await delete_all_pods(world, replica) == []
    await replica.scheduler.in_flight.abandon()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("seed", first(range(48)))
def test_with_one_replica_at_a_time_gangs_are_complete_and_nothing_is_held_twice(seed):
    asyncio.run(life(seed, most=1))


@pytest.mark.parametrize("seed", first(range(28)))
def test_with_overlapping_replicas_no_gang_is_mixed_or_partly_bound(seed):
    asyncio.run(life(seed, most=3))


@pytest.mark.parametrize("seed", first(range(24)))
def test_a_gang_with_a_topology_constraint_is_in_one_domain_at_every_moment(seed):
    asyncio.run(life(seed, most=1 + 2 * (seed % 3 == 0), topology="zone"))


@pytest.mark.parametrize("seed", first(range(24)))
def test_no_gang_stays_without_its_leader_whatever_the_number_of_bound_workers(seed):
    asyncio.run(life(seed, most=1 + 2 * (seed % 3 == 0), led=True))
