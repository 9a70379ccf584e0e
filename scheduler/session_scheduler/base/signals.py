"""Signal handling of servers: SIGTERM and SIGINT stop the server and its tasks, SIGUSR1 prints its stacks.

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
    """SIGTERM and SIGINT set the event. Call it in the main thread, in a running event loop.

    SIGUSR1 writes every thread's stack to standard error, even when the loop is stuck. After the context SIGTERM and
    SIGINT are ignored: a second signal must not interrupt the shutdown.
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
    """Run the awaitables as tasks. The end of the context cancels the tasks and waits for them."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(*works: Awaitable[object], beside: Iterable[asyncio.Task[object]] = ()) -> None:
    """Wait until one of the awaitables ends, and cancel the others. Raises the exception of the one that ended.

    The tasks `beside` keep running, and may end; an exception of one of them is raised, too.
    """
    async with background(*works) as tasks:
        running = {*tasks, *beside}
        while not any(task.done() for task in tasks):
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
