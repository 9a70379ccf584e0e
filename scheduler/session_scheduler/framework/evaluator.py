"""The evaluator of a session: evaluations of classes, and their boards.

There are three ways to find "the best node for one more task of this class". They give the same answer:

* *naive*: re-evaluates everything for every task;
* *board*: evaluates static answers once, a row after each change on it, and `Scope.ANY` answers after every change;
* *heap*: for classes without `Scope.ANY`. It evaluates rows in advance.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final

import numpy as np

from session_scheduler.framework.answers import Scope
from session_scheduler.framework.board import Board, HeapBoard, capacity_of
from session_scheduler.framework.evaluation import (
    Evaluation,
    Filtering,
    FilterResult,
    Part,
    SharedFilters,
    evaluation_of,
)
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.framework.nominated_pods import Key, NominatedPods
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.state.scheduling_queue import TOPOLOGY_PLACEMENT, Wants

_MOST_BYTES: Final = 256 * 2**20
"""The memory of a session's boards and filter results: 1/16 of the deployment's limit.

It is enough for about 5,000 classes that fit on none of 5,000 nodes, or for 2,000 that fit. With more, a class may be
re-evaluated.
"""


class Evaluator:
    """The evaluations of a session by class, and its boards."""

    def __init__(self, session: object, calls: HookCalls, nominated: NominatedPods, mode: str) -> None:
        """`session` is passed to hooks; `mode` is naive, board or heap."""
        self._session: object | None = session
        self._calls = calls
        self._runner = nominated.ledger.runner
        self._nominated_pods = nominated
        self._nominations = nominated.nominations
        self._nominated = nominated.nominations.node_by_uid
        self._ledger = nominated.ledger
        self._table = nominated.cache.table
        self.mode = mode
        self.naive = mode == "naive"
        self._evaluations: dict[TaskClass, Evaluation] = {}
        self._parts: dict[bytes, dict[str, Part]] = {}
        """By the constraints of classes, and by plugin."""
        self._beside: dict[TaskClass, dict[Key, Evaluation]] = {}
        self._boards: dict[tuple[Any, ...], Board] = {}
        """The least recently used ones first."""
        self._last: tuple[tuple[Any, ...], Board] | None = None
        """The board in use, with its key: it may have grown since it was counted."""
        self._bytes = 0
        """The memory of all boards, except that in use, and of their filter results."""
        self._shared = SharedFilters(self._table, self._ledger.touched)
        self._traits: dict[Group, tuple[Any, ...]] = {}

    def evaluation(self, cls: TaskClass) -> Evaluation:
        """Return the evaluation of a class. Raises PluginError."""
        found = self._evaluations.get(cls)
        if found is None:
            known, plugins = self._runner.registered, self._calls.plugins
            parts = {} if self.naive else self._parts.setdefault(cls.key.constraints, {})
            found = evaluation_of(self._session, cls, plugins, known.predicates, known.node_orders, parts)
            self._evaluations[cls] = found
        return found

    def evaluation_for(self, task: Task) -> Evaluation:
        """Return the evaluation of a task: its class's, plus a filter for nominated pods if there are any.

        Raises PluginError.
        """
        return self._with_nominated(task, self._nominated_pods.key(task) if self._nominated else None)

    def _with_nominated(self, task: Task, yields: Key | None) -> Evaluation:
        evaluation = self.evaluation(task.cls)
        if yields is None:
            return evaluation
        of_class = self._beside.setdefault(task.cls, {})
        found = of_class.get(yields)
        if found is None:
            found = of_class[yields] = self._nominated_pods.beside(evaluation, yields)
        return found

    def board(self, task: Task, subset: BoolColumn | None = None) -> Board:
        """Return the board of the task's class, and of classes that get the same answers; with callbacks, for groups
        that the callbacks treat alike.
        """
        traits: tuple[Any, ...] = ()
        registered = self._runner.registered
        if registered.predicates or registered.node_orders:
            found = self._traits.get(task.group)
            if found is None:
                group = task.group
                found = self._traits[group] = (group.preemptible, group.priority, group.queue)
            traits = found
        yields = self._yields_on_board(task) if self._nominated else None
        key = (self.alike(task), None if subset is None else id(subset), yields, *traits)
        board, evaluation = self._boards.pop(key, None), self._with_nominated(task, yields)
        if board is None:
            board = self._new_board(evaluation, subset, task)
        elif board.evaluation is not evaluation:  # of another class, or prepared again
            if board.evaluation.cls is not task.cls:
                self._forget_placed(board)
            board.use(evaluation)
        self._boards[key] = board
        if self._last is None or board is not self._last[1]:
            self._leave_last()
            self._last = key, board
            self._limit_memory()
        return board

    def alike(self, task: Task) -> Hashable:
        """Return a key of the tasks for which the filters and scores give the same answers now: those of the class, or
        also of other classes (`Evaluation.alike`). Callbacks may read claims. Raises PluginError.
        """
        cls, registered = task.cls, self._runner.registered
        if not cls.key.claims or self.naive or registered.predicates or registered.node_orders:
            return cls.index
        found = self.evaluation(cls).alike()
        return cls.index if found is None else found

    def _leave_last(self) -> None:
        """Count the memory of the board that was in use; drop the board if its only task is placed."""
        if self._last is None:
            return
        (key, board), self._last = self._last, None
        self._count(board)
        for last in board.results:
            for one in last.chain():
                if not self._count(one):  # then those before it have not grown either
                    break
        if self._forget_placed(board) and key[0] == board.evaluation.cls.index and key in self._boards:
            self._drop((key,))

    def _forget_placed(self, board: Board) -> bool:
        """Forget the evaluation of a board's class if its only task is placed. Returns whether it is."""
        if not board.is_done:
            return False
        cls = board.evaluation.cls
        self._evaluations.pop(cls, None)
        self._beside.pop(cls, None)
        if not cls.key.claims:
            self._parts.pop(cls.key.constraints, None)
        return True

    def _count(self, one: Board | FilterResult) -> bool:
        """Count its memory. Returns whether that has changed."""
        size = one.nbytes
        more, one.counted_bytes = size - one.counted_bytes, size
        self._bytes += more
        return more != 0

    def _limit_memory(self) -> None:
        """While boards and filter results use too much memory, drop the quarter of the boards that were not used for
        the longest time, and the results that no other board uses.
        """
        while self._bytes > _MOST_BYTES and len(self._boards) > 1:  # the last one is in use
            self._drop(list(self._boards)[: (len(self._boards) + 2) // 4])
            self._drop_results()

    def _drop(self, keys: Iterable[tuple[Any, ...]]) -> None:
        self._bytes -= sum(self._boards.pop(key).counted_bytes for key in keys)

    def _drop_results(self) -> None:
        """Drop the filter results that no board uses."""
        self._bytes -= self._shared.keep(result for board in self._boards.values() for result in board.results)

    def _new_board(self, evaluation: Evaluation, subset: BoolColumn | None, task: Task) -> Board:
        shared = self._shared if subset is None and not self.naive else None
        if self.mode == "heap" and evaluation.heap_safe:
            return HeapBoard(self._table, self._ledger, evaluation, subset, task, shared=shared)
        return Board(self._table, self._ledger, evaluation, subset, task, naive=self.naive, shared=shared)

    def row_key(self, cls: TaskClass) -> Hashable:
        """Return a key that is equal for classes with the same `most_by_rows`, also for their tasks together."""
        return tuple(filtering.key for filtering in self._row_filters(cls)), cls.usage

    def most_by_rows(self, cls: TaskClass, count: int) -> IntColumn:
        """Return how many tasks of a class fit on each row at most, up to `count`.

        Only filters with a `filter_key` that read one row count, so this is an upper bound. Raises PluginError.
        """
        filters, fits = self._row_filters(cls), self._table.valid()
        for filtering in filters:
            filtering.run(self._table.all_rows(), fits, None)

        def run(view: NodeView, mask: BoolColumn) -> None:
            for filtering in filters:
                if filtering.scope is not Scope.STATIC:
                    filtering.run(view, mask, None)

        return capacity_of(self._table, cls, fits, count, run)

    def _row_filters(self, cls: TaskClass) -> list[Filtering]:
        return [one for one in self.evaluation(cls).filters if one.key is not None and one.scope is not Scope.ANY]

    def synced_board(self, task: Task, subset: BoolColumn | None = None) -> Board:
        """Return the board of the task's class, up to date. Raises PluginError."""
        board = self.board(task, subset)
        board.sync(task)
        return board

    def _yields_on_board(self, task: Task) -> Key | None:
        """Return for which nominated pods the task must leave room. If it is nominated for a node that it does not fit
        on, return the key of other pods of its class: it need not leave room for itself, but that matters only there,
        unless filters count it elsewhere.
        """
        yields, node = self._nominated_pods.key(task), self._nominations.node_of(task)
        if node is None or task.group.is_gang or self.evaluation(task.cls).counts_nominated:
            return yields
        row = self._table.row_of.get(node, -1)
        return yields if row >= 0 and self.fits_on(task, row) else self._nominated_pods.key(task, beside_itself=True)

    def fits_on(self, task: Task, row: int) -> bool:
        """Whether the filters accept a task on a row now. Evaluates that row alone. Raises PluginError."""
        view, mask = NodeView(self._table, np.array([row], np.int64)), self._table.valid()[row : row + 1]
        for filtering in self.evaluation_for(task).filters:
            if not mask[0]:
                return False
            filtering.run(view, mask, task)
        return bool(mask[0])

    def forget_boards(self, subset: BoolColumn | None = None) -> None:
        """Drop the boards of a subset, or all boards: after a plugin failed, a board may be incomplete."""
        self._leave_last()
        if subset is None:
            self._drop(list(self._boards))
            self._drop_results()
        else:
            self._drop([key for key in self._boards if key[1] == id(subset)])

    def forget(self) -> None:
        """Drop all references back to the session."""
        self._session = None
        self._evaluations.clear()
        self._parts.clear()
        self._beside.clear()
        self.forget_boards()

    def wants(self, result: PlacementResult, *, awaits_victims: bool = False) -> Wants | None:
        """Return the plugins that rejected each class of the group's pending tasks. None if an error ended the attempt;
        an empty set if the scheduler retries the group whatever happens.

        `awaits_victims`: the group is retried when its victims are gone. Until then its nominated tasks need no others.

        A gang could also be placed in ways that were not tried. So every filter of the tried classes counts, even if it
        rejected nothing.
        """
        group, refusal = result.group, result.refusal
        if refusal is not None and refusal.failed:
            return None
        of_group = frozenset((refusal.plugin,)) if refusal is not None and refusal.plugin else frozenset()
        together = group.needed > 1 or bool(group.lacks) or group.topology_key is not None
        tried = set(result.tried) if together else ()
        wants = set()
        for task in group.in_phase(Phase.PENDING):
            waits = awaits_victims and task.uid in self._nominated
            known = self._runner.rejected_by(task, awaits_victims=waits)
            plugins = (known or frozenset()) | of_group
            if known is not None and not plugins:
                return frozenset()
            if task in tried:
                plugins |= self.evaluation(task.cls).filter_plugins
                plugins |= {call.plugin for call in self._calls.functions("place_group")}
            if not plugins:
                return None
            if group.topology_key is not None:
                plugins |= {TOPOLOGY_PLACEMENT}
            wants.add((task.cls, plugins))
        return frozenset(wants) or None
