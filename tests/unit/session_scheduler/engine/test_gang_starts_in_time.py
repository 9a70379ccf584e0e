"""Gangs that are bound in part: what is in doubt, what comes late, and the time that they have."""

from __future__ import annotations

import asyncio

import pytest

from session_scheduler.cluster.errors import Conflict, Unavailable
from session_scheduler.model.gang_plan import PLAN_ANNOTATION
from session_scheduler.model.groups import Phase
from session_scheduler.model.objects import Node, Pod, PodGroup
from session_scheduler.testing import node, pod

from .gangs_world import World, refusing


def in_doubt(world: World, name, *, lands):
    """The outcome of this pod's bind stays unknown until the returned function is called."""
    memory = world.memory
    bind, patch, get = memory.bind, memory.patch_metadata, memory.get

    async def unanswered(namespace, pod_name, **options):
        if name != pod_name or lands:
            await bind(namespace, pod_name, **options)
        if name == pod_name:
            raise Unavailable("timeout")

    async def unreadable(obj, **options):
        if isinstance(obj, Pod):
            raise Unavailable("timeout")
        return await patch(obj, **options)

    def end():
        memory.bind, memory.patch_metadata, memory.get = bind, patch, get  # type: ignore[method-assign]

    memory.bind, memory.patch_metadata = unanswered, unreadable  # type: ignore[method-assign, assignment]
    return end


def cycle(world: World):
    """A cycle alone, without the events before and after it."""
    asyncio.run(world.scheduler.cycle())


# ------------------------------------------------------------------ time


def test_a_gang_that_cannot_be_ended_in_its_time_is_evicted_and_starts_over():
    world = World().start()
    end = refusing(world, "g-1")
    world.run(30, seconds=1.0)
    assert world.places()["g-0"]
    assert world.pod("g-0").metadata.deletion_timestamp is None
    world.run(45, seconds=1.0)
    assert world.pod("g-0").metadata.deletion_timestamp is not None
    assert world.heard.timed_out == [("g", 1, 60.0)]
    end()
    world.run(5)
    assert world.places()["g-1"] == ""  # not before its members are gone
    world.memory.finish_deletions()
    world.cluster.add(pod("g-0", group="g"))
    world.run(15)
    world.assert_whole()
    assert world.attempts() == {world.attempt()}


def test_only_the_member_whose_bind_failed_is_placed_again_by_a_plan_that_keeps_the_others():
    world = World(3).start()
    end = refusing(world, "g-1")
    world.run(1)
    first = world.places()
    end()
    world.run()
    world.assert_whole()
    assert {name: world.places()[name] for name in ("g-0", "g-2")} == {name: first[name] for name in ("g-0", "g-2")}
    plan = world.written_plan()
    assert {part.name: part.bound for part in plan.pods.values()} == {"g-0": True, "g-1": False, "g-2": True}
    assert {part.name: part.node for part in plan.pods.values()} == world.places()


def test_a_gang_of_which_nothing_could_be_bound_is_planned_anew_from_nothing():
    world = World().start()
    end = refusing(world, "g-0", "g-1")
    world.run(1)
    first = world.attempt()
    end()
    world.run(6)
    world.assert_whole()
    assert world.attempts() == {world.attempt()} != {first}
    assert world.heard.recoveries == [("aborted", 0)]


def test_a_new_start_has_the_whole_time_again():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.bind("g-0", "n4")
    world.start()
    refusing(world, "g-1")
    world.run(50)
    world.start()
    refusing(world, "g-1")
    world.run(50)
    assert world.heard.timed_out == []
    world.run(20)
    assert world.heard.timed_out == [("g", 1, 60.0)]


def test_members_that_run_since_their_gang_was_whole_are_not_evicted_for_one_that_cannot_be_replaced():
    world = World().start().run()
    world.delete(Pod, "g-1")
    world.cluster.add(pod("g-1", group="g"))
    refusing(world, "g-1")
    world.run(90)
    assert world.heard.timed_out == []
    assert world.pod("g-0").metadata.deletion_timestamp is None
    assert world.places()["g-1"] == ""


def test_a_pod_that_takes_the_place_of_a_member_is_placed_alone():
    world = World().start().run()
    before = world.places()
    world.delete(Pod, "g-1")
    world.cluster.add(pod("g-1", group="g"))
    world.run()
    world.assert_whole()
    assert world.places()["g-0"] == before["g-0"]


# ------------------------------------------------------------------ doubt


@pytest.mark.parametrize("lands", [True, False])
def test_a_gang_with_a_pod_in_doubt_has_not_started_and_is_not_planned_anew(lands):
    world = World().start()
    end = in_doubt(world, "g-1", lands=lands)
    cycle(world)
    attempt = world.attempt()
    assert len(world.scheduler.unknown_binds) == 1
    assert world.heard.scheduled == []
    world.cluster.advance(5)
    cycle(world)
    assert (world.attempt(), len(world.scheduler.unknown_binds), world.heard.scheduled) == (attempt, 1, [])
    end()
    world.run()
    world.assert_whole()
    assert len(world.heard.scheduled) == 1
    if lands:
        assert world.attempts() == {attempt}


