"""The free amounts of shared GPUs as columns over nodes. GpuSharing filters and scores nodes with them.

It reads everything through a view of nodes, so that trial placements, simulated removals and nominated pods count.
Amounts are integers: a GPU has 1000 units for each MiB of its memory, or 1000 units if its memory is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from session_scheduler.builtin.first_reasons import first_reasons
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.gpu_shares import (
    EVERY,
    GIVEN,
    LARGEST_MIB,
    MEMORY_SUFFIX,
    MOST_GPUS,
    SHARERS,
    UNRESERVED,
    WHOLE,
    GpuUse,
    Placed,
    Share,
)

INSUFFICIENT: Final = "Insufficient shared GPU"
NO_GPUS: Final = "node(s) had no GPUs to share"
HAD_WHOLE: Final = "node(s) had GPUs allocated whole to other pods"
HAD_SHARERS: Final = "node(s) had GPUs shared by other pods"
HAD_FAILED: Final = "node(s) failed to reserve shared GPUs recently"
HAD_UNRESERVED: Final = "node(s) had shared GPUs without reservation pods"
NO_MEMORY: Final = "node(s) did not report the memory of their GPUs"
LITTLE_MEMORY: Final = "node(s) had GPUs with too little memory"
_HALF: Final = 50
"""Half of the points of a score."""
_RESERVED_IF: Final = "reservation pods held all shared GPUs of {}"
_MOST_THOUSANDTHS: Final = 2**12
_MOST_MIB: Final = 2**40
"""The used amounts of one GPU are capped at these, so that sums and products stay within 64 bits."""


class GpuColumns:
    """The GPUs of a view's nodes. A node's GPUs are those of the first configured resource that it offers."""

    # more than five parameters: the plugin's state
    def __init__(
        self,
        nodes: NodeView,
        resources: Iterable[str],
        highest: int,
        *,
        reserved: bool = False,
        closed: Sequence[int] = (),
    ) -> None:
        """`highest`: the highest GPU index that any pod uses on any node.

        `reserved`: a node may have whole and shared GPUs at once, because reservation pods hold the shared ones.
        `closed`: the rows of nodes that get no further pods that share GPUs.
        """
        self._nodes = nodes
        self._resources = tuple(resources)
        gpus = np.zeros(len(nodes), np.int64)
        memory, whole = gpus.copy(), gpus.copy()
        for resource in self._resources:
            offered = nodes.allocatable(resource)
            first = (gpus == 0) & (offered > 0)
            gpus = np.where(first, offered, gpus)
            memory = np.where(first, _numbers(nodes, resource + MEMORY_SUFFIX), memory)
            whole = whole + nodes.used(resource)
        self.gpus: IntColumn = np.minimum(gpus, MOST_GPUS)
        self.memory: IntColumn = np.clip(memory, 0, LARGEST_MIB)
        """MiB of one GPU; 0 if unknown."""
        self._whole: IntColumn = whole
        """The GPUs that pods use whole."""
        self._not_whole: IntColumn = np.maximum(gpus - whole, 0)
        self.per_thousandth: IntColumn = np.maximum(self.memory, 1)
        self._highest = highest
        self._reserved = reserved
        self._closed = closed
        self._free: list[IntColumn] | None = None

    @property
    def free(self) -> Sequence[IntColumn]:
        """By index: the free amount of that GPU; 0 if the node has no such GPU."""
        if self._free is None:
            most = int(self.gpus.max(initial=0))
            on_each = self._used(EVERY)
            for gpu in range(self._highest + 1):  # if the node has fewer GPUs now, the pod may use any of them
                beyond = self.gpus <= gpu
                if beyond.any():
                    on_each = on_each + np.where(beyond, self._used(gpu), 0)
            whole = WHOLE * self.per_thousandth
            used = [self._used(gpu) for gpu in range(most)]
            left = [np.maximum(whole - amount - on_each, 0) for amount in used]
            self._free = [np.where(self.gpus > gpu, free, 0) for gpu, free in enumerate(left)]
            if self._reserved:
                self._leave_whole(self._free, used)
        return self._free

    def _leave_whole(self, free: Sequence[IntColumn], used: Iterable[IntColumn]) -> None:
        """Set the free amount of unused GPUs to 0 from the end, as many as other pods use whole.

        The index of a GPU that is used whole is unknown, and so is the index of an unused one until it is shared.
        """
        shared = [amount > 0 for amount in used]
        untouched = self.untouched
        for gpu, column in enumerate(free):
            unused = ~shared[gpu] & (self.gpus > gpu)
            column[unused & (untouched <= 0)] = 0
            untouched = untouched - unused

    def _used(self, gpu: int) -> IntColumn:
        thousandths: IntColumn = np.minimum(self._nodes.counter(GpuUse(gpu, in_mib=False)), _MOST_THOUSANDTHS)
        mib: IntColumn = np.minimum(self._nodes.counter(GpuUse(gpu, in_mib=True)), _MOST_MIB)
        return thousandths * self.per_thousandth + mib * WHOLE

    def free_on(self, index: int) -> list[int]:
        """The free amount of each GPU of the view's node at this index."""
        return [int(column[index]) for column in self.free[: int(self.gpus[index])]]

    # ------------------------------------------------------------------ which nodes fit a share

    def never(self, share: Share) -> BoolColumn:
        """The nodes that do not fit a share even without other pods."""
        never: BoolColumn = (self.gpus < share.count) | (self._needs(share) > WHOLE * self.per_thousandth)
        if share.mib:
            never |= self.memory == 0
        if self._closed:
            never |= self._has_failed
        return never

    @property
    def _has_failed(self) -> BoolColumn:
        return np.isin(self._nodes.row_numbers, self._closed)

    def fits(self, share: Share, expected: Callable[[int], Iterable[Share]]) -> BoolColumn:
        """The nodes that fit a pod with this share, the view's extra tasks, and the shares of `expected` at an index.

        If each extra task needs one GPU, it does not matter which one, because their shares are equal.
        """
        fits = ~(self.never(share) | (self._unreserved if self._reserved else self._whole > 0))
        extra, needs = self._extra(), self._needs(share)
        one_by_one = self._expected_sharers() > 0
        wanted: int | IntColumn = share.count
        slots: IntColumn = np.zeros(len(fits), np.int64)
        if share.count > 1:
            for free in self.free:
                slots += free >= needs
            one_by_one |= np.zeros(len(fits), np.bool_) if extra is None else extra > 0
        else:
            for free in self.free:
                slots += free // needs
            wanted = 1 if extra is None else extra + 1
        fits &= one_by_one | (slots >= wanted)
        for index in np.flatnonzero(fits & one_by_one).tolist():
            more = 0 if extra is None else int(extra[index])
            fits[index] = self._fits_after(index, [*expected(index), *([share] * more)], share)
        return fits

    def fits_whole(self, number: int, expected: Callable[[int], Iterable[Share]]) -> BoolColumn:
        """The nodes that fit a pod with this number of whole GPUs, beside the shares of `expected` at an index."""
        fits: BoolColumn = self._nodes.counter(SHARERS) == 0
        if not self._reserved:
            return fits
        fits = ~self._unreserved & (self.untouched >= number)
        nominated = self._nodes.counter(SHARERS) > self._nodes.counter(GIVEN)
        for index in np.flatnonzero(fits & nominated).tolist():
            free, full = self.free_on(index), WHOLE * int(self.per_thousandth[index])
            before = free.count(full)
            for one in expected(index):
                pack(free, one.units(int(self.per_thousandth[index])), one.count)
            fits[index] = self.untouched[index] - (before - free.count(full)) >= number
        return fits

    @property
    def untouched(self) -> IntColumn:
        """The number of GPUs that pods use neither whole nor in part."""
        used = (self._used(gpu) > 0 for gpu in range(self._highest + 1))
        return np.maximum(self._not_whole - sum(used, np.zeros(len(self.gpus), np.int64)), 0)

    @property
    def _unreserved(self) -> BoolColumn:
        """The nodes where a pod shares a GPU that the kubelet may give to another pod."""
        return self._nodes.counter(UNRESERVED) > 0

    def _fits_after(self, index: int, before: Iterable[Share], share: Share) -> bool:
        free, per = self.free_on(index), int(self.per_thousandth[index])
        for one in before:
            if pack(free, one.units(per), one.count) is None and one == share:
                return False
        return pack(free, share.units(per), share.count) is not None

    def _needs(self, share: Share) -> IntColumn:
        return share.units(1) * self.per_thousandth if share.thousandths else np.full(len(self.gpus), share.units(0))

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

        The less it leaves on GPUs that other pods share already, the higher; untouched GPUs count 0. The closer a
        node's used parts of CPU and of GPUs are afterwards, the higher: otherwise GPUs would be left without CPU. If a
        node's GPUs are all whole or all shared, both halves count half, and nodes where pods share GPUs come first.
        """
        needs, whole, count = self._needs(share), WHOLE * self.per_thousandth, share.count
        free = np.array(self.free, np.int64).reshape(-1, len(self.gpus))
        free.sort(axis=0)
        found = self._extra()
        extra = np.zeros(len(self.gpus), np.int64) if found is None else found
        for before in range(int(extra.max(initial=0))):
            free -= np.where(_fullest(free, needs, count) & (extra > before), needs, 0)
            free.sort(axis=0)
        chosen = _fullest(free, needs, count)
        free -= np.where(chosen, needs, 0)
        filled = np.where(chosen & (free + needs < whole), _HALF - _HALF * free // whole, 0).sum(axis=0) // count
        gpu_used = 100 - 100 * free.sum(axis=0) // np.maximum(whole * self.gpus, 1)
        cpu_used = 100 * (self._nodes.used("cpu") + cpu) // np.maximum(self._nodes.allocatable("cpu"), 1)
        points: IntColumn = filled + np.maximum(_HALF - np.abs(gpu_used - cpu_used) // 2, 0)
        return points if self._reserved else points // 2 + np.where(self._nodes.counter(SHARERS) > 0, _HALF, 0)

    def reasons(self, share: Share) -> dict[str, BoolColumn]:
        """Why nodes do not fit a pod with this share: the first reason that holds for each."""
        reasons = [
            (NO_GPUS, self.gpus == 0),
            (f"node(s) had fewer than {share.count} GPUs to share", self.gpus < share.count),
            (NO_MEMORY, (self.memory == 0) & bool(share.mib)),
            (LITTLE_MEMORY, self._needs(share) > WHOLE * self.per_thousandth),
            (HAD_FAILED, self._has_failed),
            (HAD_UNRESERVED, self._unreserved) if self._reserved else (HAD_WHOLE, self._whole > 0),
        ]
        return first_reasons(len(self.gpus), reasons, INSUFFICIENT)

    def reasons_whole(self) -> dict[str, BoolColumn]:
        """Why nodes do not fit a pod with whole GPUs: the first reason that holds for each."""
        return first_reasons(len(self.gpus), [(HAD_UNRESERVED, self._unreserved & self._reserved)], HAD_SHARERS)

    def whole_if(self, number: int) -> list[list[str]]:
        """The change that would make each node fit a pod with this number of whole GPUs."""
        unreserved = self.reasons_whole().get(HAD_UNRESERVED)
        return [[self._change_whole(index, number, unreserved is not None and bool(unreserved[index]))]
                for index in range(len(self.gpus))]  # fmt: skip

    def _change_whole(self, index: int, number: int, unreserved: bool) -> str:
        node = self._nodes.node(index).metadata.name
        if not self._reserved:
            return f"no pod shared a GPU of {node}"
        if unreserved:
            return _RESERVED_IF.format(node)
        return f"no pod used {number} of the GPUs of {node} ({int(self.untouched[index])} now)"

    def fits_if(self, share: Share) -> list[str | None]:
        """The change that would make each node fit; None if unknown."""
        reasons = self.reasons(share)
        return [
            self._change(index, share, next(text for text, rows in reasons.items() if rows[index]))
            for index in range(len(self.gpus))
        ]

    def _change(self, index: int, share: Share, why: str) -> str | None:
        node = self._nodes.node(index).metadata.name
        if why == HAD_UNRESERVED:
            return _RESERVED_IF.format(node)
        if why == HAD_WHOLE:
            return f"no pod used whole GPUs on {node}"
        if why == NO_MEMORY:
            resource = next(one for one in self._resources if self._nodes.allocatable(one)[index])
            return f"{node} had the label {resource}{MEMORY_SUFFIX} (MiB of one GPU)"
        if why != INSUFFICIENT:
            return None
        per = 0 if share.mib else int(self.per_thousandth[index])
        now = ", ".join(f"{_free_text(free, per)} of GPU {gpu}" for gpu, free in enumerate(self.free_on(index)))
        return f"{share} were free on {node} ({now} now)"


def _fullest(free: IntColumn, needs: IntColumn, count: int) -> BoolColumn:
    """The `count` fullest GPUs that fit on each node, of free amounts in ascending order: shape [gpu, node]."""
    fits = free >= needs
    return fits & (np.cumsum(fits, axis=0) <= count)


def pack(free: list[int], need: int, count: int) -> tuple[int, ...] | None:
    """Take the amount from `count` GPUs, the fullest ones that fit it first, then by index; None if too few fit it."""
    fitting = sorted((left, gpu) for gpu, left in enumerate(free) if left >= need)
    if len(fitting) < count:
        return None
    chosen = sorted(gpu for _, gpu in fitting[:count])
    for gpu in chosen:
        free[gpu] -= need
    return tuple(chosen)


def _numbers(nodes: NodeView, label: str) -> IntColumn:
    """A label's value as a number for each node; 0 if it is absent or not a number."""
    numbers, _ = nodes.label_numbers()
    return np.append(numbers, 0).take(nodes.label(label), mode="wrap")  # ABSENT, -1, is the last


def _free_text(free: int, per_thousandth: int) -> str:
    """The free amount for messages, rounded down; in MiB if `per_thousandth` is 0."""
    return f"{free // per_thousandth / WHOLE:g}" if per_thousandth else f"{free // WHOLE} MiB"
