"""Conditions: those that the recorder writes on pods and groups, and those that it never writes."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from msgspec.structs import replace

from session_scheduler.cluster.errors import NotFound, Unavailable
from session_scheduler.model.objects import Pod
from session_scheduler.testing.builders import pod, pod_group

from .recorder_world import World, shown, turns

NO_ROOM = "0/4 nodes are available: 4 Insufficient cpu."


@pytest.fixture
async def world():
    world = World()
    async with world.running():
        yield world


# ---------------------------------------------------------------------- visible reports


async def test_an_unschedulable_pod_gets_a_condition_with_the_reason(world: World):
    world.recorder.unschedulable(await world.pod(), NO_ROOM)
    await world.run_pending()
    (condition,) = (await world.pod()).status.conditions
    assert shown([condition]) == [("PodScheduled", "False", "Unschedulable", NO_ROOM)]
    assert condition.last_transition_time == "2026-01-02T03:04:05Z"
    (event,) = world.cluster.events
    assert (event.reason, event.action, event.note, event.warning) == ("FailedScheduling", "Scheduling", NO_ROOM, True)


async def test_a_failure_of_the_scheduler_has_another_reason_than_unschedulable(world: World):
    world.recorder.failed(await world.pod(), "plugin broken")
    await world.run_pending()
    assert shown((await world.pod()).status.conditions) == [
        ("PodScheduled", "False", "SchedulerError", "plugin broken")
    ]
    assert [(event.reason, event.warning) for event in world.cluster.events] == [("FailedScheduling", True)]


async def test_a_bound_pod_gets_an_event_and_keeps_the_conditions_of_its_binding(world: World):
    await world.bind(await world.pod())
    before = await world.pod()
    world.recorder.scheduled(before, "n1")
    await world.run_pending()
    (event,) = world.cluster.events
    assert (event.reason, event.action, event.warning) == ("Scheduled", "Binding", False)
    assert event.note == "Successfully assigned default/one to n1"
    assert await world.pod() == before


async def test_a_group_gets_a_condition_whether_it_is_scheduled(world: World):
    world.recorder.group(await world.group(), "False", "Unschedulable", "pod group is unschedulable")
    await world.run_pending()
    world.recorder.group(await world.group(), "True", "Scheduled", "pod group is scheduled")
    await world.run_pending()
    assert shown((await world.group()).status.conditions) == [
        ("PodGroupScheduled", "True", "Scheduled", "pod group is scheduled")
    ]
    reported = [(e.reason, e.action, e.note, e.warning, type(e.regarding).__name__) for e in world.cluster.events]
    assert reported == [
        ("FailedScheduling", "Scheduling", "pod group is unschedulable", True, "PodGroup"),
        ("Scheduled", "Binding", "pod group is scheduled", False, "PodGroup"),
    ]


async def test_a_group_that_stays_scheduled_is_not_reported_again(world: World):
    for _ in range(2):
        world.recorder.group(await world.group(), "True", "Scheduled", "pod group is scheduled")
        await world.run_pending()
    assert world.cluster.asked == ["condition", "event"]
    assert world.counts() == [1]


async def test_repeated_requests_before_and_during_a_write_report_a_group_once():
    world = World()
    world.cluster.held = asyncio.Event()
    gang = await world.group()
    for _ in range(2):
        world.recorder.group(gang, "True", "Scheduled", "pod group is scheduled")
    async with world.running():
        await turns()
        world.recorder.group(gang, "True", "Scheduled", "pod group is scheduled")
        world.cluster.held.set()
        await world.run_pending()
    assert world.cluster.asked == ["condition", "event"]


async def test_a_group_of_an_api_without_conditions_gets_events_only(world: World):
    crew = world.cluster.put(pod_group("old", 2, coscheduling=True))
    for _ in range(2):
        world.recorder.group(crew, "True", "Scheduled", "pod group is scheduled")
        await world.run_pending()
    assert world.cluster.asked == ["event"]


# ---------------------------------------------------------------------- changes only


async def test_a_condition_that_the_object_has_is_not_written_again(world: World):
    world.recorder.condition(await world.pod(), "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    version = (await world.pod()).metadata.resource_version
    other = World()
    other.cluster.put(await world.pod())
    async with other.running():
        other.recorder.condition(await other.pod(), "PodScheduled", "False", "Unschedulable", NO_ROOM)
        await other.run_pending()
    assert other.cluster.asked == []
    assert (await world.pod()).metadata.resource_version == version


async def test_a_written_condition_is_not_repeated_for_an_outdated_object(world: World):
    old = await world.pod()
    for _ in range(3):
        world.recorder.condition(old, "PodScheduled", "False", "Unschedulable", NO_ROOM)
        await world.run_pending()
    assert world.cluster.asked == ["condition"]


async def test_a_condition_that_another_client_overwrote_is_written_again(world: World):
    world.recorder.condition(await world.pod(), "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    (ours,) = (await world.pod()).status.conditions
    foreign = type(ours)(type="PodScheduled", status="False", reason="Foreign")
    await world.cluster.patch_status(await world.pod(), conditions=[foreign])
    world.recorder.condition(await world.pod(), "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    assert shown((await world.pod()).status.conditions) == shown([ours])


async def test_only_the_latest_waiting_value_of_a_condition_is_written(world: World):
    one = await world.pod()
    for text in ("first", "second", "third"):
        world.recorder.condition(one, "PodScheduled", "False", "Unschedulable", text)
    await world.run_pending()
    assert world.cluster.asked == ["condition"]
    assert [c.message for c in (await world.pod()).status.conditions] == ["third"]


async def test_a_condition_revoked_before_its_write_is_never_written(world: World):
    one = await world.pod()
    world.recorder.condition(one, "PodScheduled", "False", "Unschedulable", "first")
    await world.run_pending()
    one = await world.pod()
    world.recorder.condition(one, "PodScheduled", "False", "Unschedulable", "second")
    world.recorder.condition(one, "PodScheduled", "False", "Unschedulable", "first")
    await world.run_pending()
    assert world.cluster.asked == ["condition"]


async def test_a_condition_requested_during_a_write_is_written_after_it_despite_the_new_version(world: World):
    world.cluster.held = asyncio.Event()
    one = await world.pod()
    world.recorder.condition(one, "PodScheduled", "False", "Unschedulable", "first")
    await turns()
    world.recorder.condition(one, "PodScheduled", "False", "Unschedulable", "second")
    world.cluster.held.set()
    await world.run_pending()
    assert [c.message for c in (await world.pod()).status.conditions] == ["second"]
    assert world.meter.lost == []


async def test_successive_conditions_are_written_before_any_of_them_is_observed(world: World):
    read = await world.pod()
    for number in range(4):
        world.recorder.condition(read, "PodScheduled", "False", "Unschedulable", f"text {number}")
        await world.run_pending()
    assert [c.message for c in (await world.pod()).status.conditions] == ["text 3"]
    assert world.meter.lost == []


async def test_two_conditions_of_one_pod_do_not_conflict(world: World):
    one = await world.pod()
    world.recorder.condition(one, "PodScheduled", "False", "Unschedulable", NO_ROOM)
    world.recorder.condition(one, "example.com/other", "True", "Because", "so")
    await world.run_pending()
    assert [c.type for c in (await world.pod()).status.conditions] == ["PodScheduled", "example.com/other"]


async def test_the_transition_time_changes_only_with_the_status(world: World):
    times = []
    reported: list[tuple[Literal["True", "False"], str]] = [("False", "first"), ("False", "second"), ("True", "done")]
    for status, message in reported:
        world.recorder.group(await world.group(), status, "Reason", message)
        await world.run_pending()
        times += [c.last_transition_time for c in (await world.group()).status.conditions]
        world.clock.advance(60)
    assert times == ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z", "2026-01-02T03:06:05Z"]


# ---------------------------------------------------------------------- late writes


async def test_a_late_condition_is_not_written_on_a_pod_bound_meanwhile(world: World):
    late = await world.pod()
    await world.bind(late)
    world.recorder.unschedulable(late, NO_ROOM)
    await world.run_pending()
    assert [c.status for c in (await world.pod()).status.conditions] == ["True"]
    assert world.meter.lost == [("condition", "Conflict")]


async def test_a_second_condition_is_not_written_on_a_pod_bound_in_between(world: World):
    read = await world.pod()
    world.recorder.condition(read, "PodScheduled", "False", "Unschedulable", "first")
    await world.run_pending()
    await world.bind(await world.pod())
    world.recorder.condition(read, "PodScheduled", "False", "Unschedulable", "second")
    await world.run_pending()
    assert [c.status for c in (await world.pod()).status.conditions] == ["True"]


async def test_a_pod_without_a_version_gets_no_condition(world: World):
    world.recorder.condition(pod("one"), "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    assert (await world.pod()).status.conditions == ()
    assert world.meter.lost == [("condition", "Conflict")]


async def test_a_condition_that_lost_a_conflict_is_written_for_the_current_pod(world: World):
    old = await world.pod()
    await world.cluster.patch_metadata(old, annotations={"touched": "yes"})
    for known in (old, await world.pod()):
        world.recorder.condition(known, "PodScheduled", "False", "Unschedulable", NO_ROOM)
        await world.run_pending()
    assert [c.message for c in (await world.pod()).status.conditions] == [NO_ROOM]


async def test_a_condition_for_a_newer_pod_replaces_the_waiting_one(world: World):
    old = await world.pod()
    new = await world.cluster.patch_metadata(old, annotations={"touched": "yes"})
    for known in (old, new):
        world.recorder.condition(known, "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    assert [c.message for c in (await world.pod()).status.conditions] == [NO_ROOM]
    assert world.meter.lost == []


async def test_a_waiting_condition_of_a_bound_pod_is_dropped(world: World):
    read = await world.pod()
    world.recorder.condition(read, "PodScheduled", "False", "Unschedulable", NO_ROOM)
    world.recorder.scheduled(read, "n1")
    await world.run_pending()
    assert "condition" not in world.cluster.asked


async def test_a_groups_condition_is_written_although_its_plan_changed_the_version(world: World):
    old = await world.group()
    await world.cluster.patch_metadata(old, annotations={"plan": "x"})
    world.recorder.group(old, "True", "Scheduled", "pod group is scheduled")
    await world.run_pending()
    found = await world.group()
    assert shown(found.status.conditions) == [("PodGroupScheduled", "True", "Scheduled", "pod group is scheduled")]
    assert found.metadata.annotations == {"plan": "x"}


@pytest.mark.parametrize("written", [True, False])
async def test_a_scheduled_group_stays_so_and_a_later_failure_is_only_an_event(world: World, written):
    group = await world.group()
    world.recorder.group(group, "False", "Unschedulable", NO_ROOM)
    world.recorder.group(group, "True", "Scheduled", "pod group is scheduled")
    if written:
        await world.run_pending()
        group = await world.group()
    world.recorder.group(group, "False", "Unschedulable", "no room for another one")
    await world.run_pending()
    found = await world.group()
    assert shown(found.status.conditions) == [("PodGroupScheduled", "True", "Scheduled", "pod group is scheduled")]
    assert "no room for another one" in world.notes()


async def test_a_groups_condition_is_not_written_on_another_group_of_its_name(world: World):
    old = await world.group()
    await world.cluster.delete(old)
    await world.cluster.create(pod_group("gang", 2))
    world.recorder.condition(old, "PodGroupScheduled", "True", "Scheduled", "pod group is scheduled")
    await world.run_pending()
    assert (await world.group()).status.conditions == ()
    assert world.meter.lost == [("condition", "NotFound")]


async def test_a_group_with_constant_foreign_writes_is_given_up_after_some_tries(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    patch = world.cluster.patch_status

    async def raced(obj, **fields):
        current = await world.group()
        await world.cluster.patch_metadata(current, annotations={"plan": current.metadata.resource_version})
        return await patch(obj, **fields)

    monkeypatch.setattr(world.cluster, "patch_status", raced)
    world.recorder.condition(await world.group(), "PodGroupScheduled", "True", "Scheduled", "so")
    await world.run_pending()
    assert world.cluster.asked == ["condition"] * 5
    assert world.meter.lost == [("condition", "Conflict")]


async def test_our_own_writes_do_not_hide_foreign_writes_between_them(world: World):
    old = await world.pod()
    world.recorder.condition(old, "PodScheduled", "False", "Unschedulable", "first")
    await world.run_pending()
    await world.cluster.patch_metadata(old, annotations={"touched": "yes"})
    world.recorder.condition(await world.pod(), "PodScheduled", "False", "Unschedulable", "second")
    await world.run_pending()
    world.recorder.condition(old, "PodScheduled", "False", "Unschedulable", "late")
    await world.run_pending()
    assert [c.message for c in (await world.pod()).status.conditions] == ["second"]
    assert world.meter.lost == [("condition", "Conflict")]


async def test_after_a_lost_write_only_the_pods_state_counts(world: World):
    old = await world.pod()
    world.recorder.condition(old, "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await world.run_pending()
    (ours,) = (await world.pod()).status.conditions
    await world.cluster.patch_status(old, conditions=[replace(ours, message="foreign")])
    for known, text in ((old, "late"), (await world.pod(), NO_ROOM)):
        world.recorder.condition(known, "PodScheduled", "False", "Unschedulable", text)
        await world.run_pending()
    assert [c.message for c in (await world.pod()).status.conditions] == [NO_ROOM]


# ---------------------------------------------------------------------- ends


async def test_a_deleted_pod_causes_no_error(world: World):
    old = await world.pod()
    await world.cluster.delete(old)
    world.recorder.unschedulable(old, NO_ROOM)
    await world.run_pending()
    assert world.meter.lost == [("condition", "NotFound")]
    with pytest.raises(NotFound):
        await world.pod()


async def test_no_condition_and_no_repeat_is_written_for_a_forgotten_pod(world: World):
    one, two = await world.pod(), await world.pod("two")
    for known in (one, two):
        world.recorder.event(known, "FailedScheduling", "Scheduling", NO_ROOM, warning=True)
    await world.run_pending()
    for known in (one, two):
        world.recorder.unschedulable(known, NO_ROOM)
    world.recorder.forget(one.metadata.uid)
    await world.run_pending()
    assert (await world.pod()).status.conditions == ()
    assert world.counts() == [1, 2]
    assert world.meter.lost == [("condition", "Forgotten"), ("event", "Forgotten")]


@pytest.mark.parametrize("refused", [[], [Unavailable("503")] * 4])
async def test_the_reason_for_a_deletion_is_written_even_after_the_deletion_is_observed(refused):
    world = World()
    world.cluster.faults = {"event": refused}
    one = await world.pod()
    await world.cluster.delete(one)
    world.recorder.event(one, "ProducerGone", "Scheduling", "it is deleted")
    world.recorder.forget(one.metadata.uid)
    async with world.running():
        await world.run_pending()
    assert world.notes() == ["it is deleted"]
    assert world.meter.lost == []


async def test_without_events_conditions_are_still_written():
    world = World(events=False)
    async with world.running():
        world.recorder.unschedulable(await world.pod(), NO_ROOM)
        world.recorder.scheduled(await world.pod("two"), "n1")
        await world.run_pending()
    assert [c.message for c in (await world.pod()).status.conditions] == [NO_ROOM]
    assert world.cluster.events == []


async def test_a_flush_waits_only_for_writes_queued_before_it(world: World):
    world.cluster.held = asyncio.Event()
    world.recorder.condition(await world.pod(), "PodScheduled", "False", "Unschedulable", "first")
    await turns()
    flushing = asyncio.ensure_future(world.recorder.flush())
    await turns()
    assert not flushing.done()
    first, world.cluster.held = world.cluster.held, asyncio.Event()
    world.recorder.condition(await world.pod("two"), "PodScheduled", "False", "Unschedulable", "later")
    first.set()
    await asyncio.wait_for(flushing, 10)
    assert [c.message for c in (await world.pod()).status.conditions] == ["first"]
    assert (await world.cluster.get(Pod, "default", "two")).status.conditions == ()
    world.cluster.held.set()


async def test_a_flush_of_nothing_returns_at_once(world: World):
    await world.run_pending()
    assert world.cluster.asked == []


async def test_writing_continues_after_a_cancellation():
    world = World()
    async with world.running():
        await turns()
    world.recorder.condition(await world.pod(), "PodScheduled", "False", "Unschedulable", NO_ROOM)
    async with world.running():
        await world.run_pending()
    assert [c.message for c in (await world.pod()).status.conditions] == [NO_ROOM]


async def test_a_bound_pod_never_gets_the_condition_unscheduled(world: World):
    await world.bind(await world.pod())
    world.recorder.failed(await world.pod(), "gang failed")
    await world.run_pending()
    assert [c.status for c in (await world.pod()).status.conditions] == ["True"]
    assert world.cluster.asked == ["event"]


async def test_the_reports_of_a_deleted_pod_have_no_reference_cycle(world: World):
    one = await world.pod()
    world.recorder.unschedulable(one, NO_ROOM)
    await world.run_pending()
    world.recorder.seen(one)
    reported = world.recorder._reports[one.metadata.uid]
    world.recorder.forget(one.metadata.uid)
    assert (reported.series, reported.seen) == ({}, None)  # else a cycle, which waits for a garbage collection
