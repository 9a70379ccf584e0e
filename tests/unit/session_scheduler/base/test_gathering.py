"""Several coroutines at once."""

from __future__ import annotations

import asyncio

import pytest

from session_scheduler.base.gathering import all_of


async def test_the_results_are_in_order() -> None:
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await all_of(map(after, (3, 1, 2))) == [3, 1, 2]


async def test_the_first_error_ends_the_others() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await all_of([waits(), fails()])
    assert ended == [True]
