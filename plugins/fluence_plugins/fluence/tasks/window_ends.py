"""Has groups that wait retried when a maintenance window has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from fluence_plugins.fluence.matching.maintenance import Maintenance

Change = Callable[[Callable[[], None]], None]
"""Has some work change what sessions read, between two of them."""
CHECK_SECONDS = 2.0
"""How often it is checked whether a window has ended."""


async def retry_after_windows(
    maintenance: Maintenance,
    change: Change,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    wall: Callable[[], float] = time.time,
) -> None:
    """Whenever a window has ended, `change` has groups retried that wait for room; without end."""
    since = wall()
    while True:
        await sleep(CHECK_SECONDS)
        now = wall()
        if any(since < window.end <= now for window in maintenance.windows):
            change(_nothing)
        since = now


def _nothing() -> None:
    """Only the time has passed."""
