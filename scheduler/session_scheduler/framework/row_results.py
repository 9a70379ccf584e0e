"""Results of simulated removals by row, with numbers in columns: a search compares many rows without a loop over them.

A result holds until a task is put on its row or removed from it, so each preemptor computes only the rows that have
changed since the last one like it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from session_scheduler.model.columns import BoolColumn, IntColumn, RowIndex

_NEVER: Final = -2
_BYTES_OF_A_VALUE: Final = 8


class RowChanges:
    """For each row the number of its last change in a session."""

    def __init__(self, touched: Sequence[int], rows: int) -> None:
        """`touched` are the rows of all changes, in order; it grows."""
        self._touched = touched
        self._read = 0
        self._last = np.full(rows, -1, np.int64)

    def last(self) -> IntColumn:
        """By row: the number of the last change; -1 if there was none. Read only."""
        touched, count = self._touched, len(self._touched)
        if self._read < count:
            self._last[np.array(touched[self._read : count], np.int64)] = np.arange(self._read, count)
            self._read = count
        return self._last


class RowResults:
    """The results of one kind of trial."""

    def __init__(self, changes: RowChanges, rows: int, width: int) -> None:
        """`width` is the number of columns."""
        self.numbers = np.zeros((width, rows), np.int64)
        """Shape [column, row]; only of rows with a current result."""
        self.values: list[Any] = [None] * rows
        """By row: the result; only of rows with a current one."""
        self._changes = changes
        self._stamps = np.full(rows, _NEVER, np.int64)
        self.things: list[Any] = []
        """The values that numbers stand for (`number_of`)."""
        self._numbers_of: dict[Hashable, int] = {}

    @property
    def size(self) -> int:
        """The bytes of the columns."""
        return int(self.numbers.nbytes + self._stamps.nbytes) + _BYTES_OF_A_VALUE * len(self.values)

    def are_current(self, rows: RowIndex) -> BoolColumn:
        """Whether each of these rows has a result, and has not changed since."""
        current: BoolColumn = self._stamps[rows] == self._changes.last()[rows]
        return current

    def put(self, rows: RowIndex, values: Iterable[Any], numbers: IntColumn) -> None:
        """Store the results of some rows; `numbers` have the shape [column, place]."""
        self.numbers[:, rows] = numbers
        self._stamps[rows] = self._changes.last()[rows]
        for row, value in zip(rows.tolist(), values, strict=True):
            self.values[row] = value

    def number_of(self, thing: Hashable) -> int:
        """A number, from 0, that stands for this value in a column: equal values have equal numbers."""
        number = self._numbers_of.get(thing)
        if number is None:
            number = self._numbers_of[thing] = len(self.things)
            self.things.append(thing)
        return number
