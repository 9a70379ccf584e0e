"""Validation of selector expressions on labels and node fields, by the API server's rules.

Source: apimachinery's labels.NewRequirement and component-helpers' nodeaffinity, Kubernetes 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from session_scheduler.model.objects import LabelSelectorRequirement, NodeSelectorTerm

_INTEGER = re.compile(r"[+-]?[0-9]{1,64}")
_INT64 = range(-(2**63), 2**63)
_INT32 = range(-(2**31), 2**31)
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SOME: Final[tuple[Callable[[int], bool], str]] = (lambda n: n > 0, "at least one value")
_NONE: Final[tuple[Callable[[int], bool], str]] = (lambda n: n == 0, "no values")
_ONE: Final[tuple[Callable[[int], bool], str]] = (lambda n: n == 1, "exactly one value")
_VALUE_COUNTS: Final = {
    "In": _SOME, "NotIn": _SOME, "Exists": _NONE, "DoesNotExist": _NONE, "Gt": _ONE, "Lt": _ONE,
}  # fmt: skip


def is_int32(number: int) -> bool:
    """Whether the number fits the API's int32: weights, maxSkew and minDomains."""
    return number in _INT32


def parse_integer(text: str) -> int | None:
    """The text as a 64-bit integer, which Gt and Lt compare; None if it is not one."""
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number in _INT64 else None


def expression_problem(requirement: LabelSelectorRequirement) -> str | None:
    """The error in an expression on labels; None if it is valid. A term with an invalid expression matches nothing."""
    operator, values = requirement.operator, requirement.values
    count = _VALUE_COUNTS.get(operator)
    if count is None:
        return f"operator: {operator!r} is unknown; use one of {', '.join(_VALUE_COUNTS)}"
    if not is_label_key(requirement.key):
        return f"key: {requirement.key!r} is not a valid label key"
    allowed, wanted = count
    if not allowed(len(values)):
        return f"values: expected {wanted} for {operator}, got {len(values)}"
    if operator in ("Gt", "Lt") and parse_integer(values[0]) is None:
        return f"values[0]: expected an integer for {operator}, got {values[0]!r}"
    wrong = next((value for value in values if value and _NAME.fullmatch(value) is None), None)
    return None if wrong is None else f"values: {wrong!r} is not a valid label value"


def field_problem(requirement: LabelSelectorRequirement) -> str | None:
    """The error in an expression on fields; None if it is valid."""
    if requirement.operator not in ("In", "NotIn"):
        return f"operator: {requirement.operator!r} is unknown; use In or NotIn"
    if len(requirement.values) != 1:
        return f"values: expected exactly one value, got {len(requirement.values)}"
    return None


def term_problem(term: NodeSelectorTerm) -> str | None:
    """The first error in a term, with its path in the term; None if the term is valid."""
    checks = (("matchExpressions", term.match_expressions, expression_problem),
              ("matchFields", term.match_fields, field_problem))  # fmt: skip
    for field, requirements, check in checks:
        for index, requirement in enumerate(requirements):
            problem = check(requirement)
            if problem is not None:
                return f"{field}[{index}].{problem}"
    return None


def is_label_key(key: str) -> bool:
    """Whether the text is a valid key of a label."""
    domain, slash, name = key.rpartition("/")
    return _NAME.fullmatch(name) is not None and (not slash or _DOMAIN.fullmatch(domain) is not None)
