"""The record of a pod's resources in its annotation: written as JSON, and read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluence_plugins.fluence.graph.accounting import Accounting
from fluence_plugins.fluence.graph.cluster_graph import GPU, GPU_OF
from fluence_plugins.fluence.graph.holdings import Share
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import DeviceHolding, HostHolding, Placement
from fluence_plugins.resources import names

_MOST_DIGITS = 15
"""The length of the longest valid jobid: far below the jobids of foreign load."""


def to_json(share: Share, accounting: Accounting) -> dict[str, Any]:
    """What a pod holds as JSON: {"jobs": {jobid: {"host", "cores", "gpus", "memory", "devices"}}}.

    If it holds them, also "gpuResource" (the kind of "gpus"), "otherGpus" (indices by kind), "millicores", "pods" and
    "exclusive".
    """
    return {"jobs": {str(jobid): _part_to_json(part, accounting) for jobid, part in sorted(share.items())}}


def _part_to_json(part: Placement, accounting: Accounting) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for host in part.hosts:
        written |= {"host": host.name, "cores": list(host.cores), "gpus": list(host.gpus), "memory": host.memory_mib}
        if host.gpus:
            written["gpuResource"] = accounting.gpu_resources[0]
        if host.others:
            written["otherGpus"] = {kind.removeprefix(GPU_OF): list(indices) for kind, indices in host.others}
        if host.millicores:
            written["millicores"] = host.millicores
        if host.pods:
            written["pods"] = host.pods
        if host.exclusive:
            written["exclusive"] = True
    if part.devices:
        written["devices"] = [names.any_place(device.path) for device in part.devices]
    return written


def from_json(held: Any, node: str, live: LiveGraph, requests: Mapping[str, int]) -> Share | None:
    """Read a record of `to_json`; None if it is invalid, or of another node (forged or copied).

    `requests` are the pod's: gpus without a recorded kind are of the only kind that the pod requests. The record's
    units may differ from those of this configuration: see `recovery`.
    """
    jobs = held.get("jobs") if isinstance(held, Mapping) else None
    if not isinstance(jobs, Mapping) or not jobs:
        return None
    share: dict[int, Placement] = {}
    for number, written in jobs.items():
        part = _part_from_json(written, node, live, requests)
        if part is None or len(str(number)) > _MOST_DIGITS or not str(number).isdecimal() or int(number) < 1:
            return None
        share[int(number)] = part
    return share if any(part.hosts for part in share.values()) else None


def _part_from_json(written: Any, node: str, live: LiveGraph, requests: Mapping[str, int]) -> Placement | None:
    """The part of one allocation. It may name a node or device that the graph does not have: it may come back."""
    if not isinstance(written, Mapping):
        return None
    devices = tuple(_device(path, live) for path in _strings(written.get("devices", [])))
    if "host" not in written:
        return Placement((), devices) if devices else None
    cores, gpus, memory = (written.get(key) for key in ("cores", "gpus", "memory"))
    units, others = [written.get(key, 0) for key in ("millicores", "pods")], written.get("otherGpus", {})
    if (
        written["host"] != node
        or not _are_indices(cores)
        or not _are_indices(gpus)
        or not _are_indices([memory, *units])
    ):
        return None
    if not isinstance(others, Mapping) or not all(_are_indices(indices) for indices in others.values()):
        return None
    path = f"{live.graph.root.path}/{node}"
    by_type = _gpus_by_type(written.get("gpuResource"), gpus, others, live.accounting, requests)  # type: ignore[arg-type]
    host = HostHolding(
        node,
        path,
        cores=tuple(cores),  # type: ignore[arg-type]
        gpus=by_type.pop(GPU, ()),
        memory_mib=memory,  # type: ignore[arg-type]
        exclusive=written.get("exclusive") is True,
        millicores=units[0],
        pods=units[1],
        others=tuple(sorted(by_type.items())),
    )
    return Placement((host,), devices)


def _gpus_by_type(
    kind: Any, gpus: list[int], others: Mapping[str, list[int]], accounting: Accounting, requests: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """The indices of gpus by type of vertex, without the kinds that this configuration does not count."""
    if not isinstance(kind, str):
        asked = [name for name in accounting.gpu_resources if requests.get(name, 0)]
        kind = asked[0] if len(asked) == 1 else next(iter(accounting.gpu_resources), "")
    by_kind = {kind: gpus, **others}
    return {
        accounting.gpu_types[name]: tuple(indices)
        for name, indices in by_kind.items()
        if indices and name in accounting.gpu_types
    }


def _device(path: str, live: LiveGraph) -> DeviceHolding:
    known = next((live.graph.virtual[one] for one in live.graph.same_device(path)), None)
    return DeviceHolding(path, known.backend, dict(known.attributes)) if known else DeviceHolding(path, "")


def _strings(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _are_indices(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)
