"""CEL functions of lists and sets: cel-go's extensions, and Kubernetes' own.

Source: cel-go (ext/lists.go, ext/sets.go), apiserver (pkg/cel/library/lists.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cmp_to_key
from itertools import pairwise
from typing import Any, Final

from session_scheduler.model.cel.errors import EvaluationError
from session_scheduler.model.cel.texts import TEXT_METHODS
from session_scheduler.model.cel.values import (
    Duration,
    OptionalValue,
    Timestamp,
    UInt,
    Value,
    equal,
    is_number,
    less,
    no_overload,
)
from session_scheduler.model.cel.work import Work

_MOST_VALUES: Final = 48
"""The maximum number of values of a list attribute."""
_SORTABLE: Final = (bool, int, float, str, bytes, Duration, Timestamp)


def list_of(value: Value) -> list[Value]:
    """The value, if it is a list. Raises EvaluationError."""
    if not isinstance(value, list):
        raise no_overload()
    return value


def _whole(value: Value) -> int:
    if not isinstance(value, int) or isinstance(value, bool | UInt):
        raise no_overload()
    return value


def _extreme(highest: bool) -> Callable[..., Value]:
    def function(work: Work, values: Value) -> Value:
        if not list_of(values):
            raise EvaluationError(f"{'max' if highest else 'min'} called on empty list")
        work.spend(len(values))
        found = values[0]
        for one in values[1:]:
            if less(found, one, work) if highest else less(one, found, work):
                found = one
        return found

    return function


def _is_sorted(work: Work, values: Value) -> bool:
    work.spend(len(list_of(values)))
    return not any(less(after, before, work) for before, after in pairwise(values))


def _index_of(work: Work, values: Value, wanted: Value) -> int:
    if isinstance(values, str):
        return int(TEXT_METHODS["indexOf", 1](work, values, wanted))
    return next((at for at, one in enumerate(list_of(values)) if equal(one, wanted, work)), -1)


def _last_index_of(work: Work, values: Value, wanted: Value) -> int:
    if isinstance(values, str):
        return int(TEXT_METHODS["lastIndexOf", 1](work, values, wanted))
    return max((at for at, one in enumerate(list_of(values)) if equal(one, wanted, work)), default=-1)


def _among(work: Work, wanted: Value, values: list[Value]) -> bool:
    return any(equal(wanted, one, work) for one in values)


def _set_contains(work: Work, values: Value, wanted: Value) -> bool:
    return all(_among(work, one, list_of(values)) for one in list_of(wanted))


def _set_intersects(work: Work, values: Value, others: Value) -> bool:
    return any(_among(work, one, list_of(others)) for one in list_of(values))


def _set_equivalent(work: Work, values: Value, others: Value) -> bool:
    return _set_contains(work, values, others) and _set_contains(work, others, values)


# ------------------------------------------------------------------ new lists


def _range(work: Work, count: Value) -> list[Value]:
    work.spend(10 + max(0, _whole(count)))  # before the list exists: it may be very long
    return list(range(count))


def _reverse(work: Work, values: Value) -> list[Value]:
    work.spend(10 + len(list_of(values)))
    return list(values[::-1])


def _slice(work: Work, values: Value, start: Value, end: Value) -> list[Value]:
    size = len(list_of(values))
    if _whole(start) < 0 or _whole(end) < 0:
        raise EvaluationError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvaluationError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > size:
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {size}")
    work.spend(10 + end - start)
    return list(values[start:end])


def _flatten(work: Work, values: Value, depth: Value = 1) -> list[Value]:
    if _whole(depth) < 0:
        raise EvaluationError("level must be non-negative")
    work.spend(10)
    return list(_flat(work, list_of(values), depth))


def _flat(work: Work, values: list[Value], depth: int) -> Iterator[Value]:
    for one in values:
        work.spend(1)
        if isinstance(one, list) and depth:
            yield from _flat(work, one, depth - 1)
        else:
            yield one


def _distinct(work: Work, values: Value) -> list[Value]:
    work.spend(10)
    found: list[Value] = []
    for one in list_of(values):
        if not _among(work, one, found):
            found.append(one)
    return found


def sorted_by(work: Work, values: Value, keys: Value) -> list[Value]:
    """The elements in the order of their keys. Raises EvaluationError if the keys are not comparable."""
    work.spend(10 + 2 * len(list_of(keys)) ** 2)
    if not all(isinstance(key, _SORTABLE) for key in keys):
        raise EvaluationError("list elements must be comparable")
    if len({type(key) for key in keys}) > 1:
        raise EvaluationError("list elements must have the same type")

    def order(one: tuple[Any, Any], other: tuple[Any, Any]) -> int:
        return less(other[0], one[0], work) - less(one[0], other[0], work)

    pairs = zip(keys, list_of(values), strict=True)
    return [value for _, value in sorted(pairs, key=cmp_to_key(order))]


# ------------------------------------------------------------------ optional elements


def _at_end(at: int) -> Callable[..., OptionalValue]:
    def method(_: Work, values: Value) -> OptionalValue:
        return OptionalValue(values[at], present=True) if list_of(values) else OptionalValue()

    return method


def _unwrap(work: Work, values: Value) -> list[Value]:
    work.spend(10 + len(list_of(values)))
    if not all(isinstance(one, OptionalValue) for one in values):
        raise no_overload()
    return [one.value for one in values if one.present]


def addable(values: Value) -> list[Value]:
    """The value, if it is a list that `sum` can add up. Raises EvaluationError."""
    if not all(is_number(one) or isinstance(one, Duration) for one in list_of(values)):
        raise no_overload()
    return list_of(values)


LIST_FUNCTIONS: Final[dict[tuple[str, int], Callable[..., Value]]] = {
    ("sets.contains", 2): _set_contains, ("sets.intersects", 2): _set_intersects,
    ("sets.equivalent", 2): _set_equivalent, ("lists.range", 1): _range, ("optional.unwrap", 1): _unwrap,
}  # fmt: skip


def _includes(work: Work, value: Value, wanted: Value) -> bool:
    """`includes`: whether an attribute equals the value, or is a list that contains it."""
    if not isinstance(value, list):
        return equal(value, wanted, work)
    for number, one in enumerate(value):
        if number >= _MOST_VALUES:
            raise EvaluationError(f"'includes' function cannot be applied to lists longer than {_MOST_VALUES} values")
        if equal(one, wanted, work):
            return True
    return False


LIST_METHODS: Final[dict[tuple[str, int], Callable[..., Value]]] = {
    ("min", 0): _extreme(False), ("max", 0): _extreme(True), ("isSorted", 0): _is_sorted,
    ("indexOf", 1): _index_of, ("lastIndexOf", 1): _last_index_of,
    ("reverse", 0): _reverse, ("slice", 2): _slice, ("flatten", 0): _flatten, ("flatten", 1): _flatten,
    ("distinct", 0): _distinct, ("sort", 0): lambda work, values: sorted_by(work, values, values),
    ("includes", 1): _includes, ("first", 0): _at_end(0), ("last", 0): _at_end(-1), ("unwrapOpt", 0): _unwrap,
}  # fmt: skip
"""By name and number of arguments, without the list itself."""
