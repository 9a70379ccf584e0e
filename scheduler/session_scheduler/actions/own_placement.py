"""The core's own placement: the best node for each task in turn, and an exhaustive search for small gangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from session_scheduler.board import Board
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.groups import Task, unique_classes
from session_scheduler.session import Session
from session_scheduler.statement import Statement


def greedy(
    session: Session,
    statement: Statement,
    tasks: Sequence[Task],
    subset: BoolColumn | None,
    expected: int,
    assignment: Mapping[Task, int] | None = None,
) -> tuple[dict[Task, str], float]:
    """Place task by task; (task → why it was refused, summed score of the placed).

    Refused tasks are tried again as long as others were placed meanwhile and some filter looks beyond its own row:
    an affinity may be satisfied only by a member placed later. With an `assignment` tasks go where it says.
    """
    score = 0.0
    left = list(tasks)
    while True:
        refused: dict[Task, str] = {}
        for index, task in enumerate(left):
            board = session.board(task, subset)
            row = board.pick(task, expected - index) if assignment is None else _assigned(board, task, assignment)
            if row < 0:
                refused[task] = board.why(task)
                continue
            score += float(board.total[row])
            statement.allocate(task, row)
            board.took(row)
        again = len(refused) < len(left) and any(session.plan(task.cls).any_filters for task in refused)
        if not again:
            return refused, score
        left = list(refused)


def _assigned(board: Board, task: Task, assignment: Mapping[Task, int]) -> int:
    row = assignment[task]
    return row if board.fits(row, task) else -1


def constrained_first(session: Session, tasks: Sequence[Task], subset: BoolColumn | None) -> list[TaskClass]:
    """The tasks' classes, those with the fewest feasible nodes first; then the larger requests."""
    room: dict[TaskClass, tuple[int, list[tuple[str, int]], int]] = {}
    for task in tasks:
        if task.cls not in room:
            board = session.board(task, subset)
            board.sync(task)
            weight = sorted((name, -amount) for name, amount in task.cls.requests.items())
            room[task.cls] = (int(board.mask.sum()), weight, task.cls.index)
    return sorted(room, key=room.__getitem__)


def search(
    session: Session, statement: Statement, tasks: Sequence[Task], subset: BoolColumn | None, steps: int
) -> dict[Task, int] | None:
    """A row for every task, by trying them all, within a number of steps; the statement is left as it was.

    Finds an assignment wherever one exists in the order of the classes and the steps suffice, which is to say in small
    clusters. Tasks of one class take rows in ascending order unless a filter looks beyond its row: they are alike.
    """
    ordered = [t for cls in constrained_first(session, tasks, subset) for t in tasks if t.cls is cls]
    beyond = any(session.plan(cls).any_filters for cls in unique_classes(tasks))
    budget = [steps]
    mark = statement.checkpoint()
    rows: list[int] = []
    found = _extend(session, statement, ordered, rows, subset, beyond, budget)
    statement.rollback(mark)
    return dict(zip(ordered, rows, strict=True)) if found else None


def _extend(
    session: Session,
    statement: Statement,
    tasks: Sequence[Task],
    rows: list[int],
    subset: BoolColumn | None,
    beyond: bool,
    budget: list[int],
) -> bool:
    if len(rows) == len(tasks):
        return True
    task = tasks[len(rows)]
    board = session.board(task, subset)
    board.sync(task)
    feasible = np.flatnonzero(board.mask)
    if not beyond and rows and tasks[len(rows) - 1].cls is task.cls:
        feasible = feasible[feasible >= rows[-1]]
    for row in feasible.tolist():
        if budget[0] <= 0:
            return False
        budget[0] -= 1
        mark = statement.checkpoint()
        statement.allocate(task, row)
        rows.append(row)
        if _extend(session, statement, tasks, rows, subset, beyond, budget):
            return True
        rows.pop()
        statement.rollback(mark)
    return False
