"""Disruption budgets: how many more pods the scheduler may evict, in one count for everything that evicts pods.

The disruption controller updates a budget's status late. This module counts the evictions decided since, so that
preemption and consolidation, or two profiles, do not both use the last allowed disruption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from session_scheduler.model.groups import Task
from session_scheduler.model.label_selectors import NOTHING, Selector, SelectorError, selector_of
from session_scheduler.model.policy import PodDisruptionBudget
from session_scheduler.state.tables import ObjectTables

_MAX_CACHED = 10_000
"""For how many combinations of label values the matching budgets of a namespace are cached."""


class EvictionUnit(Protocol):
    """Running tasks that are evicted all-or-nothing."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks of the unit."""


_Unit = TypeVar("_Unit", bound=EvictionUnit)


class KnownBudgets:
    """The budgets of one cache."""

    def __init__(self, objects: ObjectTables) -> None:
        self._objects = objects
        self._known: tuple[int, Budgets] | None = None
        """(version of the objects, budgets built from them)."""

    def now(self) -> Budgets:
        """The current budgets, less the evictions decided since their status was written."""
        version = self._objects.version(PodDisruptionBudget)
        if self._known is None or self._known[0] != version:
            before = self._known[1] if self._known is not None else None
            self._known = version, Budgets(self._objects.of(PodDisruptionBudget), before)
        return self._known[1]


class _OfNamespace:
    """The budgets of a namespace. It matches pods once for each combination of the label values that budgets read."""

    __slots__ = ("_budgets", "_cached", "_keys")

    def __init__(self, budgets: Sequence[tuple[PodDisruptionBudget, Selector]]) -> None:
        self._budgets = budgets
        self._keys = sorted({key for _, selector in budgets for key, _, _ in selector.requirements or ()})
        self._cached: dict[tuple[str | None, ...], tuple[PodDisruptionBudget, ...]] = {}

    def matching(self, labels: Mapping[str, str]) -> tuple[PodDisruptionBudget, ...]:
        """The budgets that select a pod with these labels."""
        values = tuple(map(labels.get, self._keys))
        found = self._cached.get(values)
        if found is None:
            if len(self._cached) >= _MAX_CACHED:
                self._cached.clear()
            found = tuple(budget for budget, selector in self._budgets if selector.matches(labels))
            self._cached[values] = found
        return found


class Budgets:
    """Disruption budgets, less the evictions decided since their status was written.

    A budget whose selector is invalid or empty selects no pod.
    """

    def __init__(self, budgets: Mapping[str, PodDisruptionBudget], before: Budgets | None = None) -> None:
        """`before`: the previous budgets. Their evictions still count for each budget that has not changed since."""
        versions = {(key, budget.metadata.resource_version) for key, budget in budgets.items()}
        used = before.used if before is not None else {}
        self.used: dict[tuple[str, str], set[str]] = {key: uids for key, uids in used.items() if key in versions}
        """By budget and the version whose status does not include them yet: the pods (uids) being evicted."""
        listed: dict[str, list[tuple[PodDisruptionBudget, Selector]]] = {}
        for _, budget in sorted(budgets.items()):
            selector = _selector(budget)
            if not selector.empty:
                listed.setdefault(budget.metadata.namespace, []).append((budget, selector))
        self.uses: int = before.uses + 1 if before is not None else 0
        """Incremented whenever the remainder of a budget changes: the cost of evictions from a node may then differ."""
        self._of = {namespace: _OfNamespace(some) for namespace, some in listed.items()}

    def _matching(self, task: Task) -> tuple[PodDisruptionBudget, ...]:
        labels, known = task.pod.metadata.labels, self._of.get(task.namespace)
        return known.matching(labels) if known is not None and labels else ()

    def use(self, tasks: Iterable[Task]) -> None:
        """Count these tasks as evicted."""
        for task in tasks:
            for budget in self._matching(task):
                self.used.setdefault(_version(budget), set()).add(task.uid)
                self.uses += 1

    def spare(self, task: Task) -> None:
        """Stop counting a task as evicted: it stays."""
        for uids in self.used.values():
            if task.uid in uids:
                uids.remove(task.uid)
                self.uses += 1

    def split(self, units: Sequence[_Unit], *, sparing: bool = False) -> tuple[list[_Unit], list[_Unit]]:
        """(units whose eviction would violate a budget, the others). The units use up the budgets in the given order.

        `sparing`: after the first violation in a unit, its other tasks use up no budget, as in kube-scheduler's
        preemption by gangs.
        """
        if not self._of:
            return [], list(units)
        allowed: dict[str, int] = {}
        violating: list[_Unit] = []
        others: list[_Unit] = []
        for unit in units:
            (violating if self._violates(unit, allowed, sparing=sparing) else others).append(unit)
        return violating, others

    def _violates(self, unit: EvictionUnit, allowed: dict[str, int], *, sparing: bool) -> bool:
        violated = False
        for task in unit.tasks:
            for budget in self._matching(task):
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
