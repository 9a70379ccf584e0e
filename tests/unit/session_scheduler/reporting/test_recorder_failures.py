"""Reports that cannot be written, or that are too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from session_scheduler.cluster.errors import Forbidden, Invalid, TooManyRequests, Unavailable
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.model.objects import Pod, PodCondition
from session_scheduler.reporting import recorder
from session_scheduler.testing.builders import pod

from .recorder_world import World, shown, turns

NO_ROOM = "0/4 nodes are available: 4 Insufficient cpu."


@pytest.fixture
async def world():
    world = World()
    async with world.running():
        yield world


async def messages(world: World, name="one"):
    return [condition.message for condition in (await world.pod(name)).status.conditions]


# ---------------------------------------------------------------------- retries


@pytest.mark.parametrize("error", [Unavailable("503"), TooManyRequests("429"), Forbidden("403")])
async def test_a_temporary_failure_is_retried_later(world: World, error):
    world.cluster.faults = {"condition": [error] * 3, "event": [error] * 3}
    world.recorder.unschedulable(await world.pod(), NO_ROOM)
    await world.run_pending()
    assert await messages(world) == [NO_ROOM]
    assert world.notes() == [NO_ROOM]
    first = 1.0 if isinstance(error, TooManyRequests) else 0.5  # the server's delay, if it names one
    assert sorted(world.slept) == sorted([first, 1.0, 2.0] * 2)
    assert world.meter.lost == []


async def test_the_servers_delay_is_limited(world: World):
    world.cluster.faults = {"condition": [TooManyRequests("429", 7.0), TooManyRequests("429", 3600.0)]}
    world.recorder.condition(await world.pod(), "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    assert world.slept == [7.0, 10.0]


async def test_a_long_failing_report_is_dropped_and_repeated_with_the_next_outcome(world: World):
    world.cluster.faults = {"condition": [Unavailable("down")] * 5, "event": [Unavailable("down")] * 5}
    one = await world.pod()
    world.recorder.unschedulable(one, NO_ROOM)
    await world.run_pending()
    assert await messages(world) == []
    assert sorted(world.meter.lost) == [("condition", "Unavailable"), ("event", "Unavailable")]
    world.recorder.unschedulable(one, NO_ROOM)
    await world.run_pending()
    assert await messages(world) == [NO_ROOM]
    assert world.counts() == [1]


async def test_a_condition_whose_answer_was_lost_is_written_once(world: World):
    world.cluster.faults = {"condition": [Unavailable("lost")]}
    world.cluster.done_but_lost = True
    world.recorder.condition(await world.pod(), "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    world.recorder.condition(await world.pod(), "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    assert await messages(world) == [NO_ROOM]
    assert world.cluster.asked == ["condition", "condition"]


async def test_an_event_whose_answer_was_lost_is_written_once(world: World):
    world.cluster.faults = {"event": [Unavailable("lost")]}
    world.cluster.done_but_lost = True
    for _ in range(2):
        world.recorder.event(await world.pod(), "FailedScheduling", "Scheduling", NO_ROOM, warning=True)
        await world.run_pending()
    assert world.counts() == [2]


async def test_the_write_for_a_pod_deleted_meanwhile_is_given_up(world: World):
    world.cluster.faults = {"condition": [Unavailable("down")] * 5}
    world.cluster.held = asyncio.Event()
    one = await world.pod()
    world.recorder.condition(one, "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await turns()
    world.recorder.forget(one.metadata.uid)
    world.cluster.held.set()
    await world.run_pending()
    assert world.cluster.asked == ["condition"]


async def test_reports_requested_during_a_write_are_given_up_with_their_pod(world: World):
    world.cluster.held = asyncio.Event()
    one = await world.pod()
    for text in ("first", "second"):
        world.recorder.unschedulable(one, text)
        world.recorder.unschedulable(one, text)
        await turns()
    world.recorder.event(one, "FailedScheduling", "Scheduling", "first", warning=True)
    world.recorder.forget(one.metadata.uid)
    world.cluster.held.set()
    await world.run_pending()
    assert world.cluster.asked == ["condition", "event", "event"]


async def test_a_permanently_refused_condition_does_not_stop_the_others(world: World):
    world.cluster.faults = {"condition": [Invalid("no such condition")]}
    one = await world.pod()
    world.recorder.condition(one, "Nonsense", "False", "Reason", "first")
    world.recorder.condition(one, "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    assert await messages(world) == [NO_ROOM]
    assert world.meter.lost == [("condition", "Invalid")]
    assert world.meter.wrote == ["condition"]


# ---------------------------------------------------------------------- logs


async def test_dropped_reports_are_logged_once_a_minute_with_their_count(world: World):
    world.cluster.faults = {"event": [Invalid("no")] * 6}
    with capture_logs() as logs:
        for number in range(6):
            world.clock.advance({4: 59, 5: 1}.get(number, 0))
            world.recorder.event(await world.pod(), "Failed", "Scheduling", f"note {number}")
            await world.run_pending()
    assert [(log["log_level"], log["dropped"], log["why"]) for log in logs] == [
        ("warning", 1, "no"),
        ("warning", 5, "no"),
    ]


async def test_reports_made_needless_by_others_are_not_logged(world: World):
    old = await world.pod()
    await world.bind(old)
    with capture_logs() as logs:
        world.recorder.condition(old, "PodScheduled", "False", "Unschedulable", NO_ROOM)
        await world.run_pending()
    assert logs == []


async def test_a_bug_in_one_write_is_logged_with_its_traceback_and_writing_continues(world: World):
    world.cluster.faults = {"event": [ZeroDivisionError("bug")], "condition": [ZeroDivisionError("bug")]}
    with capture_logs() as logs:
        for name in ("one", "two"):
            world.recorder.unschedulable(await world.pod(name), NO_ROOM)
            await world.run_pending()
    assert await messages(world) == []
    assert await messages(world, "two") == [NO_ROOM]
    assert [event.regarding.metadata.name for event in world.cluster.events] == ["two"]
    assert [(log["log_level"], log["exc_info"]) for log in logs] == [("error", True)] * 2
    assert sorted(world.meter.lost) == [("condition", "Unexpected"), ("event", "Unexpected")]


async def test_requesting_a_report_never_raises(world: World):
    with capture_logs() as logs:
        world.recorder.event(None, "Failed", "Scheduling", "no object")  # type: ignore[arg-type]
        world.recorder.condition(None, "PodScheduled", "False", "Unschedulable", NO_ROOM)  # type: ignore[arg-type]
        world.recorder.event(await world.pod(), "Failed", "Scheduling", "\ud800" * 300)
    assert len(logs) == 3
    assert world.meter.lost == [("event", "Unexpected"), ("condition", "Unexpected"), ("event", "Unexpected")]


# ---------------------------------------------------------------------- limits


async def test_over_the_limit_the_oldest_events_are_dropped_and_no_condition(world: World):
    world = World(limit=1)
    one, two = await world.pod(), await world.pod("two")
    for number in range(3):
        world.recorder.event(one, "Failed", "Scheduling", f"note {number}")
    for known in (one, two):
        world.recorder.condition(known, "PodScheduled", "False", "Unschedulable", NO_ROOM)
    async with world.running():
        await world.run_pending()
    assert world.notes() == ["note 2"]
    assert await messages(world) == await messages(world, "two") == [NO_ROOM]
    assert world.meter.lost == [("event", "Full")] * 2


async def test_over_the_limit_the_namespace_with_the_most_events_loses_one():
    world = World(limit=2)
    for name, namespace in (("only", "quiet"), ("pod-0", "busy"), ("pod-1", "busy")):
        known = world.cluster.put(pod(name, namespace=namespace))
        world.recorder.event(known, "Failed", "Scheduling", name)
    async with world.running():
        await world.run_pending()
    assert sorted(world.notes()) == ["only", "pod-1"]


async def test_conditions_do_not_count_towards_the_limit_of_events():
    world = World(limit=1)
    for name in ("one", "two"):
        world.recorder.unschedulable(await world.pod(name), NO_ROOM)
    async with world.running():
        await world.run_pending()
    assert await messages(world) == await messages(world, "two") == [NO_ROOM]
    assert len(world.notes()) == 1
    assert world.meter.lost == [("event", "Full")]


async def test_a_dropped_event_is_written_when_it_happens_again():
    world = World(limit=1)
    one = await world.pod()
    for note in ("first", "second"):
        world.recorder.event(one, "Failed", "Scheduling", note)
    async with world.running():
        await world.run_pending()
        world.recorder.event(one, "Failed", "Scheduling", "first")
        await world.run_pending()
    assert world.notes() == ["second", "first"]
    assert world.counts() == [1, 1]


async def test_a_dropped_repeat_is_counted_later():
    world = World(limit=1)
    one = await world.pod()
    async with world.running():
        world.recorder.event(one, "Failed", "Scheduling", "first")
        await world.run_pending()
    for note in ("first", "second"):
        world.recorder.event(one, "Failed", "Scheduling", note)
    async with world.running():
        await world.run_pending()
        assert world.counts() == [1, 1]
        world.recorder.event(one, "Failed", "Scheduling", "first")
        await world.run_pending()
    assert world.counts() == [3, 1]


async def test_a_flush_does_not_wait_for_dropped_reports():
    world = World(limit=1)
    one = await world.pod()
    world.recorder.event(one, "Failed", "Scheduling", "first")
    flushing = asyncio.ensure_future(world.recorder.flush())
    await turns()
    world.recorder.event(one, "Failed", "Scheduling", "second")
    await asyncio.wait_for(flushing, 10)


async def test_a_flush_does_not_wait_for_forgotten_objects():
    world = World()
    one = await world.pod()
    world.recorder.condition(one, "PodScheduled", "False", "Unschedulable", NO_ROOM)
    flushing = asyncio.ensure_future(world.recorder.flush())
    await turns()
    world.recorder.forget(one.metadata.uid)
    await asyncio.wait_for(flushing, 10)


async def test_an_object_with_a_waiting_event_is_not_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "_REMEMBERED", 1)
    world = World()
    for name in ("one", "two", "one"):
        world.recorder.event(await world.pod(name), "Failed", "Scheduling", "so")
    async with world.running():
        await world.run_pending()
    assert world.counts() == [2, 1]


async def test_the_number_of_remembered_objects_is_limited_and_those_with_work_stay(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "_REMEMBERED", 10)
    world = World()
    pods = [world.cluster.put(pod(f"pod-{number}")) for number in range(30)]
    async with world.running():
        for known in pods:
            world.recorder.event(known, "Failed", "Scheduling", "so")
            await world.run_pending()
        assert len(world.recorder._reports) == 10
        for known in (pods[20], pods[0], pods[20]):  # the oldest one had a report just now, so it is not forgotten
            world.recorder.event(known, "Failed", "Scheduling", "so")
            await world.run_pending()
        world.clock.advance(360)
        world.recorder.tidy()
        await world.run_pending()
    assert world.counts() == [1] * 20 + [3] + [1] * 9 + [1]


async def test_an_object_with_any_waiting_report_is_not_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "_REMEMBERED", 1)
    world = World()
    gang = await world.group()
    for status in ("False", "True"):
        world.recorder.condition(gang, "PodGroupScheduled", status, "Reason", "so")
        world.recorder.event(await world.pod(), "Failed", "Scheduling", "so")
        world.recorder.event(await world.pod("two"), "Failed", "Scheduling", "so")
    async with world.running():
        await world.run_pending()
    assert sorted(world.cluster.asked) == ["condition", "event", "event", "repeat", "repeat"]
    assert [c.status for c in (await world.group()).status.conditions] == ["True"]


async def test_writes_are_sent_concurrently_within_the_limit():
    world = World(in_flight=6)
    world.cluster.held = asyncio.Event()
    pods = [world.cluster.put(pod(f"pod-{number}")) for number in range(8)]
    async with world.running():
        for known in pods:
            world.recorder.condition(known, "PodScheduled", "False", "Unschedulable", NO_ROOM)
        await turns()
        assert len(world.cluster.asked) == 3
        world.cluster.held.set()
        await world.run_pending()
    assert len(world.cluster.asked) == 8


async def test_events_that_cannot_be_written_do_not_delay_conditions(world: World):
    world.cluster.faults = {"event": [Forbidden("no right to write events")] * 1000}
    gate = asyncio.Event()
    world.gate = gate
    pods = [world.cluster.put(pod(f"pod-{number}")) for number in range(30)]
    for known in pods:
        world.recorder.unschedulable(known, NO_ROOM)
    await turns()
    assert world.meter.wrote == ["condition"] * 30
    gate.set()


async def test_the_reports_of_a_deleted_namespace_are_dropped_at_once(world: World):
    ending = Forbidden("unable to create new content in namespace default because it is being terminated")
    world.cluster.faults = {"event": [ending]}
    with capture_logs() as logs:
        world.recorder.event(await world.pod(), "Failed", "Scheduling", "so")
        await world.run_pending()
    assert world.slept == []
    assert world.meter.lost == [("event", "Forbidden")]
    assert logs == []


async def test_two_writes_about_one_object_are_never_in_flight_together(world: World):
    world.cluster.held = asyncio.Event()
    one = await world.pod()
    for type_ in ("PodScheduled", "example.com/other"):
        world.recorder.condition(one, type_, "False", "Unschedulable", NO_ROOM)
        await turns()
    assert world.cluster.asked == ["condition"]
    world.cluster.held.set()
    await world.run_pending()
    assert len(await messages(world)) == 2


# ---------------------------------------------------------------------- retries without another change


async def test_a_long_refused_report_is_written_later_without_another_change_of_the_pod(world: World):
    world.cluster.faults = {"condition": [Forbidden("403")] * 5}
    world.recorder.condition(await world.pod(), "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    assert await messages(world) == []
    world.recorder.tidy()
    await world.run_pending()
    assert await messages(world) == [NO_ROOM]


async def test_a_report_refused_by_a_conflict_is_written_when_the_change_is_observed(world: World):
    before = await world.pod()
    await world.cluster.patch_metadata(before, annotations={"a": "b"})
    world.recorder.condition(before, "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    assert await messages(world) == []
    world.recorder.seen(await world.pod())
    await world.run_pending()
    assert await messages(world) == [NO_ROOM]


async def test_a_waiting_report_is_written_for_the_last_observed_pod(world: World):
    before = await world.pod()
    await world.cluster.patch_metadata(before, annotations={"a": "b"})
    world.recorder.condition(before, "PodScheduled", "False", "Unschedulable", NO_ROOM)
    world.recorder.seen(await world.pod())
    await world.run_pending()
    assert await messages(world) == [NO_ROOM]
    assert world.meter.lost == []


async def test_a_report_refused_after_the_change_was_observed_is_written_at_once(world: World):
    before = await world.pod()
    world.recorder.event(before, "Other", "Scheduling", "it is known")
    await world.cluster.patch_metadata(before, annotations={"a": "b"})
    world.recorder.seen(await world.pod())
    world.recorder.condition(before, "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    assert await messages(world) == [NO_ROOM]


async def test_refused_reports_of_deleted_pods_do_not_block_others(monkeypatch: pytest.MonkeyPatch, world: World):
    monkeypatch.setattr(recorder, "_AGAIN", 1)
    world.cluster.faults = {"condition": [Forbidden("403")] * 10}
    for name in ("one", "two"):
        world.recorder.condition(await world.pod(name), "PodScheduled", "False", "Unschedulable", NO_ROOM)
        await world.run_pending()
    world.recorder.forget((await world.pod("one")).metadata.uid)
    world.recorder.tidy()
    await world.run_pending()
    assert await messages(world, "two") == [NO_ROOM]


async def test_a_refused_report_is_dropped_after_another_one_with_a_nomination(world: World):
    before = await world.pod()
    await world.cluster.patch_metadata(before, annotations={"a": "b"})
    world.recorder.unschedulable(before, "what was said first")
    await world.run_pending()
    world.recorder.nominated(before, NO_ROOM)
    said = PodCondition("PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.cluster.patch_status(await world.pod(), conditions=[said], nominated_node_name="n1")
    world.recorder.seen(await world.pod())
    world.recorder.tidy()
    await world.run_pending()
    assert await messages(world) == [NO_ROOM]
    assert world.notes() == ["what was said first", NO_ROOM]


# ---------------------------------------------------------------------- a pod that is bound or nominated meanwhile


@asynccontextmanager
async def condition_in_flight(text: str) -> AsyncIterator[tuple[World, Pod, asyncio.Event]]:
    """A pod with a condition of this text whose first write failed; the next one waits for the event."""
    world, retried = World(), asyncio.Event()
    world.cluster.faults["condition"], world.gate = [Unavailable("no answer")], retried
    one = await world.pod()
    async with world.running():
        world.recorder.unschedulable(one, text)
        await turns()
        yield world, one, retried


@pytest.mark.parametrize("seen_first", [True, False], ids=["seen before the response", "seen after it"])
async def test_a_condition_in_flight_is_not_written_again_to_a_bound_pod(*, seen_first: bool):
    async with condition_in_flight("no room") as (world, one, retried):
        await world.bind(one)
        world.recorder.scheduled(one, "n1")
        if seen_first:
            world.recorder.seen(await world.pod())
        retried.set()
        await world.run_pending()
        world.recorder.seen(await world.pod())
        world.recorder.tidy()
        await world.run_pending()
    assert [status for _, status, *_ in shown((await world.pod()).status.conditions)] == ["True"]


async def test_a_queued_condition_is_dropped_when_another_client_binds_the_pod():
    world = World()
    one = await world.pod()
    world.recorder.unschedulable(one, "no room")
    await world.bind(one)
    world.recorder.seen(await world.pod())
    async with world.running():
        await world.run_pending()
    assert world.cluster.asked == ["event"]


async def test_a_condition_in_flight_does_not_replace_that_of_a_nomination():
    async with condition_in_flight("old text") as (world, one, retried):
        new = PodCondition("PodScheduled", "False", "Unschedulable", "new text")
        nominated = await MemoryCluster.patch_status(
            world.cluster, one, conditions=[new], nominated_node_name="n1",
            resource_version=one.metadata.resource_version,
        )  # fmt: skip
        world.recorder.nominated(one, "new text")
        world.recorder.seen(nominated)
        retried.set()
        await world.run_pending()
    assert [text for *_, text in shown((await world.pod()).status.conditions)] == ["new text"]


async def test_events_that_the_api_server_rejects_do_not_delay_others_during_bindings():
    world = World(busy=lambda: True)
    world.cluster.faults["event"], world.gate = [Forbidden("exceeded quota")], asyncio.Event()
    for name in ("one", "two"):
        world.recorder.scheduled(await world.pod(name), "n1")
    async with world.running():
        await turns()
    assert [event.regarding.metadata.name for event in world.cluster.events] == ["two"]


async def test_events_do_not_wait_for_conditions_while_the_recorder_flushes():
    world = World(in_flight=2)
    world.cluster.held, world.cluster.held_kinds = asyncio.Event(), {"condition"}
    for name in ("one", "two"):
        world.recorder.unschedulable(await world.pod(name), "no room")
    async with world.running():
        await turns()
        assert world.cluster.asked == ["condition"]
        flushing = asyncio.create_task(world.recorder.flush())
        await turns()
        assert world.cluster.asked == ["condition", "event", "event"]
        world.cluster.held.set()
        await asyncio.wait_for(flushing, 10)
