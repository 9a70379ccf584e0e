"""Answers of `fluence explain` for pages: cached, and computed one at a time beside the pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fluence_lab.dashboard.failures import Failures
from session_scheduler.errors import FluenceError

__all__ = ["Verdicts"]

FRESH_SECONDS: Final = 10.0
MOST: Final = 256
Answer = Mapping[str, Any]


class Verdicts:
    """`get` answers at once with what is known; `run` computes what was asked for and is missing or old."""

    def __init__(self, explain: Callable[[str], Awaitable[Answer]], now: Callable[[], float]) -> None:
        """`explain`: one pod's entry in the JSON of `fluence explain`."""
        self._explain = explain
        self._now = now
        self._known: dict[str, tuple[float, Answer | None]] = {}
        self._wanted: dict[str, None] = {}
        self._asked = asyncio.Event()
        self._failures = Failures()
        self.number = 0
        """Grows with each new answer: pages that show them are out of date then."""

    def get(self, key: str) -> Answer | None:
        """What is known about a pod (NAMESPACE/NAME)."""
        at, answer = self._known.get(key, (float("-inf"), None))
        if at + FRESH_SECONDS <= self._now() and len(self._wanted) < MOST:
            self._wanted[key] = None
            self._asked.set()
        return answer

    async def fetch(self, key: str) -> None:
        """Make sure that a fresh answer is known."""
        at, _ = self._known.get(key, (float("-inf"), None))
        if at + FRESH_SECONDS > self._now():
            return
        try:
            answer: Answer | None = await self._explain(key)
        except FluenceError:  # the pod is gone
            answer = None
        self._known.pop(key, None)
        self._known[key] = (self._now(), answer)
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]

    async def run(self) -> None:
        """Compute the requested verdicts, forever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            before = dict(self._known)
            for key in list(self._wanted):
                del self._wanted[key]
                with self._failures.logged("cannot explain why a pod waits", pod=key):
                    await self.fetch(key)
                await asyncio.sleep(0)
            if any(before.get(key, (0.0, None))[1] != answer for key, (_, answer) in self._known.items()):
                self.number += 1
