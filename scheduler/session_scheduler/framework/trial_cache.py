"""The trial cache: results of a session's simulated removals of running pods, for later trials."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from session_scheduler.framework.answers import NoPreemption

_NOTHING = (-2, None)


@dataclass(frozen=True, slots=True)
class KnownNoPreemption:
    """A failed `postfilter` in a state of the session; `waiting` are the plugins that wait for bindings."""

    state: tuple[int, int]
    answer: NoPreemption
    waiting: tuple[str, ...]


class TrialCache:
    """Caches the results of trials for a node until a task is put on the node or removed from it."""

    def __init__(self, touched: Sequence[int]) -> None:
        self._touched = touched
        self._cursor = 0
        self._last: dict[int, int] = {}
        self._known: dict[Any, dict[int, tuple[int, Any]]] = {}
        self.no_preemption: dict[Any, KnownNoPreemption] = {}
        """The failures of `postfilter` by class and priority (see `actions.postfilter`)."""

    def _read(self) -> None:
        """Read the new changes of rows."""
        touched = self._touched
        for place in range(self._cursor, len(touched)):
            self._last[touched[place]] = place
        self._cursor = len(touched)

    def recall(self, key: Any, rows: Iterable[int]) -> list[Any]:
        """Return the cached value of each row for this key; None if there is none, or if it is outdated."""
        self._read()
        known, last = self._known.get(key, {}), self._last
        found = []
        for row in rows:
            stamp, value = known.get(row, _NOTHING)
            found.append(value if stamp == last.get(row, -1) else None)
        return found

    def put(self, key: Any, row: int, found: Any) -> None:
        """Cache a value for the row."""
        self._read()
        self._known.setdefault(key, {})[row] = self._last.get(row, -1), found
