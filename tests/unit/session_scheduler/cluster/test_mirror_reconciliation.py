"""What no event told is found, and whatever happens, what was told adds up to what there is."""

from __future__ import annotations

import random

import pytest
from structlog.testing import capture_logs

from session_scheduler.cluster.errors import ClusterError, Forbidden, Gone, NotFound, TooManyRequests, Unavailable
from session_scheduler.cluster.known_objects import KnownObjects
from session_scheduler.cluster.port import Change, WatchEvent
from session_scheduler.model.objects import KubeObject, Node, ObjectMeta, Pod, PodGroup

from .mirror_world import KINDS, SECOND_API, Faulty, World, a_pod

# ---------------------------------------------------------------------- missed events


async def test_a_lost_event_is_found_counted_and_said() -> None:
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
            assert world.told.changes == [("ADDED", "seen")]
            await world.time.advance(30)
            await world.is_mirrored()
            world.cluster.put(a_pod("later"))
            await world.time.settle()
            await world.is_mirrored()
    assert world.told.changes[1:] == [("DELETED", "leaves"), ("ADDED", "comes"), ("MODIFIED", "stays"),
                                      ("ADDED", "later")]  # fmt: skip
    assert world.meter.lost == {"Pod": 3}
    (said,) = logs
    assert (said["log_level"], said["kind"], said["count"]) == ("warning", "Pod", 3)


async def test_comparisons_of_a_faithful_watch_find_nothing_and_disturb_nothing() -> None:
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
        assert world.told.changes == []
        world.cluster.passes.set()
        await world.time.advance(15)
        await world.is_mirrored()
    assert world.told.changes == [("DELETED", "ended"), ("ADDED", "a"), ("MODIFIED", "a"), ("MODIFIED", "a")]
    assert (world.meter.lost, world.meter.lists) == ({}, {})


async def test_what_comes_and_goes_while_a_comparison_lists_is_not_missed() -> None:
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
        await world.time.settle()
        assert world.told.changes == [("DELETED", "goes"), ("ADDED", "comes"), ("MODIFIED", "changes")]
        await world.time.advance(30)
        await world.is_mirrored()
    assert len(world.told.changes) == 3
    assert (world.meter.lost, world.meter.lists, world.cluster.watches[Pod]) == ({}, {}, 1)


async def test_what_a_broken_watch_could_not_tell_is_delivered_but_not_counted_as_missed() -> None:
    world = World()
    async with world.running():
        world.cluster.watch_error = lambda: TooManyRequests("busy", retry_after=500.0)
        world.cluster.end_watches()
        world.cluster.put(a_pod("a"))
        await world.time.advance(100)
        await world.is_mirrored()
    assert world.meter.lists == {("Pod", "Untold"): 1}
    assert world.meter.lost == {}


async def test_what_a_watch_cannot_tell_that_breaks_during_a_comparison_is_not_counted_as_missed() -> None:
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


async def test_where_only_the_deletion_of_the_second_of_a_name_is_told_the_first_is_gone() -> None:
    world = World(a_pod("a"))
    async with world.running():
        world.cluster.loses = lambda event: True
        await world.cluster.delete(await world.cluster.get(Pod, "ns", "a"))
        second = world.cluster.put(a_pod("a"))
        await world.time.settle()
        world.cluster.loses = lambda event: False
        await world.cluster.delete(second)
        await world.time.settle()
        await world.is_mirrored()
    assert world.told.changes == [("DELETED", "a")]  # of the first: its receiver compares the uid


def test_what_events_say_after_a_comparison_is_not_kept() -> None:
    known = KnownObjects()
    with known.comparing() as comparison:
        known.take(WatchEvent(Change.ADDED, a_pod("a"), "1"))
    known.take(WatchEvent(Change.ADDED, a_pod("b"), "2"))
    assert {name for (_, _, name), _ in comparison.passed} == {"a"}


async def test_a_comparison_that_cannot_list_is_left_out_and_the_watch_goes_on() -> None:
    world = World()
    async with world.running():
        world.cluster.list_error = lambda: Unavailable("503")
        await world.time.advance(200)
        world.cluster.put(a_pod("a"))
        await world.time.settle()
        assert world.told.changes == [("ADDED", "a")]
    assert world.cluster.watches[Pod] == 1
    assert 3 <= world.cluster.lists[Pod] <= 5


# ---------------------------------------------------------------------- random lives

FAULTS: tuple[ClusterError, ...] = (Unavailable("503"), Forbidden("403"), TooManyRequests("429", 3.0), Gone("410"),
                                    NotFound("404"))  # fmt: skip


def an_object(chance: random.Random) -> KubeObject:
    """One of few, so that names are often used again; its labels differ each time."""
    number = chance.randrange(5)
    metadata = ObjectMeta(name=f"o{number}", namespace="ns", labels={"random": str(chance.random())})
    return chance.choice([
        Pod(metadata=metadata),
        Node(metadata=ObjectMeta(name=f"o{number}", labels=metadata.labels)),
        PodGroup(metadata=metadata),
        PodGroup(api_version=SECOND_API, metadata=metadata),
    ])  # fmt: skip


async def something_happens(cluster: Faulty, chance: random.Random) -> None:
    """One step of a random life."""
    step = chance.random()
    if step < 0.5:
        cluster.put(an_object(chance))
    elif step < 0.8:
        items: list[KubeObject] = [
            obj for kind in (Pod, Node, PodGroup) for obj in (await cluster.now(kind)).items
        ]  # fmt: skip
        if items:
            ended = chance.choice(items)
            await cluster.delete(ended)
            if chance.random() < 0.5:  # another of that name, before anybody may have seen that the first is gone
                cluster.put(an_object(chance))
    elif step < 0.87:
        cluster.end_watches()
    elif step < 0.92:
        cluster.end_watches()
        for _ in range(3):
            await something_happens(cluster, chance)
        cluster.forget_history()
    else:
        cluster.send_bookmarks()


@pytest.mark.parametrize("loss", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(12))
async def test_in_a_random_life_what_is_told_adds_up_to_what_there_is(seed: int, loss: float) -> None:
    chance = random.Random(seed)
    world = World(*(an_object(chance) for _ in range(4)), kinds=KINDS, seed=seed)
    cluster = world.cluster

    def fault() -> ClusterError | None:
        return chance.choice(FAULTS) if chance.random() < 0.2 else None

    def loses(event: WatchEvent[KubeObject]) -> bool:
        return chance.random() < loss

    def seconds() -> float:
        return chance.uniform(0.0, 1.0) if chance.random() < 0.2 else 0.0

    async with world.running():
        cluster.list_error = cluster.watch_error = fault
        cluster.loses = loses
        cluster.seconds = seconds
        for _ in range(150):
            for _ in range(chance.randrange(4)):
                await something_happens(cluster, chance)
            await world.time.advance(chance.choice([0.0, 0.02, 0.1, 1.0, 5.0, 20.0]))
        cluster.list_error = cluster.watch_error = lambda: None
        cluster.loses = lambda event: False
        cluster.seconds = lambda: 0.0
        # Without losses the longest pause is enough, of a watch and of the list after it; with them, a comparison.
        await world.time.advance(30.0 if loss == 0.0 else 100.0)
        await world.is_mirrored()
    assert world.meter.lists
    assert loss or not world.meter.lost
