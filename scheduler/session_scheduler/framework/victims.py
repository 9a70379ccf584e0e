"""The victims of preemption: candidates, their order and their cost; pure functions over tasks.

Source: kube-scheduler 1.36, pkg/scheduler/framework/preemption and plugins/defaultpreemption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.units import ABOVE_ZERO, NOT_STARTED, Unit, started, turn


def _runs_on(_: Task) -> bool:
    """Instead of `is_ending`: no task is ending."""
    return False


SingleUnits = dict[Task, Unit]
"""By single pod: its unit, which is the same in all trials of a session."""


def single_unit(task: Task, known: SingleUnits) -> Unit:
    """Return the unit of a single pod. Reads and adds to `known`."""
    unit = known.get(task)
    if unit is None:
        unit = known[task] = Unit((task,), task.standing)
    return unit


def units_of(
    tasks: Iterable[Task],
    priority: int,
    is_ending: Callable[[Task], bool] = _runs_on,
    single: SingleUnits | None = None,
) -> list[Unit]:
    """Return the units among running tasks that a task of this priority may preempt: those of lower priority. Reads
    and adds to `single`, which has the units of single pods.

    A group that is preempted as a whole is one unit with all its running tasks on all nodes, and none while one of them
    is being bound. The same holds for a gang that has not started yet, because a part of it is useless. Another gang
    keeps its minimum: of these tasks, those above it are units of their own; all others of the gang are one unit.
    """
    members: dict[Group, list[Task]] = {}
    found: list[Unit] = []
    single = {} if single is None else single
    for task in tasks:
        if not task.group.single:
            members.setdefault(task.group, []).append(task)
        elif (unit := single_unit(task, single)).priority < priority:
            found.append(unit)
    for group, there in members.items():
        if _is_whole(group):
            if group.priority < priority and not group.in_phase(Phase.ASSUMED):
                found.append(Unit(_sorted(_running(group)), group.priority, whole=True))
        elif keeps_minimum(group):
            found += _units_of_gang(group, there, priority, is_ending)
        else:
            found += [Unit((task,), task.standing) for task in there if task.standing < priority]
    return found


def units_among(victims: Iterable[Task]) -> list[tuple[Task, ...]]:
    """Return the victims in parts: those of a group that is preempted whole or falls below its minimum are one part."""
    members: dict[Group, list[Task]] = {}
    for task in victims:
        members.setdefault(task.group, []).append(task)
    found: list[tuple[Task, ...]] = []
    for group, there in members.items():
        left = [task for task in group.in_phase(Phase.BOUND) if task not in there]
        together = _is_whole(group) or (keeps_minimum(group) and not group.suffice(left))
        found += [tuple(there)] if together else [(task,) for task in there]
    return found


def keeps_minimum(group: Group) -> bool:
    """Whether a group is a gang that must not run with fewer tasks than its minimum."""
    return group.has_minimum and (group.pod_group is None or not group.pod_group.disrupted_singly)


def with_surplus(victims: Sequence[Unit], units: Iterable[Unit]) -> list[Unit]:
    """Return the victims, and those units whose gang cannot run without the victims."""
    groups = {unit.tasks[0].group for unit in victims if unit.whole}
    more = [unit for unit in units if unit.surplus and unit.tasks[0].group in groups and unit not in victims]
    return [*victims, *more]


def _units_of_gang(
    group: Group, tasks: Sequence[Task], priority: int, is_ending: Callable[[Task], bool]
) -> Iterator[Unit]:
    """The units of a gang that keeps its minimum: those of these tasks above it, each on its own, and the others."""
    staying = [task for task in _running(group) if not is_ending(task)]
    spare = len(staying) - group.min_count
    there = Counter(task.sub_group for task in staying)
    spare_of = {name: there[name] - least for name, least in group.minima.items()}
    surplus: set[Task] = set()
    for task in sorted(tasks, key=lambda task: (-task.standing, started(task), task.key), reverse=True):
        name = task.sub_group
        if task.standing >= priority:
            continue
        if is_ending(task):
            yield Unit((task,), task.standing)
        elif len(surplus) < spare and spare_of.get(name, 1) > 0:
            if name in spare_of:
                spare_of[name] -= 1
            surplus.add(task)
            yield Unit((task,), task.standing, surplus=len(surplus))
    core = [task for task in staying if task not in surplus]
    outranked = all(task.standing < priority for task in core) and not group.in_phase(Phase.ASSUMED)
    if outranked and not set(core).isdisjoint(tasks):
        yield Unit(_sorted(core), group.priority, whole=True)


def _is_whole(group: Group) -> bool:
    """Whether a group's running tasks are preempted only together."""
    return group.starting or (group.pod_group is not None and group.pod_group.disrupted_whole)


def _running(group: Group) -> list[Task]:
    return group.in_phase(Phase.BOUND, Phase.RELEASING)


def _sorted(tasks: Iterable[Task]) -> tuple[Task, ...]:
    return tuple(sorted(tasks, key=lambda task: task.key))


def importance_to_groups(unit: Unit) -> tuple[int, int, bool, int, str, str]:
    """Like `Unit.importance`, if the preemptor is a gang: a member of any group comes before a single pod."""
    grouped = not unit.tasks[0].group.single
    size = -len(unit.tasks) if grouped else 0
    return -unit.priority, turn(unit), not grouped, size, unit.started, unit.tasks[0].key


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
        highest = paid[0].priority if paid else -ABOVE_ZERO
        total = sum((unit.priority + ABOVE_ZERO) * len(unit.tasks) for unit in paid)
        self.price = (violations, highest, total, sum(len(unit.tasks) for unit in paid))
        """Violated budgets, highest priority, sum of priorities, number of pods: less is better, in this order."""
        starts = (unit.started for unit in paid if unit.priority == highest)
        self.first_start = min(starts, default=NOT_STARTED)
        """When the first of the most important victims began to run."""


def best(candidates: Sequence[Candidate]) -> Candidate:
    """Return the best candidate by kube-scheduler's criteria: lowest price, then latest first start, then order."""
    least = min(candidate.price for candidate in candidates)
    return max((one for one in candidates if one.price == least), key=lambda one: one.first_start)
