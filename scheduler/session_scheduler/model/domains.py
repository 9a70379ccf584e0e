"""Topology domains: the nodes that have the same value of one label, as dense numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntColumn = NDArray[np.int64]
BoolColumn = NDArray[np.bool_]


class Domains:
    """The domains of one label over all rows.

    Arrays by domain have `count` + 1 entries; the last one is for the nodes without the label.
    """

    __slots__ = ("alone", "count", "numbers", "present")

    def __init__(self, values: NDArray[np.int32]) -> None:
        """`values`: by row, the id of the label's value; negative where the node has none."""
        self.present: BoolColumn = values >= 0
        found, numbers = np.unique(values[self.present], return_inverse=True)
        self.count = len(found)
        self.numbers: IntColumn = np.full(len(values), self.count, np.int64)
        """By row: the number of its domain; `count` if the node does not have the label."""
        self.numbers[self.present] = numbers
        self.alone = self.count == len(numbers)
        """Whether each domain has only one node, as with kubernetes.io/hostname."""

    def sums(self, by_row: IntColumn, where: BoolColumn | None = None) -> IntColumn:
        """By domain: the sum over its rows, or over those in `where`; 0 for the nodes without the label."""
        counted = by_row if where is None else by_row * where
        sums = np.bincount(self.numbers, weights=counted, minlength=self.count + 1).astype(np.int64)
        sums[self.count] = 0
        return sums

    def inhabited(self, where: BoolColumn) -> BoolColumn:
        """Which domains have a row in `where`."""
        found = np.zeros(self.count + 1, np.bool_)
        found[self.numbers[where]] = True
        found[self.count] = False
        return found
