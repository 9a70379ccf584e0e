"""The assignment of pods to the places of shared devices. Places are equal, so a pod may get another one.

Records name the device, not the place. A pod keeps its place while it exists and is free. If fewer pods may share a
device than hold it (its `sharing` was reduced), it gets the additional places that they need, and is closed to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from fluence_plugins.fluence.graph.cluster_graph import ClusterGraph
from fluence_plugins.fluence.graph.placement import DeviceHolding, Placement
from fluence_plugins.resources import names

ByJob = Mapping[int, Mapping[str, Placement]]
"""The parts that pods (uids) should hold, by jobid."""


def with_places(graph: ClusterGraph, wanted: ByJob, is_free: Callable[[str], bool]) -> tuple[ByJob, dict[str, int]]:
    """Return the parts with the paths of free devices, and how many places are lacking, by path of the shared device.

    A pod whose path is free keeps it. Then the others, in the order of jobids and uids, get the first free place. A
    part without a free place keeps its path.
    """
    free = _FreePlaces(is_free)
    open_ones = [(key, device) for key, device in _devices(wanted) if not free.take(device.path, graph)]
    moved: dict[tuple[int, str, str], str] = {}
    lacking: Counter[str] = Counter()
    for (jobid, uid), device in open_ones:
        like = graph.same_device(device.path)
        path = next((path for path in like if free.take(path, graph)), None)
        if path is not None:
            moved[jobid, uid, device.path] = path
        elif like and (shared := names.shared_path(like[0]) or names.shared_path(device.path)):
            lacking[shared] += 1
    if not moved:
        return wanted, dict(lacking)
    return {
        jobid: {uid: _with_paths(part, jobid, uid, moved) for uid, part in parts.items()}
        for jobid, parts in wanted.items()
    }, dict(lacking)


class _FreePlaces:
    """The free places of a graph that no pod took yet."""

    def __init__(self, is_free: Callable[[str], bool]) -> None:
        self._is_free = is_free
        self._held: set[str] = set()
        self._whole: set[str] = set()

    def take(self, path: str, graph: ClusterGraph) -> bool:
        """Take a device if it exists and is free. Returns whether it did."""
        node = graph.virtual.get(path)
        if node is None or node.places or path in self._held or not self._is_free(path):
            return False
        if any(above in self._whole for above in node.above):
            return False
        self._held.update((path, *node.above))
        self._whole.add(path)
        return True


def _devices(wanted: ByJob) -> Iterator[tuple[tuple[int, str], DeviceHolding]]:
    found = {(jobid, uid): part.devices for jobid, parts in wanted.items() for uid, part in parts.items()}
    for key in sorted(key for key, devices in found.items() if devices):
        for device in found[key]:
            yield key, device


def _with_paths(part: Placement, jobid: int, uid: str, moved: Mapping[tuple[int, str, str], str]) -> Placement:
    devices = [replace(device, path=moved.get((jobid, uid, device.path), device.path)) for device in part.devices]
    return replace(part, devices=tuple(sorted(devices, key=lambda device: device.path)))
