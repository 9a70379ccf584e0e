"""Reprieve: which of the removed pods of a node can stay, so that a task fits with the fewest evictions.

If all filters of the task compare free amounts, a trial computes the answer from the amounts. Otherwise it puts the
pods back one by one and asks the filters each time (`Trial.reprieve`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from session_scheduler.framework.evaluation import Spare
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.groups import Task

Units = Sequence[Sequence[Task]]
"""Pods of a node that are evicted together, in the order in which to put them back."""


def by_amounts(table: NodeTable, spare: Spare, nodes: Sequence[Units]) -> Iterator[list[int] | None]:
    """For each node the places of the units that must stay removed; None if removing all of them is not enough.

    `spare` has a row for each node, with its pods in place, and at least one resource.
    """
    numbers = [table.resource(name) for name in spare]
    known: dict[TaskClass, list[int]] = {}
    for row, units in zip(zip(*(column.tolist() for column in spare.values()), strict=True), nodes, strict=True):
        freed = [_amounts(numbers, unit, known) for unit in units]
        left = [sum(amounts) for amounts in zip(row, *freed, strict=True)]
        yield _needed(left, freed) if min(left) >= 0 else None


def _needed(left: list[int], freed: Sequence[Sequence[int]]) -> list[int]:
    """The places of the units that must stay removed, if `left` is spare without any of them."""
    found = []
    for place, amounts in enumerate(freed):
        less = [have - amount for have, amount in zip(left, amounts, strict=True)]
        if min(less) >= 0:
            left = less
        else:
            found.append(place)
    return found


def _amounts(numbers: Sequence[int], unit: Sequence[Task], known: dict[TaskClass, list[int]]) -> list[int]:
    """What a unit uses of each of these resources."""
    for task in unit:
        if task.cls not in known:
            known[task.cls] = [sum(amount for one, amount in task.cls.usage if one == number) for number in numbers]
    if len(unit) == 1:
        return known[unit[0].cls]
    return [sum(amounts) for amounts in zip(*(known[task.cls] for task in unit), strict=True)]
