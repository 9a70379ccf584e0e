"""The simulation of moves: finds running pods to move so that a group's tasks fit. `consolidate` runs it.

It places the tasks one after the other. If a task fits on no node, it tries the nodes that lack the least. It removes
all movable pods of the node and puts back those with which the task still fits. Each pod that stays removed must fit on
another node now. The session shows the state after all moves so far, and everything is undone at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Final, Self

import msgspec
import numpy as np

from session_scheduler.actions.node_sets import NotFitting, node_sets
from session_scheduler.actions.placing import one_way
from session_scheduler.actions.request import PlacementRequest
from session_scheduler.framework.hooks import PluginError
from session_scheduler.framework.session import Session
from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.groups import NO_COUNTS, Group, Phase, Task

_MOST_NODES: Final = 100
"""How many nodes are tried for a task."""
_MOST_SCANNED: Final = 1000
"""How many nodes are scanned for movable pods."""
_MOST_TRIES: Final = 4
"""How many nodes are tried for a moved pod: a plugin that places groups can refuse a node that passes the filters."""
_NO_USE: Final = 2**62
_MORE_THAN_ANY: Final = 2**50


class _Seat(msgspec.Struct, frozen=True):
    """A row for a task, and the new rows of the pods that move away for it."""

    row: int
    moves: Mapping[Task, int]

    @property
    def cost(self) -> tuple[int, int, int]:
        """The number of moved pods, then their highest priority, then the sum of their priorities."""
        priorities = [task.standing for task in self.moves]
        return len(priorities), max(priorities), sum(priorities)


class Moving:
    """The moves for tasks of one group. Use it as a context manager: it undoes everything on exit."""

    def __init__(
        self,
        session: Session,
        group: Group,
        subset: BoolColumn | None,
        movable: Callable[[str], Sequence[Task]],
        *,
        aside: bool = False,
    ) -> None:
        """`subset`: the rows that the tasks may go to, None for all. `movable`: the movable tasks on a node, those to
        keep in place first. `aside`: moved pods go to the nodes that are the least useful to the group, rather than to
        the best score.
        """
        self._session = session
        self._group = group
        self._subset = subset
        self._movable = movable
        self._statement = session.ledger.statement(group)
        self._away: dict[Task, tuple[str, Phase, Mapping[Hashable, int]]] = {}
        self._aside = aside
        self._use: IntColumn | None = None
        """With `aside` only: how much each row lacks for the task to place."""
        self._fitting: dict[object, BoolColumn] = {}
        """By class and other traits of a moved task: the rows that fit it."""
        self._vacated: set[int] = set()
        """The rows that tasks move away from. Their capacity is for the group, once the tasks have terminated."""
        self.seats: dict[Task, int] = {}
        """The rows of the group's placed tasks."""
        self.moves: dict[Task, int] = {}
        """The new rows of the moved tasks."""
        self._lacks = dict(group.lacks)
        """By sub-group: how many more tasks it requires. Updated here, because large groups compute it slowly."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._statement.rollback()
        finally:
            self._put_back(list(self._away))
            if self._subset is not None:
                self._session.evaluator.forget_boards(self._subset)

    def seat_all(self, tasks: Sequence[Task], needed: int) -> bool:
        """Place `needed` of the tasks, sub-group minima included. Tasks that the group requires come first.

        It places the tasks that fit without moves first, then others by moving pods if these are too few.
        """
        left = [task for task in tasks if not (self._is_wanted(task, needed) and self._place_without_moves(task))]
        while left and not self._enough(needed):
            if len(self.seats) + len(left) < needed or self._session.expired():
                return False
            task = left.pop(0)
            if self._is_wanted(task, needed) and not self._place_without_moves(task):
                seat = self._cheapest_seat(task)
                if seat is not None:
                    self._take_seat(task, seat)
        return self._enough(needed)

    def _enough(self, needed: int) -> bool:
        return len(self.seats) >= needed and not self._lacks

    def _is_wanted(self, task: Task, needed: int) -> bool:
        """Whether the group still needs the task: its sub-group lacks tasks, or the other sub-groups leave a need."""
        lacks = self._lacks
        return task.sub_group in lacks or len(self.seats) + sum(lacks.values()) < needed

    def _note_placed(self, task: Task, row: int) -> None:
        self.seats[task] = row
        name = task.sub_group
        if name in self._lacks:
            self._lacks[name] -= 1
            if not self._lacks[name]:
                del self._lacks[name]

    # ------------------------------------------------------------------ a seat for one task

    def _place_without_moves(self, task: Task) -> bool:
        mark = self._statement.checkpoint()
        with self._session.without_reasons():
            one_way(PlacementRequest(self._session, self._statement, self._group, [task], subset=self._subset))
        if self._statement.placed_since(mark):
            self._note_placed(task, task.row)
            return True
        self._statement.rollback(mark)
        return False

    def _cheapest_seat(self, task: Task) -> _Seat | None:
        best: _Seat | None = None
        left = self._session.options.most_moves - len(self.moves)
        for least, row in self._candidate_rows(task):
            if self._session.expired() or least > left or (best is not None and len(best.moves) <= least):
                break
            seat = self._seat_on(task, row)
            if seat is not None and len(seat.moves) <= left and (best is None or seat.cost < best.cost):
                best = seat
        return best

    def _candidate_rows(self, task: Task) -> list[tuple[int, int]]:
        """The rows that do not fit the task and have movable pods: (the minimum number of moves, row), the fewest
        first. Scans the rows that lack the least.
        """
        session = self._session
        board = session.evaluator.board(task, self._subset)
        rows = board.helpable(task)
        if session.calls.places_groups:  # the plugin that places groups refused the rows that pass the filters
            rows = np.concatenate([rows, np.flatnonzero(board.mask)])
        lacking = self._lacking(task)
        if self._aside:
            self._use = np.full(session.table.size, _NO_USE)
            self._use[rows] = lacking[rows]
        self._fitting.clear()
        rows = rows[np.lexsort((session.runner.ties()[rows], lacking[rows]))][:_MOST_SCANNED]
        found: list[tuple[int, int]] = []
        for row in rows.tolist():
            tasks = self._movable_on(row)
            fewest = self._fewest_moves(task, row, tasks)
            if fewest <= len(tasks):
                found.append((fewest, row))
            if len(found) == _MOST_NODES:
                break
        return sorted(found, key=lambda entry: entry[0])

    def _lacking(self, task: Task) -> IntColumn:
        """How much of the task's requests each row lacks: thousandths of each request, summed over the resources."""
        view, total = self._session.table.all_rows(), np.zeros(self._session.table.size, np.int64)
        for resource, amount in _amounts(task):
            free = view.allocatable(resource) - view.used(resource)
            total += np.maximum(amount - free, 0) * 1000 // amount
        return total

    def _fewest_moves(self, task: Task, row: int, tasks: Sequence[Task]) -> int:
        """A lower bound of the tasks that must leave the row: for each resource it lacks, count the largest ones."""
        view, fewest = self._session.table.all_rows(), 1
        for resource, amount in _amounts(task):
            lacks = amount - int(view.allocatable(resource)[row]) + int(view.used(resource)[row])
            if lacks > 0:
                sizes = sorted((other.cls.requests.get(resource, 0) for other in tasks), reverse=True)
                sums = accumulate(sizes)
                fewest = max(fewest, 1 + sum(size < lacks for size in sums))
        return fewest

    def _movable_on(self, row: int) -> list[Task]:
        """The movable tasks on a row that fit on another row, or beside themselves on this one."""
        return [task for task in self._movable(self._session.ledger.node_at(row)) if self._fits_elsewhere(task, row)]

    def _fits_elsewhere(self, task: Task, left: int) -> bool:
        """Whether a row other than `left` passes the task's filters, before any move for the seat.

        A task with counts of its own, such as GPUs, may also get others of the same row.
        """
        rows = self._rows_now(task)
        return bool(rows.sum() > (rows[left] and not task.counts))

    def _rows_now(self, task: Task) -> BoolColumn:
        """The rows that pass a task's filters before any move for the seat."""
        key = task.cls, task.standing, task.group.queue
        rows = self._fitting.get(key)
        if rows is None:
            rows = self._fitting[key] = self._session.evaluator.synced_board(task).mask.copy()
            rows[list(self._vacated)] = False
        return rows

    def _seat_on(self, task: Task, row: int) -> _Seat | None:
        """The seat on a row, or None. The session is unchanged afterwards."""
        moved = self._with_gangs(self._remove_minimum(task, row))
        mark = self._statement.checkpoint()
        moves = self._place_moved(task, row, moved) if moved else {}
        self._statement.rollback(mark)
        self._put_back(moved)
        return _Seat(row, moves) if moves else None

    def _remove_minimum(self, task: Task, row: int) -> list[Task]:
        """Simulate removing the tasks that must leave the row; none if the task fits without that or does not fit."""
        tasks = self._movable_on(row)
        for other in tasks:
            self._remove(other)
        if not self._fits(task, row):
            self._put_back(tasks)
            return []
        moved = []
        for other in tasks:
            self._put_back([other])
            if not self._fits(task, row):
                self._remove(other)
                moved.append(other)
        return moved

    def _place_moved(self, task: Task, row: int, moved: Sequence[Task]) -> dict[Task, int]:
        """Place the task, then the moved tasks, the largest first. Returns their rows; none if one does not fit.

        The caller keeps or undoes the placements.
        """
        if not self._place(task, self._group, row):
            return {}
        found: dict[Task, int] = {}
        gangs = dict.fromkeys(other.group for other in moved if moves_together(other.group))
        for gang in gangs:
            rows = self._place_gang([other for other in moved if other.group is gang], row)
            if not rows:
                return {}
            found |= rows
        for other in sorted((other for other in moved if other.group not in gangs), key=_size, reverse=True):
            new_row = self._place_elsewhere(other, row)
            if new_row is None:
                return {}
            found[other] = new_row
        return found

    def _with_gangs(self, moved: Sequence[Task]) -> list[Task]:
        """Simulate removing the rest of the gangs of these removed tasks. Returns all of them."""
        found = dict.fromkeys(moved)
        for gang in dict.fromkeys(task.group for task in moved if moves_together(task.group)):
            for task in sorted(gang.tasks.values(), key=lambda task: task.key):
                if task not in found and task.node is not None:
                    self._remove(task)
                    found[task] = None
        return list(found)

    def _take_seat(self, task: Task, seat: _Seat) -> None:
        left = {other.row for other in seat.moves}
        for other in seat.moves:
            self._remove(other)
        mark = self._statement.checkpoint()
        placed = self._place(task, self._group, seat.row)
        placed = placed and all(self._place(other, other.group, row) for other, row in seat.moves.items())
        if not placed:
            self._statement.rollback(mark)
            self._put_back(list(seat.moves))
            return
        self._note_placed(task, seat.row)
        self.moves.update(seat.moves)
        self._vacated |= left

    # ------------------------------------------------------------------ placement on one row

    def _place_elsewhere(self, task: Task, left: int) -> int | None:
        """Place a moved task on its best row, without vacated rows: there it would wait for pods to terminate.

        It may get other counts of the row that it leaves, such as other GPUs, if it fits there beside itself.
        """
        session = self._session
        within = self._away[task][2] and self._rows_now(task)[left]
        board = session.evaluator.synced_board(task)
        mask = board.mask.copy()
        mask[list(self._vacated)] = False
        mask[left] &= bool(within)
        rows = np.flatnonzero(mask)
        use = self._use[rows] if self._use is not None else np.zeros(len(rows), np.int64)
        best = rows[np.lexsort((session.runner.ties()[rows], -board.total[rows], -use))][:_MOST_TRIES]
        return next((row for row in best.tolist() if self._place(task, task.group, row)), None)

    def _place_gang(self, tasks: Sequence[Task], left: int) -> dict[Task, int]:
        """Place all tasks of a moved gang, in one of its domains if it has any; none if they do not fit.

        Its tasks may use the capacity that the gang itself frees on rows other than `left`: they start together.
        """
        session, group = self._session, tasks[0].group
        allowed = session.table.valid().copy()
        allowed[[left, *self._vacated]] = False
        try:
            sets = node_sets(session, group)
        except NotFitting:
            return {}
        for mask in [allowed] if sets is None else [one.mask & allowed for one in sets]:
            mark, count = self._statement.checkpoint(), len(tasks)
            request = PlacementRequest(session, self._statement, group, tasks, count, count, subset=mask)
            with session.without_reasons():
                one_way(request)
            placed = self._statement.placed_since(mark)
            session.evaluator.forget_boards(mask)
            if len(placed) == count:
                return {task: task.row for task in placed}
            self._statement.rollback(mark)
        return {}

    def _fits(self, task: Task, row: int) -> bool:
        if not self._session.evaluator.fits_on(task, row):
            return False
        if not self._session.calls.places_groups:
            return True
        mark = self._statement.checkpoint()
        fits = self._place(task, self._group, row)
        self._statement.rollback(mark)
        return fits

    def _place(self, task: Task, group: Group, row: int) -> bool:
        """Place a task on a row; False if it does not fit."""
        mark = self._statement.checkpoint()
        with self._session.without_reasons():
            one_way(PlacementRequest(self._session, self._statement, group, [task], assignment={task: row}))
        if self._statement.placed_since(mark):
            return True
        self._statement.rollback(mark)
        return False

    # ------------------------------------------------------------------ simulated removal

    def _remove(self, task: Task) -> None:
        node = task.node or ""
        self._away[task] = node, task.phase, task.counts
        try:
            self._session.ledger.remove(task)
        finally:
            task.phase, task.counts = Phase.PENDING, NO_COUNTS  # the counts depend on the node
        self._session.runner.notify(self._session.registered.on_deallocate, task, node)

    def _put_back(self, tasks: Sequence[Task]) -> None:
        """Put all of these tasks back, even if a plugin fails. Raises its PluginError afterwards."""
        session = self._session
        failure: PluginError | None = None
        for task in tasks:
            if task not in self._away:
                continue
            node, phase, task.counts = self._away.pop(task)
            put_back = partial(session.ledger.put_back, task, node, phase)
            for notify in (put_back, partial(session.runner.notify, session.registered.on_allocate, task, node)):
                try:
                    notify()
                except PluginError as error:
                    failure = failure or error
        if failure is not None:
            raise failure


def moves_together(group: Group) -> bool:
    """Whether a group's pods move only together: gangs, groups in one domain, and groups that are disrupted whole."""
    pod_group = group.pod_group
    return group.is_gang or group.topology_key is not None or (pod_group is not None and pod_group.disrupted_whole)


def _size(task: Task) -> tuple[int, int, str]:
    requests = task.cls.requests
    return requests.get("cpu", 0), requests.get("memory", 0), task.key


def _amounts(task: Task) -> list[tuple[str, int]]:
    """The task's requests, without amounts larger than any node has."""
    return [(name, amount) for name, amount in task.cls.requests.items() if amount < _MORE_THAN_ANY]
