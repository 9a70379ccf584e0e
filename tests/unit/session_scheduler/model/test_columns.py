from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from session_scheduler.errors import InputError
from session_scheduler.model.columns import NodeQuantityError, NodeTable, NodeView
from session_scheduler.model.expressions import parse_integer
from session_scheduler.model.objects import Node
from session_scheduler.model.quantity import LARGEST

from .tables import contents, node, task_class

GPUS: dict[str, Any] = {"example/gpu": "2"}


def test_amounts_are_millicores_and_base_units() -> None:
    table = NodeTable()
    table.put(node("n", cpu="1500m", memory="1Gi", **GPUS))
    view = table.all_rows()
    assert [int(view.allocatable(r)[0]) for r in ("cpu", "memory", "pods", "example/gpu", "unknown")] == [
        1500,
        2**30,
        10,
        2,
        0,
    ]


def test_a_reused_row_has_nothing_of_its_former_node() -> None:
    table, fresh = NodeTable(), NodeTable()
    row = table.put(node("old", {"a": "1", "b": "2"}, ["t"], True, cpu="4", **GPUS))
    table.add_usage(row, task_class(table, "port", cpu="1", **{"example/gpu": "1"}), 1)
    table.remove("old")
    assert not table.valid()[row]
    assert table.put(node("new", {"a": "9"}, cpu="2")) == row
    fresh.put(node("new", {"a": "9"}, cpu="2"))
    known = {"amounts": dict.fromkeys(table.resources.names, (0, 0))}
    known["amounts"].update(contents(fresh)["new"]["amounts"])
    assert contents(table) == {"new": {**contents(fresh)["new"], **known}}


def test_a_node_that_changes_keeps_its_row_and_its_usage() -> None:
    table = NodeTable()
    row = table.put(node("n", {"a": "1"}, ["t"], cpu="4", memory="1Gi"))
    table.add_usage(row, task_class(table, cpu="1"), 1)
    assert table.put(node("n", {"b": "1"}, ["u"], cpu="2")) == row
    found = contents(table)["n"]
    assert found["amounts"]["cpu"] == (2000, 1000)
    assert found["amounts"]["memory"] == (0, 0)
    assert (found["labels"], found["taints"]) == ({"b": "1"}, {"u"})


def test_columns_grow_with_nodes_and_resources_and_keep_what_they_hold() -> None:
    table = NodeTable(capacity=2)
    cls = task_class(table, "port", cpu="1")
    for i in range(9):
        offers: dict[str, Any] = {f"example/r{i}": str(i)}
        row = table.put(node(f"n{i}", {"i": str(i)}, ["t"] if i == 1 else [], cpu=str(i), **offers))
        table.add_usage(row, cls, 1)
    found = contents(table)
    assert {name: f["amounts"]["cpu"] for name, f in found.items()} == {f"n{i}": (1000 * i, 1000) for i in range(9)}
    assert all(found[f"n{i}"]["amounts"][f"example/r{i}"] == (i, 0) for i in range(9))
    assert [f["labels"] for f in found.values()] == [{"i": str(i)} for i in range(9)]
    assert [name for name, f in found.items() if f["taints"]] == ["n1"]
    assert all(f["counters"] == {"port": 1} for f in found.values())


def test_taints_without_a_node_are_dropped() -> None:
    table = NodeTable()
    table.put(node("a", taints=["t", "t"]))
    table.put(node("b", taints=["t"]))
    table.put(node("a"))
    assert [key[0] for key, _ in table.all_rows().taints()] == ["t"]
    table.remove("b")
    assert list(table.all_rows().taints()) == []


@pytest.mark.parametrize(("cpu", "words"), [("four", "'four' is not a valid quantity"), ("-1", "'-1' is negative")])
def test_an_invalid_quantity_raises_with_node_and_field_and_changes_nothing(cpu: str, words: str) -> None:
    table = NodeTable()
    table.put(node("known", {"a": "1"}, ["t"], cpu="4"))
    before = contents(table)
    for name in ("known", "new"):
        with pytest.raises(NodeQuantityError) as caught:
            table.put(node(name, memory="1Gi", cpu=cpu))
        assert (caught.value.node, caught.value.field) == (name, "status.allocatable.cpu")
        assert f"Node {name}: status.allocatable.cpu: {words}" in str(caught.value)
        assert isinstance(caught.value, InputError)
    assert contents(table) == before
    assert table.size == 1


