"""What panels read beside the scheduler's cache: in time limits, with the last answer kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from fluence_lab.dashboard import fetches as module
from fluence_lab.dashboard.fetches import Fetches
from fluence_lab.panels import Panel
from session_scheduler.sdk.signals import background

from .waiting import until


def panel(name: str, fetch: Callable[[Any], Awaitable[object]] | None, plugin: str = "") -> Panel:
    return Panel(name, name, lambda _: None, fetch=fetch, plugin=plugin)


def no_plugin(_: str) -> object | None:
    return None


async def run_until(done: Callable[[], object], fetches: Fetches, api: object = None) -> None:
    async with background(fetches.run(api)):
        await until(done)


async def test_the_answer_is_for_its_panel_and_counts_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCH_SECONDS", 0.0)
    asked: list[object] = []

    async def fetch(api: object) -> object:
        asked.append(api)
        return min(3, len(asked))

    fetches, api = Fetches([panel("a", fetch), panel("b", None)], no_plugin), object()
    assert (fetches.get("a"), fetches.number) == (None, 0)
    await run_until(lambda: len(asked) > 3, fetches, api)
    assert (fetches.get("a"), fetches.get("b"), fetches.number) == (3, None, 3)
    assert set(asked) == {api}


async def test_an_error_is_logged_once_and_the_last_answer_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCH_SECONDS", 0.0)
    asked: list[object] = []

    async def fetch(_: object) -> object:
        asked.append(None)
        if len(asked) > 1:
            raise ValueError("not\nallowed")
        return "first"

    async def good(_: object) -> object:
        return "good"

    fetches = Fetches([panel("a", fetch), panel("b", good)], no_plugin)
    with capture_logs() as logs:
        await run_until(lambda: len(asked) > 3, fetches)
    assert (fetches.get("a"), fetches.get("b")) == ("first", "good")
    assert [(log["event"], log["panel"], log["why"]) for log in logs] == [
        ("a panel cannot read its data", "a", "not allowed")
    ]


async def test_a_fetch_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_SECONDS", 0.01)

    async def never(_: object) -> object:
        await asyncio.Event().wait()
        return None

    with capture_logs() as logs:
        await run_until(lambda: logs, Fetches([panel("a", never)], no_plugin))
    assert [log["why"] for log in logs] == ["TimeoutError"]


async def test_without_its_plugin_a_panel_fetches_nothing() -> None:
    async def fetch(_: object) -> object:
        return "answer"

    panels = [panel("a", fetch, "loaded"), panel("b", fetch, "absent")]
    fetches = Fetches(panels, lambda name: object() if name == "loaded" else None)
    await run_until(lambda: fetches.get("a"), fetches)
    assert (fetches.get("a"), fetches.get("b")) == ("answer", None)
