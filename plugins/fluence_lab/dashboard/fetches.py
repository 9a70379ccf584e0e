"""Calls the `fetch` of panels every half a minute, and keeps the last answers for their pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from fluence_lab.dashboard.failures import Failures
from fluence_lab.panels import Panel

__all__ = ["Fetches"]

FETCH_SECONDS: Final = 30.0
LIMIT_SECONDS: Final = 20.0
"""How long one fetch may take."""


class Fetches:
    """The answers of panels whose plugin is loaded."""

    def __init__(self, panels: Iterable[Panel], plugin: Callable[[str], object | None]) -> None:
        """`plugin`: the loaded plugin of a name, or None."""
        self._fetches = {
            panel.name: panel.fetch
            for panel in panels
            if panel.fetch is not None and (not panel.plugin or plugin(panel.plugin) is not None)
        }
        self._failures = Failures()
        self._answers: dict[str, object] = {}
        self.number = 0
        """Grows with each new answer: pages that show it are out of date then."""

    def get(self, panel: str) -> object:
        """The last answer of a panel; None before the first."""
        return self._answers.get(panel)

    async def run(self, api: Any) -> None:
        """Fetch with this client of `sdk.dynamic_client`, until it is cancelled."""
        while True:
            await asyncio.gather(*(self._fetch(panel, fetch, api) for panel, fetch in self._fetches.items()))
            await asyncio.sleep(FETCH_SECONDS)

    async def _fetch(self, panel: str, fetch: Callable[[Any], Awaitable[object]], api: Any) -> None:
        """Keep the answer. An error is logged once, until the next answer, and the last answer stays."""
        with self._failures.logged("a panel cannot read its data", trace=False, panel=panel):
            async with asyncio.timeout(LIMIT_SECONDS):
                answer = await fetch(api)
            if panel not in self._answers or answer != self._answers[panel]:
                self._answers[panel] = answer
                self.number += 1
