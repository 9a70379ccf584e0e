"""The number of examples in the property tests. FLUENCE_TEST_EXAMPLES scales the number that each test gives.

1, or no value, runs them all; 0.1 runs a tenth for a quick check; 10 runs ten times as many.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

NAME: Final = "FLUENCE_TEST_EXAMPLES"
_T = TypeVar("_T")


def scale() -> float:
    """The factor from the environment. Raises ValueError."""
    text = os.environ.get(NAME) or "1"
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1000:
        raise ValueError(f"{NAME}={text}: give a factor above 0 and up to 1000, such as 0.1")
    return found


_SCALE: Final = scale()


def examples(whole: int) -> int:
    """The scaled number of examples, at least one."""
    return max(1, round(whole * _SCALE))


def first(whole: Sequence[_T]) -> Sequence[_T]:
    """The scaled number of first seeds, at least one and at most all."""
    return whole[: examples(len(whole))]
