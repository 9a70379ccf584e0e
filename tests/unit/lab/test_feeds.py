"""Updates: computed once for all who see the same, and only what changed since a client's last update is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from fluence_lab.dashboard.feeds import IDLE_SECONDS, REFRESH_SECONDS, Feeds, FullError, Subject
from fluence_lab.view import View
from session_scheduler.base.clock import StoppedClock

VIEW = View("overview", "Overview", "text")
ALL = Subject("overview", None, ())


class State:
    def __init__(self, **options: Any) -> None:
        self.clock, self.version, self.computed = StoppedClock(100.0), 1, 0
        self.update: dict[str, Any] = {"summary": "one", "tables": {"a": "A", "b": "B"}, "figures": {}}
        self.feeds = Feeds(self._compute, lambda: self.version, self.clock.now, **options)

    async def _compute(self, _subject: Subject) -> tuple[View | None, Mapping[str, Any]]:
        self.computed += 1
        await asyncio.sleep(0)
        return VIEW, self.update

    def change(self, **parts: Any) -> None:
        self.version += 1
        self.update = {**self.update, **parts}


async def test_users_who_see_the_same_share_one_computation() -> None:
    state = State()
    feeds = await asyncio.gather(*(state.feeds.current(ALL) for _ in range(50)))
    assert state.computed == 1
    assert len(set(map(id, feeds))) == 1
    await state.feeds.current(Subject("overview", frozenset({"a"}), ()))
    assert state.computed == 2


async def test_only_parts_that_changed_are_sent() -> None:
    state = State()
    async with state.feeds.followed(ALL) as feed:
        first = feed.number
        assert json.loads(feed.since(0)) == {"summary": "one", "tables": {"a": "A", "b": "B"}}
        state.change(tables={"a": "A", "b": "B2"})
        await state.feeds.tick()
        assert json.loads(feed.since(first)) == {"tables": {"b": "B2"}}
        assert await feed.change(first, 1.0)


async def test_a_slow_client_gets_only_the_newest_state() -> None:
    state = State()
    async with state.feeds.followed(ALL) as feed:
        first = feed.number
        for text in ("two", "three", "four"):
            state.change(summary=text)
            await state.feeds.tick()
        assert json.loads(feed.since(first)) == {"summary": "four"}


async def test_without_a_change_nothing_is_computed_or_sent() -> None:
    state = State()
    async with state.feeds.followed(ALL) as feed:
        before = feed.number
        await state.feeds.tick()
        assert state.computed == 1
        assert not await feed.change(before, 0.01)
        state.version += 1  # a change that this page does not show
        await state.feeds.tick()
        assert state.computed == 2
        assert feed.number == before


async def test_a_page_is_computed_again_because_time_passes() -> None:
    state = State()
    async with state.feeds.followed(ALL):
        state.clock.advance(REFRESH_SECONDS)
        await state.feeds.tick()
    assert state.computed == 2


async def test_a_page_without_clients_is_not_computed_and_then_forgotten() -> None:
    state = State()
    feed = await state.feeds.current(ALL)
    state.change(summary="two")
    await state.feeds.tick()
    assert state.computed == 1
    state.clock.advance(IDLE_SECONDS)
    await state.feeds.tick()
    assert await state.feeds.current(ALL) is not feed


async def test_an_error_of_one_page_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    state, broken = State(), Subject("broken", None, ())
    compute = state._compute
    fails = False

    async def compute_or_fail(subject: Subject) -> tuple[View | None, Mapping[str, Any]]:
        if fails and subject == broken:
            raise ValueError("no numbers")
        return await compute(subject)

    monkeypatch.setattr(state.feeds, "_compute", compute_or_fail)
    async with state.feeds.followed(broken), state.feeds.followed(ALL) as feed:
        first, fails = feed.number, True
        with capture_logs() as logs:
            for text in ("two", "three"):
                state.change(summary=text)
                await state.feeds.tick()
        assert json.loads(feed.since(first)) == {"summary": "three"}
    assert [(log["event"], log["page"]) for log in logs] == [("a page cannot be computed", "broken")]


async def test_a_followed_page_is_not_forgotten_while_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluence_lab.dashboard.feeds.MOST_FEEDS", 1)
    state, others = State(), asyncio.Event()
    compute = state._compute

    async def compute_last(subject: Subject) -> tuple[View | None, Mapping[str, Any]]:
        if subject == ALL:
            await others.wait()
        return await compute(subject)

    monkeypatch.setattr(state.feeds, "_compute", compute_last)

    async def follow() -> None:
        async with state.feeds.followed(ALL) as feed:
            first = feed.number
            state.change(summary="two")
            await state.feeds.tick()
            assert json.loads(feed.since(first)) == {"summary": "two"}

    async def look_at_others() -> None:
        for number in range(3):
            await state.feeds.current(Subject(f"other-{number}", None, ()))
        others.set()

    await asyncio.gather(follow(), look_at_others())


async def test_the_number_of_clients_is_limited() -> None:
    state = State(most_followers=1)
    async with state.feeds.followed(ALL):
        with pytest.raises(FullError):
            async with state.feeds.followed(ALL):
                pass
    async with state.feeds.followed(ALL):
        pass


async def test_a_client_of_an_earlier_process_gets_everything() -> None:
    state = State()
    feed = await state.feeds.current(ALL)
    assert json.loads(feed.since(999)) == json.loads(feed.since(0))


async def test_a_client_of_a_forgotten_page_gets_everything() -> None:
    state = State()
    async with state.feeds.followed(ALL) as feed:
        for text in ("two", "three"):
            state.change(summary=text)
            await state.feeds.tick()
        number = feed.number
    state.clock.advance(IDLE_SECONDS)
    await state.feeds.tick()
    async with state.feeds.followed(ALL) as again:
        assert again is not feed
        for text in ("four", "five", "six"):
            state.change(summary=text)
            await state.feeds.tick()
        assert json.loads(again.since(number)) == json.loads(again.since(0))


async def test_a_part_that_is_gone_is_not_sent() -> None:
    state = State()
    async with state.feeds.followed(ALL) as feed:
        first = feed.number
        state.change(tables={"a": "A"})
        await state.feeds.tick()
        assert feed.number > first
        assert json.loads(feed.since(0)) == {"summary": "one", "tables": {"a": "A"}}


async def test_the_number_of_feeds_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluence_lab.dashboard.feeds.MOST_FEEDS", 3)
    state = State()
    async with state.feeds.followed(ALL) as followed:
        for number in range(20):
            await state.feeds.current(Subject("overview", None, (("pod", str(number)),)))
        assert await state.feeds.current(ALL) is followed
    assert len(state.feeds._feeds) <= 4
