"""One group's placement in the graph: the allocations made for it, divided among its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fluence_plugins.fluence.graph.accounting import PodShape
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import DeviceHolding, HostHolding, Placement
from fluence_plugins.fluence.graph.records import to_json
from fluence_plugins.fluence.matching.pod_requests import PodRequests
from session_scheduler.model.groups import Task

_MOST_DIGITS = 15
"""Of a jobid that is believed: far from where the jobids of foreign load start."""


class GroupPlacement:
    """What `place_group` answers: see `session_scheduler.hookspecs.Placement`."""

    def __init__(self, live: LiveGraph) -> None:
        self._live = live
        self._first = live.allocations.next_jobid
        self._shares: dict[Task, dict[int, Placement]] = {}

    def add(self, task: Task, jobid: int, part: Placement) -> None:
        """Give a task its part of an allocation that was just made."""
        self._shares.setdefault(task, {})[jobid] = part

    def join(self, other: GroupPlacement) -> None:
        """Take over what was placed and held after this, for other tasks."""
        self._shares |= other._shares

    def hold(self) -> None:
        """Note the tasks' shares as held, once all were added."""
        for task, share in self._shares.items():
            self._live.allocations.hold(task.uid, share)

    @property
    def nodes(self) -> Mapping[Task, str]:
        """The host of each task."""
        return {
            task: next(host.name for placement in share.values() for host in placement.hosts)
            for task, share in self._shares.items()
        }

    @property
    def devices(self) -> Mapping[Task, tuple[DeviceHolding, ...]]:
        """The devices of each task that got some."""
        found = {
            task: tuple(d for part in share.values() for d in part.devices) for task, share in self._shares.items()
        }
        return {task: devices for task, devices in found.items() if devices}

    @property
    def holds(self) -> Mapping[Task, Mapping[str, Any]]:
        """What each task holds, by names."""
        return {task: to_json(share, self._live.accounting) for task, share in self._shares.items()}

    def undo(self) -> None:
        """Take every allocation back as if it had never been made."""
        jobids = {jobid for share in self._shares.values() for jobid in share}
        self._live.allocations.retract(sorted(jobids, reverse=True), [task.uid for task in self._shares], self._first)

    def redo(self) -> None:
        """Make the same allocations again, under the same jobids."""
        shares = {task.uid: share for task, share in self._shares.items()}
        self._live.allocations.replay(shares, exactly=True)
        if any(self._live.holdings.shares.get(uid) != share for uid, share in shares.items()):
            for uid in shares:
                self._live.allocations.free(uid)
            raise RuntimeError("what was undone cannot be taken again: the graph has changed meanwhile")

    def release(self, tasks: Sequence[Task]) -> None:
        """Give some tasks' parts back."""
        for task in tasks:
            self._shares.pop(task, None)
            self._live.allocations.free(task.uid)


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
    others = {kind: len(indices) for kind, indices in host.others}
    amounts = [
        (host.pods, shape.pods),
        (host.millicores if shape.pods else len(host.cores), shape.cores),
        (host.memory_mib, shape.memory_mib),
        (len(host.gpus), shape.gpus),
        *((others.get(kind, 0), each) for kind, each in shape.others),
    ]
    return min(held // each for held, each in amounts if each)


def _cut(host: HostHolding, shape: PodShape, slots: int) -> Iterator[HostHolding]:
    """The first gets all that the others, who get what the shape says, leave."""
    rest = slots - 1
    if not rest:
        yield host
        return
    pooled = bool(shape.pods)
    each = dict(shape.others)
    cores = _cuts(host.cores, 0 if pooled else shape.cores, rest)
    gpus = _cuts(host.gpus, shape.gpus, rest)
    others = {kind: _cuts(indices, each.get(kind, 0), rest) for kind, indices in host.others}
    for index in range(slots):
        first = index == 0
        yield HostHolding(
            host.name,
            host.path,
            cores[index],
            gpus[index],
            host.memory_mib - rest * shape.memory_mib if first else shape.memory_mib,
            exclusive=first and host.exclusive,
            millicores=(host.millicores - rest * shape.cores if first else shape.cores) if pooled else 0,
            pods=host.pods - rest * shape.pods if first else shape.pods,
            others=tuple((kind, cut[index]) for kind, cut in others.items() if cut[index]),
        )


def _cuts(indices: tuple[int, ...], each: int, rest: int) -> list[tuple[int, ...]]:
    """All but the last `rest` times `each` of these, and then `rest` times the next `each`."""
    split = len(indices) - rest * each
    return [indices[:split], *(indices[split + part * each : split + (part + 1) * each] for part in range(rest))]


def divide_devices(placement: Placement, requests: PodRequests, kind: str) -> Iterator[tuple[DeviceHolding, ...]]:
    """Cut the devices of one allocation into one pod's each; those of a pod come from one tree."""
    each = requests.devices[kind]
    by_tree: dict[str, list[DeviceHolding]] = {}
    for device in placement.devices:
        by_tree.setdefault(device.backend, []).append(device)
    for devices in by_tree.values():
        for start in range(0, len(devices) - each + 1, each):
            yield tuple(devices[start : start + each])