def test_absurd_amounts_are_capped_where_scores_do_not_overflow() -> None:
    table = NodeTable()
    table.put(node("n", cpu="9E", memory="9E"))
    view = table.all_rows()
    assert int(view.allocatable("cpu")[0]) == int(view.allocatable("memory")[0]) == LARGEST
    assert int((view.allocatable("memory") * 100)[0]) == 100 * LARGEST


def test_removing_usage_restores_the_digest() -> None:
    table = NodeTable()
    row = table.put(node("n", cpu="4"))
    before = table.digest()
    cls = task_class(table, "port", cpu="1", **{"example/new": "1"})
    table.add_usage(row, cls, 1)
    assert table.digest() != before
    table.add_usage(row, cls, -1)
    assert table.digest() == before


def test_the_digest_does_not_depend_on_rows() -> None:
    one, other = NodeTable(), NodeTable()
    one.put(node("gone"))
    one.remove("gone")
    for table, names in ((one, "ab"), (other, "ba")):
        for name in names:
            table.add_usage(table.put(node(name, cpu="4")), task_class(table, cpu="1"), 1)
    assert one.digest() == other.digest()


def test_virtual_rows_add_tasks_of_the_class_to_usage_and_counters() -> None:
    table = NodeTable()
    for name in "ab":
        table.put(node(name, cpu="8"))
    cls = task_class(table, "port", cpu="1")
    table.add_usage(1, cls, 1)
    view = NodeView(table, np.array([1, 1, 0]), cls, np.array([0, 2, 1]))
    assert view.used("cpu").tolist() == [1000, 3000, 1000]
    assert view.used("pods").tolist() == [1, 3, 1]
    assert view.used("memory").tolist() == [0, 0, 0]
    assert view.nonzero_used("memory").tolist() == [n * 200 * 2**20 for n in (1, 3, 1)]
    assert view.counter("port").tolist() == [1, 3, 1]
    assert view.counter("other").tolist() == [0, 0, 0]
    assert view.allocatable("cpu").tolist() == [8000, 8000, 8000]
    assert table.all_rows().used("cpu").tolist() == [0, 1000]


def test_nodes_are_found_by_name_in_every_kind_of_view() -> None:
    table = NodeTable()
    for name in "abc":
        table.put(node(name))
    rows = NodeView(table, np.array([2, 1, 2]))
    assert table.all_rows().named("b").tolist() == [False, True, False]
    assert table.all_rows().named("x").tolist() == [False, False, False]
    assert rows.named("c").tolist() == [True, False, True]
    assert rows.named("x").tolist() == [False, False, False]
    assert (rows.row_of("b"), rows.row_of("a"), table.all_rows().row_of("c")) == (1, -1, 2)
    assert rows.node(1).metadata.name == "b"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        ("-3", -3),
        ("+4", 4),
        ("007", 7),
        (str(2**63 - 1), 2**63 - 1),
        (str(-(2**63)), -(2**63)),
        (str(2**63), None),
        ("", None),
        ("1.5", None),
        ("1_000", None),
        (" 1", None),
        ("٣", None),
        ("x", None),
        ("-", None),
    ],
)
def test_label_values_are_numbers_when_they_are_64_bit_decimals(text: str, number: int | None) -> None:
    assert parse_integer(text) == number


def test_label_numbers_include_values_added_later() -> None:
    table = NodeTable()
    table.put(node("a", {"gen": "3"}))
    assert table.label_numbers()[0].tolist() == [3]
    table.put(node("b", {"gen": "new", "other": "8"}))
    numbers, is_number = table.label_numbers()
    assert (numbers.tolist(), is_number.tolist()) == ([3, 0, 8], [True, False, True])
    assert table.all_rows().label_among("gen", is_number).tolist() == [True, False]
    assert table.all_rows().label_among("unseen", is_number).tolist() == [False, False]


def test_a_plugin_cannot_write_into_the_live_columns() -> None:
    table = NodeTable()
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"}}}
    table.put(msgspec.convert(node, Node))
    view = table.all_rows()
    for column in (view.allocatable("cpu"), view.used("cpu"), view.unschedulable):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    assert view.allocatable("cpu").tolist() == [4000]
