"""Selectors as masks over columns, compared with plain code for one node at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.model.columns import NodeTable, NodeView
from session_scheduler.model.objects import Node, PodSpec, Toleration
from session_scheduler.model.selectors import preferred_weights, required_nodes, untolerated_taints

KEYS = ["zone", "gen", "example.com/disk"]
VALUES = ["", "a", "b", "3", "12", "007", "x", "9223372036854775808"]
NAMES = ["n0", "n1", "n2", "n3"]
EFFECTS = ["NoSchedule", "PreferNoSchedule", "NoExecute"]

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
taints = st.lists(
    st.builds(
        lambda key, value, effect: {"key": key, "value": value, "effect": effect},
        st.sampled_from("kl"),
        st.sampled_from(["", "v"]),
        st.sampled_from(EFFECTS),
    ),
    max_size=3,
)
expressions = st.builds(
    lambda key, operator, values: {"key": key, "operator": operator, "values": values},
    st.sampled_from([*KEYS, "missing", "-bad-"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd"]),
    st.lists(st.sampled_from([*VALUES, "no value"]), max_size=6),
)
fields = st.builds(
    lambda key, operator, values: {"key": key, "operator": operator, "values": values},
    st.sampled_from(["metadata.name", "metadata.name", "metadata.uid"]),
    st.sampled_from(["In", "NotIn", "Exists"]),
    st.lists(st.sampled_from([*NAMES, "", "other"]), max_size=2),
)
terms = st.builds(
    lambda on_labels, on_fields: {"matchExpressions": on_labels, "matchFields": on_fields},
    st.lists(expressions, max_size=2),
    st.lists(fields, max_size=1),
)
tolerations = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "key": st.sampled_from("kl"),
            "operator": st.sampled_from(["", "Equal", "Exists", "Lt", "Gt"]),
            "value": st.sampled_from(["", "v"]),
            "effect": st.sampled_from(EFFECTS),
        },
    ),
    max_size=3,
)


def table_of(nodes: list[tuple[Any, Any]]) -> NodeTable:
    table = NodeTable(capacity=2)
    for name, (its_labels, its_taints) in zip(NAMES, nodes, strict=False):
        value = {"metadata": {"name": name, "labels": its_labels}, "spec": {"taints": its_taints}}
        table.put(msgspec.convert(value, Node))
    return table


def integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) < 2**63 else None


def label_holds(expression: Any, carried: dict[str, str]) -> bool:
    """One expression on one node's labels. Malformed expressions are filtered out before."""
    key, operator, values = expression["key"], expression["operator"], expression["values"]
    if operator in ("Exists", "DoesNotExist"):
        return (key in carried) == (operator == "Exists")
    if operator in ("In", "NotIn"):
        return (key in carried and carried[key] in values) == (operator == "In")
    number = integer(carried.get(key, ""))
    return number is not None and (number > int(values[0]) if operator == "Gt" else number < int(values[0]))


def malformed(term: Any) -> bool:
    for e in term["matchExpressions"]:
        values, operator = e["values"], e["operator"]
        wanted = {"In": values, "NotIn": values, "Exists": not values, "DoesNotExist": not values}
        comparable = len(values) == 1 and integer(values[0]) is not None
        if e["key"] == "-bad-" or "no value" in values or not wanted.get(operator, operator != "Odd" and comparable):
            return True
    return any(f["operator"] == "Exists" or len(f["values"]) != 1 for f in term["matchFields"])


def term_holds(term: Any, name: str, carried: dict[str, str]) -> bool:
    if malformed(term) or not (term["matchExpressions"] or term["matchFields"]):
        return False
    on_fields = (
        ((name if f["key"] == "metadata.name" else "") == f["values"][0]) == (f["operator"] == "In")
        for f in term["matchFields"]
    )
    return all(label_holds(e, carried) for e in term["matchExpressions"]) and all(on_fields)


def covers(toleration: Any, taint: Any) -> bool:
    if (
        toleration.get("effect", taint["effect"]) != taint["effect"]
        or toleration.get("key", taint["key"]) != taint["key"]
    ):
        return False
    operator = toleration.get("operator", "")
    return operator == "Exists" or (operator in ("", "Equal") and toleration.get("value", "") == taint["value"])


nodes = st.lists(st.tuples(labels, taints), min_size=1, max_size=4)


@given(nodes, st.lists(terms, max_size=3), st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=1))
def test_affinity_equals_that_of_each_node_alone(cluster: Any, alternatives: Any, selector: Any) -> None:
    table = table_of(cluster)
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": alternatives}}
    spec = msgspec.convert({"nodeSelector": selector, "affinity": {"nodeAffinity": affinity}}, PodSpec)
    plainly = [
        selector.items() <= carried.items() and any(term_holds(term, name, carried) for term in alternatives)
        for name, (carried, _) in zip(NAMES, cluster, strict=False)
    ]
    assert required_nodes(table.all_rows(), spec).tolist() == plainly
    twice = np.array([*range(len(cluster)), 0])
    assert required_nodes(NodeView(table, twice), spec).tolist() == [*plainly, plainly[0]]


@given(nodes, st.lists(st.tuples(st.integers(0, 100), terms), max_size=3))
def test_preferences_add_up_as_for_each_node_alone(cluster: Any, weighted: Any) -> None:
    preferred = [{"weight": weight, "preference": term} for weight, term in weighted]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    spec = msgspec.convert({"affinity": affinity}, PodSpec)
    assert spec.affinity
    assert spec.affinity.node_affinity
    plainly = [
        sum(weight for weight, term in weighted if term_holds(term, name, carried))
        for name, (carried, _) in zip(NAMES, cluster, strict=False)
    ]
    assert preferred_weights(table_of(cluster).all_rows(), spec.affinity.node_affinity.preferred).tolist() == plainly


@given(nodes, tolerations, st.sets(st.sampled_from(EFFECTS)))
def test_untolerated_taints_equal_those_of_each_node_alone(cluster: Any, tolerated: Any, effects: set[str]) -> None:
    view = table_of(cluster).all_rows()
    count = np.zeros(len(view), np.int64)
    for carriers in untolerated_taints(view, msgspec.convert(tolerated, tuple[Toleration, ...]), effects):
        count += carriers
    plainly = [
        len(
            {
                (t["key"], t["value"], t["effect"])
                for t in carried
                if t["effect"] in effects and not any(covers(toleration, t) for toleration in tolerated)
            }
        )
        for _, carried in cluster
    ]
    assert count.tolist() == plainly
