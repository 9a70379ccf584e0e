"""Shapes: numbers for nodes with equal devices in the same state, so that one evaluation answers for all of them."""

from __future__ import annotations

from typing import Final

import numpy as np

from session_scheduler.builtin.devices.inventory import Inventory, PoolId
from session_scheduler.builtin.devices.usage import Usage
from session_scheduler.model.columns import IntColumn, RowIndex

_UNKNOWN: Final = -1
_MOST: Final = 200_000


class Shapes:
    """A number for each row; rows with equal numbers get equal answers. Numbers stay valid for later inventories."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._kinds: dict[tuple[object, ...], int] = {}
        self._rows_of: dict[PoolId, list[int]] = {}
        self._of: IntColumn = np.zeros(0, np.int64)
        self._inventory: Inventory | None = None

    @property
    def full(self) -> bool:
        """Whether there are so many numbers that the caller should drop them and everything cached by them."""
        return len(self._numbers) > _MOST

    def start(self, inventory: Inventory, rows: int) -> None:
        """Use the rows of this inventory from now on."""
        self._inventory = inventory
        self._rows_of = {}
        self._of = np.full(rows, _UNKNOWN, np.int64)

    def of(self, rows: RowIndex, usage: Usage) -> IntColumn:
        """The number of each row."""
        for pool in usage.changed():
            self._of[self._rows_of.get(pool, [])] = _UNKNOWN
        found = self._of[rows]
        unknown = rows[found == _UNKNOWN]
        if len(unknown):
            for row in unknown.tolist():
                self._of[row] = self._number(row, usage)
            found = self._of[rows]
        return found

    def _number(self, row: int, usage: Usage) -> int:
        assert self._inventory is not None  # noqa: S101 (the caller started it)
        known = self._inventory.has_computed(row)
        found = self._inventory.of(row)
        if not known:
            for pool in found.pools:
                self._rows_of.setdefault(pool.id, []).append(row)
        kind = self._kinds.setdefault(found.shape, len(self._kinds))
        shape = (kind, *[usage.token(pool.id) for pool in found.pools])
        return self._numbers.setdefault(shape, len(self._numbers))
