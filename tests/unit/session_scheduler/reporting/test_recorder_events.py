"""Events: the repeats of one event, the limits on their number, and their notes."""

from __future__ import annotations

import asyncio

import pytest

from session_scheduler.cluster.port import EVENT_NOTE_LIMIT
from session_scheduler.model.objects import Pod
from session_scheduler.reporting import recorder
from session_scheduler.reporting.recorder import cut
from session_scheduler.testing.builders import node, pod

from .recorder_world import START, World, turns

SIX_MINUTES = 360


@pytest.fixture
async def world():
    world = World()
    async with world.running():
        yield world


async def fails(world: World, note="no room", name="one"):
    """The pod's scheduling fails again."""
    world.recorder.event(await world.pod(name), "FailedScheduling", "Scheduling", note, warning=True)
    await world.run_pending()


# ---------------------------------------------------------------------- series


async def test_a_repeat_is_a_series_of_the_first_event(world: World):
    await fails(world)
    world.clock.advance(1)
    await fails(world)
    assert world.cluster.asked == ["event", "repeat"]
    (series,) = world.cluster.series.values()
    assert series
    assert (series.count, (series.last_observed - START).total_seconds()) == (2, 1)
    assert world.cluster.events[0].time == START


async def test_after_the_first_repeat_a_series_is_written_every_six_minutes(world: World):
    for second in range(SIX_MINUTES + 2):
        if second:
            world.clock.advance(1)
        await fails(world)
    assert world.cluster.asked == ["event", "repeat", "repeat"]
    assert world.counts() == [SIX_MINUTES + 2]


async def test_unwritten_repeats_are_written_in_the_end_without_another_repeat(world: World):
    for _ in range(5):
        await fails(world)
    assert world.counts() == [2]
    world.clock.advance(SIX_MINUTES - 1)
    world.recorder.tidy()
    await world.run_pending()
    assert world.counts() == [2]
    world.clock.advance(1)
    for _ in range(2):
        world.recorder.tidy()
        await world.run_pending()
    assert world.counts() == [5]
    series = world.cluster.series[next(iter(world.cluster.series))]
    assert series
    assert series.last_observed == START
    assert world.cluster.asked == ["event", "repeat", "repeat"]


async def test_repeats_before_the_first_write_are_one_event_with_its_count():
    world = World()
    one = await world.pod()
    for _ in range(4):
        world.recorder.event(one, "FailedScheduling", "Scheduling", "no room", warning=True)
    async with world.running():
        await world.run_pending()
    assert world.cluster.asked == ["event", "repeat"]
    assert world.counts() == [4]


async def test_a_repeat_during_the_write_of_its_event_is_counted(world: World):
    world.cluster.held = asyncio.Event()
    one = await world.pod()
    world.recorder.event(one, "FailedScheduling", "Scheduling", "no room", warning=True)
    await turns()
    world.recorder.event(one, "FailedScheduling", "Scheduling", "no room", warning=True)
    world.cluster.held.set()
    await world.run_pending()
    assert world.counts() == [2]


async def test_a_repeat_during_a_late_write_is_counted_six_minutes_later(world: World):
    for _ in range(2):
        await fails(world)
    world.clock.advance(SIX_MINUTES)
    world.cluster.held = asyncio.Event()
    for _ in range(2):
        world.recorder.event(await world.pod(), "FailedScheduling", "Scheduling", "no room", warning=True)
        await turns()
    world.cluster.held.set()
    await world.run_pending()
    assert world.counts() == [3]
    world.clock.advance(SIX_MINUTES)
    world.recorder.tidy()
    await world.run_pending()
    assert world.counts() == [4]


@pytest.mark.parametrize(
    ("reason", "action", "note", "warning", "name"),
    [
        ("Other", "Scheduling", "no room", True, "one"),
        ("FailedScheduling", "Other", "no room", True, "one"),
        ("FailedScheduling", "Scheduling", "other", True, "one"),
        ("FailedScheduling", "Scheduling", "no room", False, "one"),
        ("FailedScheduling", "Scheduling", "no room", True, "two"),
    ],
)
async def test_any_difference_makes_a_separate_event(world: World, reason, action, note, warning, name):
    await fails(world)
    world.recorder.event(await world.pod(name), reason, action, note, warning=warning)
    await world.run_pending()
    assert world.cluster.asked == ["event", "event"]
    assert world.counts() == [1, 1]


