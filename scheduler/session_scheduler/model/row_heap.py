"""A heap of the best rows: the highest total first, then the smallest tie-break. It holds only as many as it needs."""

from __future__ import annotations

import heapq
from typing import Any, Final

import numpy as np

from session_scheduler.model.columns import BoolColumn, IntColumn, RowIndex

Totals = np.ndarray[Any, np.dtype[Any]]
_SMALLEST: Final = 64


class RowHeap:
    """The rows of a mask by total. Report each change of a total or of the mask with `put`, `drop` or `clear`."""

    def __init__(self, ties: IntColumn) -> None:
        """`ties` decides between equal totals."""
        self._ties = ties
        self.clear()

    def clear(self) -> None:
        """Forget all rows: all totals may have changed."""
        self._entries: list[tuple[Any, int, int, int]] = []
        """(minus the total, tie-break, row, stamp); an entry with an older stamp than its row's is outdated."""
        self._bound: tuple[Any, int] | None = None
        """Rows outside the heap are not better than this key; None: not filled yet."""
        self._complete = False
        self._stamp: dict[int, int] = {}

    def __len__(self) -> int:
        """The number of entries, including outdated ones."""
        return len(self._entries)

    def top(self, totals: Totals, mask: BoolColumn, expected: int) -> int:
        """Return the best row of the mask, or -1. `expected` hints how many such picks follow."""
        while True:
            entries = self._entries
            while entries and not self._is_current(entries[0]):
                heapq.heappop(entries)
            if entries and (self._complete or (self._bound is not None and entries[0][:2] <= self._bound)):
                return entries[0][2]
            if self._complete:
                return -1
            self._fill(totals, mask, expected)

    def put(self, row: int, total: Any) -> None:
        """Set the total of a row."""
        if self._bound is not None or self._complete:
            stamp = self._stamp[row] = self._stamp.get(row, 0) + 1
            heapq.heappush(self._entries, (-total, self._ties[row].item(), row, stamp))

    def drop(self, row: int) -> None:
        """Remove a row."""
        if self._bound is not None or self._complete:
            self._stamp[row] = self._stamp.get(row, 0) + 1

    def next(self, count: int) -> list[int]:
        """Return up to this many of the rows near the top."""
        return list(dict.fromkeys(entry[2] for entry in self._entries[:count] if self._is_current(entry)))

    def _is_current(self, entry: tuple[Any, int, int, int]) -> bool:
        return entry[3] == self._stamp.get(entry[2], 0)

    def _fill(self, totals: Totals, mask: BoolColumn, expected: int) -> None:
        """Fill the heap with at least as many of the best rows as picks are expected: n picks use only the n best."""
        rows = np.flatnonzero(mask)
        wanted = max(_SMALLEST, expected, 2 * len(self._entries))
        self._complete = len(rows) <= wanted
        chosen = rows if self._complete else self._best(totals, rows, wanted)
        keys = zip((-totals[chosen]).tolist(), self._ties[chosen].tolist(), chosen.tolist(), strict=True)
        self._entries = [(worth, tie, row, self._stamp.get(row, 0)) for worth, tie, row in keys]
        heapq.heapify(self._entries)
        self._bound = None if self._complete else max(entry[:2] for entry in self._entries)

    def _best(self, totals: Totals, rows: RowIndex, count: int) -> RowIndex:
        totals = totals[rows]
        least = np.partition(totals, len(totals) - count)[len(totals) - count]
        above, equal = rows[totals > least], rows[totals == least]
        missing = count - len(above)
        if missing < len(equal):
            equal = equal[np.argpartition(self._ties[equal], missing - 1)[:missing]]
        return np.concatenate((above, equal))
