"""Reprieve: which of the removed pods of a node can stay, so that a task fits with the fewest evictions.

If all filters of the task compare free amounts, a trial computes the answer from the amounts. Otherwise it puts the
pods back one by one and asks the filters each time. `Trial.reprieve` chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import ge, sub

from session_scheduler.framework.answers import Trial
from session_scheduler.framework.evaluation import Spare
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, NodeTable
from session_scheduler.model.groups import Task

Units = Sequence[Sequence[Task]]
"""Pods of a node that are evicted together, in the order in which to put them back."""
Removed = dict[str, list[int] | None]
"""By node the places of the units that must stay removed; None if removing all is not enough."""


def by_filters(trial: Trial, units: Mapping[str, Units]) -> Removed:
    """The answer by the filters, for all nodes at once. Raises PluginError."""
    nodes = list(units)
    trial.remove(task for some in units.values() for unit in some for task in unit)
    fitting = [node for node, fits in zip(nodes, trial.fit_each(nodes), strict=True) if fits]
    removed: dict[str, list[int]] = {node: [] for node in fitting}
    for place in range(max((len(units[node]) for node in fitting), default=0)):
        left = [node for node in fitting if place < len(units[node])]
        for node in left:
            trial.put_back(units[node][place])
        for node, fits in zip(left, trial.fit_each(left), strict=True):
            if not fits:
                trial.remove(units[node][place])
                removed[node].append(place)
    for node, some in units.items():
        trial.put_back(task for place in removed.get(node, range(len(some))) for task in some[place])
    return {node: removed.get(node) for node in nodes}


def by_amounts(table: NodeTable, spare: Spare, mask: BoolColumn, units: Mapping[str, Units]) -> Removed:
    """The answer by the amounts. `spare` and `mask` have a row for each node, with its pods in place: what it has free
    beyond what the task requires, of at least one resource; and whether it passes all other filters.
    """
    numbers = [table.resource(name) for name in spare]
    known: dict[TaskClass, list[int]] = {}
    found: Removed = {}
    rows = zip(*(column.tolist() for column in spare.values()), strict=True)
    for (node, some), row, passes in zip(units.items(), rows, mask.tolist(), strict=True):
        freed = [_amounts(numbers, unit, known) for unit in some]
        left = list(map(sum, zip(row, *freed, strict=True)))
        found[node] = _needed(left, freed) if passes and min(left) >= 0 else None
    return found


def _needed(left: list[int], freed: Sequence[Sequence[int]]) -> list[int]:
    """The places of the units that must stay removed, if `left` is spare without any of them."""
    found = []
    for place, amounts in enumerate(freed):
        if all(map(ge, left, amounts)):
            left = list(map(sub, left, amounts))
        else:
            found.append(place)
    return found


def _amounts(numbers: Sequence[int], unit: Sequence[Task], known: dict[TaskClass, list[int]]) -> list[int]:
    """What a unit uses of each of these resources."""
    found = []
    for task in unit:
        amounts = known.get(task.cls)
        if amounts is None:
            amounts = [sum(amount for one, amount in task.cls.usage if one == number) for number in numbers]
            known[task.cls] = amounts
        found.append(amounts)
    return found[0] if len(found) == 1 else list(map(sum, zip(*found, strict=True)))
