"""Arguments other than graphs and jobspecs: whole numbers, seconds, flags, and one entry per rank."""

import operator
from array import array
from collections.abc import Iterable
from errno import EINVAL
from itertools import islice
from typing import Any

from fluxion_cy.errors import FluxionError, InvalidJobspec, shown

#: The most units that a vertex may have.
MAX_SIZE = 2**62
#: The latest second that a call may name.
MAX_SECOND = 2**61 - 1
#: The number of slots on a rank that stands for "any number".
NO_CAP = 2**63 - 1
_MOST_ENTRIES = 1 << 24
_BOOLEANS = ("bool", "bool_")  # Python's and NumPy's, without an import of NumPy


def integer(value: Any) -> int | None:
    """A whole number, including NumPy's, as an int; None for anything else, including true and false."""
    if type(value) is int:
        return value
    if type(value).__name__ in _BOOLEANS:
        return None
    try:
        return int.__index__(operator.index(value))  # plain: a subclass may define comparison otherwise
    except Exception:  # noqa: BLE001 - whatever its own __index__ raises
        return None


def index_of(value: Any, what: str, low: int, high: int, error: type[FluxionError] = InvalidJobspec) -> int:
    """A whole number from `low` to `high`. Raises `error` (EINVAL), which names `what` and the limits."""
    number = integer(value)
    if number is None or not low <= number <= high:
        raise error(f"{what}: expected a whole number from {low} to {_written(high)}, got {shown(value)}", EINVAL)
    return number


def second_of(now: Any) -> int:
    """A second that a call names."""
    if type(now) is int and 0 <= now <= MAX_SECOND:  # the common case
        return now
    return index_of(now, "now", 0, MAX_SECOND)


def _written(limit: int) -> str:
    for power, rest in ((limit, ""), (limit + 1, " - 1")):
        if power > 2**31 and power & (power - 1) == 0:
            return f"2**{power.bit_length() - 1}{rest}"
    return str(limit)


def flag(value: Any, name: str) -> bool:
    """True or false (also 0, 1 and NumPy's). Anything else, such as the word "down", is an InvalidJobspec."""
    try:
        known = value in (0, 1)
    except (TypeError, ValueError):  # an array
        known = False
    if not known:
        raise InvalidJobspec(f"{name}: expected true or false, got {shown(value)}")
    return bool(value)


def entries_of(value: Any, what: str) -> list[Any]:
    """The entries of an iterable as a list; NumPy arrays by their own `tolist`."""
    if hasattr(value, "tolist"):
        if operator.length_hint(value) > _MOST_ENTRIES:
            raise _too_many(what)
        value = value.tolist()
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
        raise InvalidJobspec(f"{what}: must be a list or an array with one entry per rank")
    found = list(islice(value, _MOST_ENTRIES + 1))
    if len(found) > _MOST_ENTRIES:
        raise _too_many(what)
    return found


def _too_many(what: str) -> InvalidJobspec:
    return InvalidJobspec(f"{what}: has more than {_MOST_ENTRIES:,} entries; pass one per rank")


def buffer_of(value: Any) -> memoryview | None:
    """The memory of a one-dimensional, contiguous array, such as NumPy's; None for anything else."""
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        return None
    return view if view.ndim == 1 and view.c_contiguous and len(view) else None


def slots_of(value: Any) -> list[bool | int]:
    """The candidates by rank: true or false, or a number of slots."""
    found = entries_of(value, "candidates")
    if any(type(slot) is not bool for slot in found):
        found = [_slots(slot) for slot in found]
    return found


def _slots(value: Any) -> bool | int:
    plain = value.tolist() if hasattr(value, "tolist") else value  # a NumPy scalar in a list
    number = plain if type(plain) is bool else integer(plain)
    if number is None or not 0 <= number <= NO_CAP:
        raise InvalidJobspec("candidates: each entry must be true or false, or a number of slots from 0 to 2**63 - 1")
    return number


def _score(value: Any) -> float:
    if isinstance(value, (str, bytes, bytearray)):  # float would parse it
        raise TypeError
    return float(value)


def scores_of(value: Any) -> Any:
    """The preferences as doubles."""
    view = None if isinstance(value, (bytes, bytearray)) else buffer_of(value)
    if view is not None and view.format == "d":
        return view
    try:
        return array("d", [_score(score) for score in entries_of(value, "prefer")])
    except (TypeError, ValueError, OverflowError):
        raise InvalidJobspec("prefer: each entry must be a number") from None
