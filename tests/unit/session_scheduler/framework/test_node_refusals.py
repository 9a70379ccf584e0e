"""Refusals of nodes: codes for rows, counted by text and by plugin."""

from __future__ import annotations

import numpy as np
import pytest

from session_scheduler.framework.node_refusals import NodeRefusals, Verdict, summarise


def mask(*holds: int) -> np.ndarray:
    return np.array(holds, np.bool_)


def test_a_row_has_the_texts_of_the_masks_that_hold_for_it_in_their_order() -> None:
    masks = {"Too many pods": mask(0, 1, 1), "Insufficient cpu": mask(1, 0, 1)}
    found = NodeRefusals.of_masks("Fit", masks, mask(0, 0, 1))
    assert dict(found) == {
        0: Verdict("Fit", ("Insufficient cpu",)),
        1: Verdict("Fit", ("Too many pods",)),
        2: Verdict("Fit", ("Too many pods", "Insufficient cpu"), unresolvable=True),
    }
    assert found.texts() == {"Too many pods": 2, "Insufficient cpu": 2}
    assert found.resolvable().tolist() == [True, True, False]


@pytest.mark.parametrize("texts", [1, 9, 10, 70])
def test_any_number_of_texts_is_counted(texts: int) -> None:
    masks = {f"text {number}": mask(number % 2, 1, number == 3) for number in range(texts)}
    found = NodeRefusals.of_masks("a", masks, mask(1, 0, 0))
    assert found.texts() == {text: int(holds.sum()) for text, holds in masks.items() if holds.any()}
    for row in range(3):
        assert found[row].reasons == tuple(text for text, holds in masks.items() if holds[row])
    assert [found[row].unresolvable for row in range(3)] == [True, False, False]


def test_rows_that_fit_have_no_verdict() -> None:
    found = NodeRefusals.of_rows([None, Verdict("a", ("x",)), None, Verdict("a", ("x",))])
    assert list(found) == [1, 3]
    assert len(found) == 2
    assert found.get(0) is None
    assert found.counted() == [(Verdict("a", ("x",)), 2)]
    assert found.resolvable().tolist() == [False, True, False, True]


def test_new_verdicts_replace_those_of_their_rows_only() -> None:
    found = NodeRefusals.none(4)
    found.put(
        np.array([0, 1, 3]), NodeRefusals.of_rows([Verdict("a", ("x",)), Verdict("b", ("y",)), Verdict("b", ("y",))])
    )
    found.put(np.array([1, 2]), NodeRefusals.of_rows([None, Verdict("c", ("x", "z"))]))
    assert {row: verdict.plugin for row, verdict in found.items()} == {0: "a", 2: "c", 3: "b"}
    assert found.texts() == {"x": 2, "y": 1, "z": 1}
    assert found.plugins() == {"a": 1, "b": 1, "c": 1}


def test_without_rows_there_is_nothing_to_count() -> None:
    for found in (NodeRefusals.none(0), NodeRefusals.of_rows([]), NodeRefusals.of_masks("a", {"x": mask()}, mask())):
        assert (len(found), found.texts(), found.resolvable().tolist()) == (0, {}, [])


def test_the_sentence_counts_nodes_by_text_in_the_order_of_the_parts() -> None:
    assert summarise(12, {"b": 2, "a": 10, "none": 0}) == "0/12 nodes are available: 10 a, 2 b."
    assert summarise(3, {}, available=3) == "3/3 nodes are available."
    assert summarise(0, {}) == "no nodes available to schedule pods"
