"""By node: the single pods on it as units of preemption, in order. Kept until a pod there changes.

Preemption reads them, so it sorts the pods of a node only once after a change, in whichever session that was. A
simulation that removes pods from a node is a change, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from session_scheduler.model.columns import NodeTable
from session_scheduler.model.groups import Task
from session_scheduler.model.units import Unit, units_in_order


class SinglePods:
    """The units of the rows on which only single pods run."""

    def __init__(self, table: NodeTable, on_node: Mapping[str, Mapping[str, Task]]) -> None:
        """`on_node` has the tasks on each node; the cache updates it."""
        self._table = table
        self._on_node = on_node
        self.by_row: dict[int, Sequence[Unit] | None] = {}
        """The answers of `on`. The cache removes a row when its node, a task there, its pod or its priority changes."""

    def on(self, row: int) -> Sequence[Unit] | None:
        """The pods on a row, the most important first; None if one of them is in a group. Read only."""
        if row not in self.by_row:
            node = self._table.nodes[row]
            there = self._on_node.get(node.metadata.name, {}).values() if node is not None else ()
            self.by_row[row] = units_in_order(there) if all(task.group.single for task in there) else None
        return self.by_row[row]
