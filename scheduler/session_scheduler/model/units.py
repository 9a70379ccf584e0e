"""Units of preemption: running tasks that are preempted together; their order on a node."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from session_scheduler.model.groups import Task

NOT_STARTED: Final = "~"
"""Sorts after every time: a pod that has not started counts as starting now."""
ABOVE_ZERO: Final = 2**31
"""Added to priorities before they are summed, so that fewer victims cost less even with negative priorities."""


class Unit:
    """Running tasks that are preempted together: a single one, a whole group if its disruptionMode says so, or the
    members that a gang needs to run. There is one for each running pod, so this is not a dataclass.
    """

    __slots__ = ("importance", "priority", "single", "started", "surplus", "tasks", "whole")

    def __init__(self, tasks: tuple[Task, ...], priority: int, *, whole: bool = False, surplus: int = 0) -> None:
        """`whole`: whether the unit is such a group or such members, so that all members of the group are preempted."""
        self.tasks = tasks
        self.priority = priority
        self.whole = whole
        self.surplus = surplus
        """For a member that its gang does not need: its turn among these, 1 for the first to preempt."""
        self.single = tasks[0].group.single
        """Whether it is a pod in no group, so that no other pod decides about it."""
        self.started = started(tasks[0]) if len(tasks) == 1 else min(map(started, tasks))
        """When the first of them began to run."""
        size = -len(tasks) if whole else 0
        self.importance = (-priority, turn(self), not whole, size, self.started, tasks[0].key)
        """The sort key of units on a node, most important first: priority, whole groups, running time.

        Members that gangs do not need come last, the first one of each gang at the end.
        """


importance, is_single = attrgetter("importance"), attrgetter("single")


def units_in_order(single: Iterable[Task]) -> list[Unit]:
    """Return the units of single pods, the most important first."""
    return sorted((Unit((task,), task.standing) for task in single), key=importance)


def started(task: Task) -> str:
    """Return when a running task's pod started, as RFC 3339 text."""
    return task.pod.status.start_time or NOT_STARTED


def turn(unit: Unit) -> int:
    """The place of a member that its gang does not need: after all others, the first to preempt at the end."""
    return ABOVE_ZERO - unit.surplus if unit.surplus else 0
