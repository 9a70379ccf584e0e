"""What a pod records that it holds: as JSON, read back, and converted to how the graph counts now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fluence_plugins.fluence.graph.accounting import MOST_PARTS, Accounting, cores_of
from fluence_plugins.fluence.graph.cluster_graph import GPU, GPU_OF
from fluence_plugins.fluence.graph.holdings import Share
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import DeviceHolding, HostHolding, Placement
from fluence_plugins.resources import names
from session_scheduler.model.classes import TaskClass

_MOST_DIGITS = 15
"""Of a jobid that is believed: far from where the jobids of foreign load start."""


def to_json(share: Share, accounting: Accounting) -> dict[str, Any]:
    """What a pod holds as JSON: {"jobs": {jobid: {"host", "cores", "gpus", "memory", "devices"}}}.

    Where they are held, too: "gpuResource" (the kind that "gpus" are of), "otherGpus" (indices by kind), "millicores",
    "pods" and "exclusive".
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
    """Read what `to_json` wrote; None where it is no such thing, or does not belong to that node: forged or copied.

    `requests` are the pod's: where the kind of its gpus was not written, they are of the only kind that it asks for.
    What is held may be counted otherwise than here: see `as_counted`.
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
    """One allocation's part. A node or device that the graph does not have (now) is believed: it may come back."""
    if not isinstance(written, Mapping):
        return None
    devices = tuple(_device(path, live) for path in _texts(written.get("devices", [])))
    if "host" not in written:
        return Placement((), devices) if devices else None
    cores, gpus, memory = (written.get(key) for key in ("cores", "gpus", "memory"))
    units, others = [written.get(key, 0) for key in ("millicores", "pods")], written.get("otherGpus", {})
    if written["host"] != node or not _whole(cores) or not _whole(gpus) or not _whole([memory, *units]):
        return None
    if not isinstance(others, Mapping) or not all(_whole(indices) for indices in others.values()):
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
    """The indices of gpus by the type that each kind has here; those of a kind that is none here are left out."""
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


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _whole(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def as_counted(shares: Mapping[str, Share], classes: Mapping[str, TaskClass], live: LiveGraph) -> dict[str, Share]:
    """Convert the shares of pods (uids) that were written under the other accounting; the others stay as they are.

    Whole cores become the millicores that the pod requests, or those of the cores if that is less: it is held then what
    it would take now. Millicores become whole cores, rounded up, one at least: the first ones of the host that no other
    pod holds or has recorded. Where there are too few, cores are named that the host does not have: they are missing,
    and the pod is load like that of others. Who has a host as a whole has what the others, who came there with it,
    leave of it.
    """
    pooled = live.accounting.millicores
    outdated = {uid for uid, share in shares.items() if any(_is_outdated(host, pooled) for host in _hosts(share))}
    if not outdated:
        return dict(shares)
    taken: dict[str, set[int]] = {}
    for share in (*live.holdings.shares.values(), *shares.values()):
        for host in _hosts(share):
            taken.setdefault(host.name, set()).update(host.cores)

    def converted(uid: str, host: HostHolding) -> HostHolding:
        if not _is_outdated(host, pooled):
            return host
        if pooled:
            recorded, asked = 1000 * len(host.cores), live.accounting.shape_of(classes[uid].requests).cores
            return replace(host, cores=(), millicores=min(recorded, asked), pods=1)
        there = taken.setdefault(host.name, set())
        cores = _lowest_free(there, min(MOST_PARTS, max(1, cores_of(host.millicores))))
        there.update(cores)
        return replace(host, cores=cores, millicores=0, pods=0)

    def whole(uid: str, host: HostHolding) -> HostHolding:
        all_of_it = live.loaded.whole_host(host.name) if host.exclusive and _is_outdated(host, pooled) else None
        if all_of_it is None:
            return converted(uid, host)
        there = (share for held in (live.holdings.shares, found) for other, share in held.items() if other != uid)
        beside = [other for share in there for other in _hosts(share) if other.name == host.name]
        return _rest(all_of_it.hosts[0], beside)

    found: dict[str, Share] = {}
    exclusive = {uid for uid in outdated if any(host.exclusive for host in _hosts(shares[uid]))}
    for uid in sorted(shares, key=lambda uid: (uid in exclusive, uid)):
        found[uid] = shares[uid]
        if uid in outdated:
            convert = whole if uid in exclusive else converted
            found[uid] = {
                jobid: Placement(tuple(convert(uid, host) for host in part.hosts), part.devices)
                for jobid, part in shares[uid].items()
            }
    return found


def _rest(whole: HostHolding, others: Iterable[HostHolding]) -> HostHolding:
    """What others leave of a whole host."""
    gone = tuple(others)
    cores = {core for host in gone for core in host.cores}
    gpus = {gpu for host in gone for gpu in host.gpus}
    of_kind = {(kind, index) for host in gone for kind, indices in host.others for index in indices}
    left = ((kind, tuple(i for i in indices if (kind, i) not in of_kind)) for kind, indices in whole.others)
    return replace(
        whole,
        cores=tuple(core for core in whole.cores if core not in cores),
        gpus=tuple(gpu for gpu in whole.gpus if gpu not in gpus),
        memory_mib=max(0, whole.memory_mib - sum(host.memory_mib for host in gone)),
        millicores=max(0, whole.millicores - sum(host.millicores for host in gone)),
        pods=max(0, whole.pods - sum(host.pods for host in gone)),
        others=tuple((kind, indices) for kind, indices in left if indices),
    )


def _hosts(share: Share) -> Iterator[HostHolding]:
    for part in share.values():
        yield from part.hosts


def _is_outdated(host: HostHolding, pooled: bool) -> bool:
    return not host.pods if pooled else bool(host.pods or host.millicores)


def _lowest_free(taken: set[int], number: int) -> tuple[int, ...]:
    found: list[int] = []
    index = 0
    while len(found) < number:
        if index not in taken:
            found.append(index)
        index += 1
    return tuple(found)
