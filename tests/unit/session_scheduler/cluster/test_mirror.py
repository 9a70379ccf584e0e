"""The mirror of a cluster: all objects first, then every change, despite failing watches and lists."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from session_scheduler.cluster.errors import (
    ClusterError,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from session_scheduler.cluster.mirror import Mirror
from session_scheduler.cluster.port import Change, WatchEvent
from session_scheduler.model.devices import DeviceTaintRule
from session_scheduler.model.objects import KubeObject, Node, ObjectMeta, Pod, PodGroup

from .mirror_world import KINDS, SECOND_API, World, a_pod

# ---------------------------------------------------------------------- existing objects, then changes


async def test_everything_is_listed_first_in_the_order_of_the_kinds_and_not_delivered() -> None:
    objects: list[KubeObject] = [
        a_pod("p"),
        Node(metadata=ObjectMeta(name="n")),
        PodGroup(metadata=ObjectMeta(name="g")),
    ]
    world = World(*objects, kinds=KINDS)
    assert not world.mirror.synced
    found = await world.mirror.start()
    assert [type(obj) for obj in found] == [Node, PodGroup, Pod]
    assert world.mirror.synced
    assert world.reported.changes == []


@pytest.mark.parametrize("again", [False, True], ids=["start", "resync"])
async def test_the_kinds_are_listed_at_once_and_pods_after_them(*, again: bool) -> None:
    """Otherwise a gang that is created and planned meanwhile would be a plan without pods."""
    world = World(kinds=KINDS)
    if again:
        await world.mirror.start()
        world.cluster.lists.clear()
    world.cluster.seconds = lambda: 1.0
    listing = asyncio.create_task(world.mirror.resync() if again else world.mirror.start())
    await world.time.run_pending()
    assert world.cluster.lists == dict.fromkeys(KINDS[:-1], 1)
    world.cluster.put(a_pod("late"))
    await world.time.advance(1)
    assert world.cluster.lists == dict.fromkeys(KINDS, 1)
    await world.time.advance(1)
    assert [obj.metadata.name for obj in listing.result()] == ["late"]


async def test_a_resync_delivers_what_changed_since_the_last_event() -> None:
    kept = a_pod("kept")
    world = World(kept, a_pod("deleted"), a_pod("changed"))
    async with world.running():
        known = world.reported.objects[Pod, "", "ns", "kept"]
    world.cluster.put(a_pod("changed", now="other"))
    world.cluster.put(a_pod("new"))
    await world.cluster.delete(a_pod("deleted"), grace_seconds=0)
    found = await world.mirror.resync()
    assert [obj.metadata.name for obj in found] == ["changed", "kept", "new"]
    assert world.reported.changes == [("DELETED", "deleted"), ("MODIFIED", "changed"), ("ADDED", "new")]
    await world.is_mirrored()
    assert world.reported.objects[Pod, "", "ns", "kept"] is known
    running = asyncio.create_task(world.mirror.run())
    world.cluster.put(a_pod("later"))
    await world.time.run_pending()
    await world.is_mirrored()
    running.cancel()
    await asyncio.wait([running])


async def test_a_resync_lists_a_kind_that_the_api_server_refused_before() -> None:
    world = World(a_pod("p"), optional=(Pod,))
    world.cluster.list_error = lambda: Forbidden("no")
    assert await world.mirror.start() == []
    world.cluster.list_error = lambda: None
    await world.mirror.resync()
    assert world.mirror.refused == frozenset()
    assert world.reported.changes == [("ADDED", "p")]


async def test_without_comparisons_a_kind_is_listed_once() -> None:
    world = World(a_pod("p"))
    await world.mirror.start()
    running = asyncio.create_task(world.mirror.run(compares=False))
    await world.time.advance(600)
    assert world.cluster.lists[Pod] == 1
    running.cancel()
    await asyncio.wait([running])


async def test_an_object_that_a_list_shows_unchanged_stays_the_same_object() -> None:
    world = World(a_pod("p"))
    (first,) = await world.mirror.start()
    assert isinstance(first, Pod)
    world.cluster._store(Pod).objects["", "ns", "p"] = replace(first)  # decoded again
    await world.mirror.resync()
    assert world.mirror._followers[0].known._objects["", "ns", "p"] is first


async def test_every_change_is_delivered_in_order_and_once() -> None:
    world = World(a_pod("old"))
    async with world.running():
        new = world.cluster.put(a_pod("new"))
        world.cluster.put(replace(new, status=replace(new.status, phase="Running")))
        await world.cluster.delete(new)
        await world.time.run_pending()
        await world.is_mirrored()
    assert world.reported.changes == [("ADDED", "new"), ("MODIFIED", "new"), ("DELETED", "new")]


async def test_what_changes_between_start_and_run_is_delivered() -> None:
    world = World()
    await world.mirror.start()
    world.cluster.put(a_pod("early"))
    running = asyncio.create_task(world.mirror.run())
    await world.time.run_pending()
    assert world.reported.changes == [("ADDED", "early")]
    running.cancel()
    await asyncio.wait([running])


async def test_run_before_start_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="start"):
        await World().mirror.run()


async def test_groups_of_two_apis_with_one_name_are_two() -> None:
    world = World(PodGroup(metadata=ObjectMeta(name="g")), kinds=[PodGroup])
    async with world.running():
        other = world.cluster.put(PodGroup(api_version=SECOND_API, metadata=ObjectMeta(name="g")))
        await world.time.run_pending()
        await world.is_mirrored()
        await world.cluster.delete(other)
        await world.time.run_pending()
        await world.is_mirrored()
    assert world.reported.changes == [("ADDED", "g"), ("DELETED", "g")]


# ---------------------------------------------------------------------- broken watches


async def test_a_watch_that_ended_is_resumed_after_the_last_event() -> None:
    world = World()
    async with world.running():
        world.cluster.put(a_pod("a"))
        world.cluster.put(a_pod("a", now="other"))
        await world.time.run_pending()
        world.cluster.end_watches()
        world.cluster.put(a_pod("b"))
        await world.time.advance(1)
    assert world.reported.changes == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b")]
    assert world.cluster.lists[Pod] == 1
    assert world.meter.ended["Pod", "Ended"] == 1


async def test_a_watch_that_ended_is_resumed_after_the_last_bookmark() -> None:
    world = World()
    async with world.running():
        world.cluster.put(Node(metadata=ObjectMeta(name="n")))  # a kind that is not mirrored
        world.cluster.send_bookmarks()
        await world.time.run_pending()
        world.cluster.end_watches()
        world.cluster.forget_history()  # up to the bookmark
        world.cluster.put(a_pod("a"))
        await world.time.advance(1)
    assert world.reported.changes == [("ADDED", "a")]
    assert world.meter.events["Pod"] == 2
    assert world.meter.lists == {}


async def test_when_the_history_is_forgotten_the_difference_is_delivered() -> None:
    kept, changed, ended = a_pod("kept"), a_pod("changed"), a_pod("ended")
    again = replace(a_pod("again"), metadata=replace(a_pod("again").metadata, uid="first"))
    world = World(kept, changed, ended, again)
    async with world.running():
        world.cluster.end_watches()
        await world.cluster.delete(await world.cluster.get(Pod, "ns", "again"))
        await world.cluster.delete(await world.cluster.get(Pod, "ns", "ended"))
        world.cluster.put(replace(again, metadata=replace(again.metadata, uid="second")))
        world.cluster.put(a_pod("changed", now="other"))
        world.cluster.put(a_pod("new"))
        world.cluster.forget_history()
        await world.time.advance(2)
        await world.is_mirrored()
    assert world.reported.changes == [("DELETED", "ended"), ("DELETED", "again"), ("ADDED", "again"),
                                  ("MODIFIED", "changed"), ("ADDED", "new")]  # fmt: skip
    assert world.meter.lists == {("Pod", "Gone"): 1}


async def test_a_watch_that_always_ends_at_once_is_not_begun_without_pauses() -> None:
    world = World()
    async with world.running():
        world.cluster.ends_at_once = True
        world.cluster.end_watches()
        await world.time.advance(600)
        assert 50 < world.cluster.watches[Pod] < 100
        world.cluster.put(a_pod("a"))
        await world.time.advance(60)
        await world.is_mirrored()  # through lists


async def test_a_history_that_is_always_forgotten_is_not_listed_without_pauses() -> None:
    world = World()
    async with world.running():
        world.cluster.watch_error = lambda: Gone("too old")
        world.cluster.end_watches()
        await world.time.advance(600)
    assert 50 < world.cluster.lists[Pod] < 150


async def test_a_history_that_is_forgotten_after_every_event_is_not_listed_without_pauses() -> None:
    world = World()
    seen: list[WatchEvent[KubeObject]] = []

    def fails_every_other_time(event: WatchEvent[KubeObject]) -> bool:
        seen.append(event)
        if len(seen) % 2 == 0:
            raise Gone("too old")
        return False

    world.cluster.loses = fails_every_other_time
    async with world.running():
        for number in range(600):
            world.cluster.put(a_pod("a", now=str(number)))
            world.cluster.put(a_pod("b", now=str(number)))
            await world.time.advance(0.1)
    assert 5 < world.meter.lists["Pod", "Gone"] < 30


async def test_pauses_grow_and_begin_small_again_after_a_watch_that_worked() -> None:
    world = World()
    async with world.running():
        world.cluster.watch_error = lambda: Unavailable("not now")
        world.cluster.end_watches()
        await world.time.advance(50)
        pauses = [pause for pause in world.time.pauses if pause < 15]
        assert pauses[0] <= 0.1
        assert max(pauses) > 5
        world.cluster.watch_error = lambda: None
        await world.time.advance(20)
        world.cluster.put(a_pod("a"))
        await world.time.run_pending()
        world.cluster.end_watches()
        await world.time.run_pending()
        assert world.time.pauses[-1] <= 0.1
    assert world.reported.changes == [("ADDED", "a")]


async def test_a_watch_that_was_quiet_for_long_has_worked() -> None:
    world = World()
    async with world.running():
        world.cluster.watch_error = lambda: Unavailable("not now")
        world.cluster.end_watches()
        await world.time.advance(30)
        world.cluster.watch_error = lambda: None
        await world.time.advance(20)
        world.cluster.end_watches()
        await world.time.run_pending()
        assert world.time.pauses[-1] <= 0.1


async def test_the_server_is_left_alone_for_as_long_as_it_asks() -> None:
    world = World()
    async with world.running():
        world.cluster.watch_error = lambda: TooManyRequests("busy", retry_after=20.0)
        world.cluster.end_watches()
        await world.time.advance(1)
        assert world.cluster.watches[Pod] == 2
        await world.time.advance(18)
        assert world.cluster.watches[Pod] == 2
        await world.time.advance(3)
        assert world.cluster.watches[Pod] == 3


async def test_a_temporary_refusal_is_retried_without_loss() -> None:
    world = World()
    async with world.running():
        world.cluster.watch_error = world.cluster.list_error = lambda: Forbidden("403: no role found")
        world.cluster.end_watches()
        world.cluster.put(a_pod("a"))
        await world.time.advance(300)
        assert world.reported.changes == []
        world.cluster.watch_error = world.cluster.list_error = lambda: None
        await world.time.advance(15)
        await world.is_mirrored()
    assert world.meter.ended["Pod", "Forbidden"] >= 3
    assert 30 < world.cluster.lists[Pod] < 100


@pytest.mark.parametrize("seconds", [0.0, 7.0])
async def test_an_unknown_version_leads_to_a_new_list(seconds: float) -> None:
    world = World()
    lists = world.cluster.lists
    async with world.running():
        world.cluster.seconds = lambda: seconds if lists[Pod] < 2 else 0.0
        world.cluster.watch_error = lambda: Unavailable("504: Too large resource version") if lists[Pod] < 2 else None
        world.cluster.end_watches()
        await world.time.advance(50)
        world.cluster.put(a_pod("a"))
        await world.time.run_pending()
        await world.is_mirrored()
    assert world.meter.lists == {("Pod", "Unavailable"): 1}


@pytest.mark.parametrize("error", [Invalid("400: resourceVersion"), NotFound("404"), Gone("410")])
async def test_a_watch_that_the_server_rejects_as_invalid_leads_to_a_new_list(error: ClusterError) -> None:
    world = World()
    async with world.running():
        world.cluster.watch_error = lambda: error if world.cluster.watches[Pod] == 2 else None
        world.cluster.end_watches()
        await world.time.advance(1)
        assert world.cluster.open[Pod] == 1
    assert world.meter.lists == {("Pod", type(error).__name__): 1}


async def test_an_unexpected_error_ends_the_run_and_closes_every_watch() -> None:
    def fails(change: Change, obj: KubeObject) -> None:
        raise ValueError("a mistake")

    world = World()
    mirror = Mirror(world.cluster, KINDS, fails, clock=world.time, sleep=world.time.sleep)
    await mirror.start()
    running = asyncio.create_task(mirror.run())
    await world.time.run_pending()
    assert world.cluster.open == dict.fromkeys(KINDS, 1)
    world.cluster.put(a_pod("a"))
    await world.time.run_pending()
    assert running.done()
    failure = running.exception()
    assert isinstance(failure, ExceptionGroup)
    assert failure.subgroup(ValueError) is not None
    assert not +world.cluster.open


async def test_an_error_of_the_receiver_is_not_retried_like_one_of_the_watch() -> None:
    def fails(change: Change, obj: KubeObject) -> None:
        raise Gone("raised by the receiver")

    world = World()
    mirror = Mirror(world.cluster, [Pod], fails, clock=world.time, sleep=world.time.sleep)
    await mirror.start()
    world.cluster.put(a_pod("a"))
    with pytest.raises(ExceptionGroup) as caught:
        await mirror.run()
    assert caught.value.subgroup(Gone) is not None


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_cancelling_closes_all_watches_and_leaves_no_task(turns: int) -> None:
    world = World(a_pod("a"), kinds=KINDS)
    before = asyncio.all_tasks()
    await world.mirror.start()
    running = asyncio.create_task(world.mirror.run())
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == before
    assert not +world.cluster.open


async def test_a_cancelled_run_can_be_resumed() -> None:
    world = World()
    async with world.running():
        pass
    world.cluster.put(a_pod("a"))
    running = asyncio.create_task(world.mirror.run())
    await world.time.run_pending()
    running.cancel()
    await asyncio.wait([running])
    assert world.reported.changes == [("ADDED", "a")]


# ---------------------------------------------------------------------- the first list


async def started(world: World, seconds: float) -> asyncio.Task[list[KubeObject]]:
    starting = asyncio.create_task(world.mirror.start())
    await world.time.advance(seconds)
    return starting


async def test_a_start_waits_for_a_cluster_that_does_not_respond_and_logs_it() -> None:
    world = World(a_pod("a"))
    world.cluster.list_error = lambda: Unavailable("connection refused")
    with capture_logs() as logs:
        starting = await started(world, 600)
        assert not starting.done()
        world.cluster.list_error = lambda: None
        await world.time.advance(10)
    assert [obj.metadata.name for obj in await starting] == ["a"]
    assert 50 < world.cluster.lists[Pod] < 150
    assert {log["log_level"] for log in logs} == {"warning"}
    assert "connection refused" in logs[0]["why"]


async def test_a_start_retries_while_the_server_does_not_know_its_roles_yet() -> None:
    world = World(a_pod("a"))
    world.cluster.list_error = lambda: Forbidden("403") if world.time.now() < 25 else None
    starting = await started(world, 40)
    assert [obj.metadata.name for obj in await starting] == ["a"]


@pytest.mark.parametrize(("refusal", "remedy"), [
    (Forbidden("403: cannot list"), "get, list and watch on Pod objects.*ClusterRole"),
    (Invalid("400: bad"), "serves Pod objects"),
    (NotFound("404: no page"), "serves Pod objects"),
])  # fmt: skip
async def test_a_start_that_is_refused_for_long_fails_with_a_remedy(refusal: ClusterError, remedy: str) -> None:
    world = World(a_pod("a"))
    world.cluster.list_error = lambda: refusal
    starting = await started(world, 29)
    assert not starting.done()
    await world.time.advance(20)
    with pytest.raises(type(refusal), match=f"failed to list Pod objects for .*{refusal}.*{remedy}"):
        await starting
    assert not world.mirror.synced


async def test_refusals_with_other_failures_in_between_are_not_added_up() -> None:
    world = World(a_pod("a"))
    errors = [Forbidden("403"), Unavailable("503")]
    world.cluster.list_error = lambda: errors[world.cluster.lists[Pod] % 2] if world.time.now() < 200 else None
    starting = await started(world, 215)
    assert len(await starting) == 1


# ---------------------------------------------------------------------- optional kinds


async def test_a_refused_optional_kind_is_logged_once_and_mirrored_once_it_is_served() -> None:
    world = World(a_pod("old"), optional=(Pod,))
    world.cluster.list_error = lambda: Forbidden("403: cannot list") if world.time.now() < 50 else None
    with capture_logs() as logs:
        assert await world.mirror.start() == []
        running = asyncio.create_task(world.mirror.run())
        await world.time.advance(40)
        assert world.reported.changes == []
        await world.time.advance(30)
    assert world.reported.changes == [("ADDED", "old")]
    said = [line for line in logs if line["log_level"] == "warning"]
    assert [(line["kind"], line["why"]) for line in said] == [("Pod", "403: cannot list")]
    assert "ClusterRole" in said[0]["remedy"]
    world.cluster.put(a_pod("new"))
    await world.time.run_pending()
    assert world.reported.changes[1:] == [("ADDED", "new")]
    running.cancel()
    await asyncio.wait([running])


async def test_the_remedy_for_an_unserved_kind_needs_no_restart() -> None:
    world = World(optional=(Pod,))
    world.cluster.list_error = lambda: NotFound("404: no page")
    with capture_logs() as logs:
        assert await world.mirror.start() == []
    assert [line["remedy"] for line in logs] == ["check that the API server serves Pod objects"]


@pytest.mark.parametrize(
    ("refusal", "level"), [(NotFound("404: no page"), "info"), (Forbidden("403: cannot list"), "warning")]
)
async def test_a_kind_that_few_clusters_serve_is_no_warning(refusal: ClusterError, level: str) -> None:
    world = World(optional=(DeviceTaintRule,), kinds=(DeviceTaintRule,))
    world.cluster.list_error = lambda: refusal
    with capture_logs() as logs:
        assert await world.mirror.start() == []
    assert [(line["kind"], line["log_level"]) for line in logs] == [("DeviceTaintRule", level)]


async def test_an_optional_kind_waits_for_a_cluster_that_does_not_respond() -> None:
    world = World(a_pod("p"), optional=(Pod,))
    world.cluster.list_error = lambda: Unavailable("503") if world.time.now() < 1 else None
    started = asyncio.create_task(world.mirror.start())
    await world.time.advance(3)
    assert [obj.metadata.name for obj in await started] == ["p"]


async def test_the_run_continues_when_an_optional_kind_is_removed() -> None:
    world = World(a_pod("old"), optional=(Pod,))
    await world.mirror.start()

    def gone() -> NotFound | None:
        return NotFound("404: no such kind") if world.time.now() < 200 else None

    world.cluster.list_error = world.cluster.watch_error = gone
    running = asyncio.create_task(world.mirror.run())
    await world.time.advance(150)
    assert not running.done()
    world.cluster.put(a_pod("new"))
    await world.time.advance(150)
    assert ("ADDED", "new") in world.reported.changes
    running.cancel()
    await asyncio.wait([running])


async def test_the_run_continues_when_an_optional_kind_is_refused_after_another_error() -> None:
    world = World(a_pod("p"), optional=(Pod,))
    world.cluster.list_error = lambda: Unavailable("503") if world.cluster.lists[Pod] == 1 else Forbidden("403")
    with capture_logs() as logs:
        starting = await started(world, 100)
    assert await starting == []
    assert [line["why"] for line in logs] == ["503", "403"]


async def test_a_served_optional_kind_is_listed_once() -> None:
    world = World(a_pod("p"), optional=(Pod,))
    assert len(await world.mirror.start()) == world.cluster.lists[Pod] == 1
