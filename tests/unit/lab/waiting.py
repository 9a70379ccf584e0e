"""Waits for what tasks do, without a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(true: Callable[[], object]) -> None:
    """Wait until the condition holds, for ten seconds at most."""
    deadline = asyncio.get_running_loop().time() + 10
    while not true():
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError
        await asyncio.sleep(0)
