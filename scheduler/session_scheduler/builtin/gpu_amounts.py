"""The GPUs of each node and the free amount of each, which GpuSharing and GpuFragmentation read.

What is free on a node depends on the pods there only. So a row is computed once after each change of its node, however
many classes, fractions and plugins read it. Amounts are integers: a GPU has 1000 units for each MiB of its memory, or
1000 units if its memory is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from session_scheduler.model.columns import IntColumn, NodeView
from session_scheduler.model.gpu_shares import EVERY, GIVEN, LARGEST_MIB, MEMORY_SUFFIX, MOST_GPUS, WHOLE, GpuUse
from session_scheduler.model.kept_rows import KeptRows

Matrix = np.ndarray[Any, np.dtype[np.int64]]
"""One integer for each node and GPU."""
_MOST_THOUSANDTHS: Final = 2**12
_MOST_MIB: Final = 2**40
"""The used amounts of one GPU are capped at these, so that sums and products stay within 64 bits."""


class GpuAmounts(NamedTuple):
    """The GPUs of a view's nodes. Read only."""

    gpus: IntColumn
    """Their number."""
    memory: IntColumn
    """MiB of one GPU; 0 if unknown."""
    per_thousandth: IntColumn
    """The units of a thousandth of a GPU."""
    whole: IntColumn
    """The number that pods use whole."""
    untouched: IntColumn
    """The number that pods use neither whole nor in part."""
    free: Matrix
    """By index: the free amount of that GPU; 0 if the node has no such GPU.

    The index of a GPU that is used whole is unknown, and so is the index of an unused one until it is shared. So as
    many of the unused GPUs as pods use whole count 0, from the end.
    """
    ascending: Matrix
    """The free amounts of each node, sorted."""


class Gpus:
    """The GPUs of all nodes. A node's GPUs are those of the first of these resources that it offers."""

    def __init__(self, resources: Iterable[str]) -> None:
        self.resources = tuple(resources)
        self._highest = EVERY
        """The highest index of a GPU that any pod uses on any node."""
        self._offered = KeptRows(self._read_offered, static=True)
        self._amounts = KeptRows(self._read)
        self._most = 0
        """The highest number of GPUs of a node."""

    def note(self, indices: Iterable[int]) -> None:
        """Pods use GPUs with these indices. A node may have fewer GPUs since."""
        highest = max(indices, default=EVERY)
        if highest > self._highest:
            self._highest = highest
            if highest >= self._most:
                self._amounts.forget()

    def of(self, nodes: NodeView) -> GpuAmounts:
        """The amounts of a view's nodes."""
        return GpuAmounts(*self._amounts.of(nodes))

    def _read_offered(self, nodes: NodeView) -> tuple[IntColumn, IntColumn]:
        """The number of GPUs of all nodes, and the MiB of one."""
        gpus = np.zeros(len(nodes), np.int64)
        memory = gpus.copy()
        for resource in self.resources:
            offered = nodes.allocatable(resource)
            first = (gpus == 0) & (offered > 0)
            gpus = np.where(first, offered, gpus)
            memory = np.where(first, _numbers(nodes, resource + MEMORY_SUFFIX), memory)
        self._most = min(int(gpus.max(initial=0)), MOST_GPUS)
        return gpus, np.clip(memory, 0, LARGEST_MIB)

    def _read(self, nodes: NodeView) -> GpuAmounts:
        offered, memory = self._offered.of(nodes)
        gpus, per = np.minimum(offered, MOST_GPUS), np.maximum(memory, 1)
        whole: IntColumn = sum((nodes.used(one) for one in self.resources), np.zeros(len(nodes), np.int64))
        used = _used(nodes, max(self._most, self._highest + 1), per)
        on_each, used = used[:, 0], used[:, 1:]
        exists = np.arange(used.shape[1]) < gpus[:, None]
        on_each = on_each + np.where(exists, 0, used).sum(axis=1)  # the pod may use any of the GPUs that are left
        unused = exists & (used == 0)
        untouched = np.maximum(np.maximum(offered - whole, 0) - (used > 0).sum(axis=1), 0)
        taken = unused & (np.cumsum(unused, axis=1) > untouched[:, None])
        free = np.maximum((WHOLE * per - on_each)[:, None] - used, 0)
        free = np.where(exists & ~taken, free, 0)[:, : self._most]
        return GpuAmounts(gpus, memory, per, whole, untouched, free, np.sort(free, axis=1))


def _used(nodes: NodeView, indices: int, per_thousandth: IntColumn) -> Matrix:
    """What sharers use of unknown GPUs of each node, and of those with an index below `indices`."""
    if not nodes.counter(GIVEN).any():
        return np.zeros((len(nodes), 1 + indices), np.int64)
    thousandths, mib = map(nodes.counters, _uses(indices))
    used: Matrix = np.minimum(thousandths, _MOST_THOUSANDTHS) * per_thousandth[:, None]
    used += np.minimum(mib, _MOST_MIB) * WHOLE
    return used


@cache
def _uses(indices: int) -> tuple[list[GpuUse], list[GpuUse]]:
    """The counters of unknown GPUs and of those with an index below `indices`: in thousandths, and in MiB."""
    gpus = range(EVERY, indices)
    return [GpuUse(gpu, in_mib=False) for gpu in gpus], [GpuUse(gpu, in_mib=True) for gpu in gpus]


def _numbers(nodes: NodeView, label: str) -> IntColumn:
    """A label's value as a number for each node; 0 if it is absent or not a number."""
    numbers, _ = nodes.label_numbers()
    return np.append(numbers, 0).take(nodes.label(label), mode="wrap")  # ABSENT, -1, is the last
