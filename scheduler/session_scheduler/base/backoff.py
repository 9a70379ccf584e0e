"""Pauses between tries that fail: doubled each time, up to a longest one."""

from __future__ import annotations

from random import Random
from typing import Final

_DOUBLINGS: Final = 62
"""After these no float grows too large."""


def backoff(first: float, failures: int, longest: float, chance: Random | None = None) -> float:
    """Seconds to wait after a failure which so many came before.

    With `chance` less a random part, up to half: what failed together does not come back together.
    """
    seconds = min(longest, first * 2.0 ** min(failures, _DOUBLINGS))
    return seconds if chance is None else chance.uniform(seconds / 2, seconds)


class Backoff:
    """The pauses after failures in a row."""

    def __init__(self, first: float, longest: float, chance: Random) -> None:
        self._first, self._longest, self._chance = first, longest, chance
        self._failures = 0

    def reset(self) -> None:
        """What was tried has worked."""
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait now."""
        self._failures += 1
        return backoff(self._first, self._failures - 1, self._longest, self._chance)
