"""The trial cache: what a session's simulated removals of running pods found out, for the trials that follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from session_scheduler.framework.answers import NoPreemption

_NOTHING = (-2, None)


@dataclass(frozen=True, slots=True)
class KnownNoPreemption:
    """What `postfilter` could not do in a state of the session; `waiting` are the plugins that wait for binds."""

    state: tuple[int, int]
    answer: NoPreemption
    waiting: tuple[str, ...]


class TrialCache:
    """What trials found out about nodes, as long as nothing is put on or taken off them."""

    def __init__(self, touched: Sequence[int]) -> None:
        self._touched = touched
        self._cursor = 0
        self._last: dict[int, int] = {}
        self._known: dict[Any, dict[int, tuple[int, Any]]] = {}
        self.no_preemption: dict[Any, KnownNoPreemption] = {}
        """By class and priority: what `postfilter` could not do (see `actions.postfilter`)."""

    def _read(self) -> None:
        """Read which rows were touched since."""
        touched = self._touched
        for place in range(self._cursor, len(touched)):
            self._last[touched[place]] = place
        self._cursor = len(touched)

    def recall(self, key: Any, rows: Iterable[int]) -> list[Any]:
        """For each row what was put for it under this key; None where that is nothing, or holds no more."""
        self._read()
        known, last = self._known.get(key, {}), self._last
        found = []
        for row in rows:
            stamp, value = known.get(row, _NOTHING)
            found.append(value if stamp == last.get(row, -1) else None)
        return found

    def put(self, key: Any, row: int, found: Any) -> None:
        """Keep something for the row."""
        self._read()
        self._known.setdefault(key, {})[row] = self._last.get(row, -1), found
