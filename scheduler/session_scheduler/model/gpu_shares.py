"""GPU shares: the part of a GPU that a pod requests by annotation, the GPUs that it gets, and the counters for both.

A pod requests a fraction of a GPU, or an amount of its memory, on one or several GPUs of one node. A GPU is full when
its fractions and its parts of the memory add up to 1. To compare integers only, both are scaled: the sum of
thousandths · memory and MiB · 1000 never exceeds 1000 · memory.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Final

import msgspec

from session_scheduler.errors import FluenceError
from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.quantity import parse_quantity

__all__ = ["GPU", "GPU_DEVICE", "GPU_FRACTION", "GPU_MEMORY", "VISIBLE_DEVICES"]

GPU_FRACTION: Final = "fluence.flux-framework.org/gpu-fraction"
"""The fraction of a GPU that the pod requests."""
GPU_MEMORY: Final = "fluence.flux-framework.org/gpu-memory"
"""The amount of a GPU's memory that the pod requests."""
GPU_COUNT: Final = "fluence.flux-framework.org/gpu-count"
"""On a pod that shares GPUs: how many GPUs of one node it needs, each to the same part."""
GPU: Final = "fluence.flux-framework.org/gpu"
"""The GPUs that the pod got on its node: ascending indices, comma-separated. Only the scheduler writes it."""
GPU_DEVICE: Final = "fluence.flux-framework.org/gpu-device"
"""How containers refer to the pod's GPUs: device IDs, or indices if all GPUs of the node are shared.

In the order of GPU. Only the scheduler writes it.
"""
VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
"""NVIDIA's container runtime reads from this variable which GPUs a container sees. The webhook sets it."""
WHOLE: Final = 1000
"""A whole GPU, in thousandths."""
MOST_GPUS: Final = 64
"""The maximum number of GPUs of a node that pods can share."""
LARGEST_MIB: Final = 2**30
"""An upper bound of a GPU's memory, far above real ones, so that sums fit 64 bits."""
EVERY: Final = -1
"""Index of an unknown GPU of the node."""
MEMORY_SUFFIX: Final = ".memory"
"""Suffix of a resource's name, for the node label with the MiB of one GPU, as NVIDIA's feature discovery sets it."""
SHARERS: Final = "gpu sharers"
"""Counter key: the pods on a row that request a part of a GPU, nominated pods included."""
GIVEN: Final = "gpu sharers with gpus"
"""Counter key: the pods on a row that request a part of a GPU, and whose GPUs are known."""
UNRESERVED: Final = "gpu sharers without reservations"
"""Counter key: the bound pods on a row that use a part of a GPU which no reservation pod holds."""

_FRACTION: Final = re.compile(r"0\.([0-9]{1,3})")
_MIB: Final = re.compile(r"[0-9]{1,10}")
_WITH_UNIT: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,3})?([KMGT]i|[kMGT])")
_COUNT: Final = re.compile(r"[1-9][0-9]?")
_INDICES: Final = re.compile(r"(0|[1-9][0-9]?)(,(0|[1-9][0-9]?))*")
_SHOWN: Final = 32


class ShareError(FluenceError):
    """A GPU annotation of a pod is invalid; the text names the annotation and a remedy."""


class Share(msgspec.Struct, frozen=True, order=True):
    """What a pod requests of each of `count` GPUs: thousandths or MiB; the other one is 0. Also a counter key."""

    thousandths: int
    mib: int
    count: int = 1

    def units(self, memory: int) -> int:
        """The share of a GPU with `memory` MiB, in units of 1 / (1000 · memory) of the GPU."""
        return self.thousandths * memory + self.mib * WHOLE

    def __str__(self) -> str:
        """For messages: 0.5 of a GPU, 4096 MiB of each of 2 GPUs."""
        amount = f"{self.mib} MiB" if self.mib else f"{self.thousandths / WHOLE:g}"
        return f"{amount} of a GPU" if self.count == 1 else f"{amount} of each of {self.count} GPUs"


class GpuUse(msgspec.Struct, frozen=True, order=True):
    """Counter key: the used part of one GPU on a row, in thousandths or in MiB."""

    gpu: int
    """The GPU's index, or EVERY."""
    in_mib: bool


class Placed(msgspec.Struct, frozen=True):
    """Counter key: the pods on a row with this share whose GPUs are known."""

    share: Share


