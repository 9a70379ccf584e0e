"""The tests' clock, which advances only when a test moves it."""

from __future__ import annotations

from typing import Self

from session_scheduler.base.clock import StoppedClock


class FakeClock(StoppedClock):
    """A stopped clock that never goes back."""

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Raises ValueError for a negative number."""
        if not seconds >= 0:
            raise ValueError(f"expected 0 or more seconds, got {seconds:g}: the clock does not go back")
        super().advance(seconds)

    def move_to(self, seconds: float) -> Self:
        """Move the clock until `now()` is this. Raises ValueError if that is in the past."""
        self.advance(seconds - self.now())
        return self
