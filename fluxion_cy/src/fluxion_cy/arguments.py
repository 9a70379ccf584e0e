"""Arguments that are whole numbers, and the limits of sizes and seconds."""

import operator
from errno import EINVAL
from typing import Any

from fluxion_cy.errors import FluxionError, InvalidJobspec, shown

#: The most units that a vertex has.
MAX_SIZE = 2**62
#: The latest second that a call may name.
MAX_SECOND = 2**61 - 1
_BOOLEANS = ("bool", "bool_")  # Python's and NumPy's, which is not imported for it


def integer(value: Any) -> int | None:
    """A whole number, NumPy's too, as Python's; None for anything else, true and false included."""
    if type(value) is int:
        return value
    if type(value).__name__ in _BOOLEANS:
        return None
    try:
        return int.__index__(operator.index(value))  # a number of a class of its own compares as that likes
    except Exception:  # noqa: BLE001 - whatever its own __index__ raises
        return None


def index_of(value: Any, what: str, low: int, high: int, error: type[FluxionError] = InvalidJobspec) -> int:
    """A whole number from `low` to `high`; `error` (EINVAL) names `what` and the limits."""
    number = integer(value)
    if number is None or not low <= number <= high:
        raise error(f"{what}: {shown(value)} is not a whole number from {low} to {_written(high)}", EINVAL)
    return number


def second_of(now: Any) -> int:
    """A second that a call names."""
    return index_of(now, "now", 0, MAX_SECOND)


def _written(limit: int) -> str:
    for power, rest in ((limit, ""), (limit + 1, " - 1")):
        if power > 2**31 and power & (power - 1) == 0:
            return f"2**{power.bit_length() - 1}{rest}"
    return str(limit)
