"""The moves of running pods that make others fit: tried out in the session for `consolidate`, and undone.

Tasks are seated one after the other. For one that fits nowhere the nodes that refuse it are tried, those first that
lack least: there the removal of all that may be moved is simulated, and undone as far as the task still fits. What is
then in the way must find another node that has room now. So at any time the session shows how it would be when all of
it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final, Self

import numpy as np

from session_scheduler.actions.placing import one_way
from session_scheduler.actions.request import PlacementRequest
from session_scheduler.framework.hooks import PluginError
from session_scheduler.framework.session import Session
from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.groups import NO_COUNTS, Group, Phase, Task

_MOST_NODES: Final = 100
"""Nodes of which it is worked out what a task's seat there takes."""
_MOST_LOOKED_AT: Final = 1000
"""Nodes of which it is looked whether anything on them can be moved."""
_MOST_TRIES: Final = 4
"""Nodes that are tried for a pod that is moved: a plugin that places groups may refuse those that filters offer."""
_NO_USE: Final = 2**62
_MORE_THAN_ANY: Final = 2**50


@dataclass(frozen=True, slots=True)
class _Seat:
    """A node's row, and where those would go that are in the way there."""

    row: int
    moves: Mapping[Task, int]

    @property
    def price(self) -> tuple[int, int, int]:
        """How many pods, the highest of their priorities, and the sum: the less the better, in this order."""
        priorities = [task.standing for task in self.moves]
        return len(priorities), max(priorities), sum(priorities)