async def test_a_recreated_pod_has_its_own_events(world: World):
    await fails(world)
    one = await world.pod()
    await world.cluster.delete(one)
    world.recorder.forget(one.metadata.uid)
    await world.cluster.create(pod("one"))
    await fails(world)
    assert world.counts() == [1, 1]


async def test_an_expired_event_is_created_again(world: World):
    for _ in range(3):
        await fails(world)
    world.cluster.series.clear()
    world.clock.advance(SIX_MINUTES)
    await fails(world)
    assert world.counts() == [4]
    assert world.notes() == ["no room"] * 2


async def test_a_repeat_after_half_an_hour_of_silence_is_a_new_event(world: World):
    await fails(world)
    world.clock.advance(1800)
    world.recorder.tidy()
    await fails(world)
    assert world.counts() == [1, 1]


async def test_a_continuing_series_is_not_forgotten_with_silent_ones(world: World):
    await fails(world, name="two")
    await fails(world)
    world.clock.advance(1799)
    await fails(world)
    world.clock.advance(1)
    world.recorder.tidy()
    await fails(world)
    await fails(world, name="two")
    assert world.counts() == [1, 2, 1]


async def test_an_event_may_regard_an_object_without_a_namespace(world: World):
    n1 = world.cluster.put(node("n1"))
    for _ in range(2):
        world.recorder.event(n1, "Drained", "Draining", "so")
        await world.run_pending()
    ((namespace, _),) = world.cluster.series
    assert (namespace, world.counts()) == ("default", [2])


# ---------------------------------------------------------------------- similar events


async def test_from_the_eleventh_note_of_a_reason_within_ten_minutes_notes_are_combined(world: World):
    for number in range(13):
        await fails(world, f"note {number}")
    assert world.notes() == [f"note {number}" for number in range(10)] + ["(combined from similar events): note 10"]
    assert world.counts()[-1] == 2
    world.clock.advance(SIX_MINUTES)
    await fails(world, "note 13")
    assert world.counts()[-1] == 4


async def test_a_known_note_keeps_its_own_series_when_others_are_combined(world: World):
    for number in range(11):
        await fails(world, f"note {number}")
    await fails(world, "note 3")
    assert world.counts() == [1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1]


async def test_notes_of_other_reasons_and_old_notes_are_not_combined(world: World):
    for number in range(10):
        await fails(world, f"note {number}")
    world.recorder.event(await world.pod(), "Other", "Scheduling", "other", warning=True)
    world.recorder.event(await world.pod(), "FailedScheduling", "Scheduling", "no warning")
    await world.run_pending()
    world.clock.advance(600)
    await fails(world, "note 10")
    assert world.notes()[10:] == ["other", "no warning", "note 10"]


async def test_old_notes_of_an_object_with_new_ones_are_forgotten(world: World):
    await fails(world, "old")
    world.clock.advance(1799)
    await fails(world, "newer")
    world.clock.advance(1)
    for note in ("newest", "old", "newer"):
        await fails(world, note)
    assert list(zip(world.notes(), world.counts(), strict=True)) == [
        ("old", 1), ("newer", 2), ("newest", 1), ("old", 1),
    ]  # fmt: skip


async def test_old_reports_leave_no_state(world: World):
    for _ in range(3):
        await fails(world)
    for seconds in (SIX_MINUTES, 1800):
        world.clock.advance(seconds)
        world.recorder.tidy()
        await world.run_pending()
    assert not world.recorder._reports
    assert not world.recorder._owed


# ---------------------------------------------------------------------- notes


@pytest.mark.parametrize("character", ["x", "ü", "€", "🦊"])
async def test_a_note_is_truncated_to_the_limit_of_an_event(world: World, character):
    await fails(world, character * 2000)
    (note,) = world.notes()
    assert EVENT_NOTE_LIMIT - 4 < len(note.encode()) <= EVENT_NOTE_LIMIT
    assert note.endswith(" ...")
    assert set(note) == {character, " ", "."}


