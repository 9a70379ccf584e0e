"""The task that retries unschedulable groups after the end of a maintenance window."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from fluence_plugins.fluence.matching.maintenance import Maintenance

Change = Callable[[Callable[[], None]], None]
"""Runs a change between two sessions; the scheduler then retries unschedulable groups."""
CHECK_SECONDS = 2.0
"""The interval of the checks."""


async def retry_after_windows(
    maintenance: Maintenance,
    change: Change,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    wall: Callable[[], float] = time.time,
) -> None:
    """Call `change` after the end of each window, so that the scheduler retries unschedulable groups; runs forever."""
    since = wall()
    while True:
        await sleep(CHECK_SECONDS)
        now = wall()
        if any(since < window.end <= now for window in maintenance.windows):
            change(_nothing)
        since = now


def _nothing() -> None:
    """Change nothing: only time has passed."""
