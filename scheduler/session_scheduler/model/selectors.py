"""Node masks of a pod's nodeSelector, node affinity and tolerations.

The filters NodeAffinity and TaintToleration use them. So does topology spread, which counts only the nodes that pass
them. Source: component-helpers' nodeaffinity and corev1 helpers, apimachinery's labels, Kubernetes 1.36.
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
"""Up to this many values are compared one by one."""
NAME_FIELD: Final = "metadata.name"
"""The only node field that matchFields supports."""

# ------------------------------------------------------------------ nodes


def required_nodes(nodes: NodeView, spec: PodSpec) -> BoolColumn:
    """Which nodes satisfy the pod's nodeSelector and required node affinity."""
    mask = np.ones(len(nodes), np.bool_)
    for key, value in spec.node_selector.items():
        mask &= nodes_with(nodes, key, (value,))
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is not None and affinity.required is not None:
        mask &= selected_nodes(nodes, affinity.required)
    return mask


def selected_nodes(nodes: NodeView, selector: NodeSelector) -> BoolColumn:
    """Which nodes satisfy at least one of the terms; no node satisfies an empty or invalid term."""
    mask = np.zeros(len(nodes), np.bool_)
    for term in selector.node_selector_terms:
        found = _term_nodes(nodes, term)
        if found is not None:
            mask |= found
    return mask


def terms_text(required: NodeSelector) -> str:
    """The terms for messages: "zone In (a, b)", with " and " within a term, and " or " between terms."""
    terms = [
        " and ".join(f"{one.key} {one.operator}" + (f" ({', '.join(one.values)})" if one.values else "")
                     for one in (*term.match_expressions, *term.match_fields))
        for term in required.node_selector_terms
    ]  # fmt: skip
    return " or ".join(term for term in terms if term) or "a non-empty term"


def preferred_weights(nodes: NodeView, terms: Iterable[PreferredSchedulingTerm]) -> IntColumn:
    """The sum of the weights of the terms that each node satisfies."""
    total = np.zeros(len(nodes), np.int64)
    for term in terms:
        found = _term_nodes(nodes, term.preference) if term.weight else None
        if found is not None:
            total += term.weight * found
    return total


def _term_nodes(nodes: NodeView, term: NodeSelectorTerm) -> BoolColumn | None:
    """Which nodes satisfy all of a term; None if the term is empty or invalid: no node satisfies it."""
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
            return nodes_with(nodes, requirement.key, requirement.values)
        case "NotIn":
            return ~nodes_with(nodes, requirement.key, requirement.values)
        case "Exists":
            return np.not_equal(nodes.label(requirement.key), ABSENT)
        case "DoesNotExist":
            return np.equal(nodes.label(requirement.key), ABSENT)
    numbers, is_number = nodes.label_numbers()
    bound = int(requirement.values[0])
    beyond = numbers > bound if requirement.operator == "Gt" else numbers < bound
    return nodes.label_among(requirement.key, is_number & beyond)


def nodes_with(nodes: NodeView, key: str, values: Sequence[str]) -> BoolColumn:
    """Which nodes have the label with one of the values."""
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
    """The node names that the terms allow; None if a term does not restrict the name.

    An empty set means that each term contradicts itself. Unlike the filter, this accepts several names per expression.
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
    """Whether the toleration covers the taint (key, value, effect). An empty key or effect covers all.

    Lt and Gt cover nothing: in Kubernetes 1.36 their feature gate is off by default.
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
    """For each distinct taint with one of these effects that no toleration covers: the nodes that have it."""
    for taint, tainted in nodes.taints():
        if taint[2] in effects and not tolerated(tolerations, taint):
            yield tainted
