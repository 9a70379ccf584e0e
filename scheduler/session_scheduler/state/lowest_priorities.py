"""By node: the lowest priority of the tasks on it, as a column. Preemption reads it to skip nodes without victims.

The cache adds the rows that change; the next use of the column reads them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from session_scheduler.model.columns import IntColumn, NodeTable
from session_scheduler.model.groups import Task

ABOVE_ALL: Final = 2**31
"""Above every priority that a pod can have. The value of a row without tasks."""


class LowestPriorities:
    """The lowest priority on each row of the node table: of a task, or of its PodGroup if that has one."""

    def __init__(self, table: NodeTable, on_node: Mapping[str, Mapping[str, Task]]) -> None:
        """`on_node` has the tasks on each node; the cache updates it."""
        self._table = table
        self._on_node = on_node
        self._column: IntColumn = np.zeros(0, np.int64)
        self.changed: set[int] = set()
        """The rows whose tasks changed, or their priorities. The cache adds to them."""

    def column(self) -> IntColumn:
        """Return the lowest priority on each row, `ABOVE_ALL` for a row without tasks. Do not write to it."""
        missing = self._table.size - len(self._column)
        if missing:
            self._column = np.append(self._column, np.full(missing, ABOVE_ALL, np.int64))
        for row in self.changed:
            node = self._table.nodes[row]
            tasks = self._on_node.get(node.metadata.name, {}).values() if node is not None else ()
            self._column[row] = min((task.preemptor_priority for task in tasks), default=ABOVE_ALL)
        self.changed.clear()
        return self._column
