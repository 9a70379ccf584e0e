from __future__ import annotations

import numpy as np
import pytest

from session_scheduler.model.columns import IntColumn, NodeTable, NodeView
from session_scheduler.model.kept_rows import KeptRows
from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.objects import Node, NodeStatus

computed: list[int] = []


def read(nodes: NodeView) -> tuple[IntColumn, IntColumn]:
    computed.extend(nodes.row_numbers.tolist())
    return nodes.allocatable("cpu"), nodes.counter("key")


def put(table: NodeTable, name: str, cpu: int) -> None:
    table.put(Node(metadata=ObjectMeta(name=name), status=NodeStatus(allocatable={"cpu": str(cpu)})))


@pytest.fixture
def table() -> NodeTable:
    computed.clear()
    table = NodeTable()
    for index in range(4):
        put(table, f"n{index}", 1 + index)
    return table


def found(kept: KeptRows, view: NodeView) -> list[list[int]]:
    return [one.tolist() for one in kept.of(view)]


def test_a_row_is_computed_once_after_each_change_of_its_usage(table: NodeTable) -> None:
    kept = KeptRows(read)
    assert found(kept, table.all_rows()) == [[1000, 2000, 3000, 4000], [0, 0, 0, 0]]
    computed.clear()
    table.add_counts(2, {"key": 5}, 1)
    for _ in range(3):
        assert found(kept, NodeView(table, np.array([3, 2]))) == [[4000, 3000], [0, 5]]
        assert found(kept, table.all_rows())[1] == [0, 0, 5, 0]
    assert computed == [2]
    table.add_counts(2, {"key": 5}, -1)
    assert found(kept, table.all_rows())[1] == [0, 0, 0, 0]
    assert computed == [2, 2]


def test_all_rows_are_computed_after_a_change_of_the_nodes_or_of_something_else(table: NodeTable) -> None:
    kept, static = KeptRows(read), KeptRows(read, static=True)
    for one in (kept, static):
        found(one, table.all_rows())
    computed.clear()
    put(table, "n1", 7)
    put(table, "n4", 9)
    for one in (kept, static):
        assert found(one, NodeView(table, np.array([1, 4])))[0] == [7000, 9000]
    assert computed == 2 * [0, 1, 2, 3, 4]
    computed.clear()
    table.add_counts(0, {"key": 1}, 1)
    found(static, table.all_rows())
    assert computed == []
    kept.forget()
    assert found(kept, table.all_rows())[1] == [1, 0, 0, 0, 0]
    assert computed == [0, 1, 2, 3, 4]
