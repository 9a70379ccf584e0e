"""How a server of the command is told to end, by SIGTERM or SIGINT, and how its tasks end with it. Public."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

_ENDS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """SIGTERM and SIGINT set the event; for use in a running event loop's main thread.

    After the context both are ignored: the process ends already, and a second signal must not cut that short.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _ENDS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in _ENDS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)


@asynccontextmanager
async def background(*works: Coroutine[Any, Any, None]) -> AsyncGenerator[list[asyncio.Task[None]]]:
    """The works as tasks that are cancelled and awaited at the end."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Until the first of them ends; the others are cancelled. Raises what it raised."""
    async with background(*works) as tasks:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def unless(stop: asyncio.Event, others: Sequence[asyncio.Task[None]], work: Awaitable[None]) -> None:
    """Wait for the work, or `stop`. Raises what the work, or any of the others, ended with."""
    own = [asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())]
    try:
        done, _ = await asyncio.wait([*own, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
