"""Interrupts a plugin that does not answer: a thread sees which call is late, and a signal ends it where it stands.

A call that is watched puts itself into `running`, with its start time, which it takes anyway. The thread only looks
whether that call is over its budget, and then signals the main thread. What the signal's handler raises must never
meet anything else than the plugin's own code: it raises where that call still is the one that runs, and where what
runs is the plugin's, called by it alone: not the core that the plugin called, which would be left half way. What of
the core a plugin calls again and again asks `answer_in_time` by itself, before it changes anything.

A plugin that waits in a foreign library is interrupted when that returns. Calls in other threads are not interrupted.
"""

from __future__ import annotations

import signal
import threading
from time import perf_counter, sleep
from types import CodeType, FrameType
from typing import Final, Protocol

_SIGNAL: Final = signal.SIGURG
"""It is ignored where nothing handles it, and nothing else sends it."""
_INTERVAL: Final = 0.25
"""Seconds between two checks; fewer for small budgets."""
_AGAIN: Final = 0.01
"""Seconds until a call is signalled again that could not be interrupted, or went on."""
_CORE: Final = "session_scheduler."


class Overdue(BaseException):
    """Raised in a plugin's code that is over its budget; no `except Exception` of its own holds it up."""


class Watched(Protocol):
    """A call that runs."""

    budget: float | None
    """Seconds; None where it is never interrupted."""
    since: float
    """When it began, by `perf_counter`."""


class Running:
    """What runs now."""

    __slots__ = ("call",)

    def __init__(self) -> None:
        self.call: Watched | None = None


running: Final = Running()
guards: Final[set[CodeType]] = set()
"""What calls plugins, with the call as its `self`."""


def _is_late(call: Watched | None) -> bool:
    return call is not None and call.budget is not None and perf_counter() - call.since > call.budget


def answer_in_time() -> None:
    """End a plugin that is over its budget, here where it has called the core. Raises Overdue."""
    if _is_late(running.call):
        raise Overdue


# ------------------------------------------------------------------ in the main thread


def _interrupt(_number: int, frame: FrameType | None) -> None:
    call = running.call
    if _is_late(call) and _is_its_own(frame, call):
        raise Overdue


def _is_its_own(frame: FrameType | None, call: Watched | None) -> bool:
    """Whether what runs belongs to the plugin that is called. What the guard itself calls may be the core's, if that is
    not where it stands: it only passes on, or takes an answer apart.
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
    """One for the process, from the first budget on."""

    def __init__(self) -> None:
        self._interval = _INTERVAL
        self._thread: threading.Thread | None = None

    def over(self, budget: float) -> None:
        """Let calls with this budget be watched. Only what is asked for in the main thread can be interrupted."""
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
