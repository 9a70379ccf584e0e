"""Label selectors on pods and namespaces, as hashable values: they serve as keys of counters and caches.

Source: apimachinery's LabelSelectorAsSelector and labels.Requirement, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from session_scheduler.errors import FluenceError
from session_scheduler.model.expressions import expression_problem
from session_scheduler.model.objects import LabelSelector, LabelSelectorRequirement

Requirement = tuple[str, str, tuple[str, ...]]
"""(key, operator, values in order); the operators are In, NotIn, Exists and DoesNotExist."""
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


class SelectorError(FluenceError):
    """A label selector that the API server would reject."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements that must all hold. An empty tuple matches everything, None matches nothing."""

    requirements: tuple[Requirement, ...] | None

    @property
    def empty(self) -> bool:
        """Whether it has no requirements, and so matches everything."""
        return self.requirements == ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it matches these labels."""
        return self.requirements is not None and all(_holds(one, labels) for one in self.requirements)

    def also(self, requirements: Iterable[Requirement]) -> Selector:
        """This selector with further requirements; one that matches nothing stays as it is."""
        if self.requirements is None:
            return self
        return Selector(tuple(sorted({*self.requirements, *requirements})))

    @property
    def pair(self) -> tuple[str, str] | None:
        """(key, value) of a label that must have one value, to index the selector by; None if it requires no such."""
        equal = (one for one in self.requirements or () if one[1] == "In" and len(one[2]) == 1)
        return next(((key, values[0]) for key, _, values in equal), None)


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
            problem = f"operator: {requirement.operator!r} is unknown: use one of {', '.join(_OPERATORS)}"
        if problem is not None:
            raise SelectorError(problem)
        found.append((requirement.key, requirement.operator, tuple(sorted(set(requirement.values)))))
    return Selector(tuple(sorted(set(found))))


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    key, operator, values = requirement
    value = labels.get(key)
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
    return value is None
