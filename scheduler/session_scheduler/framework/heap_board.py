"""A board with a heap of rows, for classes whose answers for a node change only with the pods on that node.

It evaluates virtual rows (with 1 to 8 more tasks) in advance, so that a pick is a pop and a push while only this class
changes the rows.
"""

from __future__ import annotations

import heapq
from typing import Any, Final

import numpy as np

from session_scheduler.framework.answers import Scope
from session_scheduler.framework.board import Board
from session_scheduler.framework.evaluation import Evaluation
from session_scheduler.framework.hooks import PluginError
from session_scheduler.framework.statement import Ledger
from session_scheduler.model.columns import BoolColumn, NodeTable, NodeView, RowIndex
from session_scheduler.model.groups import Task

_DEPTH: Final = 8
"""How many more tasks of the class a virtual row simulates."""
_AHEAD: Final = 48
"""How many rows at the top of the heap are evaluated ahead at once: NumPy's cost is the call, not the row."""
_SMALLEST_HEAP: Final = 64


class HeapBoard(Board):
    """A board whose best row is at the top of a heap. Its class must be `Evaluation.heap_safe`."""

    def __init__(
        self, table: NodeTable, ledger: Ledger, evaluation: Evaluation, subset: BoolColumn | None, task: Task
    ) -> None:
        self._run = 0
        """How many tasks of the class were placed since the last other change."""
        self._unread = 0
        """How many of them the rows do not show yet; the next `sync` updates the rows."""
        super().__init__(table, ledger, evaluation, subset, task, naive=False)

    def _catch_up(self) -> None:
        if len(self._touched) - self._cursor != self._unread:
            self._run = 0
        self._unread = 0
        super()._catch_up()

    def took(self, row: int) -> None:
        """Note that one task of the class was placed on `row` after `pick`, and that nothing else has changed."""
        if self._cursor != len(self._touched) - 1:
            return
        self._run += 1
        if self._run == 1:  # if classes take turns, an evaluation ahead would be wasted
            self._unread = 1
            return
        try:
            fits, moving = self._next_head(row)
        except PluginError as error:
            if error.late:
                raise
            self._unread = 1  # it may fail for a virtual row only: the next `sync` evaluates the row as it is
            return
        self._cursor += 1
        self._changed()
        self._heads_at[row] = self._heads_at.get(row, 0) + 1
        if not fits:
            self.mask[row] = self._node_mask[row] = False
            self._stamp[row] = self._stamp.get(row, 0) + 1
            if self._bounds_moved():
                self._sum_up(moving=False)
            return
        self._moving[row] = moving
        self._totals[row] = self._fixed[row] + self._moving[row]
        self._push(row)

    def _forget_heap(self) -> None:
        self._heap: list[tuple[Any, int, int, int]] = []
        self._bound: tuple[Any, int] | None = None
        """Rows outside the heap are not better than this key; None: not filled yet."""
        self._complete = False
        self._stamp: dict[int, int] = {}
        self._heads: dict[int, tuple[list[bool], list[Any]]] = {}
        self._heads_at: dict[int, int] = {}

    def _best(self, expected: int) -> int:
        if not self._is_scored:
            self._score()
        while True:
            heap = self._heap
            while heap and heap[0][3] != self._stamp.get(heap[0][2], 0):
                heapq.heappop(heap)
            if heap and (self._complete or (self._bound is not None and heap[0][:2] <= self._bound)):
                return heap[0][2]
            if self._complete:
                return -1
            self._fill(expected)

    def _fill(self, expected: int) -> None:
        """Fill the heap with at least as many of the best rows as picks are expected: n picks use only the n best."""
        feasible = np.flatnonzero(self.mask)
        wanted = max(_SMALLEST_HEAP, expected, 2 * len(self._heap))
        self._complete = len(feasible) <= wanted
        chosen = feasible if self._complete else self._best_rows(feasible, wanted)
        keys = zip((-self._totals[chosen]).tolist(), self._ties[chosen].tolist(), chosen.tolist(), strict=True)
        self._heap = [(worth, tie, row, self._stamp.get(row, 0)) for worth, tie, row in keys]
        heapq.heapify(self._heap)
        self._bound = None if self._complete else max(entry[:2] for entry in self._heap)

    def _best_rows(self, rows: RowIndex, count: int) -> RowIndex:
        totals = self._totals[rows]
        least = np.partition(totals, len(totals) - count)[len(totals) - count]
        above, equal = rows[totals > least], rows[totals == least]
        missing = count - len(above)
        if missing < len(equal):
            equal = equal[np.argpartition(self._ties[equal], missing - 1)[:missing]]
        return np.concatenate((above, equal))

    def _push(self, row: int) -> None:
        stamp = self._stamp[row] = self._stamp.get(row, 0) + 1
        heapq.heappush(self._heap, ((-self._totals[row]).item(), self._ties[row].item(), row, stamp))

    def _rescored(self, rows: RowIndex | None) -> None:
        if rows is None:
            self._forget_heap()
            return
        for row in rows.tolist():
            self._heads.pop(row, None)
            if self._bound is None and not self._complete:
                continue
            if self.mask[row]:
                self._push(row)
            else:
                self._stamp[row] = self._stamp.get(row, 0) + 1

    def _next_head(self, row: int) -> tuple[bool, Any]:
        """Return whether one more task fits after the one just placed on `row`, and the row's moving points then."""
        found = self._heads.get(row)
        at = self._heads_at.get(row, 0)
        if found is None or at >= len(found[0]):
            self._look_ahead(row)
            found, at = self._heads[row], 0
        return found[0][at], found[1][at]

    def _look_ahead(self, row: int) -> None:
        """Evaluate virtual rows for `row`, on which a task was just placed, and for the next rows in the heap."""
        ahead = min(_AHEAD, 4 * self._run)  # a short run is not likely to become a long one
        others = [entry[2] for entry in self._heap[: 2 * ahead] if entry[3] == self._stamp.get(entry[2], 0)]
        others = [r for r in dict.fromkeys(others) if r != row and not self._has_head(r)][:ahead]
        rows = np.array([row, *others], np.int64)
        extra = np.tile(np.arange(1, _DEPTH + 1), len(rows))
        extra[:_DEPTH] -= 1
        view = NodeView(self._table, np.repeat(rows, _DEPTH), self.evaluation.cls, extra)
        mask = np.repeat(self._static_mask[rows], _DEPTH)
        self._run_filters(view, mask, Scope.NODE)
        fits, worth = mask.tolist(), self._moving_of(view, mask).tolist()
        for place, each in enumerate(rows.tolist()):
            part = slice(place * _DEPTH, (place + 1) * _DEPTH)
            self._heads[each] = (fits[part], worth[part])
            self._heads_at[each] = 0

    def _has_head(self, row: int) -> bool:
        found = self._heads.get(row)
        return found is not None and self._heads_at.get(row, 0) < len(found[0])
