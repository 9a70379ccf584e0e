"""What a selector's expressions may say, in the API server's judgement: of labels, and of nodes' fields.

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
_HOW_MANY_VALUES: Final[dict[str, Callable[[int], bool]]] = {
    "In": lambda n: n > 0, "NotIn": lambda n: n > 0, "Exists": lambda n: n == 0, "DoesNotExist": lambda n: n == 0,
    "Gt": lambda n: n == 1, "Lt": lambda n: n == 1,
}  # fmt: skip


def is_int32(number: int) -> bool:
    """Whether the API has such a number: of weights, skews and counts of domains."""
    return number in _INT32


def parse_integer(text: str) -> int | None:
    """A label's or selector's text as a 64-bit integer, None where it is none (what Gt and Lt compare)."""
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number in _INT64 else None


def expression_problem(requirement: LabelSelectorRequirement) -> str | None:
    """What is wrong with an expression on labels, None where nothing is. A term with a wrong one picks nothing."""
    operator, values = requirement.operator, requirement.values
    fits = _HOW_MANY_VALUES.get(operator)
    if fits is None:
        return f"operator: {operator!r} is unknown: use one of {', '.join(_HOW_MANY_VALUES)}"
    if not _is_label_key(requirement.key):
        return f"key: {requirement.key!r} is no label key"
    if not fits(len(values)):
        return f"values: {len(values)} values do not go with {operator}"
    if operator in ("Gt", "Lt") and parse_integer(values[0]) is None:
        return f"values[0]: {values[0]!r} is no integer: {operator} compares integers"
    wrong = next((value for value in values if value and _NAME.fullmatch(value) is None), None)
    return None if wrong is None else f"values: {wrong!r} is no label value"


def field_problem(requirement: LabelSelectorRequirement) -> str | None:
    """What is wrong with an expression on fields, None where nothing is."""
    if requirement.operator not in ("In", "NotIn"):
        return f"operator: {requirement.operator!r} is unknown: use In or NotIn"
    if len(requirement.values) != 1:
        return f"values: {len(requirement.values)} values: write one"
    return None


def term_problem(term: NodeSelectorTerm) -> str | None:
    """The first thing wrong with a term, with its path in the term, or None."""
    checks = (("matchExpressions", term.match_expressions, expression_problem),
              ("matchFields", term.match_fields, field_problem))  # fmt: skip
    for field, requirements, check in checks:
        for index, requirement in enumerate(requirements):
            problem = check(requirement)
            if problem is not None:
                return f"{field}[{index}].{problem}"
    return None


def _is_label_key(key: str) -> bool:
    domain, slash, name = key.rpartition("/")
    return _NAME.fullmatch(name) is not None and (not slash or _DOMAIN.fullmatch(domain) is not None)
