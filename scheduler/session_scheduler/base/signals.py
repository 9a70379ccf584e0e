"""Ends a server of the command, and its tasks with it, at SIGTERM or SIGINT; shows its stacks at SIGUSR1.

Public, as `sdk.signals`.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

_ENDS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """SIGTERM and SIGINT set the event; for use in a running event loop's main thread.

    SIGUSR1 writes every thread's stack to standard error, also of a loop that is stuck.

    After the context both are ignored: the process ends already, and a second signal must not cut that short.
    """
    with suppress(OSError, RuntimeError, ValueError):  # standard error is closed, or not a file
        faulthandler.register(signal.SIGUSR1)
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
async def background(*works: Awaitable[object]) -> AsyncGenerator[list[asyncio.Task[object]]]:
    """The works as tasks that are cancelled and awaited at the end."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(*works: Awaitable[object], beside: Iterable[asyncio.Task[object]] = ()) -> None:
    """Until the first of the works ends; the others are cancelled. Raises what it, or a task beside them, raised.

    The tasks beside them go on, and may end.
    """
    async with background(*works) as tasks:
        running = {*tasks, *beside}
        while not any(task.done() for task in tasks):
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
