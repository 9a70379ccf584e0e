"""Which nodes a pod's selectors, affinity and tolerations pick: masks over columns, from nodes and pod alone.

Shared by the filters named for them and by topology spread, which counts only nodes that these let through.
Source: component-helpers' nodeaffinity and corev1 helpers, apimachinery's labels, Kubernetes 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from session_scheduler.model.columns import ABSENT, BoolColumn, IntColumn, NodeView, parse_integer
from session_scheduler.model.objects import (
    LabelSelectorRequirement,
    NodeSelector,
    NodeSelectorTerm,
    PodSpec,
    PreferredSchedulingTerm,
    Toleration,
)

_FEW = 3
"""Up to so many values are compared one by one."""
NAME_FIELD: Final = "metadata.name"
"""The only field of a node that matchFields can name."""
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_HOW_MANY_VALUES: Final[dict[str, Callable[[int], bool]]] = {
    "In": lambda n: n > 0, "NotIn": lambda n: n > 0, "Exists": lambda n: n == 0, "DoesNotExist": lambda n: n == 0,
    "Gt": lambda n: n == 1, "Lt": lambda n: n == 1,
}  # fmt: skip

# ------------------------------------------------------------------ what a selector may say


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


# ------------------------------------------------------------------ nodes


def required_nodes(nodes: NodeView, spec: PodSpec) -> BoolColumn:
    """Which nodes satisfy the pod's nodeSelector and required node affinity."""
    mask = np.ones(len(nodes), np.bool_)
    for key, value in spec.node_selector.items():
        mask &= _carries(nodes, key, (value,))
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is not None and affinity.required is not None:
        mask &= selected_nodes(nodes, affinity.required)
    return mask


def selected_nodes(nodes: NodeView, selector: NodeSelector) -> BoolColumn:
    """Which nodes satisfy one of the terms; an empty or malformed term is satisfied by none."""
    mask = np.zeros(len(nodes), np.bool_)
    for term in selector.node_selector_terms:
        found = _term_nodes(nodes, term)
        if found is not None:
            mask |= found
    return mask


def preferred_weights(nodes: NodeView, terms: Iterable[PreferredSchedulingTerm]) -> IntColumn:
    """The sum of the weights of the terms that each node satisfies."""
    total = np.zeros(len(nodes), np.int64)
    for term in terms:
        found = _term_nodes(nodes, term.preference) if term.weight else None
        if found is not None:
            total += term.weight * found
    return total


def _term_nodes(nodes: NodeView, term: NodeSelectorTerm) -> BoolColumn | None:
    """Which nodes satisfy all of a term; None where it is empty or malformed, and so satisfied by none."""
    if not (term.match_expressions or term.match_fields) or term_problem(term) is not None:
        return None
    mask = np.ones(len(nodes), np.bool_)
    for requirement in term.match_expressions:
        mask &= _expression_nodes(nodes, requirement)
    for requirement in term.match_fields:
        mask &= _field_nodes(nodes, requirement)
    return mask


def _expression_nodes(nodes: NodeView, requirement: LabelSelectorRequirement) -> BoolColumn:
    match requirement.operator:
        case "In":
            return _carries(nodes, requirement.key, requirement.values)
        case "NotIn":
            return ~_carries(nodes, requirement.key, requirement.values)
        case "Exists":
            return np.not_equal(nodes.label(requirement.key), ABSENT)
        case "DoesNotExist":
            return np.equal(nodes.label(requirement.key), ABSENT)
    numbers, is_number = nodes.label_numbers()
    bound = int(requirement.values[0])
    beyond = numbers > bound if requirement.operator == "Gt" else numbers < bound
    return nodes.label_among(requirement.key, is_number & beyond)


def _carries(nodes: NodeView, key: str, values: Sequence[str]) -> BoolColumn:
    """Which nodes carry the label with one of the values. A value without an id is carried by no node."""
    ids = {nodes.label_id(value) for value in values} - {ABSENT}
    if len(ids) > _FEW:
        among = np.zeros(len(nodes.label_numbers()[0]), np.bool_)
        among[list(ids)] = True
        return nodes.label_among(key, among)
    column = nodes.label(key)
    mask = np.zeros(len(nodes), np.bool_)
    for number in ids:
        mask |= column == number
    return mask


def _field_nodes(nodes: NodeView, requirement: LabelSelectorRequirement) -> BoolColumn:
    value = requirement.values[0]
    no_such_field = np.full(len(nodes), value == "", np.bool_)
    found = nodes.named(value) if requirement.key == NAME_FIELD else no_such_field
    return found if requirement.operator == "In" else ~found


def wanted_names(selector: NodeSelector) -> frozenset[str] | None:
    """The names that the terms narrow the nodes to, None where a term leaves them open.

    An empty set means that each term contradicts itself. Unlike matching, this reads several names in one expression.
    """
    names: set[str] = set()
    for term in selector.node_selector_terms:
        lists = [set(r.values) for r in term.match_fields if r.key == NAME_FIELD and r.operator == "In"]
        if not lists:
            return None
        names |= set.intersection(*lists)
    return frozenset(names) if selector.node_selector_terms else None


# ------------------------------------------------------------------ taints


def tolerates(toleration: Toleration, taint: tuple[str, str, str]) -> bool:
    """Whether it covers the taint (key, value, effect). An empty key or effect covers all of them.

    Lt and Gt cover nothing: Kubernetes 1.36 has them behind a feature gate that is off by default.
    """
    key, value, effect = taint
    if toleration.effect not in ("", effect) or toleration.key not in ("", key):
        return False
    return toleration.operator == "Exists" or (toleration.operator in ("", "Equal") and toleration.value == value)


def tolerated(tolerations: Iterable[Toleration], taint: tuple[str, str, str]) -> bool:
    """Whether one of the tolerations covers the taint."""
    return any(tolerates(toleration, taint) for toleration in tolerations)


def untolerated_taints(
    nodes: NodeView, tolerations: Sequence[Toleration], effects: Iterable[str]
) -> Iterable[BoolColumn]:
    """For each distinct taint of these effects that is not covered, the nodes that carry it."""
    for taint, carriers in nodes.taints():
        if taint[2] in effects and not tolerated(tolerations, taint):
            yield carriers
