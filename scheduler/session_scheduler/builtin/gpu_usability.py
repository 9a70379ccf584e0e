"""The measure of GpuFragmentation: how much of the free GPUs on each node the pods of a workload can use, in columns.

A state is what is free on one node; states are the rows of an integer matrix. Its columns are CPU (millicores), memory
(bytes), whether a pod with whole GPUs and whether a sharer may be placed, and the free thousandths of each GPU,
ascending.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.gpu_shares import WHOLE

CPU, MEMORY, TAKES_WHOLE, TAKES_SHARES, GPUS = range(5)
"""The columns of a state. GPUS is the first GPU's."""
Amounts = np.ndarray[Any, np.dtype[np.int32]]
FloatColumn = np.ndarray[Any, np.dtype[np.float64]]
_NEVER: Final = 2**40
"""The size of a share by memory on a node that does not report the memory of its GPUs."""
MOST_REQUESTS: Final = 64
"""The most requests that get a weight: the most frequent ones. In each variant of the trace `openb`, 98 percent of the
pods with GPUs have them; rarer ones hardly change a sum, but each one costs time and memory on every node."""
MOST_SELECTORS: Final = 64
"""The most node selectors that get a weight: the most frequent ones. Each one costs time on every node."""
_COLUMNS: Final = MOST_REQUESTS * 3 // 2
"""The most requests with columns: more than get a weight, because requests near that limit come and go."""
_KEPT_BYTES: Final = 2**26
"""The approximate memory for the columns of all placed requests; those of one request are kept in any case."""
_ROWS: Final = 128
"""The number of states that are measured at once. With larger intermediate arrays each state takes more time."""
_PARTS: Final = 32
"""Amounts are integers, in 1/32 of a thousandth of a GPU, and weights in 2^-20. So sums are exact in any order."""
_WEIGHT: Final = 2**20
_BITS: Final = 3
"""Requests are alike if their amounts have the same first three bits: then they differ by less than a quarter."""


class GpuRequest(msgspec.Struct, frozen=True, order=True):
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

    def alike(self) -> tuple[int, ...]:
        """Equal for requests that count as one: those with about the same CPU, memory and MiB."""
        return *map(_first_bits, (self.cpu, self.memory, self.mib)), self.count, self.thousandths


def _first_bits(amount: int) -> int:
    rest = max(amount.bit_length() - _BITS, 0)
    return amount >> rest << rest


_T = TypeVar("_T", GpuRequest, bytes)


def most_frequent(pods: Mapping[tuple[GpuRequest, bytes], int]) -> Counter[tuple[GpuRequest, bytes]]:
    """The number of pods by request and selector, for the most frequent of both.

    Requests that are alike count as the most frequent one of them. Equal input in any order gives the same answer.
    """
    exact: Counter[GpuRequest] = Counter()
    selected: Counter[bytes] = Counter()
    for (request, selector), number in pods.items():
        exact[request] += number
        selected[selector] += number
    first: dict[tuple[int, ...], GpuRequest] = {}
    chosen = {request: first.setdefault(request.alike(), request) for request in _by_number(exact)}
    merged: Counter[GpuRequest] = Counter()
    for request, one in chosen.items():
        merged[one] += exact[request]
    requests, selectors = {*_by_number(merged)[:MOST_REQUESTS]}, {*_by_number(selected)[:MOST_SELECTORS]}
    found: Counter[tuple[GpuRequest, bytes]] = Counter()
    for (request, selector), number in pods.items():
        one = chosen[request]
        if one in requests and selector in selectors:
            found[one, selector] += number
    return found


def _by_number(numbers: Counter[_T]) -> list[_T]:
    """The most frequent first, and the smaller of equally frequent ones."""
    return sorted(sorted(numbers), key=lambda one: -numbers[one])


