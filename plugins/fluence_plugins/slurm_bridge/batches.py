"""Runs coroutines concurrently, in batches of a bounded size."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

_SIZE: Final = 16
_Item = TypeVar("_Item")


async def in_batches(items: Iterable[_Item], work: Callable[[_Item], Awaitable[None]]) -> None:
    """Run `work` on each item. If one fails, the rest of its batch still runs, and no later batch starts."""
    every = list(items)
    for start in range(0, len(every), _SIZE):
        for error in await asyncio.gather(*map(work, every[start : start + _SIZE]), return_exceptions=True):
            if error is not None:
                raise error
