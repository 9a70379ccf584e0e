"""Node selectors: the names that they allow, and the errors of invalid terms. tests/property compares their masks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from session_scheduler.model.columns import NodeTable
from session_scheduler.model.expressions import term_problem
from session_scheduler.model.objects import Node, NodeSelector, NodeSelectorTerm
from session_scheduler.model.selectors import selected_nodes, wanted_names


def test_a_selector_without_terms_matches_nothing() -> None:
    table = NodeTable()
    table.put(msgspec.convert({"metadata": {"name": "n"}}, Node))
    assert selected_nodes(table.all_rows(), NodeSelector()).tolist() == [False]


@pytest.mark.parametrize(
    ("terms", "names"),
    [
        ([{"In": ["a", "b"]}], {"a", "b"}),
        ([{"In": ["a"]}, {"In": ["b"]}], {"a", "b"}),
        ([{"In": ["a"]}, {"NotIn": ["b"]}], None),
        ([{"In": ["a"]}, {}], None),
        ([{"In": []}], set()),
        ([], None),
    ],
)
def test_names_narrow_the_nodes_only_if_every_term_has_some(terms: Any, names: set[str] | None) -> None:
    selector = [
        {"matchFields": [{"key": "metadata.name", "operator": o, "values": v} for o, v in term.items()]}
        for term in terms
    ]
    assert wanted_names(msgspec.convert({"nodeSelectorTerms": selector}, NodeSelector)) == names


@pytest.mark.parametrize(
    ("term", "problem"),
    [
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, None),
        (
            {"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "In"}]},
            "matchExpressions[1].values: expected at least one value for In, got 0",
        ),
        (
            {"matchExpressions": [{"key": "a/b/c", "operator": "Exists"}]},
            "matchExpressions[0].key: 'a/b/c' is not a valid label key",
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]},
            "matchExpressions[0].values[0]: expected an integer for Gt, got 'x'",
        ),
        (
            {"matchFields": [{"key": "metadata.name", "operator": "Lt", "values": ["x"]}]},
            "matchFields[0].operator: 'Lt' is unknown; use In or NotIn",
        ),
    ],
)
def test_the_first_problem_of_a_term_is_returned_with_its_path(term: Any, problem: str | None) -> None:
    assert term_problem(msgspec.convert(term, NodeSelectorTerm)) == problem
