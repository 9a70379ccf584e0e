"""The placement of one group: its allocations in the graph, divided among its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fluence_plugins.fluence.graph.accounting import PodShape
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import DeviceHolding, HostHolding, Placement
from fluence_plugins.fluence.graph.records import to_json
from fluence_plugins.fluence.matching.pod_requests import PodRequests
from session_scheduler.model.groups import Task


class GroupPlacement:
    """The result of the hook `place_group`: see `session_scheduler.hookspecs.Placement`."""

    def __init__(self, live: LiveGraph) -> None:
        self._live = live
        self._first = live.allocations.next_jobid
        self._shares: dict[Task, dict[int, Placement]] = {}

    def add(self, task: Task, jobid: int, part: Placement) -> None:
        """Add a task's part of a new allocation."""
        self._shares.setdefault(task, {})[jobid] = part

    def join(self, other: GroupPlacement) -> None:
        """Add a later placement, of other tasks."""
        self._shares |= other._shares

    def hold(self) -> None:
        """Record that the tasks hold their shares, after all were added."""
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
        """The devices of each task that has some."""
        found = {
            task: tuple(d for part in share.values() for d in part.devices) for task, share in self._shares.items()
        }
        return {task: devices for task, devices in found.items() if devices}

    @property
    def holds(self) -> Mapping[Task, Mapping[str, Any]]:
        """The record of each task's resources."""
        return {task: to_json(share, self._live.accounting) for task, share in self._shares.items()}

    def undo(self) -> None:
        """Remove all allocations without a trace."""
        jobids = {jobid for share in self._shares.values() for jobid in share}
        self._live.allocations.retract(sorted(jobids, reverse=True), [task.uid for task in self._shares], self._first)

    def redo(self) -> None:
        """Allocate the same again, under the same jobids."""
        shares = {task.uid: share for task, share in self._shares.items()}
        self._live.allocations.replay(shares, exactly=True)
        if any(self._live.holdings.shares.get(uid) != share for uid, share in shares.items()):
            for uid in shares:
                self._live.allocations.free(uid)
            raise RuntimeError("the undone placement cannot be redone: the graph changed")

    def release(self, tasks: Sequence[Task]) -> None:
        """Free the parts of some tasks."""
        for task in tasks:
            self._shares.pop(task, None)
            self._live.allocations.free(task.uid)


def divide_hosts(placement: Placement, shape: PodShape, number: int) -> Iterator[HostHolding]:
    """Divide an allocation into its slots, one for each of `number` pods.

    With a policy that allocates whole nodes, a host has more than its slots need. The first slot gets the rest and the
    host itself, so these are free when its pod ends.
    """
    slots = {host.path: 1 if host.exclusive else _slots(host, shape) for host in placement.hosts}
    spare = number - sum(slots.values())
    for host in placement.hosts:
        more = min(spare, _slots(host, shape) - slots[host.path])
        slots[host.path] += more
        spare -= more
    if spare:
        raise RuntimeError(f"the allocation {placement} cannot be divided into {number} slots of {shape}")
    for host in placement.hosts:
        yield from _cut(host, shape, slots[host.path])


def _slots(host: HostHolding, shape: PodShape) -> int:
    """How many slots of the shape the allocated part of a host has."""
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
    """Every slot but the first gets the amounts of the shape; the first gets the rest."""
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
    """Divide indices into `rest` parts of `each` indices, after a first part with those that remain."""
    split = len(indices) - rest * each
    return [indices[:split], *(indices[split + part * each : split + (part + 1) * each] for part in range(rest))]


def divide_devices(placement: Placement, requests: PodRequests, kind: str) -> Iterator[tuple[DeviceHolding, ...]]:
    """Divide the devices of one allocation among its pods; those of a pod come from one tree."""
    each = requests.devices[kind]
    by_tree: dict[str, list[DeviceHolding]] = {}
    for device in placement.devices:
        by_tree.setdefault(device.backend, []).append(device)
    for devices in by_tree.values():
        for start in range(0, len(devices) - each + 1, each):
            yield tuple(devices[start : start + each])
