"""The trial cache: results of a session's simulated removals of running pods, for later trials."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import msgspec

from session_scheduler.framework.answers import NoPreemption
from session_scheduler.framework.callback_runner import Rejectors
from session_scheduler.framework.row_results import RowChanges, RowResults
from session_scheduler.framework.victims import SingleUnits
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.units import Unit
from session_scheduler.state.single_pods import SinglePods

_NOTHING: Final = (-2, None)
_MOST_BYTES: Final = 2**26
"""Limits the columns of a session. The least recently used ones go first."""


UnitsOfKinds = Sequence[tuple[Unit, int]]
"""The single pods on a row as units, the most important first, each with the number of its kind."""


class KnownNoPreemption(msgspec.Struct, frozen=True):
    """A failed `postfilter` in a state of the session, and the plugins that it noted for requeueing."""

    state: tuple[object, ...]
    answer: NoPreemption
    rejectors: Rejectors


class TrialCache:
    """Caches the results of trials for a node until a task is put on the node or removed from it."""

    def __init__(self, touched: Sequence[int], rows: int, pods: SinglePods) -> None:
        """`touched` are the rows of all changes, in order; `rows` is the number of rows of the table."""
        self._rows = rows
        self._pods = pods
        self._changes = RowChanges(touched, rows)
        self._known: dict[Hashable, dict[int, tuple[int, Any]]] = {}
        self._results: dict[Hashable, RowResults] = {}
        """The least recently used ones first."""
        self._bytes = 0
        self._sparing: dict[Hashable, Rejectors] = {}
        self.lasting: dict[TaskClass, BoolColumn] = {}
        """By class: the rows that pass the filters that do not depend on pods."""
        self.rows_with_victims: dict[tuple[frozenset[str], int], tuple[int, BoolColumn]] = {}
        """By queues and priority: the rows where a pod of these queues has a lower priority, after so many changes."""
        self.units: SingleUnits = {}
        self._units_of_kinds: dict[int, tuple[int, UnitsOfKinds | None]] = {}
        """By row: the answers of `units_of_kinds`, each with the number of the row's last change."""
        self._kinds: dict[Hashable, int] = {}
        """The numbers of the kinds of single pods."""
        self.preemptible: dict[Group, bool] = {}
        """By group of running pods: whether it may be preempted (`Group.preemptible`)."""
        self.no_preemption: dict[Any, KnownNoPreemption] = {}
        """The failures of `postfilter` by class and priority (see `actions.postfilter`)."""

    def recall(self, key: Hashable, row: int) -> Any:
        """Return the cached value of the row for this key; None if there is none, or if it is outdated."""
        stamp, value = self._known.get(key, {}).get(row, _NOTHING)
        return value if stamp == self._changes.last()[row] else None

    def put(self, key: Hashable, row: int, found: Any) -> None:
        """Cache a value for the row."""
        self._known.setdefault(key, {})[row] = int(self._changes.last()[row]), found

    def units_of_kinds(self, row: int, kind_of: Callable[[Task], Hashable]) -> UnitsOfKinds | None:
        """Return the pods on the row; None if one of them is not a single pod, or its bind is in flight."""
        stamp, found = self._units_of_kinds.get(row, _NOTHING)
        if stamp == self._changes.last()[row]:
            return found
        units, kinds, found = self._pods.on(row), self._kinds, None
        if units is not None and all(unit.tasks[0].phase is not Phase.ASSUMED for unit in units):
            found = [(unit, kinds.setdefault(kind_of(unit.tasks[0]), len(kinds))) for unit in units]
        self._units_of_kinds[row] = int(self._changes.last()[row]), found
        return found

    def sparing(self, key: Hashable) -> Rejectors:
        """Return the plugins that spared running pods in trials with this key. The caller adds to them."""
        return self._sparing.setdefault(key, Rejectors())

    def results(self, key: Hashable, width: int) -> RowResults:
        """Return the results for this key in `width` columns; empty for a new key."""
        found = self._results.pop(key, None)
        if found is None:
            found = RowResults(self._changes, self._rows, width)
            self._bytes += found.size
        self._results[key] = found
        while self._bytes > _MOST_BYTES and len(self._results) > 1:
            self._bytes -= self._results.pop(next(iter(self._results))).size
        return found
