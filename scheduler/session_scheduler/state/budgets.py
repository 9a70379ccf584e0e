"""Disruption budgets: what they still allow, one count for everything that evicts pods.

Their status shows it late. What was decided since is counted here, so that a pod that is moved and one that is
preempted, or two that different profiles preempt, do not both use what is left for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from session_scheduler.model.groups import Task
from session_scheduler.model.label_selectors import NOTHING, Selector, SelectorError, selector_of
from session_scheduler.model.policy import PodDisruptionBudget
from session_scheduler.state.tables import ObjectTables

_MOST_KNOWN = 10_000
"""For how many different labels of pods a namespace's budgets are remembered."""


class EndTogether(Protocol):
    """Running tasks that end together or not at all."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All of them."""


_Unit = TypeVar("_Unit", bound=EndTogether)


class KnownBudgets:
    """Those of one cache."""

    def __init__(self, objects: ObjectTables) -> None:
        self._objects = objects
        self._known: tuple[int, Budgets] | None = None
        """With the version of the objects that they were read from."""

    def now(self) -> Budgets:
        """As the objects are now, less what was used since each was written."""
        version = self._objects.version(PodDisruptionBudget)
        if self._known is None or self._known[0] != version:
            before = self._known[1] if self._known is not None else None
            self._known = version, Budgets(self._objects.of(PodDisruptionBudget), before)
        return self._known[1]


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

    def spare(self, task: Task) -> None:
        """It does not end after all."""
        for uids in self.used.values():
            if task.uid in uids:
                uids.remove(task.uid)
                self.uses += 1

    def split(self, units: Sequence[_Unit], *, sparing: bool = False) -> tuple[list[_Unit], list[_Unit]]:
        """(those whose end would violate a budget, the others), each in the order given: in it budgets are used up.

        `sparing`: what comes after the first violation of a unit uses nothing up, as where kube-scheduler's gangs
        preempt.
        """
        allowed: dict[str, int] = {}
        violating: list[_Unit] = []
        others: list[_Unit] = []
        for unit in units:
            (violating if self._violates(unit, allowed, sparing=sparing) else others).append(unit)
        return violating, others

    def _violates(self, unit: EndTogether, allowed: dict[str, int], *, sparing: bool) -> bool:
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