def test_a_text_is_truncated_between_words():
    assert cut("one two three", 13) == "one two three"
    assert cut("word " * 300, 1024) == ("word " * 204).rstrip() + " ..."


async def test_a_combined_note_is_truncated_too(world: World):
    for number in range(11):
        await fails(world, f"{number} " + "x" * 1020)
    assert len(world.notes()[-1]) <= EVENT_NOTE_LIMIT
    assert world.notes()[-1].startswith("(combined from similar events): 10 x")


async def test_texts_truncated_to_the_same_note_are_the_same_event(world: World):
    for end in "ab":
        await fails(world, "x" * 2000 + end)
    assert world.counts() == [2]


# ---------------------------------------------------------------------- order of writes


async def test_during_bindings_events_are_written_one_at_a_time():
    bound = [False]
    world = World(busy=lambda: bound[0])
    world.cluster.held, world.gate, bound[0] = asyncio.Event(), asyncio.Event(), True
    async with world.running():
        for name in ("one", "two"):
            world.recorder.scheduled(await world.pod(name), "n1")
        await turns()
        assert world.cluster.asked == ["event"]
        bound[0] = False
        world.gate.set()
        await turns()
        assert world.cluster.asked == ["event", "event"]
        world.cluster.held.set()
        await world.run_pending()
    assert len(world.cluster.events) == 2


async def test_many_waiting_events_are_written_during_bindings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "_MANY_EVENTS", 0)
    world = World(busy=lambda: True)
    world.cluster.held = asyncio.Event()
    async with world.running():
        for name in ("one", "two"):
            world.recorder.scheduled(await world.pod(name), "n1")
        await turns()
        assert world.cluster.asked == ["event", "event"]
        world.cluster.held.set()
        await world.run_pending()


async def test_events_wait_for_conditions():
    world = World(in_flight=4)
    world.cluster.held = asyncio.Event()
    for number in range(5):
        world.recorder.unschedulable(world.cluster.put(pod(f"pod-{number}")), "no room")
    async with world.running():
        await turns()
        assert world.cluster.asked == ["condition"] * 3
        world.cluster.held.set()
        await world.run_pending()
    assert world.cluster.asked == ["condition"] * 5 + ["event"] * 5


async def test_events_wait_at_most_ten_seconds_for_conditions():
    world = World(in_flight=4)
    world.cluster.held, world.cluster.held_kinds = asyncio.Event(), {"condition"}
    async with world.running():
        for number in range(5):
            world.recorder.unschedulable(world.cluster.put(pod(f"pod-{number}", namespace=f"ns-{number}")), "no room")
        await turns()
        world.clock.advance(9.9)
        await turns()
        assert world.cluster.asked == ["condition"] * 3
        world.clock.advance(0.1)
        await turns(50)
        assert world.cluster.asked == ["condition"] * 3 + ["event"] * 5
        world.recorder.scheduled(await world.pod("one"), "n1")
        await turns()
        assert world.cluster.asked.count("event") == 5, "a later event waits again"
        world.clock.advance(10)
        await turns()
        assert world.cluster.asked.count("event") == 6
        world.cluster.held.set()
        await world.run_pending()


async def test_namespaces_take_turns():
    world = World(in_flight=2)
    pods = [world.cluster.put(pod(f"pod-{number}", namespace="busy")) for number in range(3)]
    pods += [world.cluster.put(pod("only", namespace="quiet"))]
    for known in pods:
        world.recorder.unschedulable(known, "no room")
    async with world.running():
        await world.run_pending()
    order = ["pod-0", "only", "pod-1", "pod-2"]
    versions = {each.metadata.name: each.metadata.resource_version for each in (await world.cluster.list(Pod)).items}
    assert sorted(order, key=lambda name: int(versions[name])) == order
    assert [event.regarding.metadata.name for event in world.cluster.events] == order


async def test_conditions_are_never_delayed():
    world = World(busy=lambda: True)
    async with world.running():
        for name in ("one", "two"):
            world.recorder.unschedulable(await world.pod(name), "no room")
        await turns()
        assert world.cluster.asked.count("condition") == 2
