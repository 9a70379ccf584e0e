"""One group's placement in the graph: the allocations made for it, divided among its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fluence_plugins.fluence.live_graph import LiveGraph, Share
from fluence_plugins.fluence.needs import Needs
from fluence_plugins.fluence.placement import DeviceHolding, HostHolding, Placement
from fluence_plugins.fluence.requests import PodShape
from session_scheduler.model.groups import Task

_MOST_DIGITS = 15
"""Of a jobid that is believed: far from where the jobids of foreign load start."""


class GroupPlacement:
    """What `place_group` answers: see `session_scheduler.hookspecs.Placement`."""

    def __init__(self, live: LiveGraph) -> None:
        self._live = live
        self._first = live.next_jobid
        self._shares: dict[Task, dict[int, Placement]] = {}

    def add(self, task: Task, jobid: int, part: Placement) -> None:
        """Give a task its part of an allocation that was just made."""
        self._shares.setdefault(task, {})[jobid] = part

    def hold(self) -> None:
        """Note the tasks' shares as held, once all were added."""
        for task, share in self._shares.items():
            self._live.hold(task.uid, share)

    @property
    def nodes(self) -> Mapping[Task, str]:
        """The host of each task."""
        return {task: _host_name(share) for task, share in self._shares.items()}

    @property
    def holds(self) -> Mapping[Task, Mapping[str, Any]]:
        """What each task holds, by names."""
        return {task: to_json(share) for task, share in self._shares.items()}

    def undo(self) -> None:
        """Take every allocation back as if it had never been made."""
        jobids = {jobid for share in self._shares.values() for jobid in share}
        self._live.retract(sorted(jobids, reverse=True), [task.uid for task in self._shares], self._first)

    def redo(self) -> None:
        """Make the same allocations again, under the same jobids."""
        shares = {task.uid: share for task, share in self._shares.items()}
        self._live.replay(shares)
        if any(self._live.shares.get(uid) != share for uid, share in shares.items()):
            for uid in shares:
                self._live.free(uid)
            raise RuntimeError("what was undone cannot be taken again: the graph has changed meanwhile")

    def release(self, tasks: Sequence[Task]) -> None:
        """Give some tasks' parts back."""
        for task in tasks:
            self._shares.pop(task, None)
            self._live.free(task.uid)


def _host_name(share: Share) -> str:
    return next(host.name for placement in share.values() for host in placement.hosts)


def divide_hosts(placement: Placement, shape: PodShape, number: int) -> Iterator[HostHolding]:
    """Cut what an allocation holds of each host into the slots that it is made of, one for each of `number` pods.

    A policy that hands out whole nodes leaves more on a host than its slots take: the rest, and the host itself, go to
    the first of them, and are free again when that pod ends.
    """
    slots = {host.path: 1 if host.exclusive else _slots(host, shape) for host in placement.hosts}
    spare = number - sum(slots.values())
    for host in placement.hosts:
        more = min(spare, _slots(host, shape) - slots[host.path])
        slots[host.path] += more
        spare -= more
    if spare:
        raise RuntimeError(f"the allocation {placement} does not divide into {number} slots of {shape}")
    for host in placement.hosts:
        yield from _cut(host, shape, slots[host.path])


def _slots(host: HostHolding, shape: PodShape) -> int:
    """How many slots of the shape there can be in what is held of a host."""
    bounds = [len(host.cores) // shape.cores]
    if shape.gpus:
        bounds.append(len(host.gpus) // shape.gpus)
    if shape.memory_mib:
        bounds.append(host.memory_mib // shape.memory_mib)
    return min(bounds)


def _cut(host: HostHolding, shape: PodShape, slots: int) -> Iterator[HostHolding]:
    rest = slots - 1
    split = (len(host.cores) - rest * shape.cores, len(host.gpus) - rest * shape.gpus)
    memory = host.memory_mib - rest * shape.memory_mib
    yield HostHolding(host.name, host.path, host.cores[: split[0]], host.gpus[: split[1]], memory, host.exclusive)
    for index in range(rest):
        core, gpu = split[0] + index * shape.cores, split[1] + index * shape.gpus
        cores, gpus = host.cores[core : core + shape.cores], host.gpus[gpu : gpu + shape.gpus]
        yield HostHolding(host.name, host.path, cores, gpus, shape.memory_mib)


def divide_devices(placement: Placement, needs: Needs, kind: str) -> Iterator[tuple[DeviceHolding, ...]]:
    """Cut the devices of one allocation into one pod's each; those of a pod come from one tree."""
    each = needs.devices[kind]
    by_tree: dict[str, list[DeviceHolding]] = {}
    for device in placement.devices:
        by_tree.setdefault(device.backend, []).append(device)
    for devices in by_tree.values():
        for start in range(0, len(devices) - each + 1, each):
            yield tuple(devices[start : start + each])


def to_json(share: Share) -> dict[str, Any]:
    """What a pod holds as JSON: {"jobs": {jobid: {"host", "cores", "gpus", "memory", "devices"}}}."""
    return {"jobs": {str(jobid): _part_to_json(part) for jobid, part in sorted(share.items())}}


def _part_to_json(part: Placement) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for host in part.hosts:
        written |= {"host": host.name, "cores": list(host.cores), "gpus": list(host.gpus), "memory": host.memory_mib}
        if host.exclusive:
            written["exclusive"] = True
    if part.devices:
        written["devices"] = [device.path for device in part.devices]
    return written


def from_json(held: Any, node: str, live: LiveGraph) -> Share | None:
    """Read what `to_json` wrote; None where it is no such thing, or does not belong to that node: forged or copied."""
    jobs = held.get("jobs") if isinstance(held, Mapping) else None
    if not isinstance(jobs, Mapping) or not jobs:
        return None
    share: dict[int, Placement] = {}
    for number, written in jobs.items():
        part = _part_from_json(written, node, live)
        if part is None or len(str(number)) > _MOST_DIGITS or not str(number).isdecimal() or int(number) < 1:
            return None
        share[int(number)] = part
    return share if any(part.hosts for part in share.values()) else None


def _part_from_json(written: Any, node: str, live: LiveGraph) -> Placement | None:
    """One allocation's part. A node or device that the graph does not have (now) is believed: it may come back."""
    if not isinstance(written, Mapping):
        return None
    devices = tuple(_device(path, live) for path in _texts(written.get("devices", [])))
    if "host" not in written:
        return Placement((), devices) if devices else None
    cores, gpus, memory = (written.get(key) for key in ("cores", "gpus", "memory"))
    if written["host"] != node or not _whole(cores) or not _whole(gpus) or not _whole([memory]):
        return None
    path = f"{live.graph.root.path}/{node}"
    host = HostHolding(node, path, tuple(cores), tuple(gpus), memory, written.get("exclusive") is True)  # type: ignore[arg-type]
    return Placement((host,), devices)


def _device(path: str, live: LiveGraph) -> DeviceHolding:
    known = live.graph.virtual.get(path)
    return DeviceHolding(path, known.backend, dict(known.attributes)) if known else DeviceHolding(path, "")


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _whole(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)
