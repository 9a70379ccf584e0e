"""How many cases the property tests go through: FLUENCE_TEST_EXAMPLES scales the number that each of them names.

1, or nothing, is the whole; 0.1 is a tenth, for a quick look; 10 is a search that takes ten times as long.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

NAME: Final = "FLUENCE_TEST_EXAMPLES"
_T = TypeVar("_T")


def scale() -> float:
    """What the environment says. Raises ValueError."""
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
    """So many examples of `whole`, at least one."""
    return max(1, round(whole * _SCALE))


def first(whole: Sequence[_T]) -> Sequence[_T]:
    """So many seeds of `whole`, at least one and at most all."""
    return whole[: examples(len(whole))]