def test_a_doubt_that_an_event_decides_lets_the_gang_be_acknowledged_and_its_pod_be_told():
    world = World().start()
    in_doubt(world, "g-1", lands=True)
    cycle(world)
    asyncio.run(world.cluster._deliver())
    assert not world.scheduler.unknown_binds
    assert len(world.heard.scheduled) == 1
    assert sorted(world.heard.told_bound) == sorted(world.places().items())


def test_a_member_in_doubt_is_not_evicted_around():
    world = World().start()
    end = in_doubt(world, "g-1", lands=False)
    for _ in range(70):
        cycle(world)
        world.cluster.advance(1)
    assert world.pod("g-0").metadata.deletion_timestamp is None
    end()
    world.run()
    world.assert_whole()


# ------------------------------------------------------------------ what comes late


def test_a_plan_whose_answers_were_all_lost_and_that_lands_later_is_taken_back():
    world = World().start()
    patch, kept = world.memory.patch_metadata, []

    async def late(obj, **options):
        if isinstance(obj, PodGroup) and len(kept) < 5:
            kept.append((obj, options))
            raise Unavailable("timeout")
        return await patch(obj, **options)

    world.memory.patch_metadata = late
    world.run(1)
    assert (world.places(), world.attempt()) == ({"g-0": "", "g-1": ""}, "")
    assert world.slots.held == {}
    asyncio.run(patch(kept[0][0], **kept[0][1]))
    late_one = world.attempt()
    world.run(6)
    world.assert_whole()
    assert world.attempts() == {world.attempt()}
    assert world.attempt() != late_one


def test_a_bind_of_a_dead_replica_that_lands_while_its_plan_is_carried_out_is_one_of_the_plan():
    world = World(3)
    world.plan(g_0="n4", g_1="n3", g_2="n2")
    late = world.request("g-1", "n3")
    world.start()
    bind = world.memory.bind

    async def first_the_late_one(namespace, name, **options):
        if name == "g-1":
            await late()
        await bind(namespace, name, **options)

    world.memory.bind = first_the_late_one  # type: ignore[method-assign]
    world.run()
    assert world.attempts() == {"theirs"}
    world.assert_whole()


def test_a_bind_that_lands_while_a_new_plan_is_made_around_it_is_kept():
    """A begun plan that lost a node; the bind that was on its way to another node is done between two writes."""
    world = World(3)
    world.plan(g_0="n4", g_1="n3", g_2="n2")
    world.bind("g-1", "n3")
    late = world.request("g-0", "n4")
    gone = world.memory._get(Node, ("", "", "n4"))
    world.memory._remove(gone)
    world.start()
    patch, done = world.memory.patch_metadata, []

    async def late_before_the_touch(obj, **options):
        if isinstance(obj, Pod) and obj.metadata.name == "g-0" and not done:
            done.append(1)
            world.memory.put(node("n4"))
            await late()
        return await patch(obj, **options)

    world.memory.patch_metadata = late_before_the_touch  # type: ignore[method-assign]
    world.run(8)
    assert done
    assert world.places()["g-0"] == "n4"
    world.assert_whole()
    plan = world.written_plan()
    assert {part.name: part.node for part in plan.pods.values()} == world.places()


def test_a_plan_that_another_replica_swapped_meanwhile_is_not_carried_out():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.start()  # and before its first cycle
    world.plan(attempt="newer", g_0="n1", g_1="n2")
    cycle(world)
    assert set(world.places().values()) == {""}
    world.run(4)
    assert world.places() == {"g-0": "n1", "g-1": "n2"}
    assert world.attempts() == {"newer"}
    world.assert_whole()


def test_a_group_that_was_made_again_while_its_pods_were_planned_starts_by_a_plan_of_its_own():
    world = World().start()
    patch = world.memory.patch_metadata

    async def made_again(obj, **options):
        world.memory.patch_metadata = patch
        old = world.group()
        world.delete(PodGroup, "g")
        world.memory.put(type(old)(metadata=type(old.metadata)(name="g", namespace="default"), spec=old.spec))
        return await patch(obj, **options)

    world.memory.patch_metadata = made_again
    world.run(1)
    assert PLAN_ANNOTATION not in world.group().metadata.annotations
    assert set(world.places().values()) == {""}
    world.run()
    world.assert_whole()
    assert world.attempts() == {world.attempt()}


def test_a_conflict_of_one_pod_leaves_the_gang_whole():
    world = World().start()
    bind, failed = world.memory.bind, []

    async def conflict_once(namespace, name, **options):
        if not failed:
            failed.append(name)
            raise Conflict("modified")
        await bind(namespace, name, **options)

    world.memory.bind = conflict_once
    world.run()
    world.assert_whole()
    assert world.phases() == {"g-0": Phase.BOUND, "g-1": Phase.BOUND}
