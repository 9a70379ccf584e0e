"""The watchdog of plugin calls: a thread finds calls that exceed their timeout, and a signal interrupts them.

A watched call registers itself in `running` with its start time. The thread only checks whether that call is late, and
then signals the main thread. The signal handler must raise only in the plugin's own code. So it checks that the call
still runs, and that the current frame belongs to the plugin: not to core functions that the plugin called, whose state
would be left inconsistent. Core functions that plugins call often call `answer_in_time` before they change anything.

A plugin calls `begin_update` before it changes its own state. So an interrupted hook has changed nothing.

A plugin that waits in native code is interrupted when the native call returns. Calls in other threads are not
interrupted.
"""

from __future__ import annotations

import math
import signal
import threading
from time import perf_counter, sleep
from types import CodeType, FrameType
from typing import Final, Protocol

_SIGNAL: Final = signal.SIGURG
"""A signal that is ignored by default, and that nothing else sends."""
_INTERVAL: Final = 0.25
"""Seconds between two checks; shorter for short timeouts."""
_AGAIN: Final = 0.01
"""Seconds until a late call is signalled again."""
_CORE: Final = "session_scheduler."


class Overdue(BaseException):
    """Raised in a plugin's code after its timeout. A BaseException, so that `except Exception` does not catch it."""


class Watched(Protocol):
    """A running call."""

    budget: float | None
    """Timeout in seconds, None if there is none."""
    since: float
    """Start time by `perf_counter`."""


class Running:
    """The current call."""

    __slots__ = ("call",)

    def __init__(self) -> None:
        self.call: Watched | None = None


running: Final = Running()
guards: Final[set[CodeType]] = set()
"""Code that calls plugins, with the call as its `self`."""


def _is_late(call: Watched | None) -> bool:
    return call is not None and call.budget is not None and perf_counter() - call.since > call.budget


def answer_in_time() -> None:
    """Interrupt a plugin after its timeout at this point, where it has called the core. Raises Overdue."""
    if _is_late(running.call):
        raise Overdue


def begin_update() -> None:
    """The plugin's hook or callback is about to change the plugin's state: do not interrupt the rest of the call.

    An asynchronous hook may be interrupted again after it has waited. If the time is already up, this raises the
    interruption: nothing has changed yet.
    """
    answer_in_time()
    if running.call is not None:
        running.call.since = math.inf  # never late


# ------------------------------------------------------------------ in the main thread


def _interrupt(_number: int, frame: FrameType | None) -> None:
    call = running.call
    if _is_late(call) and _is_its_own(frame, call):
        raise Overdue


def _is_its_own(frame: FrameType | None, call: Watched | None) -> bool:
    """Whether the frame belongs to the called plugin. Between the plugin's code and the guard there may be core frames,
    because the guard may call core functions that only pass the call on, or convert an answer.
    """
    if frame is None or frame.f_code in guards or _is_core(frame):
        return False
    while frame is not None:
        below = frame.f_back
        if below is not None and below.f_code in guards:
            return below.f_locals.get("self") is call
        if _is_core(frame):
            return False
        frame = below
    return False


def _is_core(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_CORE)


# ------------------------------------------------------------------ the thread


class _Watch:
    """The process's watchdog thread, started with the first timeout."""

    def __init__(self) -> None:
        self._interval = _INTERVAL
        self._thread: threading.Thread | None = None

    def over(self, budget: float) -> None:
        """Watch calls with this timeout. Only calls in the main thread can be interrupted."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._interval = min(self._interval, budget / 4)
        if self._thread is None or not self._thread.is_alive():  # a forked process has none
            signal.signal(_SIGNAL, _interrupt)
            self._thread = threading.Thread(target=self._poll, name="hook-watch", daemon=True)
            self._thread.start()

    def _poll(self) -> None:
        main = threading.main_thread().ident
        while main is not None:
            late = _is_late(running.call)
            if late:
                signal.pthread_kill(main, _SIGNAL)
            sleep(_AGAIN if late else self._interval)


watch: Final = _Watch()
