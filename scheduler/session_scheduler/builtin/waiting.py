"""The wait, before a pod is bound, for what was written to come about: asked of what is watched, ever less often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

_T = TypeVar("_T")
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
"""Seconds between two checks."""


async def wait_for_all(waiting: Mapping[str, _T], is_done: Callable[[_T], bool], seconds: float) -> list[_T]:
    """Wait until all are done; those that are not within so many seconds. Raises what `is_done` raises."""
    pause = _FIRST_PAUSE
    try:
        async with asyncio.timeout(seconds):
            while waiting := {key: one for key, one in waiting.items() if not is_done(one)}:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
    except TimeoutError:
        pass
    return list(waiting.values())
