"""Whom preemption may end, in what order, and at what price: pure functions over tasks.

Source: kube-scheduler 1.36, pkg/scheduler/framework/preemption and plugins/defaultpreemption.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.label_selectors import NOTHING, Selector, SelectorError, selector_of
from session_scheduler.model.policy import PodDisruptionBudget

_NOT_STARTED = "~"
"""Sorts behind every time: a pod that has not started counts as starting now."""
_MOST_KNOWN = 10_000
"""For how many different labels of pods a namespace's budgets are remembered."""
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


# ------------------------------------------------------------------ disruption budgets


class _OfNamespace:
    """A namespace's budgets. Pods with equal values of all labels that some budget reads are matched once."""

    __slots__ = ("_budgets", "_keys", "_known")

    def __init__(self, budgets: Sequence[tuple[PodDisruptionBudget, Selector]]) -> None:
        self._budgets = budgets
        self._keys = sorted({key for _, selector in budgets for key, _, _ in selector.requirements or ()})
        self._known: dict[tuple[str | None, ...], tuple[PodDisruptionBudget, ...]] = {}

    def about(self, labels: Mapping[str, str]) -> tuple[PodDisruptionBudget, ...]:
        """The budgets that pick a pod with these labels."""
        values = tuple(map(labels.get, self._keys))
        found = self._known.get(values)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = tuple(budget for budget, selector in self._budgets if selector.matches(labels))
            self._known[values] = found
        return found


class Budgets:
    """Disruption budgets as they are now, less what was used of them since their status was written. One whose selector
    is wrong, or picks everything, is about no pod.
    """

    def __init__(self, budgets: Mapping[str, PodDisruptionBudget], before: Budgets | None = None) -> None:
        """`before`: what was known until now, of which what has not changed is still used."""
        versions = {(key, budget.metadata.resource_version) for key, budget in budgets.items()}
        used = before.used if before is not None else {}
        self.used: dict[tuple[str, str], set[str]] = {key: uids for key, uids in used.items() if key in versions}
        """By budget, and the version of it that does not know yet: which of its pods (uids) were asked to end."""
        listed: dict[str, list[tuple[PodDisruptionBudget, Selector]]] = {}
        for _, budget in sorted(budgets.items()):
            selector = _selector(budget)
            if not selector.empty:
                listed.setdefault(budget.metadata.namespace, []).append((budget, selector))
        self.uses: int = before.uses + 1 if before is not None else 0
        """Moves whenever there is another rest of a budget: what a node costs may be something else then."""
        self._of = {namespace: _OfNamespace(some) for namespace, some in listed.items()}

    def _about(self, task: Task) -> tuple[PodDisruptionBudget, ...]:
        labels, known = task.pod.metadata.labels, self._of.get(task.namespace)
        return known.about(labels) if known is not None and labels else ()

    def use(self, tasks: Iterable[Task]) -> None:
        """These are asked to end."""
        for task in tasks:
            for budget in self._about(task):
                self.used.setdefault(_version(budget), set()).add(task.uid)
                self.uses += 1

    def parted(self, units: Sequence[Unit], *, sparing: bool = False) -> tuple[list[Unit], list[Unit]]:
        """(those whose end would violate a budget, the others), each in the order given: in it budgets are used up.

        `sparing`: what comes after the first violation of a unit uses nothing up, as where kube-scheduler's gangs
        preempt.
        """
        allowed: dict[str, int] = {}
        violating: list[Unit] = []
        others: list[Unit] = []
        for unit in units:
            (violating if self._violates(unit, allowed, sparing=sparing) else others).append(unit)
        return violating, others

    def _violates(self, unit: Unit, allowed: dict[str, int], *, sparing: bool) -> bool:
        violated = False
        for task in unit.tasks:
            for budget in self._about(task):
                used = self.used.get(_version(budget), ())
                if task.name in budget.status.disrupted_pods or task.uid in used:
                    continue
                if budget.key not in allowed:
                    allowed[budget.key] = budget.status.disruptions_allowed - len(used)
                left = allowed[budget.key] = allowed[budget.key] - 1
                violated = violated or left < 0
                if violated and sparing:
                    return True
        return violated


def _version(budget: PodDisruptionBudget) -> tuple[str, str]:
    return budget.key, budget.metadata.resource_version


def _selector(budget: PodDisruptionBudget) -> Selector:
    try:
        return selector_of(budget.spec.selector)
    except SelectorError:
        return NOTHING


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
