"""Effects of a partly bound gang, or of a found plan, on other groups."""

from __future__ import annotations

import asyncio

import pytest

from session_scheduler.cluster.errors import Forbidden, NotFound, TooManyRequests, Unavailable
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.testing import node, pod

from .gangs_world import World, refusing

VIP = 1000
"""A priority above all others in this file."""


def unwritable(world: World, error):
    """Every write of a PodGroup fails until the returned function is called."""
    patch = world.memory.patch_metadata

    async def fails(obj, **options):
        if isinstance(obj, PodGroup):
            raise error
        return await patch(obj, **options)

    def end():
        world.memory.patch_metadata = patch  # type: ignore[method-assign]

    world.memory.patch_metadata = fails  # type: ignore[method-assign]
    return end


# ------------------------------------------------------------------ plans found at the start


def test_no_pod_is_placed_where_a_request_of_a_found_plan_may_still_bind():
    """The request arrives before its pod is touched: until then, no other pod may get its slot."""
    world = World(nodes=2)
    world.plan(state="abort", g_0="n2", g_1="n1")
    late = world.request("g-0", "n2")
    world.cluster.add(pod("a"), pod("b"))
    world.start()
    patch = world.memory.patch_metadata

    async def late_before_it_is_void(obj, **options):
        if obj.metadata.name == "g-0":
            world.memory.patch_metadata = patch  # type: ignore[method-assign]
            await late()
        return await patch(obj, **options)

    world.memory.patch_metadata = late_before_it_is_void  # type: ignore[method-assign]
    world.run()
    assert world.places() == {"a": "", "b": "", "g-0": "n2", "g-1": "n1"}


@pytest.mark.parametrize("found", ["aborted", "unfit", "begun"])
def test_no_pod_is_placed_at_the_start_until_found_plans_are_void(found):
    world = World(nodes=5)
    world.plan(state="abort" if found == "aborted" else "active", g_0="n2", g_1="gone")
    if found == "begun":
        world.bind("g-0", "n2")
    world.cluster.add(pod("other"))
    world.start()
    end = unwritable(world, Unavailable("no answer"))
    world.run(10)
    assert world.places()["other"] == ""
    end()
    world.run(12)
    assert world.places()["other"] != ""
    assert all(world.places().values())


def test_no_pod_is_placed_while_a_found_plan_is_partly_carried_out_and_voided():
    world = World(3, nodes=6)
    world.plan(g_0="n2", g_1="gone", g_2="n3")
    world.bind("g-0", "n2")
    world.cluster.add(pod("other"))
    world.start().run(1)
    assert {name: world.places()[name] for name in ("g-2", "other")} == {"g-2": "n3", "other": ""}
    world.run()
    world.assert_whole()


@pytest.mark.parametrize("error", [Unavailable("no answer"), TooManyRequests("later")])
def test_a_found_plan_that_cannot_be_voided_blocks_others_for_at_most_half_a_minute(error):
    world = World(nodes=5)
    world.plan(state="abort", g_0="n2", g_1="n3")
    world.cluster.add(pod("other"))
    world.start()
    unwritable(world, error)
    world.run(29)
    assert world.places()["other"] == ""
    world.run(3)
    assert world.places()["other"] != ""


@pytest.mark.parametrize("error", [Forbidden("a quota"), NotFound("gone")])
def test_a_found_plan_that_can_never_be_voided_blocks_no_others(error):
    world = World(nodes=5)
    world.plan(state="abort", g_0="n2", g_1="n3")
    world.cluster.add(pod("other"))
    world.start()
    unwritable(world, error)
    world.run(2)
    assert world.places()["other"] != ""


def test_a_plan_found_half_a_minute_after_the_start_blocks_no_others():
    world = World(nodes=5).start()
    world.cluster.advance(31)
    world.plan(state="abort", g_0="n2", g_1="n3")
    world.cluster.add(pod("other"))
    unwritable(world, Unavailable("no answer"))
    world.run(1)
    assert world.places()["other"] != ""


# ------------------------------------------------------------------ begun gangs


def test_a_partly_bound_gang_is_placed_before_everything_else():
    world = World(nodes=2).start()
    end = refusing(world, "g-1")
    world.run(1)
    assert [name for name, node in world.places().items() if node] == ["g-0"]
    end()
    world.cluster.add(pod("vip", priority=VIP))
    world.run(1)
    assert world.places()["vip"] == ""
    assert sorted((world.places()["g-0"], world.places()["g-1"])) == ["n1", "n2"]


def test_a_gang_without_bound_pods_waits_its_turn():
    world = World(nodes=2).start()
    end = refusing(world, "g-0", "g-1")
    world.run(1)
    end()
    world.cluster.add(pod("vip", priority=VIP))
    world.run(4)
    assert world.places()["vip"] != ""
    assert (world.places()["g-0"], world.places()["g-1"]) == ("", "")


