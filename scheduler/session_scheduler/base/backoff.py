"""Exponential backoff with a maximum."""

from __future__ import annotations

from random import Random
from typing import Final

_DOUBLINGS: Final = 62
"""The exponent's limit: no float overflows."""


def backoff(first: float, failures: int, longest: float, chance: Random | None = None) -> float:
    """Seconds to wait after a failure; `failures` is the number of earlier failures in a row.

    `chance` shortens it by up to half at random, so that clients that fail together do not retry together.
    """
    seconds = min(longest, first * 2.0 ** min(failures, _DOUBLINGS))
    return seconds if chance is None else chance.uniform(seconds / 2, seconds)


class Backoff:
    """The backoff of successive failures."""

    def __init__(self, first: float, longest: float, chance: Random) -> None:
        self._first, self._longest, self._chance = first, longest, chance
        self._failures = 0

    def reset(self) -> None:
        """Start over, after a success."""
        self._failures = 0

    def next(self) -> float:
        """Count a failure. Returns the seconds to wait."""
        self._failures += 1
        return backoff(self._first, self._failures - 1, self._longest, self._chance)
