"""Parts of GPUs: what a pod's annotations ask for, which GPUs it was given, and the counters that hold both.

A pod asks for a fraction of a GPU, or for some of its memory, of one or several GPUs of one node. A GPU is full when
the fractions and what the memory is of all of it come to one: in integers, thousandths · memory + MiB · 1000 are never
more than 1000 · memory.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from session_scheduler.errors import FluenceError
from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.quantity import parse_quantity

__all__ = ["GPU", "GPU_FRACTION", "GPU_MEMORY"]

GPU_FRACTION: Final = "fluence.flux-framework.org/gpu-fraction"
"""Which part of one GPU the pod asks for."""
GPU_MEMORY: Final = "fluence.flux-framework.org/gpu-memory"
"""How much memory of one GPU the pod asks for."""
GPU_COUNT: Final = "fluence.flux-framework.org/gpu-count"
"""On a pod that shares GPUs: how many GPUs of one node it needs, each to the same part."""
GPU: Final = "fluence.flux-framework.org/gpu"
"""Which GPUs of its node the pod was given: their indices, ascending, comma separated. Only the scheduler writes it."""
WHOLE: Final = 1000
"""The thousandths of a GPU."""
MOST_GPUS: Final = 64
"""Of one node are shared; of what it has beyond, none."""
LARGEST_MIB: Final = 2**30
"""More than any GPU has, by far: sums of it stay within 64 bits."""
EVERY: Final = -1
"""In place of an index: a pod uses some GPU of the node, and it is not known which."""
MEMORY_SUFFIX: Final = ".memory"
"""Behind a resource's name it is the label that says how many MiB one GPU has, as NVIDIA's feature discovery does."""
SHARERS: Final = "gpu sharers"
"""Counter: the pods on a row that ask for a part of a GPU, with those that are to come."""
GIVEN: Final = "gpu sharers with gpus"
"""Counter: those of them of which it is known which GPUs they use."""

_FRACTION: Final = re.compile(r"0\.([0-9]{1,3})")
_MIB: Final = re.compile(r"[0-9]{1,10}")
_WITH_UNIT: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,3})?([KMGT]i|[kMGT])")
_COUNT: Final = re.compile(r"[1-9][0-9]?")
_INDICES: Final = re.compile(r"(0|[1-9][0-9]?)(,(0|[1-9][0-9]?))*")
_SHOWN: Final = 32


class ShareError(FluenceError):
    """What a pod's annotations ask of GPUs is nothing that there is; the text names the annotation and the remedy."""


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """What a pod asks for of each of `count` GPUs: thousandths, or MiB; the other one is 0. A key of counters, too."""

    thousandths: int
    mib: int
    count: int = 1

    def units(self, memory: int) -> int:
        """How much of a GPU with so many MiB it takes, of 1000 · memory."""
        return self.thousandths * memory + self.mib * WHOLE

    def __str__(self) -> str:
        """As people write it: 0.5 of a GPU, 4096 MiB of each of 2 GPUs."""
        amount = f"{self.mib} MiB" if self.mib else f"{self.thousandths / WHOLE:g}"
        return f"{amount} of a GPU" if self.count == 1 else f"{amount} of each of {self.count} GPUs"


@dataclass(frozen=True, slots=True, order=True)
class GpuUse:
    """Key of a counter: what is used of one GPU of a row, in thousandths or in MiB."""

    gpu: int
    """Its index, or EVERY."""
    in_mib: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """Key of a counter: the pods on a row with this share of which it is known which GPUs they use."""

    share: Share


def shares_gpus(metadata: ObjectMeta) -> bool:
    """Whether a pod has any of the annotations that ask for a part of a GPU."""
    annotations = metadata.annotations
    return GPU_FRACTION in annotations or GPU_MEMORY in annotations or GPU_COUNT in annotations