# ------------------------------------------------------------------ evictions


def timed_out(size=2, nodes=4):
    """A gang with one member whose bind timed out."""
    world = World(size, nodes=nodes).start()
    end = refusing(world, "g-1")
    world.run(60)
    assert world.heard.timed_out == []
    return world, end


def test_no_member_of_a_gang_is_placed_until_its_evicted_members_end():
    world, end = timed_out()
    world.run(3)
    assert world.heard.timed_out == [("g", 1, 60.0)]
    assert world.pod("g-0").metadata.deletion_timestamp is not None
    end()
    world.cluster.add(pod("g-2", group="g"))  # as many as are needed, without the terminating one
    world.run(20)
    assert (world.places()["g-1"], world.places()["g-2"]) == ("", "")
    world.memory.finish_deletions()
    world.run(12)
    world.assert_whole()


def test_no_member_of_a_gang_is_placed_while_its_members_cannot_be_evicted():
    world, end = timed_out()
    world.memory._may_evict = lambda _: False
    world.run(2)
    assert world.heard.timed_out == [("g", 1, 60.0)]
    end()
    world.cluster.add(node("n9"))  # every waiting group is due
    world.run(2)
    assert world.pod("g-0").metadata.deletion_timestamp is None
    assert world.places()["g-1"] == ""


def test_a_member_protected_by_a_disruption_budget_is_deleted_the_second_time():
    world, _ = timed_out()
    world.memory._may_evict = lambda _: False
    world.run(5)
    assert world.pod("g-0").metadata.deletion_timestamp is None
    world.run(4)
    assert world.pod("g-0").metadata.deletion_timestamp is not None
    assert world.heard.timed_out == [("g", 1, 60.0)]


def test_an_eviction_without_an_answer_is_retried():
    world, end = timed_out()
    evict, delete, asked = world.memory.evict, world.memory.delete, []

    async def unanswered(obj, **_):
        asked.append(obj.metadata.name)
        raise Unavailable("no answer")

    world.memory.evict = world.memory.delete = unanswered
    world.run(20)
    assert asked[:3] == ["g-0"] * 3
    assert len(asked) <= 5  # every few seconds, not in each turn
    world.memory.evict, world.memory.delete = evict, delete
    world.run(8)
    assert world.pod("g-0").metadata.deletion_timestamp is not None
    end()
    world.memory.finish_deletions()
    world.cluster.add(pod("g-0", group="g"))
    world.run(15)
    world.assert_whole()


def test_no_pod_is_placed_where_a_found_plan_that_cannot_be_recovered_may_still_bind():
    world = World(2, nodes=2)
    world.plan(g_0="n2", g_1="n1")
    late = world.request("g-0", "n2")
    world.cluster.add(pod("a"), pod("b"))
    world.start()
    unwritable(world, Unavailable("no answer"))
    world.run(5)
    asyncio.run(late())
    assert {name: node for name, node in world.places().items() if node} == {"g-0": "n2"}


def test_no_pod_is_placed_where_a_partly_carried_out_plan_may_still_bind():
    world = World(3, nodes=6)
    world.plan(g_0="n2", g_1="gone", g_2="n3")
    world.bind("g-0", "n2")
    world.cluster.add(pod("other"))
    world.start()
    unwritable(world, Unavailable("no answer"))
    world.run(5)
    assert world.places()["other"] == ""


# ------------------------------------------------------------------ gangs of other schedulers


def test_a_partly_bound_gang_of_another_scheduler_is_neither_evicted_nor_acknowledged():
    """Its other pods may be on nodes that this scheduler does not see."""
    world = World(3, scheduler="another")
    world.plan(g_0="n4", g_1="n3", g_2="n2")
    world.bind("g-0", "n4")
    world.bind("g-1", "n3")
    world.start().run(200)
    assert world.places() == {"g-0": "n4", "g-1": "n3", "g-2": ""}
    world.bind("g-2", "n2")
    world.run(2)
    world.scheduler.gang_starts.remind()
    assert (world.heard.timed_out, world.heard.scheduled) == ([], [])


def test_the_plan_of_another_schedulers_gang_stays_when_its_last_pod_here_is_gone():
    world = World(2, scheduler="another")
    world.plan(g_0="n4", g_1="n3")
    world.bind("g-0", "n4")
    world.start().run(1)
    gone = world.pod("g-0")
    world.delete(Pod, "g-0")
    asyncio.run(world.scheduler.event_handlers.apply("DELETED", gone))
    world.run(2)
    assert world.attempt() == "theirs"
