"""A board: the nodes that fit a class's tasks, and their scores. It stays up to date while tasks are placed.

There are three ways to find "the best node for one more task of this class". They give the same answer:

* *naive*: evaluates everything again for every task;
* *board*: evaluates static answers once, a row again after a change on it, and `Scope.ANY` answers after every change;
* *heap* (`heap_board`): for classes without `Scope.ANY`. It evaluates rows in advance.

The highest total wins. The node's tie-break, never the row number, decides between equal totals. Nodes are scored only
if some node fits, and reasons are collected only for a class that fits nowhere.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from session_scheduler.framework.answers import Normalise, Scope
from session_scheduler.framework.evaluation import Evaluation, Scoring, evaluate
from session_scheduler.framework.node_refusals import NodeRefusals, summarise
from session_scheduler.framework.scores import bounds, normalised
from session_scheduler.framework.statement import Ledger
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeTable, NodeView, RowIndex
from session_scheduler.model.groups import Task

Totals = np.ndarray[Any, np.dtype[Any]]

_LARGEST_SUM: Final = 2**62
"""No node offers as much. It limits the number of tasks that `capacity` counts, so that sums fit into 64 bits."""


class Board:
    """The rows that fit one class's tasks, and their scores: over all rows, or over those of a subset."""

    def __init__(
        self, table: NodeTable, ledger: Ledger, evaluation: Evaluation, subset: BoolColumn | None, task: Task,
        *, naive: bool,
    ) -> None:  # fmt: skip
        self._table = table
        self._touched = ledger.touched
        self._runner = ledger.runner
        self.evaluation = evaluation
        self._task = task
        """The task for callbacks. Callbacks answer alike for all tasks of the class, except those with scope ANY."""
        self._subset = subset
        self._naive = naive
        self._asks_each_task = ledger.runner.has_any_callbacks
        self._ties = ledger.runner.ties()
        self._tie_order: RowIndex | None = None
        self._rejectors: frozenset[str] = frozenset()
        """The plugins that rejected a node in the last `why`."""
        self._refusals: NodeRefusals | None = None
        """The rejected rows in the last `why`; None before the first."""
        self._evaluated_at = 0
        self._by_row: IntColumn | None = None
        """The sum of node-scope points, if `_sum_up_any` can use it."""
        self._build()

    # ------------------------------------------------------------------ evaluation

    def _build(self) -> None:
        view = self._table.all_rows()
        self._version = self._table.static_version
        self._cursor = len(self._touched)
        self._static_mask = self._candidates()
        self._run_filters(view, self._static_mask, Scope.STATIC)
        self._node_mask = self._static_mask.copy()
        self._run_filters(view, self._node_mask, Scope.NODE)
        self.mask = self._node_mask.copy()
        self._run_filters(view, self.mask, Scope.ANY)
        self._is_scored = False
        self._changed()

    def _candidates(self) -> BoolColumn:
        mask = self._table.valid()
        if self._subset is not None:  # like kube-scheduler, count only the nodes of the tried placement
            mask &= self._subset
        return mask

    def _changed(self) -> None:
        """Note that some row changed: the reasons are outdated."""
        self._reason: str | None = None
        self._is_evaluated = False

    def _run_filters(self, view: NodeView, mask: BoolColumn, scope: Scope) -> None:
        if len(mask) > 1 and not mask.any():
            return
        for filtering in self.evaluation.filters:
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
        """Evaluate the rows again that changed, and the answers that any change may concern."""
        rows = self._unseen_rows()
        self._refresh_rows(rows)
        if not self.evaluation.heap_safe:
            self._refresh_any(rows)

    def _unseen_rows(self) -> RowIndex:
        rows = np.array(sorted(set(self._touched[self._cursor :])), np.int64)
        self._cursor = len(self._touched)
        return rows

    def _refresh_rows(self, rows: RowIndex) -> None:
        """Evaluate the node-scope answers of some rows again."""
        if not len(rows):
            return
        self._changed()
        view = NodeView(self._table, rows)
        mask = self._static_mask[rows]
        self._run_filters(view, mask, Scope.NODE)
        self._node_mask[rows] = mask
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
        """Evaluate the `Scope.ANY` answers again; the node-scope answers of `rows` have just changed."""
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
        limit = max(1, min(limit, _LARGEST_SUM // max(amount for _, amount in self.evaluation.cls.usage)))
        if limit == 1:
            return self.mask.astype(np.int64)
        found = np.zeros(len(self.mask), np.int64)
        rows = np.flatnonzero(self.mask)
        low = np.ones(len(rows), np.int64)
        high = np.full(len(rows), limit, np.int64)
        while (open_ := low < high).any():
            middle = (low + high + 1) // 2
            view = NodeView(self._table, rows, self.evaluation.cls, middle - 1)
            mask = np.ones(len(rows), np.bool_)
            self._run_filters(view, mask, Scope.NODE)
            low = np.where(open_ & mask, middle, low)
            high = np.where(open_ & ~mask, middle - 1, high)
        found[rows] = low
        return found

    # ------------------------------------------------------------------ reasons

    def why(self, task: Task) -> str:
        """Return why one more task fits on no node now, in kube-scheduler's words."""
        refusals = self.refusals(task)
        if self._reason is None:
            self._reason = summarise(int(self._candidates().sum()), refusals.texts())
        return self._reason

    def helpable(self, task: Task) -> RowIndex:
        """Return the rows that reject one more task and might not without some of their pods, in tie-break order."""
        resolvable = self.refusals(task).resolvable()
        if self._tie_order is None:
            self._tie_order = np.argsort(self._ties, kind="stable")
        return self._tie_order[resolvable[self._tie_order]]

    def refusals(self, task: Task) -> NodeRefusals:
        """Return the rows that reject one more task now. Note the plugins that do, for requeueing."""
        self.sync(task)
        if self._refusals is None or not self._is_evaluated:
            self._refusals = self._evaluate(task, self._refusals)
            self._is_evaluated = True
            # if no plugin rejects a node, any of them may reject a new one
            self._rejectors = frozenset(self._refusals.plugins()) or self.evaluation.filter_plugins
        self._runner.note_rejected(task, self._rejectors)
        return self._refusals

    def _evaluate(self, task: Task, known: NodeRefusals | None) -> NodeRefusals:
        """Return the refusals now. If filters evaluate one row alone, unchanged rows keep theirs."""
        begin, self._evaluated_at = self._evaluated_at, len(self._touched)
        if known is None or self._naive or self.evaluation.any_filters or self._asks_each_task:
            return evaluate(self.evaluation, self._table.all_rows(), self._candidates(), task)
        if begin < len(self._touched):
            rows = np.array(sorted(set(self._touched[begin:])), np.int64)
            mask = self._candidates()[rows]
            known.put(rows, evaluate(self.evaluation, NodeView(self._table, rows), mask, task))
        return known
