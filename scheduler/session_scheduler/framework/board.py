"""A class's board: the nodes that fit its tasks, and their scores, from which the actions pick nodes.

It stays up to date while tasks are placed. The highest total wins. The node's tie-break, never the row number, decides
between equal totals. Nodes are scored only if some node fits, and reasons are collected only for a class that fits
nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from session_scheduler.framework.answers import Normalise, Scope
from session_scheduler.framework.evaluation import (
    OBJECT_BYTES,
    Evaluation,
    Filtering,
    FilterResult,
    Scoring,
    SharedFilters,
    bounds,
    normalised,
    refusals_by,
)
from session_scheduler.framework.hooks import PluginError
from session_scheduler.framework.node_refusals import NodeRefusals, summarise
from session_scheduler.framework.statement import Ledger
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeTable, NodeView, RowIndex, rows_since
from session_scheduler.model.groups import Task
from session_scheduler.model.row_heap import RowHeap, Totals

_LARGEST_SUM: Final = 2**62
"""No node offers as much. It limits the number of tasks that `capacity` counts, so that sums fit into 64 bits."""
_DEPTH: Final = 8
"""How many more tasks of the class a virtual row simulates."""
_AHEAD: Final = 48
"""How many rows at the top of the heap are evaluated ahead at once: NumPy's cost is per call, not per row."""
_FEW: Final = 32
"""After this many changes of rows at once, a heap is refilled."""
_NO_ROWS: Final = np.zeros(0, np.int64)
_COMPACT: Final = (0,)
"""The strides of a column that `_compact` has made."""
_ENTRY_BYTES: Final = 200
"""The approximate memory of an entry of the heap."""
_HEAD_BYTES: Final = 800
"""The approximate memory of the virtual rows for one row."""