class Workload:
    """The requests of a workload's pods, and how much of a node's free GPUs each of them can use.

    A request can use the free parts of the GPUs on which it fits, as in the paper on Fragmentation Gradient Descent
    (ATC 2023). If the node were filled with such pods, CPU or memory might suffice for only a fraction of these GPUs:
    then the request can use that fraction. If no such pod fits, the request can use none of them.
    """

    def __init__(self, requests: Sequence[GpuRequest], memories: Sequence[int], *, mixed: bool) -> None:
        """`memories`: the MiB of one GPU, by group of nodes. `mixed`: a node may have whole and shared GPUs at once."""
        sizes = sorted({(one.thousandths, one.mib) for one in requests})
        self._of_size = np.array([sizes.index((one.thousandths, one.mib)) for one in requests], np.int64)
        self._sizes = np.array(
            [[GpuRequest(0, 0, 1, *size).size(memory) for size in sizes] for memory in memories], np.int64
        ).reshape(len(memories), len(sizes))
        self._is_whole = np.array([size == (WHOLE, 0) for size in sizes], np.bool_)
        self._count = np.array([one.count for one in requests], np.int64)
        self._cpu = np.array([one.cpu for one in requests], np.int64)
        self._memory = np.array([one.memory for one in requests], np.int64)
        self._memories = memories
        self._mixed = mixed
        self.amounts: IntColumn = self._count * self._sizes.min(axis=0, initial=_NEVER)[self._of_size]
        """By request: the thousandths of GPUs that a pod needs; for a share by memory, on the largest GPUs."""

    def usable(self, states: IntColumn, groups: IntColumn) -> FloatColumn:
        """The thousandths of GPUs that each request can use: shape [state, request]."""
        gpus, sizes = states[:, GPUS:].T[:, :, None].astype(np.float64), self._sizes[groups]  # [GPU, state, size]
        fits = gpus >= sizes
        allowed = np.where(self._is_whole, states[:, TAKES_WHOLE, None], states[:, TAKES_SHARES, None]) > 0
        amount = (gpus * fits).sum(axis=0)[:, self._of_size]
        number = fits.sum(axis=0)[:, self._of_size]
        found = allowed[:, self._of_size] & (number >= self._count)
        usable: FloatColumn = amount * found
        fraction: FloatColumn | float = 1.0
        copies = number / self._count
        for free, requested in ((states[:, CPU, None], self._cpu), (states[:, MEMORY, None], self._memory)):
            usable *= free >= requested
            needed = np.maximum(requested * copies, 1)
            fraction = np.minimum(fraction, np.maximum(free, 1) / needed)
        return usable * np.sqrt(fraction)

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


@dataclass(slots=True)
class _Usable:
    """What each request can use of each row's node after one pod was placed on it."""

    amounts: Amounts
    """Shape [row, request]."""
    change: IntColumn
    """By row: the number of the change of its state for which the amounts were computed."""
    sums: IntColumn
    """By row: the weighted sum of the amounts."""
    sums_change: IntColumn
    """By row: the same for the sums."""
    requests: int = 0
    """The number of requests with amounts."""
    weights: int = -1
    """The number of the weights for which the sums were computed."""


