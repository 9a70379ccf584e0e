"""The victims of preemption: which pods may end, in what order, and at what price; pure functions over tasks.

Source: kube-scheduler 1.36, pkg/scheduler/framework/preemption and plugins/defaultpreemption.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from session_scheduler.model.groups import Group, Phase, Task

_NOT_STARTED = "~"
"""Sorts behind every time: a pod that has not started counts as starting now."""
_ABOVE_ZERO = 2**31
"""Added to priorities that are summed up: of negative ones, too, fewer victims must be less."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Running tasks that end together or not at all: one, or all of a group whose disruptionMode says so."""

    tasks: tuple[Task, ...]
    priority: int
    whole: bool = False
    """Whether it is such a group."""

    @property
    def started(self) -> str:
        """When the first of them began to run."""
        return min(started(task) for task in self.tasks)


def started(task: Task) -> str:
    """When a running task's pod began, as RFC 3339 text."""
    return task.pod.status.start_time or _NOT_STARTED


def units_of(tasks: Iterable[Task], priority: int) -> list[Unit]:
    """What may end of some running tasks for one of this priority: what has a lower one.

    Of a group that is disrupted whole that is all that runs of it, on whatever node; nothing while any of it is being
    bound. So it is of a gang that has not started yet: a part of it is of no use, and would be ended soon.
    """
    found: list[Unit] = []
    seen = set()
    whole: dict[Group, bool] = {}
    for task in tasks:
        group = task.group
        if group not in whole:
            whole[group] = group.starting or (group.pod_group is not None and group.pod_group.disrupted_whole)
        if not whole[group]:
            if task.standing < priority:
                found.append(Unit((task,), task.standing))
        elif group.key not in seen and group.priority < priority:
            seen.add(group.key)
            if not group.in_phase(Phase.ASSUMED):
                members = sorted(group.in_phase(Phase.BOUND, Phase.RELEASING), key=lambda member: member.key)
                found.append(Unit(tuple(members), group.priority, whole=True))
    return found


def importance(unit: Unit) -> tuple[int, bool, int, str, str]:
    """What orders units on a node, the more important first: priority, whole groups, how long they run."""
    size = -len(unit.tasks) if unit.whole else 0
    return -unit.priority, not unit.whole, size, unit.started, unit.tasks[0].key


def importance_to_groups(unit: Unit) -> tuple[int, bool, int, str, str]:
    """As `importance` where a gang looks for room: any member of a group comes before a pod alone."""
    grouped = not unit.tasks[0].group.single
    return -unit.priority, not grouped, -len(unit.tasks) if grouped else 0, unit.started, unit.tasks[0].key


# ------------------------------------------------------------------ choosing a node


class Candidate:
    """A node, and the units that must end so that the task fits, the most important first."""

    __slots__ = ("first_start", "node", "price", "tasks", "violations")

    def __init__(self, node: str, victims: Sequence[Unit], violations: int, ending: Collection[Unit] = ()) -> None:
        """`ending`: units that end anyway, and cost nothing."""
        self.node = node
        self.tasks = tuple(task for unit in victims for task in unit.tasks)
        """All that would end."""
        self.violations = violations
        paid = [unit for unit in victims if unit not in ending]
        highest = paid[0].priority if paid else -_ABOVE_ZERO
        total = sum((unit.priority + _ABOVE_ZERO) * len(unit.tasks) for unit in paid)
        self.price = (violations, highest, total, sum(len(unit.tasks) for unit in paid))
        """Violated budgets, the highest priority, the sum of priorities, pods: the less the better, in this order."""
        starts = (unit.started for unit in paid if unit.priority == highest)
        self.first_start = min(starts, default=_NOT_STARTED)
        """When the first of the most important victims began to run."""


def best(candidates: Sequence[Candidate]) -> Candidate:
    """By kube-scheduler's criteria: the lowest price, then the latest first start, then the first as given."""
    least = min(candidate.price for candidate in candidates)
    return max((one for one in candidates if one.price == least), key=lambda one: one.first_start)
