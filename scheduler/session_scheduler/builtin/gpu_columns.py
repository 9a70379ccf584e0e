"""What is free of each node's GPUs, as columns: where a share fits, how often, and why not.

Everything is read through a view of nodes, so that what a session tries, thinks away, or expects counts as it is there.
Amounts are in units of which a GPU has 1000 times its MiB (1000 where its memory is not known): no rounding anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.gpu_shares import (
    EVERY,
    GIVEN,
    LARGEST_MIB,
    MEMORY_SUFFIX,
    MOST_GPUS,
    SHARERS,
    WHOLE,
    GpuUse,
    Placed,
    Share,
)

INSUFFICIENT: Final = "Insufficient shared GPU"
NO_GPUS: Final = "node(s) had no GPUs to share"
HAD_WHOLE: Final = "node(s) had GPUs that other pods have whole"
HAD_SHARERS: Final = "node(s) had GPUs that other pods share"
NO_MEMORY: Final = "node(s) did not say how much memory their GPUs have"
LITTLE_MEMORY: Final = "node(s) had GPUs with less memory than that"
_MOST_THOUSANDTHS: Final = 2**12
_MOST_MIB: Final = 2**40
"""What more is used of one GPU counts as this, so that sums and products stay within 64 bits."""


class GpuColumns:
    """The GPUs of a view's nodes: those of the first of some resources that a node offers."""

    def __init__(self, nodes: NodeView, resources: Iterable[str], highest: int) -> None:
        """`highest`: the highest index that any pod is counted with, on whatever node."""
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
        """MiB of one GPU; 0 where that is not known."""
        self.has_whole: BoolColumn = whole > 0
        """Where some pod has GPUs that it does not share."""
        self.per_thousandth: IntColumn = np.maximum(self.memory, 1)
        self._highest = highest
        self._free: list[IntColumn] | None = None

    @property
    def free(self) -> Sequence[IntColumn]:
        """By index: what is free of that GPU, at least 0; 0 where the node has none of that index."""
        if self._free is None:
            most = int(self.gpus.max(initial=0))
            everywhere = self._used(EVERY)
            for gpu in range(self._highest + 1):  # the node has fewer GPUs now: it is not known which is used
                beyond = self.gpus <= gpu
                if beyond.any():
                    everywhere = everywhere + np.where(beyond, self._used(gpu), 0)
            whole = WHOLE * self.per_thousandth
            left = [np.maximum(whole - self._used(gpu) - everywhere, 0) for gpu in range(most)]
            self._free = [np.where(self.gpus > gpu, free, 0) for gpu, free in enumerate(left)]
        return self._free

    def _used(self, gpu: int) -> IntColumn:
        thousandths: IntColumn = np.minimum(self._nodes.counter(GpuUse(gpu, in_mib=False)), _MOST_THOUSANDTHS)
        mib: IntColumn = np.minimum(self._nodes.counter(GpuUse(gpu, in_mib=True)), _MOST_MIB)
        return thousandths * self.per_thousandth + mib * WHOLE

    def free_on(self, place: int) -> list[int]:
        """What is free of each GPU of one entry's node."""
        return [int(column[place]) for column in self.free[: int(self.gpus[place])]]

    # ------------------------------------------------------------------ where a share fits

    def never(self, share: Share) -> BoolColumn:
        """Where a share cannot be had whoever ends."""
        never: BoolColumn = (self.gpus < share.count) | (self._needs(share) > WHOLE * self.per_thousandth)
        if share.mib:
            never |= self.memory == 0
        return never

    def fits(self, share: Share, expected: Callable[[int], Iterable[Share]]) -> BoolColumn:
        """Where one more pod with this share fits, beside the view's extra tasks and what `expected` names of a place.

        Which GPUs the extra tasks would have does not matter where each needs one: they are alike.
        """
        fits = ~(self.never(share) | self.has_whole)
        extra, needs = self._extra(), self._needs(share)
        one_by_one = self._to_come() > 0
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
        for place in np.flatnonzero(fits & one_by_one).tolist():
            more = 0 if extra is None else int(extra[place])
            fits[place] = self._takes(place, [*expected(place), *([share] * more)], share)
        return fits

    def _takes(self, place: int, before: Iterable[Share], share: Share) -> bool:
        free, per = self.free_on(place), int(self.per_thousandth[place])
        for one in before:
            if pack(free, one.units(per), one.count) is None and one == share:
                return False
        return pack(free, share.units(per), share.count) is not None

    def _needs(self, share: Share) -> IntColumn:
        return share.units(1) * self.per_thousandth if share.thousandths else np.full(len(self.gpus), share.units(0))

    def _extra(self) -> IntColumn | None:
        extra = self._nodes.extra
        return extra if extra is not None and extra.any() else None

    def _to_come(self) -> IntColumn:
        """How many sharers are counted, beyond the view's extra tasks, that have no GPUs yet: nominated ones."""
        sharers = self._nodes.counter(SHARERS) - self._nodes.counter(GIVEN)
        extra = self._extra()
        return sharers if extra is None else sharers - extra

    def to_come(self, share: Share, place: int, *, own: bool) -> int:
        """How many of them, on one entry's node, have this share; `own`: it is that of the view's extra tasks."""
        extra = self._extra() if own else None
        coming = self._nodes.counter(share)[place] - self._nodes.counter(Placed(share))[place]
        return int(coming if extra is None else coming - extra[place])

    # ------------------------------------------------------------------ what a node is worth, and why it is refused

    def worth(self, share: Share) -> IntColumn:
        """0 to 100: nodes whose GPUs are shared already, the fuller ones first; others 0."""
        used = sum((np.where(self.gpus > gpu, WHOLE * self.per_thousandth - free, 0)
                    for gpu, free in enumerate(self.free)), np.zeros(len(self.gpus), np.int64))  # fmt: skip
        extra = self._extra()
        if extra is not None:
            used = used + extra * self._needs(share) * share.count
        percent = used // np.maximum(WHOLE * self.per_thousandth * self.gpus // 50, 1)
        shared = self._nodes.counter(SHARERS) > 0
        return np.where(shared, 50 + np.minimum(percent, 50), 0)

    def reason(self, place: int, share: Share) -> str:
        """Why one entry's node does not take a pod with this share."""
        if not self.gpus[place]:
            return NO_GPUS
        if self.gpus[place] < share.count:
            return f"node(s) had fewer than {share.count} GPUs to share"
        if share.mib and not self.memory[place]:
            return NO_MEMORY
        if self._needs(share)[place] > WHOLE * self.per_thousandth[place]:
            return LITTLE_MEMORY
        return HAD_WHOLE if self.has_whole[place] else INSUFFICIENT

    def fits_if(self, place: int, share: Share) -> str | None:
        """What would have to be so for it to take one; None where that is not known."""
        node = self._nodes.node(place).metadata.name
        why = self.reason(place, share)
        if why == HAD_WHOLE:
            return f"no pod had whole GPUs on {node}"
        if why == NO_MEMORY:
            resource = next(one for one in self._resources if self._nodes.allocatable(one)[place])
            return f"{node} had the label {resource}{MEMORY_SUFFIX}, the MiB of one GPU"
        if why != INSUFFICIENT:
            return None
        per = 0 if share.mib else int(self.per_thousandth[place])
        now = ", ".join(f"{_shown(free, per)} of GPU {gpu}" for gpu, free in enumerate(self.free_on(place)))
        return f"{share} were free on {node} ({now} now)"


def pack(free: list[int], need: int, count: int) -> tuple[int, ...] | None:
    """Take so much of `count` GPUs, the fullest that have room first, then by index; None where too few have."""
    fitting = sorted((left, gpu) for gpu, left in enumerate(free) if left >= need)
    if len(fitting) < count:
        return None
    chosen = sorted(gpu for _, gpu in fitting[:count])
    for gpu in chosen:
        free[gpu] -= need
    return tuple(chosen)


def _numbers(nodes: NodeView, label: str) -> IntColumn:
    """A label's value as a number by node; 0 where it is none, or not there."""
    numbers, _ = nodes.label_numbers()
    return np.append(numbers, 0).take(nodes.label(label), mode="wrap")  # ABSENT, -1, is the last


def _shown(free: int, per_thousandth: int) -> str:
    """Rounded down: what is shown as free is. In MiB where `per_thousandth` is 0."""
    return f"{free // per_thousandth / WHOLE:g}" if per_thousandth else f"{free // WHOLE} MiB"