def shares_gpus(metadata: ObjectMeta) -> bool:
    """Whether a pod has an annotation that requests a part of a GPU."""
    annotations = metadata.annotations
    return GPU_FRACTION in annotations or GPU_MEMORY in annotations or GPU_COUNT in annotations


def share_of(metadata: ObjectMeta) -> Share | None:
    """The share that a pod requests; None if it requests none. Raises ShareError."""
    if not shares_gpus(metadata):
        return None
    annotations = metadata.annotations
    fraction, memory = annotations.get(GPU_FRACTION), annotations.get(GPU_MEMORY)
    if fraction is not None and memory is not None:
        raise ShareError(f"annotations {GPU_FRACTION} and {GPU_MEMORY} are mutually exclusive; remove one of them")
    count = _count(annotations.get(GPU_COUNT))
    if fraction is not None:
        return Share(_thousandths(fraction), 0, count)
    if memory is not None:
        return Share(0, _mib(memory), count)
    raise ShareError(f"annotation {GPU_COUNT} needs a share of each GPU; add {GPU_FRACTION} or {GPU_MEMORY}")


def _thousandths(text: str) -> int:
    match = _FRACTION.fullmatch(text)
    found = int(match[1].ljust(3, "0")) if match else 0
    if not found:
        remedy = "write a number greater than 0 and less than 1, such as 0.5 or 0.125; request whole GPUs as a resource"
        raise _wrong(GPU_FRACTION, text, f"fraction of a GPU; {remedy}")
    return found


def _mib(text: str) -> int:
    found = 0
    if _MIB.fullmatch(text):
        found = int(text)
    elif _WITH_UNIT.fullmatch(text):
        found = -(-parse_quantity(text) // 2**20)
    if not 1 <= found <= LARGEST_MIB:
        remedy = "write MiB, such as 4096, or a quantity with a unit, such as 4Gi"
        raise _wrong(GPU_MEMORY, text, f"amount of GPU memory; {remedy}")
    return found


def _count(text: str | None) -> int:
    if text is None:
        return 1
    found = int(text) if _COUNT.fullmatch(text) else 0
    if not 1 <= found <= MOST_GPUS:
        raise _wrong(GPU_COUNT, text, f"number of GPUs; write an integer from 1 to {MOST_GPUS}")
    return found


def _wrong(annotation: str, text: str, wanted: str) -> ShareError:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return ShareError(f"annotation {annotation}: {shown!r} is not a valid {wanted}")


def gpu_amounts(metadata: ObjectMeta) -> dict[str, int]:
    """A pod's share as queues count it: thousandths, or bytes, of all its GPUs together.

    The key is the annotation's name: only a node determines which fraction an amount of memory is. Empty if the
    annotations are invalid.
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


# ------------------------------------------------------------------ allocated GPUs


def written(gpus: Iterable[int]) -> str:
    """The value of the annotation GPU for these indices."""
    return ",".join(map(str, sorted(gpus)))


def given_to(metadata: ObjectMeta, share: Share) -> tuple[int, ...] | None:
    """The GPUs in a bound pod's annotation; None if it is missing or invalid."""
    text = metadata.annotations.get(GPU, "")
    if len(text) > 3 * MOST_GPUS or not _INDICES.fullmatch(text):
        return None
    gpus = tuple(sorted({int(index) for index in text.split(",")}))
    return gpus if len(gpus) == text.count(",") + 1 == share.count and gpus[-1] < MOST_GPUS else None


def counted(share: Share, gpus: Iterable[int] | None) -> dict[Hashable, int]:
    """What a pod with this share adds to the counters of its row, in addition to its class's footprint.

    `gpus` is None if its GPUs are unknown. The pod then counts on each GPU of the node, so that none is overcommitted.
    """
    found: dict[Hashable, int] = {GIVEN: 1, Placed(share): 1}
    for gpu in (EVERY,) if gpus is None else gpus:
        if share.thousandths:
            found[GpuUse(gpu, in_mib=False)] = share.thousandths
        if share.mib:
            found[GpuUse(gpu, in_mib=True)] = share.mib
    return found


def gpus_of(counts: Mapping[Hashable, int]) -> tuple[int, ...]:
    """The GPUs in the result of `counted`; EVERY alone if they are unknown."""
    return tuple(sorted({key.gpu for key in counts if isinstance(key, GpuUse)}))