def share_of(metadata: ObjectMeta) -> Share | None:
    """What a pod asks for; None where it asks for no part of a GPU. Raises ShareError."""
    if not shares_gpus(metadata):
        return None
    annotations = metadata.annotations
    fraction, memory = annotations.get(GPU_FRACTION), annotations.get(GPU_MEMORY)
    if fraction is not None and memory is not None:
        raise ShareError(f"annotations {GPU_FRACTION} and {GPU_MEMORY}: only one of them can hold: remove the other")
    count = _count(annotations.get(GPU_COUNT))
    if fraction is not None:
        return Share(_thousandths(fraction), 0, count)
    if memory is not None:
        return Share(0, _mib(memory), count)
    problem = "it says of how many GPUs, not how much"
    raise ShareError(f"annotation {GPU_COUNT}: {problem}: add {GPU_FRACTION} or {GPU_MEMORY}")


def _thousandths(text: str) -> int:
    match = _FRACTION.fullmatch(text)
    found = int(match[1].ljust(3, "0")) if match else 0
    if not found:
        problem = "no fraction of a GPU: write more than 0 and less than 1, as 0.5 or 0.125"
        raise _wrong(GPU_FRACTION, text, f"{problem}; for whole GPUs request them as a resource")
    return found


def _mib(text: str) -> int:
    found = 0
    if _MIB.fullmatch(text):
        found = int(text)
    elif _WITH_UNIT.fullmatch(text):
        found = -(-parse_quantity(text) // 2**20)
    if not 1 <= found <= LARGEST_MIB:
        raise _wrong(GPU_MEMORY, text, "no memory of a GPU: write MiB, as 4096, or a quantity with its unit, as 4Gi")
    return found


def _count(text: str | None) -> int:
    if text is None:
        return 1
    found = int(text) if _COUNT.fullmatch(text) else 0
    if not 1 <= found <= MOST_GPUS:
        raise _wrong(GPU_COUNT, text, f"no number of GPUs: write a whole number from 1 to {MOST_GPUS}")
    return found


def _wrong(annotation: str, text: str, problem: str) -> ShareError:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return ShareError(f"annotation {annotation}: {shown!r} is {problem}")


def queue_amounts(metadata: ObjectMeta) -> dict[str, int]:
    """What a pod's share counts as where queues are held to limits: thousandths, or bytes, of all of its GPUs together.

    Under the annotation's name, for what part of a GPU some memory is only its node decides. Nothing of what is wrong.
    """
    try:
        share = share_of(metadata)
    except ShareError:
        return {}
    if share is None:
        return {}
    if share.mib:
        return {GPU_MEMORY: share.mib * share.count * 2**20}
    return {GPU_FRACTION: share.thousandths * share.count}


# ------------------------------------------------------------------ what was given


def written(gpus: Iterable[int]) -> str:
    """The value of the annotation GPU."""
    return ",".join(map(str, sorted(gpus)))


def given_to(metadata: ObjectMeta, share: Share) -> tuple[int, ...] | None:
    """The GPUs that a bound pod says that it was given; None where it says nothing, or what cannot be."""
    text = metadata.annotations.get(GPU, "")
    if len(text) > 3 * MOST_GPUS or not _INDICES.fullmatch(text):
        return None
    gpus = tuple(sorted({int(index) for index in text.split(",")}))
    return gpus if len(gpus) == text.count(",") + 1 == share.count and gpus[-1] < MOST_GPUS else None


def counted(share: Share, gpus: Iterable[int] | None) -> dict[Hashable, int]:
    """What a pod with this share adds to counters of its row beside its class; None: which GPUs it uses is not known.

    Then it counts on each of them, so that none is given beyond what it has.
    """
    found: dict[Hashable, int] = {GIVEN: 1, Placed(share): 1}
    for gpu in (EVERY,) if gpus is None else gpus:
        if share.thousandths:
            found[GpuUse(gpu, in_mib=False)] = share.thousandths
        if share.mib:
            found[GpuUse(gpu, in_mib=True)] = share.mib
    return found


def gpus_of(counts: Mapping[Hashable, int]) -> tuple[int, ...]:
    """The GPUs of what `counted` answered; EVERY alone where it is not known which."""
    return tuple(sorted({key.gpu for key in counts if isinstance(key, GpuUse)}))