class Losses:
    """By request and node: how much less the workload can use after a pod with that request is placed there.

    This object keeps what requests can use. It computes that again only for nodes whose state has changed, and for new
    requests, so new weights cost only a sum over the requests. The kept results never change an answer.
    """

    def __init__(self, memories: IntColumn, width: int, *, mixed: bool) -> None:
        """`memories`: by row, the MiB of one GPU, 0 if unknown. `width`: the columns of a state."""
        values, kinds = np.unique(memories, return_inverse=True)
        rows = len(memories)
        self._memories: list[int] = values.tolist()
        self._kinds: IntColumn = kinds.reshape(-1)
        self._mixed = mixed
        self._states = np.zeros((rows, width), np.int64)
        self._change = np.zeros(rows, np.int64)
        self._requests: list[GpuRequest] = []
        self._workload = self._workload_of(self._requests)
        self._weights = np.zeros((0, 0), np.int64)
        """Shape [row, request]."""
        self._weights_number = 0
        self._groups = _Groups(np.zeros((1, rows), np.bool_))
        self._unchanged = self._nothing_kept()
        """What requests can use if no pod is placed."""
        self._kept: dict[GpuRequest, _Usable] = {}
        """By placed request, the one used last at the end."""
        self._most_kept = max(1, _KEPT_BYTES // (rows * (_COLUMNS * 4 + 24) + 1))

    def weigh(self, pods: Mapping[tuple[GpuRequest, int], int], states: IntColumn, accepted: BoolColumn) -> bool:
        """Set the weights, from the states of all rows. Returns whether any request can use anything.

        `pods`: the number of pods by request and selector (an index). `accepted`: shape [selector, row], the rows that
        a selector accepts.
        """
        self._weights_number += 1
        if not pods or not len(states):
            return False
        rows = np.arange(len(states))
        self._note(rows, states)
        self._know(sorted({request for request, _ in pods}))
        self._update(self._unchanged, None, rows)
        places = {request: place for place, request in enumerate(self._requests)}
        numbers = np.zeros((len(accepted), len(places)), np.int64)
        for (request, selector), number in pods.items():
            numbers[selector, places[request]] = number
        if not np.array_equal(accepted, self._groups.accepted):
            self._groups = _Groups(accepted)
        usable = self._groups.sums(self._unchanged.amounts[:, : len(self._requests)])
        weights = weights_of(numbers, self._workload.amounts * _PARTS, usable, self._groups.patterns)
        self._weights = weights[self._groups.of_row]
        return bool(weights.any())

    def of(self, request: GpuRequest, rows: IntColumn, states: IntColumn) -> IntColumn:
        """The losses on these rows."""
        self._note(rows, states)
        kept = self._kept.pop(request, None) or self._nothing_kept()
        if len(self._kept) >= self._most_kept:
            del self._kept[next(iter(self._kept))]
        self._kept[request] = kept
        self._extend(kept, request)
        return self._sums(self._unchanged, None, rows) - self._sums(kept, request, rows)

    def _sums(self, kept: _Usable, request: GpuRequest | None, rows: IntColumn) -> IntColumn:
        """What all requests can use on these rows, weighted."""
        if kept.weights != self._weights_number:
            kept.sums_change.fill(-1)
            kept.weights = self._weights_number
        due = rows[kept.sums_change[rows] != self._change[rows]]
        if len(due):
            self._update(kept, request, due)
            some = slice(len(self._requests))
            kept.sums[due] = np.einsum("ij,ij->i", kept.amounts[due, some], self._weights[due, some])
            kept.sums_change[due] = self._change[due]
        return kept.sums[rows]

    def _note(self, rows: IntColumn, states: IntColumn) -> None:
        """Store the current states of rows."""
        changed = rows[(self._states[rows] != states).any(axis=1)]
        self._states[rows] = states
        self._change[changed] += 1

    def _know(self, requests: Sequence[GpuRequest]) -> None:
        """Keep amounts for these requests from now on, too; or for no others, if they would be too many."""
        known = set(self._requests)
        new = [request for request in requests if request not in known]
        if not new:
            return
        if len(self._requests) + len(new) > _COLUMNS:
            new, self._requests = list(requests), []
            self._unchanged = self._nothing_kept()
            self._kept.clear()
        self._requests = self._requests + new
        self._workload = self._workload_of(self._requests)
        self._extend(self._unchanged, None)

    def _extend(self, kept: _Usable, request: GpuRequest | None) -> None:
        """Compute the amounts of requests that are new since."""
        first, kept.requests = kept.requests, len(self._requests)
        if first < kept.requests:
            workload = self._workload_of(self._requests[first:])
            for some in _chunks(np.flatnonzero(kept.change == self._change)):
                kept.amounts[some, first : kept.requests] = self._computed(workload, request, some)

    def _update(self, kept: _Usable, request: GpuRequest | None, rows: IntColumn) -> None:
        """Compute the amounts of the rows whose state has changed since."""
        stale = rows[kept.change[rows] != self._change[rows]]
        for some in _chunks(stale):
            kept.amounts[some, : kept.requests] = self._computed(self._workload, request, some)
        kept.change[stale] = self._change[stale]

    def _computed(self, workload: Workload, request: GpuRequest | None, rows: IntColumn) -> Amounts:
        states, kinds = self._states[rows], self._kinds[rows]
        if request is not None:
            states = workload.after(states, kinds, request)
        return np.rint(workload.usable(states, kinds) * _PARTS).astype(np.int32)

    def _workload_of(self, requests: Sequence[GpuRequest]) -> Workload:
        return Workload(requests, self._memories, mixed=self._mixed)

    def _nothing_kept(self) -> _Usable:
        rows = len(self._change)
        never = np.full(rows, -1, np.int64)
        amounts = np.zeros((rows, _COLUMNS), np.int32)
        return _Usable(amounts, never, np.zeros(rows, np.int64), never.copy(), len(self._requests))


def _chunks(rows: IntColumn) -> Iterator[IntColumn]:
    return (rows[first : first + _ROWS] for first in range(0, len(rows), _ROWS))


class _Groups:
    """Rows that the same selectors accept."""

    def __init__(self, accepted: BoolColumn) -> None:
        """`accepted`: shape [selector, row]."""
        self.accepted = accepted
        self.patterns, groups = np.unique(accepted, axis=1, return_inverse=True)
        """Shape [selector, group]: whether the selector accepts the group's rows."""
        self.of_row: IntColumn = groups.reshape(-1)
        self._order = np.argsort(self.of_row, kind="stable")
        self._first = np.searchsorted(self.of_row[self._order], np.arange(self.patterns.shape[1]))

    def sums(self, amounts: Amounts) -> IntColumn:
        """Shape [group, request], from [row, request]."""
        found: IntColumn = np.add.reduceat(amounts[self._order], self._first, axis=0, dtype=np.int64)
        return found


def weights_of(pods: IntColumn, amounts: IntColumn, usable: IntColumn, accepted: BoolColumn) -> IntColumn:
    """The weight of each request on each group: shape [group, request]. All selectors' weights add up to 2^20, or are
    0.

    `pods`: shape [selector, request], the number of pods. `amounts`: by request, what one pod needs of GPUs. `usable`:
    shape [group, request]. `accepted`: shape [selector, group], the groups that a selector accepts.

    The weight of a request is its number of pods, divided by a sum: the GPUs that these pods need, and those that the
    accepted nodes have left for more of them. What is scarce weighs more. If nothing is left, the weight is 0.
    """
    left = accepted.astype(np.int64) @ usable
    parts = np.where(left > 0, pods / np.maximum(pods * amounts + left, 1), 0.0)
    total = math.fsum(parts.flat)
    weights = np.rint(parts * (_WEIGHT / total if total else 0.0)).astype(np.int64)
    return accepted.T.astype(np.int64) @ weights
