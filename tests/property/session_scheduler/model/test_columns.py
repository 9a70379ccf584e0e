"""After any changes of nodes and pods, the table equals one that is built at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.model.columns import NodeTable

from ....unit.session_scheduler.model.tables import contents, node, task_class

NAMES = st.sampled_from("abcde")
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NAMES, st.sampled_from(["1", "2"]), st.sets(st.sampled_from("tu"))),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("use"), NAMES, st.sampled_from([1, -1])),
    ),
    max_size=30,
)


@given(CHANGES)
def test_after_any_changes_the_table_equals_a_rebuilt_one(changes: list[Any]) -> None:
    table, nodes, used = NodeTable(capacity=1), {}, {}
    cls = task_class(table, "port", cpu="1")
    for kind, name, *rest in changes:
        if kind == "put":
            nodes[name] = node(name, {"l": rest[0]}, sorted(rest[1]), cpu=rest[0])
            table.put(nodes[name])
            used.setdefault(name, 0)
        elif name in nodes and kind == "remove":
            table.remove(name)
            del nodes[name], used[name]
        elif name in nodes and used[name] + rest[0] >= 0:
            used[name] += rest[0]
            table.add_usage(table.row_of[name], cls, rest[0])
    fresh = NodeTable()
    again = task_class(fresh, "port", cpu="1")
    for name, value in sorted(nodes.items()):
        row = fresh.put(value)
        for _ in range(used[name]):
            fresh.add_usage(row, again, 1)
    assert contents(table) == contents(fresh)
    assert table.digest() == fresh.digest()
    assert sorted(np.flatnonzero(table.valid())) == sorted(table.row_of.values())
