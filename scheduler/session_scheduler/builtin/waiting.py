"""The wait of a `prebind` for other controllers: checks the watched objects at growing intervals, up to a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

_T = TypeVar("_T")
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
"""Seconds between two checks."""


async def wait_for_all(waiting: Mapping[str, _T], is_done: Callable[[_T], bool], seconds: float) -> list[_T]:
    """Wait until all are done, at most `seconds`. Returns those that are not done. Raises what `is_done` raises."""
    pause = _FIRST_PAUSE
    try:
        async with asyncio.timeout(seconds):
            while waiting := {key: one for key, one in waiting.items() if not is_done(one)}:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
    except TimeoutError:
        pass
    return list(waiting.values())
