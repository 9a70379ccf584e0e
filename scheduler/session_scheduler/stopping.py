"""How a server of the command is told to end: SIGTERM, as a kubelet does, and SIGINT, as a person does. Public."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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
