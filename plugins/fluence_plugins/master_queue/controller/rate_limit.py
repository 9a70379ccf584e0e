"""How long to rest between two passes, so that no publisher decides how often the API server is written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

REST_SECONDS: Final = 0.05
"""Between two passes while there are few: what comes meanwhile is done in one."""
LONG_REST_SECONDS: Final = 1.0
"""Where passes go on writing: one to each."""
AT_ONCE: Final = 60
"""Passes that write and may follow each other closely; one more for each second without."""


class RateLimit:
    """Of one MasterQueue."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: seconds that never go back."""
        self._now = now
        self._left = float(AT_ONCE)
        self._at = now()

    def rest(self, *, wrote: bool) -> float:
        """Seconds to rest after a pass. One that wrote nothing does not count."""
        if not wrote:
            return REST_SECONDS
        now = self._now()
        self._left = min(float(AT_ONCE), self._left + (now - self._at) / LONG_REST_SECONDS) - 1
        self._at = now
        return max(REST_SECONDS, -self._left * LONG_REST_SECONDS)