class Moving:
    """Tasks of one group, and what is moved for them. Use as a context manager: all is undone at its end."""

    def __init__(
        self,
        session: Session,
        group: Group,
        subset: BoolColumn | None,
        movable: Callable[[str], Sequence[Task]],
        *,
        aside: bool = False,
    ) -> None:
        """`subset`: the rows where the tasks may go, None for all; `movable`: the tasks on a node that may be moved,
        those first that are to stay rather than others. `aside`: what is moved goes where the group's tasks have the
        least use for the room, rather than where scores would have it.
        """
        self._session = session
        self._group = group
        self._subset = subset
        self._movable = movable
        self._statement = session.ledger.statement(group)
        self._away: dict[Task, tuple[str, Phase, Mapping[Hashable, int]]] = {}
        self._aside = aside
        self._use: IntColumn | None = None
        """How much each row lacks for a task that might be seated there; with `aside` only."""
        self._fitting: dict[object, BoolColumn] = {}
        """By class, and what else decides: the rows that fit a task that is moved."""
        self._vacated: set[int] = set()
        """The rows that tasks leave: what they leave is for the group, and free only when they have ended."""
        self.seats: dict[Task, int] = {}
        """The row of each task of the group that has one."""
        self.moves: dict[Task, int] = {}
        """The row of each task that is moved."""
        self._lacks = dict(group.lacks)
        """By sub-group: how many more need a seat. Counted along, for a large group is slow to ask."""

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
        """Seat so many of the tasks, and of each sub-group its minimum: what the group needs most comes first in them.

        First those that fit anyhow; then, as far as that is too few, others by moving pods.
        """
        left = [task for task in tasks if not (self._is_wanted(task, needed) and self._seat_freely(task))]
        while left and not self._enough(needed):
            if len(self.seats) + len(left) < needed or self._session.expired():
                return False
            task = left.pop(0)
            if self._is_wanted(task, needed) and not self._seat_freely(task):
                seat = self._cheapest(task)
                if seat is not None:
                    self._take(task, seat)
        return self._enough(needed)

    def _enough(self, needed: int) -> bool:
        return len(self.seats) >= needed and not self._lacks

    def _is_wanted(self, task: Task, needed: int) -> bool:
        """Whether the group could start without a task only if others took its part."""
        lacks = self._lacks
        return task.sub_group in lacks or len(self.seats) + sum(lacks.values()) < needed

    def _seated(self, task: Task, row: int) -> None:
        self.seats[task] = row
        name = task.sub_group
        if name in self._lacks:
            self._lacks[name] -= 1
            if not self._lacks[name]:
                del self._lacks[name]

    # ------------------------------------------------------------------ a seat for one task

    def _seat_freely(self, task: Task) -> bool:
        mark = self._statement.checkpoint()
        with self._session.without_reasons():
            one_way(PlacementRequest(self._session, self._statement, self._group, [task], subset=self._subset))
        if self._statement.placed_since(mark):
            self._seated(task, task.row)
            return True
        self._statement.rollback(mark)
        return False

    def _cheapest(self, task: Task) -> _Seat | None:
        best: _Seat | None = None
        left = self._session.options.most_moves - len(self.moves)
        for least, row in self._rows(task):
            if self._session.expired() or least > left or (best is not None and len(best.moves) <= least):
                break
            seat = self._seat_on(task, row)
            if seat is not None and len(seat.moves) <= left and (best is None or seat.price < best.price):
                best = seat
        return best

    def _rows(self, task: Task) -> list[tuple[int, int]]:
        """The rows that refuse a task and have something that can be moved: (how many pods at least, row), the fewest
        first. Looked at are those that lack least.
        """
        session = self._session
        board = session.evaluator.board(task, self._subset)
        rows = np.array(board.helpable(task), np.int64)
        if session.calls.places_groups:  # what filters offer was refused by what places groups
            rows = np.concatenate([rows, np.flatnonzero(board.mask)])
        lacking = self._lacking(task)
        if self._aside:
            self._use = np.full(session.table.size, _NO_USE)
            self._use[rows] = lacking[rows]
        self._fitting.clear()
        rows = rows[np.lexsort((session.runner.ties()[rows], lacking[rows]))][:_MOST_LOOKED_AT]
        found: list[tuple[int, int]] = []
        for row in rows.tolist():
            tasks = self._movable_on(row)
            fewest = self._fewest(task, row, tasks)
            if fewest <= len(tasks):
                found.append((fewest, row))
            if len(found) == _MOST_NODES:
                break
        return sorted(found, key=lambda entry: entry[0])

    def _lacking(self, task: Task) -> IntColumn:
        """How much of what a task requests each row lacks, summed up over the resources, in thousandths of each."""
        view, total = self._session.table.all_rows(), np.zeros(self._session.table.size, np.int64)
        for resource, amount in _amounts(task):
            free = view.allocatable(resource) - view.used(resource)
            total += np.maximum(amount - free, 0) * 1000 // amount
        return total

    def _fewest(self, task: Task, row: int, tasks: Sequence[Task]) -> int:
        """How many of the tasks on a row must leave it at least: the largest ones of each resource that it lacks."""
        view, fewest = self._session.table.all_rows(), 1
        for resource, amount in _amounts(task):
            lacks = amount - int(view.allocatable(resource)[row]) + int(view.used(resource)[row])
            if lacks > 0:
                sizes = sorted((other.cls.requests.get(resource, 0) for other in tasks), reverse=True)
                sums = accumulate(sizes)
                fewest = max(fewest, 1 + sum(size < lacks for size in sums))
        return fewest

    def _movable_on(self, row: int) -> list[Task]:
        """The tasks on a row that may be moved, and that fit elsewhere."""
        return [task for task in self._movable(self._session.ledger.node_at(row)) if self._fits_elsewhere(task, row)]

    def _fits_elsewhere(self, task: Task, left: int) -> bool:
        """Whether filters offer a task another row, as things are before anything is moved for the seat."""
        key = task.cls, task.standing, task.group.queue
        rows = self._fitting.get(key)
        if rows is None:
            rows = self._fitting[key] = self._session.evaluator.synced_board(task).mask.copy()
            rows[list(self._vacated)] = False
        return bool(rows.sum() > rows[left])

    def _seat_on(self, task: Task, row: int) -> _Seat | None:
        """What it takes to seat a task there; all is as it was then."""
        moved = self._in_the_way(task, row)
        mark = self._statement.checkpoint()
        moves = self._moves(task, row, moved) if moved else {}
        self._statement.rollback(mark)
        self._put_back(moved)
        return _Seat(row, moves) if moves else None

    def _in_the_way(self, task: Task, row: int) -> list[Task]:
        """Simulate removing what must leave a row for a task; nothing where that does not help, or none need leave."""
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

    def _moves(self, task: Task, row: int, moved: Sequence[Task]) -> dict[Task, int]:
        """Seat the task, and find rows for those that are removed, the largest first; nothing where one has none.

        What is done for it is left for the caller to undo, or to keep.
        """
        if not self._place(task, self._group, row):
            return {}
        found: dict[Task, int] = {}
        for other in sorted(moved, key=_size, reverse=True):
            elsewhere = self._elsewhere(other, row)
            if elsewhere is None:
                return {}
            found[other] = elsewhere
        return found

    def _take(self, task: Task, seat: _Seat) -> None:
        for other in seat.moves:
            self._remove(other)
        mark = self._statement.checkpoint()
        stands = self._place(task, self._group, seat.row)
        stands = stands and all(self._place(other, other.group, row) for other, row in seat.moves.items())
        if not stands:
            self._statement.rollback(mark)
            self._put_back(list(seat.moves))
            return
        self._seated(task, seat.row)
        self.moves.update(seat.moves)
        self._vacated.add(seat.row)

    # ------------------------------------------------------------------ what is asked

    def _elsewhere(self, task: Task, left: int) -> int | None:
        """The best row for a task that is moved, where it is put; not one that others leave: there it would wait."""
        session = self._session
        board = session.evaluator.synced_board(task)
        mask = board.mask.copy()
        mask[[left, *self._vacated]] = False
        rows = np.flatnonzero(mask)
        use = self._use[rows] if self._use is not None else np.zeros(len(rows), np.int64)
        best = rows[np.lexsort((session.runner.ties()[rows], -board.total[rows], -use))][:_MOST_TRIES]
        return next((row for row in best.tolist() if self._place(task, task.group, row)), None)

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
        """Whether a task could be put on a row, and was."""
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
            task.phase, task.counts = Phase.PENDING, NO_COUNTS  # elsewhere it has others
        self._session.runner.notify(self._session.registered.on_deallocate, task, node)

    def _put_back(self, tasks: Sequence[Task]) -> None:
        """All of them, whatever plugins say. Raises PluginError."""
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


def _size(task: Task) -> tuple[int, int, str]:
    requests = task.cls.requests
    return requests.get("cpu", 0), requests.get("memory", 0), task.key


def _amounts(task: Task) -> list[tuple[str, int]]:
    """What a task requests, without what is more than any node has."""
    return [(name, amount) for name, amount in task.cls.requests.items() if amount < _MORE_THAN_ANY]
