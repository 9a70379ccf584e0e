"""Filters and scores of GpuSharing in columns over nodes, from the free amounts of their GPUs (`gpu_amounts`).

It reads everything through a view of nodes, so that trial placements, simulated removals and nominated pods count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from session_scheduler.builtin.first_reasons import first_reasons
from session_scheduler.builtin.gpu_amounts import GpuAmounts, Gpus, Matrix
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.gpu_shares import GIVEN, MEMORY_SUFFIX, SHARERS, UNRESERVED, WHOLE, Placed, Share

INSUFFICIENT: Final = "Insufficient shared GPU"
NO_GPUS: Final = "node(s) had no GPUs to share"
HAD_WHOLE: Final = "node(s) had whole GPUs allocated to other pods"
HAD_SHARERS: Final = "node(s) had GPUs shared by other pods"
HAD_FAILED: Final = "node(s) failed to reserve shared GPUs recently"
HAD_UNRESERVED: Final = "node(s) had shared GPUs without reservation pods"
NO_MEMORY: Final = "node(s) did not report the memory of their GPUs"
LITTLE_MEMORY: Final = "node(s) had GPUs with too little memory"
_HALF: Final = 50
"""Half of the points of a score."""
_RESERVED_IF: Final = "reservation pods held all shared GPUs of {}"


class GpuColumns:
    """Which of a view's nodes fit a share or whole GPUs, their scores, and the reasons of the others."""

    def __init__(
        self, nodes: NodeView, gpus: Gpus, *, reserved: bool = False, closed: Sequence[int] = (), kept_whole: int = 100
    ) -> None:
        """`reserved`: a node may have whole and shared GPUs at once, because reservation pods hold the shared ones.

        `closed`: the rows of nodes that get no further pods that share GPUs. `kept_whole`: how much pods that share
        avoid nodes without shared GPUs if `reserved` is false, in percent: see `gpu_demand`.
        """
        self._nodes = nodes
        self._gpus = gpus
        self._reserved = reserved
        self._closed = closed
        self._kept_whole = kept_whole

    @cached_property
    def amounts(self) -> GpuAmounts:
        """The GPUs of the nodes."""
        return self._gpus.of(self._nodes)

    @cached_property
    def _full(self) -> IntColumn:
        """The units of a GPU."""
        return WHOLE * self.amounts.per_thousandth

    def free_on(self, index: int) -> list[int]:
        """The free amount of each GPU of the view's node at this index."""
        found: list[int] = self.amounts.free[index, : self.amounts.gpus[index]].tolist()
        return found

    # ------------------------------------------------------------------ which nodes fit a share

    def never(self, share: Share) -> BoolColumn:
        """The nodes where a share does not fit even without other pods."""
        amounts = self.amounts
        never: BoolColumn = (amounts.gpus < share.count) | (self._needs(share) > self._full)
        if share.mib:
            never |= amounts.memory == 0
        if self._closed:
            never |= self._has_failed
        return never

    @property
    def _has_failed(self) -> BoolColumn:
        return np.isin(self._nodes.row_numbers, self._closed)

    def fits(self, share: Share, expected: Callable[[int], Iterable[Share]]) -> BoolColumn:
        """The nodes where this share fits beside the view's extra tasks and the shares of `expected` at an index.

        If each extra task needs one GPU, it does not matter which one, because their shares are equal.
        """
        fits = ~(self.never(share) | (self._unreserved if self._reserved else self.amounts.whole > 0))
        extra, needs = self._extra(), self._needs(share)[:, None]
        one_by_one = self._expected_sharers() > 0
        if extra is not None and share.count == 1:
            enough = (self.amounts.free // needs).sum(axis=1) > extra
        else:
            enough = (self.amounts.free >= needs).sum(axis=1) >= share.count
            one_by_one |= False if extra is None else extra > 0
        fits &= one_by_one | enough
        for index in np.flatnonzero(fits & one_by_one).tolist():
            more = 0 if extra is None else int(extra[index])
            fits[index] = self._fits_after(index, [*expected(index), *([share] * more)], share)
        return fits

    def fits_whole(self, number: int, expected: Callable[[int], Iterable[Share]]) -> BoolColumn:
        """The nodes where a pod with this number of whole GPUs fits, beside the shares of `expected` at an index."""
        fits: BoolColumn = self._nodes.counter(SHARERS) == 0
        if not self._reserved:
            return fits
        untouched = self.amounts.untouched
        fits = ~self._unreserved & (untouched >= number)
        nominated = self._nodes.counter(SHARERS) > self._nodes.counter(GIVEN)
        for index in np.flatnonzero(fits & nominated).tolist():
            free, full = self.free_on(index), int(self._full[index])
            before = free.count(full)
            for one in expected(index):
                pack(free, one.units(self._per(index)), one.count)
            fits[index] = untouched[index] - (before - free.count(full)) >= number
        return fits

    @property
    def _unreserved(self) -> BoolColumn:
        """The nodes where a pod shares a GPU that the kubelet may give to another pod."""
        return self._nodes.counter(UNRESERVED) > 0

    def _fits_after(self, index: int, before: Iterable[Share], share: Share) -> bool:
        free, per = self.free_on(index), self._per(index)
        for one in before:
            if pack(free, one.units(per), one.count) is None and one == share:
                return False
        return pack(free, share.units(per), share.count) is not None

    def _needs(self, share: Share) -> IntColumn:
        per = self.amounts.per_thousandth
        return share.units(1) * per if share.thousandths else np.full(len(per), share.units(0))

    def _per(self, index: int) -> int:
        return int(self.amounts.per_thousandth[index])

    def _extra(self) -> IntColumn | None:
        extra = self._nodes.extra
        return extra if extra is not None and extra.any() else None

    def _expected_sharers(self) -> IntColumn:
        """The number of nominated sharers: counted without GPUs, and not among the view's extra tasks."""
        sharers = self._nodes.counter(SHARERS) - self._nodes.counter(GIVEN)
        extra = self._extra()
        return sharers if extra is None else sharers - extra

    def expected_with(self, share: Share, index: int, *, own: bool) -> int:
        """The number of nominated sharers with this share on the node at this index; `own`: the extra tasks have it."""
        extra = self._extra() if own else None
        expected = self._nodes.counter(share)[index] - self._nodes.counter(Placed(share))[index]
        return int(expected if extra is None else expected - extra[index])

    # ------------------------------------------------------------------ scores and reasons

    def scores(self, share: Share, cpu: int) -> IntColumn:
        """0 to 100, for a pod with this CPU request: half for the GPUs that it gets, half for the balance.

        The less it leaves on GPUs that other pods share already, the higher; untouched GPUs count 0. If a node's GPUs
        are all whole or all shared, nodes where pods share GPUs get up to 50 instead, and both halves count less.
        """
        needs, full, count = self._needs(share)[:, None], self._full[:, None], share.count
        free, found = self.amounts.ascending, self._extra()
        extra = np.zeros(len(free), np.int64) if found is None else found
        for before in range(int(extra.max(initial=0))):
            more = (extra > before)[:, None]
            free = np.sort(free - np.where(_fullest(free, needs, count) & more, needs, 0), axis=1)
        chosen = _fullest(free, needs, count)
        free = free - np.where(chosen, needs, 0)
        filled = np.where(chosen & (free + needs < full), _HALF - _HALF * free // full, 0).sum(axis=1) // count
        gpu_left = 100 * free.sum(axis=1) // np.maximum(self._full * self.amounts.gpus, 1)
        points: IntColumn = filled + self._balance(gpu_left, cpu)
        if self._reserved:
            return points
        shares = self._nodes.counter(SHARERS) > 0
        return points - points * self._kept_whole // 200 + np.where(shares, self._kept_whole // 2, 0)

    def scores_whole(self, number: int, cpu: int) -> IntColumn:
        """0 to 100, for a pod with this number of whole GPUs: half for the GPUs that it gets, half for the balance.

        The fewer GPUs it leaves on a node where pods use GPUs already, the higher; other nodes count 0.
        """
        gpus, untouched = self.amounts.gpus, self.amounts.untouched
        left = 100 * np.clip(untouched - number, 0, gpus) // np.maximum(gpus, 1)
        filled = np.where(untouched < gpus, _HALF - left // 2, 0)
        points: IntColumn = filled + self._balance(left, cpu)
        return points

    def _balance(self, gpu_left: IntColumn, cpu: int) -> IntColumn:
        """0 to 50: the closer the used parts of CPU and of GPUs are, the higher, or GPUs would be left without CPU."""
        cpu_used = 100 * (self._nodes.used("cpu") + cpu) // np.maximum(self._nodes.allocatable("cpu"), 1)
        points: IntColumn = np.maximum(_HALF - np.abs(100 - gpu_left - cpu_used) // 2, 0)
        return points

    def reasons(self, share: Share) -> dict[str, BoolColumn]:
        """Why nodes do not fit a pod with this share: the first reason that holds for each."""
        amounts = self.amounts
        reasons = [
            (NO_GPUS, amounts.gpus == 0),
            (f"node(s) had fewer than {share.count} GPUs to share", amounts.gpus < share.count),
            (NO_MEMORY, (amounts.memory == 0) & bool(share.mib)),
            (LITTLE_MEMORY, self._needs(share) > self._full),
            (HAD_FAILED, self._has_failed),
            (HAD_UNRESERVED, self._unreserved) if self._reserved else (HAD_WHOLE, amounts.whole > 0),
        ]
        return first_reasons(len(self._nodes), reasons, INSUFFICIENT)

    def reasons_whole(self) -> dict[str, BoolColumn]:
        """Why nodes do not fit a pod with whole GPUs: the first reason that holds for each."""
        return first_reasons(len(self._nodes), [(HAD_UNRESERVED, self._unreserved & self._reserved)], HAD_SHARERS)

    def whole_if(self, number: int) -> list[list[str]]:
        """The change that would make each node fit a pod with this number of whole GPUs."""
        unreserved = self.reasons_whole().get(HAD_UNRESERVED)
        return [[self._change_whole(index, number, unreserved is not None and bool(unreserved[index]))]
                for index in range(len(self._nodes))]  # fmt: skip

    def _change_whole(self, index: int, number: int, unreserved: bool) -> str:
        node = self._nodes.node(index).metadata.name
        if not self._reserved:
            return f"no pod shared a GPU of {node}"
        if unreserved:
            return _RESERVED_IF.format(node)
        wanted = f"1 GPU of {node} was" if number == 1 else f"{number} GPUs of {node} were"
        return f"{wanted} unused ({int(self.amounts.untouched[index])} now)"

    def fits_if(self, share: Share) -> list[str | None]:
        """The change that would make each node fit; None if unknown."""
        reasons = self.reasons(share)
        return [
            self._change(index, share, next(text for text, rows in reasons.items() if rows[index]))
            for index in range(len(self._nodes))
        ]

    def _change(self, index: int, share: Share, why: str) -> str | None:
        node = self._nodes.node(index).metadata.name
        if why == HAD_UNRESERVED:
            return _RESERVED_IF.format(node)
        if why == HAD_WHOLE:
            return f"no pod used whole GPUs on {node}"
        if why == NO_MEMORY:
            resource = next(one for one in self._gpus.resources if self._nodes.allocatable(one)[index])
            return f"{node} had the label {resource}{MEMORY_SUFFIX} (MiB of one GPU)"
        if why != INSUFFICIENT:
            return None
        per = 0 if share.mib else self._per(index)
        now = ", ".join(f"{_free_text(free, per)} of GPU {gpu}" for gpu, free in enumerate(self.free_on(index)))
        return f"{share} were free on {node} ({now} now)"


def _fullest(free: Matrix, needs: Matrix, count: int) -> BoolColumn:
    """The `count` fullest GPUs that fit on each node, of free amounts in ascending order: shape [node, gpu]."""
    fits = free >= needs
    return fits & (np.cumsum(fits, axis=1) <= count)


def pack(free: list[int], need: int, count: int) -> tuple[int, ...] | None:
    """Take the amount from `count` GPUs, the fullest ones that fit it first, then by index; None if too few fit it."""
    fitting = sorted((left, gpu) for gpu, left in enumerate(free) if left >= need)
    if len(fitting) < count:
        return None
    chosen = sorted(gpu for _, gpu in fitting[:count])
    for gpu in chosen:
        free[gpu] -= need
    return tuple(chosen)


def _free_text(free: int, per_thousandth: int) -> str:
    """The free amount for messages, rounded down; in MiB if `per_thousandth` is 0."""
    return f"{free // per_thousandth / WHOLE:g}" if per_thousandth else f"{free // WHOLE} MiB"
