"""The exhaustive search for small gangs. `placing` runs it if no order of the tasks placed enough of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from session_scheduler.actions.request import PlacementRequest
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.groups import Task, unique_classes

_MOST_SEARCHED = 200
"""Larger gangs are not searched: they exceed the steps and Python's stack."""


def constrained_first(request: PlacementRequest) -> list[TaskClass]:
    """The tasks' classes, those with the fewest feasible nodes first, then those with the larger requests."""
    order: dict[TaskClass, tuple[int, list[tuple[str, int]], int]] = {}
    for task in request.tasks:
        if task.cls not in order:
            board = request.session.evaluator.synced_board(task, request.subset)
            weight = sorted((name, -amount) for name, amount in task.cls.requests.items())
            order[task.cls] = (int(board.mask.sum()), weight, task.cls.index)
    return sorted(order, key=order.__getitem__)


def search(request: PlacementRequest) -> dict[Task, int] | None:
    """A row for each of as many tasks as the group needs, sub-group minima included; None if the search finds none or
    the gang is too large. The statement is unchanged afterwards.

    The search is complete for one order of the classes as long as the session's steps suffice, so in small clusters.
    """
    if len(request.tasks) > _MOST_SEARCHED:
        return None
    mark = request.statement.checkpoint()
    for ordered, steps in _search_orders(request):
        searching = _Search(replace(request, tasks=ordered), steps)
        found = searching.place(0, len(request.tasks) - request.needed)
        request.statement.rollback(mark)
        if found:
            return searching.found
    return None


def _search_orders(request: PlacementRequest) -> Iterator[tuple[list[Task], int]]:
    """The most constrained class first, and rotations of this order if a filter looks beyond its own row."""
    evaluator, options, classes = request.session.evaluator, request.session.options, constrained_first(request)
    beyond = any(evaluator.evaluation(cls).any_filters for cls in classes)
    orders = min(len(classes), 1 + options.placement_retries) if beyond else 1
    for _ in range(orders):
        ordered = [task for cls in classes for task in request.tasks if task.cls is cls]
        yield _by_sub_group(ordered), options.search_steps // orders
        classes = [*classes[1:], classes[0]]


def _by_sub_group(tasks: list[Task]) -> list[Task]:
    """Order the tasks of each class by sub-group."""
    if not tasks[0].group.minima:
        return tasks
    place = {cls: number for number, cls in enumerate(unique_classes(tasks))}
    return sorted(tasks, key=lambda task: (place[task.cls], task.sub_group))


class _Search:
    """A depth-first search. It visits rows in the order of the tie-break.

    Tasks of one class and sub-group are interchangeable. Their rows ascend in that order, unless a filter looks beyond
    its own row, and the search leaves out only the last of them.
    """

    def __init__(self, request: PlacementRequest, steps: int) -> None:
        tasks = request.tasks
        self._evaluator = request.session.evaluator
        self._statement = request.statement
        self._tasks = tasks
        self._subset = request.subset
        self._ties = request.session.table.ties()
        self._beyond = any(self._evaluator.evaluation(cls).any_filters for cls in unique_classes(tasks))
        self._steps = steps
        self._sub_groups = [task.sub_group for task in tasks]
        self._spare = _spare(tasks)
        self.found: dict[Task, int] = {}

    def place(self, index: int, spare: int) -> bool:
        """Place the tasks from `index` on; `spare` of them may be left out."""
        if index == len(self._tasks):
            return True
        task = self._tasks[index]
        for row in self._rows(index):
            if self._steps <= 0:
                return False
            self._steps -= 1
            mark = self._statement.checkpoint()
            self._statement.allocate(task, row)
            self.found[task] = row
            if self.place(index + 1, spare):
                return True
            del self.found[task]
            self._statement.rollback(mark)
        return self._leave_out(index, spare)

    def _leave_out(self, index: int, spare: int) -> bool:
        """Continue without this task and the interchangeable ones that follow it."""
        name = self._sub_groups[index]
        alike = sum(self._is_alike(index, other) for other in range(index, len(self._tasks)))
        if alike > min(spare, self._spare.get(name, spare)):
            return False
        if name in self._spare:
            self._spare[name] -= alike
        found = self.place(index + alike, spare - alike)
        if name in self._spare:
            self._spare[name] += alike
        return found

    def _is_alike(self, index: int, other: int) -> bool:
        tasks, names = self._tasks, self._sub_groups
        return tasks[other].cls is tasks[index].cls and names[other] == names[index]

    def _rows(self, index: int) -> list[int]:
        task = self._tasks[index]
        rows = np.flatnonzero(self._evaluator.synced_board(task, self._subset).mask)
        if index and self._is_alike(index, index - 1) and not self._beyond:
            rows = rows[self._ties[rows] >= self._ties[self.found[self._tasks[index - 1]]]]
        ordered: list[int] = rows[np.argsort(self._ties[rows], kind="stable")].tolist()
        return ordered


def _spare(tasks: Sequence[Task]) -> dict[str, int]:
    """By sub-group: how many of these tasks may be left out."""
    group = tasks[0].group
    if not group.minima:
        return {}
    lacks, there = group.lacks, Counter(task.sub_group for task in tasks)
    return {name: there[name] - lacks.get(name, 0) for name in group.minima}
