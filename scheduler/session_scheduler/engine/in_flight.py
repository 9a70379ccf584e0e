"""Work in flight: requests that one turn of the scheduler starts, and a later turn completes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import structlog

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

Completion = Callable[[str, Any], Coroutine[Any, Any, _T | None]]
"""Called with the group's key and the work's result or exception."""


class _Work(msgspec.Struct, Generic[_T]):
    number: int
    """Ended work is completed in the order of its start."""
    group: str
    complete: Completion[_T]
    answer: Any = None
    """The result, or the exception, once the work has ended."""


class InFlight(Generic[_T]):
    """Work by group; its completion returns a `_T` or None. Calls `ended` when any work ends."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._started = 0
        self._works: dict[asyncio.Future[Any], _Work[_T]] = {}
        self._to_complete: list[_Work[_T]] = []
        """Ended work without its future: a long session ends before it is completed."""
        self._busy: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._works) + len(self._to_complete)

    def start(self, group: str, work: Coroutine[Any, Any, Any], complete: Completion[_T]) -> None:
        """Start work for a group (its key). A later turn calls `complete(group, result or exception)`.

        No session places the group until then.
        """
        self._busy[group] += 1
        self._started += 1
        future = asyncio.ensure_future(work)
        self._works[future] = _Work(self._started, group, complete)
        future.add_done_callback(self._note)

    def _note(self, future: asyncio.Future[Any]) -> None:
        self._collect(future)
        self._ended()

    def _collect(self, future: asyncio.Future[Any]) -> None:
        """Prepare ended work for its completion."""
        work = self._works.pop(future, None)
        if work is not None:
            work.answer = _answer(future)
            self._to_complete.append(work)

    def concerns(self, group: str) -> bool:
        """Whether any work of a group (its key) is in flight."""
        return self._busy[group] > 0

    @property
    def groups(self) -> list[str]:
        """The groups (their keys) with work in flight."""
        return list(self._busy)

    async def wait(self, errors: list[BaseException]) -> None:
        """Wait for all work. A cancellation cancels the work, and is added to `errors`."""
        if not self._works:
            return
        try:
            await asyncio.wait(self._works)
        except asyncio.CancelledError as cancelled:
            await self.abandon()
            errors.append(cancelled)
        self._collect_all()

    def _collect_all(self) -> None:
        """Collect the work that has ended, although callbacks may not have run yet."""
        for future in [future for future in self._works if future.done()]:
            self._collect(future)

    async def abandon(self) -> None:
        """Cancel all work; a turn still completes it."""
        for future in self._works:
            future.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        self._collect_all()

    async def complete_ended(self, errors: list[BaseException]) -> list[_T]:
        """Complete the ended work; adds unexpected errors to `errors`."""
        ended, self._to_complete = self._to_complete, []
        done: list[_T] = []
        for work in sorted(ended, key=lambda work: work.number):
            self._busy[work.group] -= 1
            if not self._busy[work.group]:
                del self._busy[work.group]
            answer = await kept(work.complete(work.group, work.answer), errors)
            if answer is not None:
                done.append(answer)
        return done


def _answer(future: asyncio.Future[Any]) -> Any:
    """The result of ended work, or its exception."""
    if future.cancelled():
        return asyncio.CancelledError()
    return future.exception() or future.result()


async def kept(work: Coroutine[object, object, _T], errors: list[BaseException]) -> _T | None:
    """The result of the work; or None, with its exception added to `errors`."""
    try:
        return await work
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # this task is cancelled, not what the work waits for
        errors.append(cancelled)
    except Exception as error:  # noqa: BLE001 (raised at the end)
        errors.append(error)
    return None


def raise_first(errors: Sequence[BaseException]) -> None:
    """Raise the first error, if any, and log the others."""
    for error in errors[1:]:
        _log.error("another error occurred in the same cycle", exc_info=error)
    if errors:
        raise errors[0]
