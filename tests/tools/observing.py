"""Let a test observe a scheduler that already runs."""

from __future__ import annotations

from typing import TypeVar

from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.observer import Observer

_Listening = TypeVar("_Listening", bound=Observer)


def observe(scheduler: Scheduler, observer: _Listening) -> _Listening:
    """Pass every later call of the scheduler's observer to `observer` instead. Returns `observer`."""
    for name in vars(Observer):
        if not name.startswith("_"):
            setattr(scheduler.observer, name, getattr(observer, name))
    return observer
