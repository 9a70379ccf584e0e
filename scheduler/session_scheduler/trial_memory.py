"""What a session remembers of what it tried with running tasks thought away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from session_scheduler.hookspecs import NoPreemption


class TrialMemory:
    """What trials found out about nodes, as long as nothing is put on or taken off them."""

    def __init__(self, touched: Sequence[int]) -> None:
        self._touched = touched
        self._cursor = 0
        self._last: dict[int, int] = {}
        self._known: dict[Any, dict[int, tuple[int, Any]]] = {}

    def _stamp(self, row: int) -> int:
        """Moves whenever the row is touched."""
        touched = self._touched
        for place in range(self._cursor, len(touched)):
            self._last[touched[place]] = place
        self._cursor = len(touched)
        return self._last.get(row, -1)

    def recall(self, key: Any, row: int) -> Any:
        """What was put for the row under this key; None where that is nothing, or holds no more."""
        known = self._known.get(key, {}).get(row)
        return known[1] if known is not None and known[0] == self._stamp(row) else None

    def put(self, key: Any, row: int, found: Any) -> None:
        """Keep something for the row."""
        self._known.setdefault(key, {})[row] = self._stamp(row), found


@dataclass(frozen=True, slots=True)
class KnownNoPreemption:
    """What `postfilter` could not do in a state of the session; `waiting` are the plugins that wait for binds."""

    state: tuple[int, int]
    answer: NoPreemption
    waiting: tuple[str, ...]
