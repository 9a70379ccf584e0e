"""The victims of preemption: candidates, their order and their cost; pure functions over tasks.

Source: kube-scheduler 1.36, pkg/scheduler/framework/preemption and plugins/defaultpreemption.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from session_scheduler.model.groups import Group, Phase, Task

_NOT_STARTED = "~"
"""Sorts after every time: a pod that has not started counts as starting now."""
_ABOVE_ZERO = 2**31
"""Added to priorities before they are summed up: so also with negative priorities fewer victims cost less."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Running tasks that are preempted together: a single one, or a whole group if its disruptionMode says so."""

    tasks: tuple[Task, ...]
    priority: int
    whole: bool = False
    """Whether it is such a group."""

    @property
    def started(self) -> str:
        """When the first of them began to run."""
        return min(started(task) for task in self.tasks)


def started(task: Task) -> str:
    """Return when a running task's pod began, as RFC 3339 text."""
    return task.pod.status.start_time or _NOT_STARTED


def units_of(tasks: Iterable[Task], priority: int) -> list[Unit]:
    """Return the units among running tasks that a task of this priority may preempt: those of lower priority.

    A group that is preempted as a whole is one unit with all its running tasks on all nodes, and none while one of them
    is being bound. The same holds for a gang that has not started yet, because a part of it is useless.
    """
    found: list[Unit] = []
    seen = set()
    whole: dict[Group, bool] = {}
    for task in tasks:
        group = task.group
        if group not in whole:
            whole[group] = evicted_whole(group)
        if not whole[group]:
            if task.standing < priority:
                found.append(Unit((task,), task.standing))
        elif group.key not in seen and group.priority < priority:
            seen.add(group.key)
            if not group.in_phase(Phase.ASSUMED):
                members = sorted(group.in_phase(Phase.BOUND, Phase.RELEASING), key=lambda member: member.key)
                found.append(Unit(tuple(members), group.priority, whole=True))
    return found


def evicted_whole(group: Group) -> bool:
    """Whether a group's running tasks are evicted only together."""
    return group.starting or (group.pod_group is not None and group.pod_group.disrupted_whole)


def importance(unit: Unit) -> tuple[int, bool, int, str, str]:
    """Return a sort key of units on a node, most important first: priority, whole groups, running time."""
    size = -len(unit.tasks) if unit.whole else 0
    return -unit.priority, not unit.whole, size, unit.started, unit.tasks[0].key


def importance_to_groups(unit: Unit) -> tuple[int, bool, int, str, str]:
    """Like `importance`, if the preemptor is a gang: a member of any group comes before a single pod."""
    grouped = not unit.tasks[0].group.single
    return -unit.priority, not grouped, -len(unit.tasks) if grouped else 0, unit.started, unit.tasks[0].key


# ------------------------------------------------------------------ choosing a node


class Candidate:
    """A node, and the units to preempt so that the task fits, most important first."""

    __slots__ = ("first_start", "node", "price", "tasks", "violations")

    def __init__(self, node: str, victims: Sequence[Unit], violations: int, ending: Collection[Unit] = ()) -> None:
        """`ending` are units that are terminating already, and cost nothing."""
        self.node = node
        self.tasks = tuple(task for unit in victims for task in unit.tasks)
        """All victims."""
        self.violations = violations
        paid = [unit for unit in victims if unit not in ending]
        highest = paid[0].priority if paid else -_ABOVE_ZERO
        total = sum((unit.priority + _ABOVE_ZERO) * len(unit.tasks) for unit in paid)
        self.price = (violations, highest, total, sum(len(unit.tasks) for unit in paid))
        """Violated budgets, highest priority, sum of priorities, number of pods: less is better, in this order."""
        starts = (unit.started for unit in paid if unit.priority == highest)
        self.first_start = min(starts, default=_NOT_STARTED)
        """When the first of the most important victims began to run."""


def best(candidates: Sequence[Candidate]) -> Candidate:
    """Return the best candidate by kube-scheduler's criteria: lowest price, then latest first start, then order."""
    least = min(candidate.price for candidate in candidates)
    return max((one for one in candidates if one.price == least), key=lambda one: one.first_start)