def capacity_of(
    table: NodeTable, cls: TaskClass, fits: BoolColumn, limit: int, run: Callable[[NodeView, BoolColumn], None]
) -> IntColumn:
    """Return how many tasks of a class fit on each row, at most `limit`. `fits`: the rows on which one fits; `run`
    clears the rows of a view on which no further one fits.
    """
    limit = max(1, min(limit, _LARGEST_SUM // max(amount for _, amount in cls.usage)))
    if limit == 1:
        return fits.astype(np.int64)
    found = np.zeros(len(fits), np.int64)
    rows = np.flatnonzero(fits)
    low = np.ones(len(rows), np.int64)
    high = np.full(len(rows), limit, np.int64)
    while (open_ := low < high).any():
        middle = (low + high + 1) // 2
        view = NodeView(table, rows, cls, middle - 1)
        mask = np.ones(len(rows), np.bool_)
        run(view, mask)
        low = np.where(open_ & mask, middle, low)
        high = np.where(open_ & ~mask, middle - 1, high)
    found[rows] = low
    return found


class Board:
    """The rows that fit one class's tasks, and their scores: over all rows, or over those of a subset."""

    def __init__(
        self, table: NodeTable, ledger: Ledger, evaluation: Evaluation, subset: BoolColumn | None, task: Task,
        *, naive: bool, shared: SharedFilters | None,
    ) -> None:  # fmt: skip
        """`shared` has results of filters over all rows; None evaluates all filters."""
        self._table = table
        self._touched = ledger.touched
        self._runner = ledger.runner
        self._task = task
        """The task for callbacks. Callbacks answer alike for all tasks of the class, except those with scope ANY."""
        self.use(evaluation)
        self._subset = subset
        self._naive = naive
        self._shared = shared
        self._shares_rows = True
        """Whether `shared` has results for all static filters."""
        self._asks_each_task = ledger.runner.has_any_callbacks
        self._ties = ledger.runner.ties()
        self._rejectors: frozenset[str] = frozenset()
        """The plugins that rejected a node in the last `why`."""
        self._parts: list[NodeRefusals] = []
        """The rejected rows in the last `why`."""
        self._own: NodeRefusals | None = None
        """The last of them, if this board has evaluated it; None before the first."""
        self.results: set[FilterResult] = set()
        """The shared results whose arrays the board uses."""
        self.counted_bytes = 0
        """The memory when the evaluator counted it last."""
        self._evaluated_at = 0
        self._by_row: IntColumn | None = None
        """The sum of node-scope points, if `_sum_up_any` can use it."""
        self._build()

    def use(self, evaluation: Evaluation) -> None:
        """Ask the filters and scores of this evaluation from now on: that of the next task's class, whose answers are
        the same (`Evaluation.alike`).
        """
        self.evaluation = evaluation
        self._static = [one for one in evaluation.filters if one.scope is Scope.STATIC]
        self._of_node = [one for one in evaluation.filters if one.scope is Scope.NODE]

    # ------------------------------------------------------------------ evaluation

    def _build(self) -> None:
        view = self._table.all_rows()
        self._version = self._table.static_version
        self._cursor = len(self._touched)
        if self._shared is None:
            self._static_mask = self._candidates()
            self._run_filters(view, self._static_mask, Scope.STATIC)
            self._node_mask = self._static_mask.copy()
            self._run_filters(view, self._node_mask, Scope.NODE)
        else:
            self._build_shared(self._shared)
        self.mask = self._node_mask.copy()
        self._run_filters(view, self.mask, Scope.ANY)
        self._is_scored = False
        self._changed()

    def _build_shared(self, shared: SharedFilters) -> None:
        """Set the masks of static and node-scope filters, from the results of other classes as far as possible."""
        found, count = shared.after(self._static)
        self._static_mask = found.mask
        if count < len(self._static) and not found.is_empty:
            self.results.add(found)
            self._static_mask = found.mask.copy()
            self._run_filters(self._table.all_rows(), self._static_mask, Scope.STATIC, self._static[count:])
            self._shares_rows = False  # the results of node-scope filters follow those of all static ones
        self._node_mask = self._fitting(self._table.all_rows())

    def _fitting(self, view: NodeView) -> BoolColumn:
        """Which rows of the view pass the static and the node-scope filters."""
        rows = view.row_numbers
        if self._shared is None or not self._shares_rows:
            mask = self._static_mask[rows]
            self._run_filters(view, mask, Scope.NODE)
            return mask
        found, count = self._shared.after([*self._static, *self._of_node])
        self.results.add(found)  # its chain has the static result
        mask = found.mask[rows]
        self._run_filters(view, mask, Scope.NODE, self._of_node[max(0, count - len(self._static)) :])
        return mask

    @property
    def nbytes(self) -> int:
        """The approximate memory of the board now: its arrays, and the Python objects."""
        size = OBJECT_BYTES + self._static_mask.nbytes + self._node_mask.nbytes + self.mask.nbytes
        if self._own is not None:
            size += self._own.nbytes
        if self._is_scored:
            columns = [*self._raw, self._fixed, self._moving, self._totals]
            if self._by_row is not None:
                columns.append(self._by_row)
            size += sum(column.nbytes for column in columns if column.strides != _COMPACT)
        return size

    @property
    def is_done(self) -> bool:
        """Whether no task of the class is left to place."""
        return self.evaluation.cls.of_one_pod and self._task.node is not None

    def _candidates(self) -> BoolColumn:
        mask = self._table.valid()
        if self._subset is not None:  # like kube-scheduler, count only the nodes of the tried placement
            mask &= self._subset
        return mask

    def _changed(self) -> None:
        """Note that some row changed: the reasons are outdated."""
        self._reason: str | None = None
        self._is_evaluated = False

    def _run_filters(
        self, view: NodeView, mask: BoolColumn, scope: Scope, filters: Sequence[Filtering] | None = None
    ) -> None:
        """Run the filters of a scope, or these of them."""
        if not np.count_nonzero(mask):
            return
        for filtering in self.evaluation.filters if filters is None else filters:
            if filtering.scope is scope:
                filtering.run(view, mask, self._task)

    def sync(self, task: Task | None = None) -> None:
        """Update the board after placements, evictions and their undo."""
        if self._version != self._table.static_version:
            raise RuntimeError("the nodes changed while a session was open: events are applied between sessions")
        if task is not None:
            self._task = task
        if self._naive:
            self._build()
        elif self._cursor < len(self._touched) or (self._asks_each_task and not self.evaluation.heap_safe):
            self._catch_up()

    def _catch_up(self) -> None:
        """Re-evaluate the rows that changed, and the answers that any change may concern."""
        rows = self._unseen_rows()
        self._refresh_rows(rows)
        if not self.evaluation.heap_safe:
            self._refresh_any(rows)

    def _unseen_rows(self) -> RowIndex:
        rows = rows_since(self._touched, self._cursor)
        self._cursor = len(self._touched)
        return rows

    def _refresh_rows(self, rows: RowIndex) -> None:
        """Re-evaluate the node-scope answers of some rows."""
        if not len(rows):
            return
        self._changed()
        view = NodeView(self._table, rows)
        mask = self._node_mask[rows] = self._fitting(view)
        if self.evaluation.heap_safe:
            self._refresh_totals(view, mask)
        elif self._is_scored:
            for place, scoring in enumerate(self.evaluation.scores):
                if scoring.scope is Scope.NODE:
                    self._raw[place][rows] = scoring.run(view, mask, self._task)

    def _refresh_totals(self, view: NodeView, mask: BoolColumn) -> None:
        """Set which rows of the view fit, and their totals, in a class without `Scope.ANY`."""
        rows = view.row_numbers
        flipped = bool((mask != self.mask[rows]).any())
        self.mask[rows] = mask
        if not self._is_scored:
            return
        self._moving[rows] = self._moving_of(view, mask)
        if flipped and self._bounds_moved():
            self._sum_up(moving=False)
        else:
            self._totals[rows] = self._fixed[rows] + self._moving[rows]
            self._rescored(rows)

    def _refresh_any(self, rows: RowIndex) -> None:
        """Re-evaluate the `Scope.ANY` answers; the node-scope answers of `rows` have just changed."""
        view = self._table.all_rows()
        mask = self._node_mask.copy()
        self._run_filters(view, mask, Scope.ANY)
        same = np.array_equal(mask, self.mask)
        self.mask = mask
        self._changed()
        if not self._is_scored:
            return
        for place, scoring in enumerate(self.evaluation.scores):
            if scoring.scope is Scope.ANY:
                self._raw[place] = scoring.run(view, self.mask, self._task)
        if same and self._by_row is not None:
            self._sum_up_any(rows, self._by_row)
        else:
            self._sum_up()
            self._by_row = self._points_by_row()

    # ------------------------------------------------------------------ scores

    @property
    def total(self) -> Totals:
        """The total score of each row; undefined for rows that do not fit."""
        if not self._is_scored:
            self._score()
        return self._totals

    def _score(self) -> None:
        view = self._table.all_rows()
        masks = {Scope.STATIC: self._static_mask, Scope.NODE: self._node_mask, Scope.ANY: self.mask}
        self._raw = [  # copies, because a plugin may return a column of the table, or keep its array
            scoring.run(view, masks[scoring.scope], self._task).copy() for scoring in self.evaluation.scores
        ]
        self._by_row = None
        self._sum_up()
        if self.evaluation.heap_safe:  # these points are in `_moving`; without them the board is much smaller
            for place, scoring in enumerate(self.evaluation.scores):
                self._raw[place] = _NO_ROWS if scoring.scope is Scope.NODE else _compact(self._raw[place])
        self._is_scored = True

    def _sum_up(self, *, moving: bool = True) -> None:
        """Compute bounds and totals from raw scores and mask.

        Without `moving`, keep the points that depend on each row's usage: picks keep them up to date.
        """
        self._bounds = [bounds(raw, self.mask, scoring.normalise) for scoring, raw in self._scored()]
        self._fixed: Totals = np.zeros(len(self.mask), np.int64)
        if moving:
            self._moving: Totals = np.zeros(len(self.mask), np.int64)
        for (scoring, raw), limits in zip(self._scored(), self._bounds, strict=True):
            if scoring.scope is not Scope.STATIC and not moving:
                continue
            points = scoring.weight * normalised(raw, limits, scoring.normalise)
            if scoring.scope is Scope.STATIC:
                self._fixed = self._fixed + points
            else:
                self._moving = self._moving + points
        self._totals: Totals = self._fixed + self._moving
        self._fixed = _compact(self._fixed)
        self._rescored(None)

    def _rescored(self, rows: RowIndex | None) -> None:
        """The totals of these rows, or of all, have changed. For `HeapBoard`."""

    def _scored(self) -> list[tuple[Scoring, IntColumn]]:
        return list(zip(self.evaluation.scores, self._raw, strict=True))

    def _points_by_row(self) -> IntColumn | None:
        """Return the sum of node-scope points; None if a change of one row may change others', or adds fractions."""
        points = np.zeros(len(self.mask), np.int64)
        for scoring, raw in self._scored():
            if scoring.scope is Scope.NODE:
                if scoring.normalise is not Normalise.NONE or raw.dtype.kind != "i":
                    return None
                points += scoring.weight * raw
        return points

    def _sum_up_any(self, rows: RowIndex, by_row: IntColumn) -> None:
        """Like `_sum_up` if the same nodes fit as before: static points stay, and node-scope points change only for
        `rows`."""
        moving: Totals = by_row
        by_row[rows] = 0
        for scoring, raw in self._scored():
            if scoring.scope is Scope.NODE:
                by_row[rows] += scoring.weight * raw[rows]
        for scoring, raw in self._scored():
            if scoring.scope is Scope.ANY:
                limits = bounds(raw, self.mask, scoring.normalise)
                moving = moving + scoring.weight * normalised(raw, limits, scoring.normalise)
        self._moving = moving
        self._totals = self._fixed + moving

    def _moving_of(self, view: NodeView, mask: BoolColumn) -> Totals:
        """Return the node-scope points of a view's rows. Heap-safe classes normalise none of them."""
        moving: Totals = np.zeros(len(view), np.int64)
        for scoring in self.evaluation.scores:
            if scoring.scope is Scope.NODE:
                moving = moving + scoring.weight * scoring.run(view, mask, self._task)
        return moving

    def _bounds_moved(self) -> bool:
        """Whether the minimum or maximum over the feasible nodes has changed since the totals were normalised."""
        return any(
            scoring.normalise is not Normalise.NONE and bounds(raw, self.mask, scoring.normalise) != limits
            for (scoring, raw), limits in zip(self._scored(), self._bounds, strict=True)
        )

    # ------------------------------------------------------------------ picking

    def pick(self, task: Task, expected: int = 1) -> int:
        """Return the best row for one more task, or -1. `expected` hints how many picks of this class follow."""
        self.sync(task)
        if not self._is_scored and not self.mask.any():
            return -1
        return self._best(expected)

    def _best(self, _: int) -> int:
        feasible = np.flatnonzero(self.mask)
        if not len(feasible):
            return -1
        totals = self.total[feasible]
        best = feasible[totals == totals.max()]
        return int(best[np.argmin(self._ties[best])]) if len(best) > 1 else int(best[0])

    def took(self, row: int) -> None:
        """Note that one task of the class was placed on `row` after `pick`, and that nothing else has changed."""

    def fits(self, row: int, task: Task) -> bool:
        """Whether one more task fits on the row now."""
        self.sync(task)
        return bool(self.mask[row])

    def capacity(self, limit: int) -> IntColumn:
        """Return how many more tasks of the class fit on each row, at most `limit`, by node-scope filters.

        `Scope.ANY` filters count for the first task only: the core checks the others one by one.
        """
        run = partial(self._run_filters, scope=Scope.NODE)
        return capacity_of(self._table, self.evaluation.cls, self.mask, limit, run)

    # ------------------------------------------------------------------ reasons

    def why(self, task: Task) -> str:
        """Return why one more task fits on no node now, in kube-scheduler's words."""
        refusals = self._refusals_now(task)
        if self._reason is None:
            nodes = len(self._table.row_of) if self._subset is None else int(self._candidates().sum())
            self._reason = summarise(nodes, sum((one.texts() for one in refusals), Counter[str]()))
        return self._reason

    def helpable(self, task: Task) -> RowIndex:
        """Return the rows that reject one more task but might fit it without some of their pods, in tie-break order."""
        resolvable = np.zeros(len(self.mask), np.bool_)
        for one in self._refusals_now(task):
            resolvable |= one.resolvable()
        order = self._runner.tie_order()
        return order[resolvable[order]]

    def _refusals_now(self, task: Task) -> list[NodeRefusals]:
        """Return the rows that reject one more task now, in parts. Note the plugins that do, for requeueing."""
        self.sync(task)
        if not self._is_evaluated:
            self._parts = self._evaluate(task)
            self._is_evaluated = True
            # if no plugin rejects a node, any of them may reject a new one
            plugins = frozenset(plugin for one in self._parts for plugin in one.plugins())
            self._rejectors = plugins or self.evaluation.filter_plugins
        self._runner.note_rejected(task, self._rejectors)
        return self._parts

    def _evaluate(self, task: Task) -> list[NodeRefusals]:
        """Return the refusals now: those of shared filters, and of the others."""
        filters = self.evaluation.filters
        if self._shared is None:
            return [self._own_refusals(filters, self._candidates(), task)]
        found, count = self._shared.after(filters)
        self.results.add(found)
        parts = found.refusals()
        if count < len(filters) and not found.is_empty:
            parts.append(self._own_refusals(filters[count:], found.mask.copy(), task))
        return parts

    def _own_refusals(self, filters: Sequence[Filtering], mask: BoolColumn, task: Task) -> NodeRefusals:
        """Return the refusals by some filters. If filters evaluate one row alone, unchanged rows keep theirs."""
        begin, self._evaluated_at = self._evaluated_at, len(self._touched)
        known = self._own
        if known is None or self._naive or self.evaluation.any_filters or self._asks_each_task:
            known = self._own = refusals_by(filters, self._table.all_rows(), mask, task)
        elif begin < len(self._touched):
            rows = rows_since(self._touched, begin)
            known.put(rows, refusals_by(filters, NodeView(self._table, rows), mask[rows], task))
        return known


def _compact(column: Totals) -> Totals:
    """Return the column; without its own memory if all rows are equal."""
    if len(column) and (column == column[0]).all():
        return np.broadcast_to(column[:1].copy(), column.shape)
    return column


class HeapBoard(Board):
    """A board whose best row is at the top of a heap. Its class must be `Evaluation.heap_safe`.

    It evaluates virtual rows (with 1 to 8 more tasks) in advance, so that a pick is a pop and a push while only this
    class changes the rows.
    """

    def __init__(
        self, table: NodeTable, ledger: Ledger, evaluation: Evaluation, subset: BoolColumn | None, task: Task,
        *, shared: SharedFilters | None,
    ) -> None:  # fmt: skip
        self._run = 0
        """How many tasks of the class were placed since the last other change."""
        self._unread = 0
        """How many of them the rows do not show yet; the next `sync` updates the rows."""
        self._heap = RowHeap(ledger.runner.ties())
        self._heads: dict[int, tuple[list[bool], list[Any]]] = {}
        """By row: whether 1, 2, … more tasks fit, and the row's moving points then."""
        self._heads_at: dict[int, int] = {}
        super().__init__(table, ledger, evaluation, subset, task, naive=False, shared=shared)

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
            self._heap.drop(row)
            if self._bounds_moved():
                self._sum_up(moving=False)
            return
        self._moving[row] = moving
        self._totals[row] = self._fixed[row] + self._moving[row]
        self._heap.put(row, self._totals[row].item())

    @property
    def nbytes(self) -> int:
        """The approximate memory of the board now."""
        return super().nbytes + len(self._heap) * _ENTRY_BYTES + len(self._heads) * _HEAD_BYTES

    def _best(self, expected: int) -> int:
        return self._heap.top(self.total, self.mask, expected)

    def _rescored(self, rows: RowIndex | None) -> None:
        if rows is None or len(rows) > _FEW:
            self._heap.clear()
            self._heads.clear()
            self._heads_at.clear()
            return
        for row in rows.tolist():
            self._heads.pop(row, None)
            if self.mask[row]:
                self._heap.put(row, self._totals[row].item())
            else:
                self._heap.drop(row)

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
        others = [r for r in self._heap.next(2 * ahead) if r != row and not self._has_head(r)][:ahead]
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
