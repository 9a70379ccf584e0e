"""The measure of GpuFragmentation: how much of the free GPUs on each node the pods of a workload can use, in columns.

A state is what is free on one node; states are the rows of an integer matrix. Its columns are CPU (millicores), memory
(bytes), whether a pod with whole GPUs and whether a sharer may come, and the free thousandths of each GPU, ascending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.gpu_shares import WHOLE

CPU, MEMORY, TAKES_WHOLE, TAKES_SHARES, GPUS = range(5)
"""The columns of a state. GPUS is the first GPU's."""
FloatColumn = np.ndarray[Any, np.dtype[np.float64]]
_NEVER: Final = 2**40
"""The size of a share by memory on a node that does not report the memory of its GPUs."""
_ROWS: Final = 512
"""So many states are measured at once, so that the arrays in between stay small."""
_PARTS: Final = 1024
"""Losses are integers, in 1/1024 of a thousandth of a GPU: rounding errors decide nothing."""


@dataclass(frozen=True, slots=True, order=True)
class GpuRequest:
    """What a pod requests: CPU in millicores, memory in bytes, and the same part of each of `count` GPUs."""

    cpu: int
    memory: int
    count: int = 0
    thousandths: int = 0
    mib: int = 0
    """The part as an amount of GPU memory; `thousandths` is 0 then."""

    def size(self, memory: int) -> int:
        """The thousandths of each GPU, if a GPU has so many MiB (0: unknown), rounded up."""
        if not self.mib:
            return self.thousandths
        return -(-self.mib * WHOLE // memory) if memory else _NEVER


class Workload:
    """The requests of a workload's pods, and how much of a node's free GPUs each of them can use.

    A request can use the free parts of the GPUs that it fits on, as in the paper on Fragmentation Gradient Descent
    (ATC 2023). This measure reduces them to the fraction for which CPU and memory suffice, if the node were filled with
    such pods. If no such pod fits, it can use none.
    """

    def __init__(self, requests: Sequence[GpuRequest], memories: Sequence[int], *, mixed: bool) -> None:
        """`memories`: the MiB of one GPU, by group of nodes. `mixed`: a node may have whole and shared GPUs at once."""
        sizes = sorted({(one.thousandths, one.mib) for one in requests})
        self._of_size = np.array([sizes.index((one.thousandths, one.mib)) for one in requests], np.int64)
        self._sizes = np.array(
            [[GpuRequest(0, 0, 1, *size).size(memory) for size in sizes] for memory in memories], np.int64
        )
        self._is_whole = np.array([size == (WHOLE, 0) for size in sizes], np.bool_)
        self._count = np.array([one.count for one in requests], np.int64)
        self._cpu = np.array([one.cpu for one in requests], np.int64)
        self._memory = np.array([one.memory for one in requests], np.int64)
        self._memories = memories
        self._mixed = mixed
        self.amounts: IntColumn = self._count * self._sizes.min(axis=0)[self._of_size]
        """By request: the thousandths of GPUs that a pod needs; for a share by memory, on the largest GPUs."""

    def usable(self, states: IntColumn, groups: IntColumn) -> FloatColumn:
        """The thousandths of GPUs that each request can use: shape [state, request]."""
        gpus, sizes = states[:, None, GPUS:], self._sizes[groups][:, :, None]
        fits = gpus >= sizes
        allowed = np.where(self._is_whole, states[:, TAKES_WHOLE, None], states[:, TAKES_SHARES, None]) > 0
        amount = np.where(fits, gpus, 0).sum(axis=2)[:, self._of_size]
        slots = (gpus // sizes).sum(axis=2)[:, self._of_size]
        found = allowed[:, self._of_size] & (fits.sum(axis=2)[:, self._of_size] >= self._count)
        fraction = np.ones(found.shape)
        for free, requested in ((states[:, CPU], self._cpu), (states[:, MEMORY], self._memory)):
            found &= free[:, None] >= requested
            needed = requested * (slots / self._count)
            fraction = np.where(
                needed > free[:, None], np.minimum(fraction, free[:, None] / np.maximum(needed, 1)), fraction
            )
        usable: FloatColumn = np.where(found, amount * fraction, 0.0)
        return usable

    def after(self, states: IntColumn, groups: IntColumn, request: GpuRequest) -> IntColumn:
        """The states after a pod with this request was placed, on the fullest GPUs that fit it."""
        found = states.copy()
        found[:, CPU] -= request.cpu
        found[:, MEMORY] -= request.memory
        if request.count:
            size = np.array([request.size(memory) for memory in self._memories], np.int64)[groups][:, None]
            gpus = states[:, GPUS:]
            first = (gpus < size).sum(axis=1)[:, None]
            places = np.arange(gpus.shape[1])
            found[:, GPUS:] -= np.where((places >= first) & (places < first + request.count), size, 0)
            if not self._mixed:
                found[:, TAKES_SHARES if request.thousandths == WHOLE else TAKES_WHOLE] = 0
        return np.maximum(found, 0)


class Losses:
    """By request and node: how much less the workload can use after a pod with that request is placed there.

    It keeps the losses, and computes those of nodes whose state has changed since.
    """

    def __init__(self, workload: Workload, weights: FloatColumn, groups: IntColumn, width: int) -> None:
        """`weights`: shape [group, request]. `groups`: by row of the node table. `width`: the columns of a state."""
        self._workload = workload
        self._weights = weights
        self._groups = groups
        rows = len(groups)
        self._states = np.zeros((rows, width), np.int64)
        self._changes = np.zeros(rows, np.int64)
        self._usable = np.zeros(rows)
        self._usable_at = np.full(rows, -1, np.int64)
        self._kept: dict[GpuRequest, tuple[IntColumn, IntColumn]] = {}

    def of(self, request: GpuRequest, rows: IntColumn, states: IntColumn, mask: BoolColumn) -> IntColumn:
        """The losses on these rows, in 1/1024 of a thousandth of a GPU; undefined for cleared rows of the mask."""
        changed = rows[(self._states[rows] != states).any(axis=1)]
        self._states[rows] = states
        self._changes[changed] += 1
        if request not in self._kept:
            self._kept[request] = np.zeros(len(self._groups), np.int64), np.full(len(self._groups), -1, np.int64)
        losses, kept_at = self._kept[request]
        due = rows[mask & (kept_at[rows] != self._changes[rows])]
        for start in range(0, len(due), _ROWS):
            some = due[start : start + _ROWS]
            losses[some] = self._computed(request, some)
        kept_at[due] = self._changes[due]
        return losses[rows]

    def _computed(self, request: GpuRequest, rows: IntColumn) -> IntColumn:
        stale = rows[self._usable_at[rows] != self._changes[rows]]
        if len(stale):
            self._usable[stale] = self._weighted(self._states[stale], self._groups[stale])
            self._usable_at[stale] = self._changes[stale]
        groups = self._groups[rows]
        then = self._weighted(self._workload.after(self._states[rows], groups, request), groups)
        losses: IntColumn = np.rint((self._usable[rows] - then) * _PARTS).astype(np.int64)
        return losses

    def _weighted(self, states: IntColumn, groups: IntColumn) -> FloatColumn:
        found: FloatColumn = (self._workload.usable(states, groups) * self._weights[groups]).sum(axis=1)
        return found


def weights_of(
    pods: Mapping[tuple[int, int], int],
    amounts: IntColumn,
    usable: FloatColumn,
    accepted: BoolColumn,
    groups: IntColumn,
) -> FloatColumn:
    """The weight of each request on each group of nodes: shape [group, request]. All weights add up to 1, or are 0.

    `pods`: the number of pods by request and selector (their indices). `amounts`: by request, the thousandths of GPUs
    of one pod. `usable`: shape [row, request]. `accepted`: shape [selector, row], the rows that a selector accepts.

    A request weighs its number of pods, divided by what these pods need and what the accepted nodes have left for more
    of them: what is scarce weighs more. If nothing is left, it weighs nothing.
    """
    weights = np.zeros((int(groups.max(initial=-1)) + 1, usable.shape[1]))
    total = 0.0
    for (request, selector), number in sorted(pods.items()):
        left = float(usable[accepted[selector], request].sum())
        if left > 0:
            weight = number / (number * int(amounts[request]) + left)
            weights[np.unique(groups[accepted[selector]]), request] += weight
            total += weight
    return weights / total if total else weights
