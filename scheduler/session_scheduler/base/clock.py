"""Time, passed in: nothing in the scheduler reads a clock of its own."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


def utc_now() -> datetime:
    """The machine's time of day, for the times that are written to objects."""
    return datetime.now(UTC)


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float:
        """Seconds that never go back; only differences mean anything."""

    def wall(self) -> float:
        """Seconds since 1970, as objects' times have them; may jump."""


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def wall(self) -> float:
        """The machine's time of day."""
        return time.time()


class StoppedClock:
    """A clock that moves only by `advance`: simulations and tests."""

    def __init__(self, start: float = 0.0, *, wall: float = 0.0) -> None:
        """`wall` is the time of day at the start, in seconds since 1970."""
        self._now = start
        self._since = wall - start

    def now(self) -> float:
        """The time that was set."""
        return self._now

    def wall(self) -> float:
        """The time of day, which passes as the other does."""
        return self._since + self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
