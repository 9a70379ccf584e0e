"""An event loop with virtual time, which passes when every task waits: no test takes the time that it simulates."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Selector(selectors.SelectSelector):
    """Waits by moving the clock."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits for what will never come"
            self.passed += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._passing = _Selector()
        super().__init__(self._passing)

    def time(self) -> float:
        return self._passing.passed


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """What the work returns. Of its tasks none may be left."""
    loop = _Loop()
    try:
        result = loop.run_until_complete(work)
        left = asyncio.all_tasks(loop)
        assert not left, f"tasks are left: {left}"
        return result
    finally:
        loop.close()


def now() -> float:
    """Unix seconds of the running loop."""
    return 1_800_000_000.0 + asyncio.get_running_loop().time()
