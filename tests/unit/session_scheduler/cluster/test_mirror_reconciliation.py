"""Comparison with lists: a missed change is found, and a late event is not taken for a missed one."""

from __future__ import annotations

from structlog.testing import capture_logs

from session_scheduler.cluster.errors import TooManyRequests, Unavailable
from session_scheduler.cluster.mirror import KnownObjects
from session_scheduler.cluster.port import Change, WatchEvent
from session_scheduler.model.objects import Pod

from .mirror_world import KINDS, World, a_pod

# ---------------------------------------------------------------------- missed events


async def test_a_lost_event_is_found_counted_and_logged() -> None:
    stays, leaves = a_pod("stays"), a_pod("leaves")
    world = World(stays, leaves)
    lost = {"comes", "stays", "leaves"}
    world.cluster.loses = lambda event: event.object is not None and event.object.metadata.name in lost
    with capture_logs() as logs:
        async with world.running():
            world.cluster.put(a_pod("comes"))
            world.cluster.put(a_pod("stays", now="other"))
            await world.cluster.delete(await world.cluster.get(Pod, "ns", "leaves"))
            world.cluster.put(a_pod("seen"))
            await world.time.advance(50)
            assert world.reported.changes == [("ADDED", "seen")]
            await world.time.advance(30)
            await world.is_mirrored()
            world.cluster.put(a_pod("later"))
            await world.time.run_pending()
            await world.is_mirrored()
    assert world.reported.changes[1:] == [("DELETED", "leaves"), ("ADDED", "comes"), ("MODIFIED", "stays"),
                                      ("ADDED", "later")]  # fmt: skip
    assert world.meter.lost == {"Pod": 3}
    (said,) = logs
    assert (said["log_level"], said["kind"], said["count"]) == ("warning", "Pod", 3)


async def test_comparisons_with_a_complete_watch_change_nothing() -> None:
    world = World(*(a_pod(f"p{number}") for number in range(5)), kinds=KINDS)
    with capture_logs() as logs:
        async with world.running():
            for number in range(300):
                world.cluster.put(a_pod(f"p{number % 7}", number=str(number)))
                await world.time.advance(2)
            await world.is_mirrored()
    assert 8 <= world.cluster.lists[Pod] <= 12
    assert set(world.cluster.watches.values()) == {1}
    assert (world.meter.lost, world.meter.lists, logs) == ({}, {}, [])


async def test_an_event_that_comes_late_is_not_missed() -> None:
    world = World(a_pod("ended"))
    async with world.running():
        await world.time.advance(50)
        world.cluster.passes.clear()
        await world.cluster.delete(await world.cluster.get(Pod, "ns", "ended"))
        world.cluster.put(a_pod("a"))
        world.cluster.put(a_pod("a", now="other"))
        while world.cluster.lists[Pod] < 2:
            await world.time.advance(0.5)
        world.cluster.put(a_pod("a", now="yet another"))
        await world.time.advance(8)
        assert world.reported.changes == []
        world.cluster.passes.set()
        await world.time.advance(15)
        await world.is_mirrored()
    assert world.reported.changes == [("DELETED", "ended"), ("ADDED", "a"), ("MODIFIED", "a"), ("MODIFIED", "a")]
    assert (world.meter.lost, world.meter.lists) == ({}, {})


async def test_changes_during_the_list_of_a_comparison_are_not_missed() -> None:
    world = World(a_pod("goes"), a_pod("changes"))
    async with world.running():
        await world.time.advance(50)
        world.cluster.seconds = lambda: 5.0 if world.cluster.lists[Pod] == 2 else 0.0
        while world.cluster.lists[Pod] < 2:
            await world.time.advance(0.5)
        world.cluster.seconds = lambda: 0.0
        await world.cluster.delete(await world.cluster.get(Pod, "ns", "goes"))
        world.cluster.put(a_pod("comes"))
        world.cluster.put(a_pod("changes", now="other"))
        await world.time.run_pending()
        assert world.reported.changes == [("DELETED", "goes"), ("ADDED", "comes"), ("MODIFIED", "changes")]
        await world.time.advance(30)
        await world.is_mirrored()
    assert len(world.reported.changes) == 3
    assert (world.meter.lost, world.meter.lists, world.cluster.watches[Pod]) == ({}, {}, 1)


async def test_changes_during_a_broken_watch_are_delivered_but_not_counted_as_missed() -> None:
    world = World()
    async with world.running():
        world.cluster.watch_error = lambda: TooManyRequests("busy", retry_after=500.0)
        world.cluster.end_watches()
        world.cluster.put(a_pod("a"))
        await world.time.advance(100)
        await world.is_mirrored()
    assert world.meter.lists == {("Pod", "Untold"): 1}
    assert world.meter.lost == {}


async def test_changes_are_not_counted_as_missed_if_the_watch_breaks_during_the_comparison() -> None:
    world = World()
    async with world.running():
        world.cluster.loses = lambda event: True
        world.cluster.put(a_pod("a"))
        while world.cluster.lists[Pod] < 2:
            await world.time.advance(0.5)
        world.cluster.watch_error = lambda: TooManyRequests("busy", retry_after=500.0)
        world.cluster.end_watches()
        await world.time.advance(15)
        await world.is_mirrored()
    assert world.meter.lists == {("Pod", "Untold"): 1}
    assert world.meter.lost == {}


async def test_the_deletion_of_a_missed_second_object_of_a_name_deletes_the_first() -> None:
    world = World(a_pod("a"))
    async with world.running():
        world.cluster.loses = lambda event: True
        await world.cluster.delete(await world.cluster.get(Pod, "ns", "a"))
        second = world.cluster.put(a_pod("a"))
        await world.time.run_pending()
        world.cluster.loses = lambda event: False
        await world.cluster.delete(second)
        await world.time.run_pending()
        await world.is_mirrored()
    assert world.reported.changes == [("DELETED", "a")]  # with the first one's uid


def test_events_after_a_comparison_are_not_recorded() -> None:
    known = KnownObjects()
    with known.comparing() as comparison:
        known.apply(WatchEvent(Change.ADDED, a_pod("a"), "1"))
    known.apply(WatchEvent(Change.ADDED, a_pod("b"), "2"))
    assert {name for (_, _, name), _ in comparison.passed} == {"a"}


async def test_a_comparison_whose_list_fails_is_skipped_and_the_watch_continues() -> None:
    world = World()
    async with world.running():
        world.cluster.list_error = lambda: Unavailable("503")
        await world.time.advance(200)
        world.cluster.put(a_pod("a"))
        await world.time.run_pending()
        assert world.reported.changes == [("ADDED", "a")]
    assert world.cluster.watches[Pod] == 1
    assert 3 <= world.cluster.lists[Pod] <= 5
