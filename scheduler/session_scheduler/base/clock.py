"""The clock, passed in: the scheduler reads no other."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final, Protocol

_STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The monotonic clock that also counts while the machine is suspended, because a Lease expires during that time."""


def utc_now() -> datetime:
    """The machine's time of day, for timestamps in objects."""
    return datetime.now(UTC)


class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Monotonic seconds; only differences have a meaning."""

    def wall(self) -> float:
        """Seconds since 1970, comparable with timestamps in objects; may jump."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """Monotonic seconds, including those for which the machine was suspended."""
        return time.clock_gettime(_STEADY)

    def wall(self) -> float:
        """The machine's time of day."""
        return time.time()


class StoppedClock:
    """A clock that only `advance` moves, for simulations and tests."""

    def __init__(self, start: float = 0.0, *, wall: float = 0.0) -> None:
        """`wall` is the time of day at the start, in seconds since 1970."""
        self._now = start
        self._since = wall - start

    def now(self) -> float:
        """The time that was set."""
        return self._now

    def wall(self) -> float:
        """The time of day, which `advance` moves as well."""
        return self._since + self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds
