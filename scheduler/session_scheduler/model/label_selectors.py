"""Label selectors on pods and namespaces, as values that are compared, shared and counted by.

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
    """A label selector that the API server would not have taken."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements of which all must hold. Without any it picks everything; None in their place picks nothing."""

    requirements: tuple[Requirement, ...] | None

    @property
    def empty(self) -> bool:
        """Whether it picks everything because it requires nothing."""
        return self.requirements == ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels are picked."""
        return self.requirements is not None and all(_holds(one, labels) for one in self.requirements)

    def also(self, requirements: Iterable[Requirement]) -> Selector:
        """This selector with further requirements; one that picks nothing stays so."""
        if self.requirements is None:
            return self
        return Selector(tuple(sorted({*self.requirements, *requirements})))

    @property
    def pair(self) -> tuple[str, str] | None:
        """A label and the one value that it must have, where the selector requires any such: what to look it up by."""
        equal = (one for one in self.requirements or () if one[1] == "In" and len(one[2]) == 1)
        return next(((key, values[0]) for key, _, values in equal), None)


NOTHING: Final = Selector(None)
EVERYTHING: Final = Selector(())


def equal_to(labels: Mapping[str, str]) -> tuple[Requirement, ...]:
    """That each of these labels is there with this value."""
    return tuple((key, "In", (value,)) for key, value in labels.items())


def selector_of(written: LabelSelector | None) -> Selector:
    """A selector as the API has it; none picks nothing. Raises SelectorError."""
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
