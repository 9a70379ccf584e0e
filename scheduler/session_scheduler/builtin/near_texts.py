"""Texts about pods in a node's topology domain, for `fits_if` of PodTopologySpread and InterPodAffinity.

It also checks whether any pod can match a query.
"""

from __future__ import annotations

from typing import Final

from session_scheduler.model.label_selectors import Requirement, Selector
from session_scheduler.model.objects import Node
from session_scheduler.model.pod_counts import PodQuery

_HOSTNAME: Final = "kubernetes.io/hostname"


def can_match(query: PodQuery) -> bool:
    """Whether any pod can match the query."""
    return query.namespaces != frozenset() and query.selector.satisfiable


def pods_text(query: PodQuery, namespace: str, noun: str = "pod") -> str:
    """The pods of a query, for a pod in `namespace`: "pod matching app=web in any namespace"."""
    matching = f" matching {_selector_text(query.selector)}" if query.selector.requirements else ""
    if query.namespaces is None:
        return f"{noun}{matching} in any namespace"
    if query.namespaces == {namespace}:
        return f"{noun}{matching}"
    return f"{noun}{matching} in namespace {' or '.join(sorted(query.namespaces))}"


def _selector_text(selector: Selector) -> str:
    """The selector in kubectl's syntax: "app=web,tier in (a, b),!old"."""
    return ",".join(map(_requirement_text, selector.requirements or ()))


def _requirement_text(requirement: Requirement) -> str:
    key, operator, values = requirement
    match operator:
        case "In":
            return f"{key}={values[0]}" if len(values) == 1 else f"{key} in ({', '.join(values)})"
        case "NotIn":
            return f"{key}!={values[0]}" if len(values) == 1 else f"{key} notin ({', '.join(values)})"
        case "Exists":
            return key
    return f"!{key}"


def where_text(node: Node, key: str) -> str:
    """The node's domain: "on n1" for the host name, "in zone=a" for another label."""
    name, value = node.metadata.name, node.metadata.labels.get(key)
    if key == _HOSTNAME and value in (None, name):
        return f"on {name}"
    return f"in {key}={value}" if value is not None else f"in the same {key} as {name}"
