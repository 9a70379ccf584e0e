"""Limits the rate of a MasterQueue's writes, so that publishers do not control the load on the API server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

REST_SECONDS: Final = 0.05
"""The pause between passes while there are few; changes in a pause share one pass."""
LONG_REST_SECONDS: Final = 1.0
"""The pause between passes while every pass writes."""
AT_ONCE: Final = 60
"""The burst: how many writing passes may run without a pause. Each second without one adds one to it."""


class RateLimit:
    """The rate limit of one MasterQueue."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: a clock in seconds that never goes back."""
        self._now = now
        self._left = float(AT_ONCE)
        self._at = now()

    def rest(self, *, wrote: bool) -> float:
        """The pause in seconds after a pass. A pass that wrote nothing does not count."""
        if not wrote:
            return REST_SECONDS
        now = self._now()
        self._left = min(float(AT_ONCE), self._left + (now - self._at) / LONG_REST_SECONDS) - 1
        self._at = now
        return max(REST_SECONDS, -self._left * LONG_REST_SECONDS)
