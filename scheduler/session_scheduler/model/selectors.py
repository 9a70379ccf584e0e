"""Which nodes a pod's selectors, affinity and tolerations pick: masks over columns, from nodes and pod alone.

Shared by the filters named for them and by topology spread, which counts only nodes that these let through.
Source: component-helpers' nodeaffinity and corev1 helpers, apimachinery's labels, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from session_scheduler.model.columns import ABSENT, BoolColumn, IntColumn, NodeView
from session_scheduler.model.expressions import term_problem
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


def terms_text(required: NodeSelector) -> str:
    """The terms as people read them: "zone In (a, b)", or " and ", " or " between several."""
    terms = [
        " and ".join(f"{one.key} {one.operator}" + (f" ({', '.join(one.values)})" if one.values else "")
                     for one in (*term.match_expressions, *term.match_fields))
        for term in required.node_selector_terms
    ]  # fmt: skip
    return " or ".join(term for term in terms if term) or "a term that is not empty"


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


def nodes_with(nodes: NodeView, key: str, values: Sequence[str]) -> BoolColumn:
    """Which nodes carry the label with one of the values."""
    return _carries(nodes, key, values)


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
