"""The units of the graph: what hosts offer, what pods take and what is left, by type of vertex.

The graph has CPU in whole cores, each a vertex, or in millicores, in one pool for each host. With millicores every pod
also takes one of the host's `pod` units, so that a pod without requests has a match. Each kind of gpu has its own type,
so that a pod never gets another kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import sub
from typing import Literal

import msgspec
from msgspec.structs import replace

from fluence_plugins.fluence.errors import JobspecError
from fluence_plugins.fluence.graph.cluster_graph import CORE, GPU, GPU_OF, MEMORY, POD, HostResources
from fluence_plugins.fluence.graph.placement import HostHolding
from fluence_plugins.resources import names

CpuAccounting = Literal["auto", "cores", "millicores"]
"""See `Accounting`."""
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
"""The default of `gpuResources`. The first resource has the type `gpu`."""
MOST_PARTS = 8192
"""The maximum numbers of cores, and of gpus of a kind, of one host in the graph."""
MOST_UNITS = (1 << 32) - 1
"""The maximum number of millicores, MiB and pods of one host in the graph: a jobspec cannot request more."""
CORE_MILLICORES = 1000
_MIB = 1 << 20

Amounts = tuple[int, ...]
"""An amount of each of `Accounting.types`, in their order."""


class PodShape(msgspec.Struct, frozen=True):
    """What one pod takes of its host: cores, MiB, gpus, and other kinds of gpu (`others`, by type).

    A pod takes at least one core or, where `cores` are millicores, one of the host's `pods`.
    """

    cores: int = 1
    memory_mib: int = 0
    gpus: int = 0
    others: tuple[tuple[str, int], ...] = ()
    pods: int = 0

    def __post_init__(self) -> None:
        amounts = (self.cores, self.memory_mib, self.gpus, self.pods, *(amount for _, amount in self.others))
        if min(amounts) < 0 or not (self.cores or self.pods):
            raise JobspecError(
                f"{self}: expected at least one core or pod slot of the host, and no negative amounts; round "
                "the requests up"
            )


@dataclass(frozen=True)
class Accounting:
    """The counted types and their units. `chunk_mib`: the unit in MiB to which memory is rounded.

    `cpu`: which pods take whole cores, at least one, in place of the millicores that they request: all with `cores`,
    none with `millicores`; with `auto` those of a group, and those that request gpus or devices.
    """

    cpu: CpuAccounting = "cores"
    gpu_resources: tuple[str, ...] = GPU_RESOURCES
    chunk_mib: int = 1

    @cached_property
    def millicores(self) -> bool:
        """Whether the graph has millicores, not cores."""
        return self.cpu != "cores"

    # ------------------------------------------------------------------ the order of amounts

    @cached_property
    def gpu_types(self) -> Mapping[str, str]:
        """The type of vertex of each kind of gpu, by the resource's name."""
        return {name: GPU if place == 0 else GPU_OF + name for place, name in enumerate(self.gpu_resources)}

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types that are counted: core, memory, gpu, the other kinds of gpu and, with millicores, pod."""
        return (CORE, MEMORY, GPU, *self._others, *((POD,) if self.millicores else ()))

    @cached_property
    def nothing(self) -> Amounts:
        """An amount of 0 of each type."""
        return (0,) * len(self.types)

    @cached_property
    def _others(self) -> tuple[str, ...]:
        return tuple(GPU_OF + name for name in self.gpu_resources[1:])

    @cached_property
    def _no_others(self) -> Amounts:
        return (0,) * len(self._others)

    def held(self, host: HostHolding) -> Amounts:
        """The amounts of a host that are held."""
        if not self.millicores and not host.others:  # the common case
            return (len(host.cores), self._up(host.memory_mib), len(host.gpus), *self._no_others)
        others = {kind: len(indices) for kind, indices in host.others}
        cpu = host.millicores if self.millicores else len(host.cores)
        return self._of(cpu, self._up(host.memory_mib), len(host.gpus), others, host.pods)

    def requested(self, shape: PodShape) -> Amounts:
        """The amounts that a pod takes."""
        return self._of(shape.cores, shape.memory_mib, shape.gpus, dict(shape.others), shape.pods)

    def offered(self, host: HostResources) -> Amounts:
        """The amounts that a host has."""
        return self._of(host.cores, host.memory_mib, host.gpus, dict(host.others), host.pods)

    def within(self, host: HostHolding, shape: PodShape) -> HostHolding:
        """What a pod of this shape keeps of a holding after an in-place resize: the first cores, and its amounts.

        A resize changes neither gpus nor the holding of a whole host.
        """
        if host.exclusive:
            return host
        return replace(
            host,
            cores=host.cores[: shape.cores],
            millicores=min(host.millicores, shape.cores),
            memory_mib=min(host.memory_mib, shape.memory_mib),
        )

    def _of(self, cpu: int, memory_mib: int, gpus: int, others: Mapping[str, int], pods: int) -> Amounts:
        more = [others.get(kind, 0) for kind in self._others] if others else self._no_others
        return (cpu, memory_mib, gpus, *more, pods) if self.millicores else (cpu, memory_mib, gpus, *more)

    # ------------------------------------------------------------------ from Kubernetes' units

    def shape_of(self, requests: Mapping[str, int], *, in_group: bool = False) -> PodShape:
        """What a pod takes of its host; `requests` in millicores, bytes and counts.

        `in_group`: whether it belongs to a group.
        """
        cpu, gpus = requests.get("cpu", 0), self._gpus_of(requests)
        if self.cpu != "millicores" and (self.cpu == "cores" or in_group or gpus or _has_devices(requests)):
            cpu = max(1, cores_of(cpu)) * (CORE_MILLICORES if self.millicores else 1)
        return PodShape(
            cores=cpu,
            memory_mib=self._up(mib_of(requests.get("memory", 0))),
            gpus=gpus.pop(GPU, 0),
            others=tuple(gpus.items()),
            pods=int(self.millicores),
        )

    def host_of(self, name: str, allocatable: Mapping[str, int]) -> HostResources:
        """The host of a node; `allocatable` in millicores, bytes and counts.

        Amounts are rounded down to units, and limited to MOST_PARTS vertices and MOST_UNITS of a pool.
        """
        cpu, gpus = max(0, allocatable.get("cpu", 0)), self._gpus_of(allocatable)
        mib = min(MOST_UNITS, max(0, allocatable.get("memory", 0)) // _MIB)
        return HostResources(
            name=name,
            cores=min(MOST_UNITS, cpu) if self.millicores else min(MOST_PARTS, cpu // CORE_MILLICORES),
            memory_mib=mib - mib % self.chunk_mib,
            gpus=min(MOST_PARTS, gpus.pop(GPU, 0)),
            others=tuple((kind, min(MOST_PARTS, amount)) for kind, amount in gpus.items()),
            pods=min(MOST_UNITS, max(0, allocatable.get("pods", 0))) if self.millicores else 0,
            core_pool=self.millicores,
        )

    def load_of(self, foreign: Iterable[Mapping[str, int]], short: Iterable[Amounts] = ()) -> Amounts | None:
        """The amounts that some pods take of a host together: their requests, summed and then rounded up once.

        `short`: the amounts that our pods request beyond what they hold. None for no load.
        """
        cpu = memory = pods = 0
        gpus = [0] * max(1, len(self.gpu_resources))
        for requests in foreign:
            cpu += requests.get("cpu", 0)
            memory += requests.get("memory", 0)
            pods += 1
            for place, name in enumerate(self.gpu_resources):
                gpus[place] += requests.get(name, 0)
        total: Amounts = (cpu if self.millicores else cores_of(cpu), self._up(mib_of(memory)), *gpus)
        if self.millicores:
            total += (pods,)
        for more in short:
            total = tuple(amount + max(0, wanted) for amount, wanted in zip(total, more, strict=True))
        return total if any(total) else None

    def _up(self, mib: int) -> int:
        """Memory, rounded up to chunks."""
        return -(-mib // self.chunk_mib) * self.chunk_mib

    def _gpus_of(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """The number of gpus by type, for the types that have any."""
        return {kind: found for name, kind in self.gpu_types.items() if (found := amounts.get(name, 0)) > 0}

    def excess(self, shape: PodShape, devices: Iterable[int]) -> str | None:
        """Why no host of any graph fits a pod of this shape with these numbers of devices; None if one may."""
        parts, units = [shape.gpus, *(amount for _, amount in shape.others), *devices], [shape.memory_mib]
        (units if self.millicores else parts).append(shape.cores)
        if max(parts) > MOST_PARTS:
            return f"the pod requests more than {MOST_PARTS} cores, GPUs or devices, which no host has"
        if max(units) > MOST_UNITS:
            return f"the pod requests more than {MOST_UNITS} millicores or MiB, which no host has"
        return None


def _has_devices(requests: Mapping[str, int]) -> bool:
    """Whether a pod requests virtual devices."""
    return any(names.requested_type(name) is not None and amount > 0 for name, amount in requests.items())


def cores_of(millicores: int) -> int:
    """Whole cores for an amount of cpu, rounded up."""
    return -(-millicores // CORE_MILLICORES)


def mib_of(amount: int) -> int:
    """MiB for an amount of bytes, rounded up."""
    return -(-amount // _MIB)


def minus(amounts: Amounts, other: Amounts) -> Amounts:
    """The difference of amounts, which may be negative."""
    return tuple(map(sub, amounts, other))
