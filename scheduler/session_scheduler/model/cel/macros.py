"""CEL macros: expressions that run for each element of a list, or for each entry of a map.

One variable is the element, or the key of the entry. Two variables are the index and the element, or the key and the
value. Source: the language's definition, cel-go (ext/comprehensions.go, ext/lists.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from session_scheduler.model.cel.errors import EvaluationError, FinalError
from session_scheduler.model.cel.lists import sorted_by
from session_scheduler.model.cel.values import Value, from_key, map_key, no_overload
from session_scheduler.model.cel.work import Work

Names = dict[str, Any]
Step = Callable[[Names, Work], Value]
Each = Callable[[Names, Work], Iterable[tuple[Value, Names]]]
"""The values of the first variable, each with the names in scope."""


class Macro(msgspec.Struct, frozen=True):
    """How many of the first arguments are variables, and how to build a step from the others."""

    variables: int
    make: Callable[[Each, list[Step]], Step]


def truth(value: Value) -> bool:
    """The value, if it is a bool. Raises EvaluationError."""
    if not isinstance(value, bool):
        raise no_overload()
    return value


def decided(decides: bool, parts: Iterable[tuple[Step, Names]], work: Work) -> bool:
    """`decides` if one of the parts has this value, which absorbs errors of other parts; else the opposite."""
    failure: EvaluationError | None = None
    for part, names in parts:
        try:
            if truth(part(names, work)) is decides:
                return decides
        except FinalError:
            raise
        except EvaluationError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return not decides


def _quantifier(decides: bool) -> Callable[[Each, list[Step]], Step]:
    """`exists` (a True decides) and `all` (a False decides)."""

    def make(each: Each, bodies: list[Step]) -> Step:
        def run(names: Names, work: Work) -> Value:
            return decided(decides, ((bodies[0], scope) for _, scope in each(names, work)), work)

        return run

    return make


def _exists_one(each: Each, bodies: list[Step]) -> Step:
    return lambda names, work: sum(truth(bodies[0](scope, work)) for _, scope in each(names, work)) == 1


def _filter(each: Each, bodies: list[Step]) -> Step:
    return lambda names, work: [one for one, scope in each(names, work) if truth(bodies[0](scope, work))]


def _map(each: Each, bodies: list[Step]) -> Step:
    *conditions, body = bodies
    return lambda names, work: [
        body(scope, work) for _, scope in each(names, work) if all(truth(c(scope, work)) for c in conditions)
    ]


def _sort_by(each: Each, bodies: list[Step]) -> Step:
    def run(names: Names, work: Work) -> Value:
        pairs = [(one, bodies[0](scope, work)) for one, scope in each(names, work)]
        return sorted_by(work, [one for one, _ in pairs], [key for _, key in pairs])

    return run


def _new_map(entries: Callable[[Value, Value], Iterable[tuple[Value, Value]]]) -> Callable[[Each, list[Step]], Step]:
    """A macro that builds a map: `entries` returns its entries for the first variable and the body's value."""

    def make(each: Each, bodies: list[Step]) -> Step:
        *conditions, body = bodies

        def run(names: Names, work: Work) -> Value:
            found: dict[Any, Value] = {}
            for at, scope in each(names, work):
                if not all(truth(condition(scope, work)) for condition in conditions):
                    continue
                for key, value in entries(at, body(scope, work)):
                    work.spend(1)
                    if key in found:
                        raise EvaluationError(f"insert failed: key {from_key(key)} already exists")
                    found[key] = value
            return found

        return run

    return make


def _entries(_: Value, value: Value) -> Iterable[tuple[Value, Value]]:
    if not isinstance(value, dict):
        raise no_overload()
    return value.items()


_LIST: Final = Macro(2, _map)
_MAP: Final = Macro(2, _new_map(lambda at, value: [(map_key(at), value)]))
_MAP_OF_ENTRIES: Final = Macro(2, _new_map(_entries))
MACROS: Final[dict[tuple[str, int], Macro]] = {
    **{(name, 1 + variables): Macro(variables, make) for variables in (1, 2) for name, make in (
        ("all", _quantifier(False)), ("exists", _quantifier(True)), ("exists_one", _exists_one),
        ("existsOne", _exists_one))},
    ("filter", 2): Macro(1, _filter), ("map", 2): Macro(1, _map), ("map", 3): Macro(1, _map),
    ("sortBy", 2): Macro(1, _sort_by),
    ("transformList", 3): _LIST, ("transformList", 4): _LIST, ("transformMap", 3): _MAP, ("transformMap", 4): _MAP,
    ("transformMapEntry", 3): _MAP_OF_ENTRIES, ("transformMapEntry", 4): _MAP_OF_ENTRIES,
}  # fmt: skip
"""By name and number of arguments."""
