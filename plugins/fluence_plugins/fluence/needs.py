"""What a pod needs of the graph: whole cores, MiB, gpus, and devices by type with what is required of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fluence_plugins.fluence import names
from fluence_plugins.fluence.cluster_graph import HostResources
from fluence_plugins.fluence.requests import PodShape
from session_scheduler.model.objects import Pod

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
MOST_PARTS = 8192
"""The most cores, and the most gpus, that one host has in the graph."""
_MIB = 1 << 20


Amounts = tuple[int, int, int]
"""Whole cores, MiB, gpus."""


@dataclass(frozen=True, slots=True)
class Needs:
    """One class of pods: the shape on a host, devices by type, and the `require-…` and `prefer-…` annotations."""

    shape: PodShape
    devices: Mapping[str, int]
    require: Mapping[str, str]
    backend: str | None
    prefer: Mapping[str, str]
    """What is preferred, by key; `backend` names the backend. It refuses nothing."""


def cores_of(millicores: int) -> int:
    """Whole cores for an amount of cpu, rounded up."""
    return -(-millicores // 1000)


def mib_of(amount: int) -> int:
    """MiB for an amount of bytes, rounded up."""
    return -(-amount // _MIB)


def needs_of(pod: Pod, requests: Mapping[str, int]) -> Needs:
    """What the pod needs; `requests` in millicores, bytes and counts. Every pod takes at least one core."""
    require, backend = names.requirements(pod.metadata.annotations)
    devices = {
        kind: amount
        for name, amount in sorted(requests.items())
        if (kind := names.requested_type(name)) is not None and amount > 0
    }
    prefer = names.preferences(pod.metadata.annotations)
    return Needs(shape=shape_of(requests), devices=devices, require=require, backend=backend, prefer=prefer)


def shape_of(requests: Mapping[str, int]) -> PodShape:
    """What the pod takes of its host; `requests` in millicores, bytes and counts."""
    return PodShape(
        cores=max(1, cores_of(requests.get("cpu", 0))),
        memory_mib=mib_of(requests.get("memory", 0)),
        gpus=sum(requests.get(name, 0) for name in GPU_RESOURCES),
    )


def class_key(pod: Pod) -> str | None:
    """The part of the class key that the pod's annotations make: what it requires and what it prefers."""
    require, backend = names.requirements(pod.metadata.annotations)
    prefer = names.preferences(pod.metadata.annotations)
    return json.dumps([require, backend, prefer], sort_keys=True) if require or backend or prefer else None


def host_of(name: str, allocatable: Mapping[str, int]) -> HostResources:
    """A node as the graph holds it; `allocatable` in millicores, bytes and counts. Parts of a core or MiB are lost.

    Each core and gpu is a vertex, so of an absurd number only MOST_PARTS are modelled.
    """
    return HostResources(
        name=name,
        cores=min(MOST_PARTS, max(0, allocatable.get("cpu", 0)) // 1000),
        memory_mib=max(0, allocatable.get("memory", 0)) // _MIB,
        gpus=min(MOST_PARTS, sum(max(0, allocatable.get(gpu, 0)) for gpu in GPU_RESOURCES)),
    )


@dataclass(frozen=True, slots=True)
class ForeignLoad:
    """What pods that are not ours take of a host: whole cores, MiB, gpus."""

    cores: int
    memory_mib: int
    gpus: int


def load_of(foreign: Iterable[Mapping[str, int]], short: Iterable[Amounts] = ()) -> ForeignLoad | None:
    """What some pods take of a host together, by their requests: summed first, then rounded up once.

    `short` is what pods of ours request beyond what they hold, in cores, MiB and gpus.
    """
    cpu = memory = gpus = 0
    for requests in foreign:
        cpu += requests.get("cpu", 0)
        memory += requests.get("memory", 0)
        gpus += sum(requests.get(name, 0) for name in GPU_RESOURCES)
    cores, mib = cores_of(cpu), mib_of(memory)
    for more in short:
        cores, mib, gpus = cores + max(0, more[0]), mib + max(0, more[1]), gpus + max(0, more[2])
    return ForeignLoad(cores, mib, gpus) if cores or mib or gpus else None
