"""The time of tests: it passes when they say so."""

from __future__ import annotations

from typing import Self

from session_scheduler.base.clock import StoppedClock


class FakeClock(StoppedClock):
    """A clock that stands until it is moved, and never goes back."""

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises ValueError for less than none."""
        if not seconds >= 0:
            raise ValueError(f"the clock cannot be moved by {seconds:g} s: time does not go back")
        super().advance(seconds)

    def move_to(self, seconds: float) -> Self:
        """Let time pass until `now()` is this. Raises ValueError where that is over."""
        self.advance(seconds - self.now())
        return self
