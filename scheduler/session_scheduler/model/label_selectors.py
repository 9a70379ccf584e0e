"""Label selectors on pods and namespaces, as hashable values: they serve as keys of counters and caches.

Users write selectors, and one is evaluated for pods of other namespaces. So the cost of `matches` depends on the number
of labels, not on the size of the selector, and `SelectorIndex` skips selectors that cannot match.

Source: apimachinery's LabelSelectorAsSelector and labels.Requirement, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from session_scheduler.errors import FluenceError
from session_scheduler.model.expressions import expression_problem
from session_scheduler.model.objects import LabelSelector, LabelSelectorRequirement

Requirement = tuple[str, str, tuple[str, ...]]
"""(key, operator, values in order); the operators are In, NotIn, Exists and DoesNotExist."""
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_Values = frozenset[str] | None
"""Values of a label; None for all."""
_NO_VALUES: Final[frozenset[str]] = frozenset()
_Item = TypeVar("_Item")


class SelectorError(FluenceError):
    """A label selector that the API server would reject."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements that must all hold. An empty tuple matches everything, None matches nothing."""

    requirements: tuple[Requirement, ...] | None
    required: Mapping[str, _Values] = field(init=False, repr=False, compare=False)
    """The label keys that must exist, each with the values that match."""
    excluded: Mapping[str, _Values] = field(init=False, repr=False, compare=False)
    """By label key, the values that do not match; the keys may be absent."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        required: dict[str, _Values] = {}
        excluded: dict[str, _Values] = {}
        for key, operator, values in self.requirements or ():
            if operator in ("In", "Exists"):
                known = required.get(key)
                more = frozenset(values) if operator == "In" else None
                required[key] = known if more is None else more if known is None else known & more
            else:
                known = excluded.get(key, _NO_VALUES)
                excluded[key] = None if known is None or operator == "DoesNotExist" else known | set(values)
        object.__setattr__(self, "required", required)
        object.__setattr__(self, "excluded", excluded)
        object.__setattr__(self, "_hash", hash(self.requirements))

    def __hash__(self) -> int:
        return self._hash

    @property
    def empty(self) -> bool:
        """Whether the selector has no requirements, and so matches everything."""
        return self.requirements == ()

    @property
    def satisfiable(self) -> bool:
        """Whether any labels can match it."""
        if self.requirements is None:
            return False
        for key, values in self.required.items():
            excluded = self.excluded.get(key, _NO_VALUES)
            if excluded is None or (values is not None and values <= excluded):
                return False
        return True

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the selector matches these labels."""
        if self.requirements is None or len(self.required) > len(labels):
            return False
        for key, values in self.required.items():
            value = labels.get(key)
            if value is None or (values is not None and value not in values):
                return False
        for key, value in labels.items() if self.excluded else ():
            values = self.excluded.get(key, _NO_VALUES)
            if values is None or value in values:
                return False
        return True

    def also(self, requirements: Iterable[Requirement]) -> Selector:
        """This selector with further requirements; one that matches nothing stays as it is."""
        if self.requirements is None:
            return self
        return Selector(tuple(sorted({*self.requirements, *requirements})))


NOTHING: Final = Selector(None)
EVERYTHING: Final = Selector(())


def equal_to(labels: Mapping[str, str]) -> tuple[Requirement, ...]:
    """The requirements that each label has exactly this value."""
    return tuple((key, "In", (value,)) for key, value in labels.items())


def selector_of(written: LabelSelector | None) -> Selector:
    """The selector of an API object; None matches nothing. Raises SelectorError."""
    if written is None:
        return NOTHING
    equal = (LabelSelectorRequirement(key=k, operator="In", values=(v,)) for k, v in written.match_labels.items())
    found = []
    for requirement in (*equal, *written.match_expressions):
        problem = expression_problem(requirement)
        if problem is None and requirement.operator not in _OPERATORS:
            problem = f"operator: {requirement.operator!r} is unknown; use one of {', '.join(_OPERATORS)}"
        if problem is not None:
            raise SelectorError(problem)
        found.append((requirement.key, requirement.operator, tuple(sorted(set(requirement.values)))))
    return Selector(tuple(sorted(set(found))))


class SelectorIndex(Generic[_Item]):
    """Items by their selector and namespace, to find those that may match a pod without looking at the others."""

    def __init__(self) -> None:
        self._parts: dict[str | None, _Part[_Item]] = {}

    def add(self, namespace: str | None, selector: Selector, item: _Item) -> None:
        """Add an item that can match pods of one namespace only; None if it can match others, too."""
        if selector.requirements is not None:
            self._parts.setdefault(namespace, _Part()).add(selector, item)

    def likely(self, namespace: str, labels: Mapping[str, str]) -> Iterator[_Item]:
        """The items that may match a pod, each once."""
        for name in (None, namespace):
            if name in self._parts:
                yield from self._parts[name].likely(labels)


class _Part(Generic[_Item]):
    """Each item is stored by one label key of its selector."""

    def __init__(self) -> None:
        self._by_pair: dict[tuple[str, str], list[_Item]] = {}
        """By (key, value): items that require one of some values."""
        self._by_key: dict[str, list[_Item]] = {}
        """Items that require the key."""
        self._unless: dict[str, list[_Item]] = {}
        """By key: items that match no pod with it."""
        self._others: list[_Item] = []
        """Items that only exclude values, or nothing."""

    def add(self, selector: Selector, item: _Item) -> None:
        valued = {key: values for key, values in selector.required.items() if values is not None}
        if valued:
            key = min(valued, key=lambda key: len(valued[key]))
            for value in sorted(valued[key]):
                self._by_pair.setdefault((key, value), []).append(item)
        elif selector.required:
            self._by_key.setdefault(next(iter(selector.required)), []).append(item)
        else:
            absent = (key for key, values in selector.excluded.items() if values is None)
            key_ = next(absent, None)
            (self._others if key_ is None else self._unless.setdefault(key_, [])).append(item)

    def likely(self, labels: Mapping[str, str]) -> Iterator[_Item]:
        yield from self._others
        for key, items in self._unless.items():
            if key not in labels:
                yield from items
        for key, value in labels.items():
            yield from self._by_pair.get((key, value), ())
            yield from self._by_key.get(key, ())
