"""Runs several coroutines at once, and leaves none of them behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

_T = TypeVar("_T")


async def all_of(works: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results of all coroutines, in order. Raises the first exception, after it has cancelled the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return [task.result() for task in tasks]
