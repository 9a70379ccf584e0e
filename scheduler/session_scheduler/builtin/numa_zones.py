"""The NUMA zones of all nodes as columns, from their NodeResourceTopologies, and which nodes fit a pod in them.

Arrays have the shape [zone, row of the node table]. Zones are in the order of their numbers, in which the kubelet
prefers them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from session_scheduler.builtin.numa_requests import LARGEST, Amounts, Need, PodNeeds
from session_scheduler.model.columns import BoolColumn, IntColumn, RowIndex
from session_scheduler.model.node_topology import NodeResourceTopology, Zone
from session_scheduler.model.quantity import QuantityError, parse_quantity

_log = structlog.get_logger(__name__)
_ZONE: Final = re.compile(r"node-(\d{1,4})")
_NUMA_NODE: Final = "Node"
SINGLE: Final = "single-numa-node"
_POLICIES: Final = ("none", "best-effort", "restricted", SINGLE)
_DEPRECATED: Final[Mapping[str, tuple[str, bool]]] = {
    "SingleNUMANodeContainerLevel": (SINGLE, False), "SingleNUMANodePodLevel": (SINGLE, True),
    "BestEffortContainerLevel": ("best-effort", False), "BestEffortPodLevel": ("best-effort", True),
    "RestrictedContainerLevel": ("restricted", False), "RestrictedPodLevel": ("restricted", True),
}  # fmt: skip
"""topologyPolicies: (policy, whether the scope is the pod)."""
_MOST_ZONES: Final = 64
DEFAULT_MOST_NODES: Final = 8
"""The kubelet's limit of NUMA nodes, unless its option says otherwise."""
MOST_COMPARED: Final = 8
"""LeastNUMANodes does not compare the sets of zones of a node with more zones: there are too many."""
FARTHEST: Final = 255
"""The distance of zones whose distance is not reported."""
ABSENT: Final = -1
"""The amount of a resource that a zone does not have."""
Zones = NDArray[np.int64]
Fits = NDArray[np.bool_]
_T = TypeVar("_T", bound=np.generic)
_LESS: Final = 1 - 1e-9
"""Inexact sums count as equal: in doubt, a node does not fit."""


class Manager(NamedTuple):
    """A node's topology manager, as its NodeResourceTopology describes it."""

    policy: str = "none"
    pod_scope: bool = False
    most_nodes: int = DEFAULT_MOST_NODES


def manager_of(topology: NodeResourceTopology) -> Manager:
    """The topology manager's options: the attributes, or else the deprecated field."""
    policy, pod_scope = _DEPRECATED.get(next(iter(topology.topology_policies), ""), ("none", False))
    most = DEFAULT_MOST_NODES
    for one in topology.attributes:
        if one.name == "topologyManagerPolicy" and one.value in _POLICIES:
            policy = one.value
        elif one.name == "topologyManagerScope" and one.value in ("container", "pod"):
            pod_scope = one.value == "pod"
        elif one.name == "topologyManagerMaxNUMANodes" and re.fullmatch(r"[1-9]\d{0,3}", one.value):
            most = max(2, min(1024, int(one.value)))
    return Manager(policy, pod_scope, most)


class Offer:
    """What one object offers, to compare with many classes: a pod may fit only if each of its needs fits some zone."""

    def __init__(self, topology: NodeResourceTopology) -> None:
        self.manager = manager_of(topology)
        self.zones = [
            {name: available for name, _, available in amounts_in(zone, topology.metadata.name)}
            for _, zone in numbered(topology)
        ]
        self._names = {name for zone in self.zones for name in zone}

    @property
    def is_single(self) -> bool:
        """Whether the kubelet rejects pods that it cannot align. Without zones it rejects none."""
        return self.manager.policy == SINGLE and bool(self.zones)

    def may_fit(self, needs: PodNeeds) -> bool:
        """Whether each need by itself fits in some zone."""
        return all(any(all(zone.get(name, ABSENT) >= amount for name, amount in need.requests if name in self._names)
                       for zone in self.zones)
                   for need in needs.of_scope(pod=self.manager.pod_scope))  # fmt: skip


class Items(NamedTuple):
    """Equal amounts that the kubelet allocates in one zone each, and how many of them each row has."""

    amounts: Amounts
    counts: IntColumn


class ZoneTable:
    """The zones of all nodes. `refresh` follows the objects and the node table."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[NodeResourceTopology, int]] = {}
        self.any = False
        """Whether any node has an object with zones."""
        self.single: BoolColumn = np.zeros(0, np.bool_)
        """The rows with the policy single-numa-node."""
        self.pod_scope: BoolColumn = np.zeros(0, np.bool_)
        self.most_nodes: IntColumn = np.zeros(0, np.int64)
        self.exists: Fits = np.zeros((2, 0), np.bool_)
        self.available: dict[str, Zones] = {}
        """By resource: what the object reports as free; ABSENT where the zone does not have the resource."""
        self.reported: dict[str, IntColumn] = {}
        """By resource: what pods use in all zones together, as the object reports it; ABSENT if no zone has it."""
        self.costs: Zones = np.zeros((MOST_COMPARED, MOST_COMPARED, 0), np.int64)
        """The distances between the first zones, shape [zone, zone, row]."""

    def refresh(self, objects: Mapping[str, NodeResourceTopology], rows: Mapping[str, int], size: int) -> list[str]:
        """Read new and changed objects of existing nodes. Returns the names of their nodes."""
        zones, known_rows = self.exists.shape
        if size > known_rows:
            self._grow(zones, max(size, 2 * known_rows))
        changed = []
        for name in [name for name, (_, row) in self._known.items() if rows.get(name) != row or name not in objects]:
            self._clear(self._known.pop(name)[1])
        for name, topology in objects.items():
            known, row = self._known.get(name), rows.get(name, -1)
            if row >= 0 and (known is None or known[0] is not topology):
                self._clear(row)
                self._write(row, topology)
                self._known[name] = topology, row
                changed.append(name)
        self.any = bool(self.exists.any())
        return changed

    def object_of(self, name: str) -> NodeResourceTopology | None:
        """The object of a node, if the node exists."""
        known = self._known.get(name)
        return None if known is None else known[0]

    def _grow(self, zones: int, rows: int) -> None:
        self.single = _grown(self.single, (rows,))
        self.pod_scope = _grown(self.pod_scope, (rows,))
        self.most_nodes = _grown(self.most_nodes, (rows,), DEFAULT_MOST_NODES)
        self.exists = _grown(self.exists, (zones, rows))
        self.costs = _grown(self.costs, (MOST_COMPARED, MOST_COMPARED, rows), FARTHEST)
        self.available = {name: _grown(one, (zones, rows), ABSENT) for name, one in self.available.items()}
        self.reported = {name: _grown(one, (rows,), ABSENT) for name, one in self.reported.items()}

    def _clear(self, row: int) -> None:
        self.single[row] = self.pod_scope[row] = False
        self.exists[:, row] = False
        for zones in self.available.values():
            zones[:, row] = ABSENT
        for column in self.reported.values():
            column[row] = ABSENT

    def _write(self, row: int, topology: NodeResourceTopology) -> None:
        manager = manager_of(topology)
        zones = numbered(topology)
        most, rows = self.exists.shape
        if len(zones) > most:
            self._grow(len(zones), rows)
        # without zones nothing is known, as without an object
        self.single[row] = manager.policy == SINGLE and bool(zones)
        self.pod_scope[row] = manager.pod_scope
        self.most_nodes[row] = manager.most_nodes
        places = {number: place for place, (number, _) in enumerate(zones)}
        for place, (_, zone) in enumerate(zones):
            self.exists[place, row] = True
            self._write_costs(row, place, {places.get(_number(cost.name), -1): cost.value for cost in zone.costs})
            for name, allocatable, available in amounts_in(zone, topology.metadata.name):
                if name not in self.available:
                    self.available[name] = np.full(self.exists.shape, ABSENT, np.int64)
                    self.reported[name] = np.full(rows, ABSENT, np.int64)
                self.available[name][place, row] = available
                self.reported[name][row] = max(self.reported[name][row], 0) + max(allocatable - available, 0)

    def _write_costs(self, row: int, place: int, costs: Mapping[int, int]) -> None:
        if place < MOST_COMPARED:
            self.costs[place, :, row] = FARTHEST
            for other, value in costs.items():
                if 0 <= other < MOST_COMPARED:
                    self.costs[place, other, row] = min(max(value, 0), 2**20)


def _grown(old: NDArray[_T], shape: tuple[int, ...], fill: int = 0) -> NDArray[_T]:
    new: NDArray[_T] = np.full(shape, fill, old.dtype)
    new[tuple(map(slice, old.shape))] = old
    return new


def numbered(topology: NodeResourceTopology) -> list[tuple[int, Zone]]:
    """The NUMA nodes among the zones, by number."""
    found = {_number(zone.name): zone for zone in topology.zones if zone.type == _NUMA_NODE}
    return [(number, found[number]) for number in sorted(found) if number >= 0][:_MOST_ZONES]


def _number(name: str) -> int:
    match = _ZONE.fullmatch(name)
    return int(match[1]) if match else -1


def amounts_in(zone: Zone, node: str) -> Iterable[tuple[str, int, int]]:
    """(resource, allocatable, available). An amount that is not a valid quantity is 0: the zone fits no pod."""
    for one in zone.resources:
        milli = one.name == "cpu"
        try:
            allocatable, available = (parse_quantity(text, milli=milli) for text in (one.allocatable, one.available))
            yield one.name, min(LARGEST, allocatable), max(0, min(LARGEST, available))
        except QuantityError as error:
            _log.warning("ignoring an invalid amount in a NodeResourceTopology", node=node, zone=zone.name,
                         resource=one.name, error=str(error))  # fmt: skip
            yield one.name, 0, 0


# ------------------------------------------------------------------ which nodes fit


class RowZones:
    """The zones of some rows: what is free in them for the pods of a class."""

    def __init__(self, exists: Fits, free: Mapping[str, Zones]) -> None:
        """`free` has the form of `ZoneTable.available`; the methods do not change it."""
        self.exists = exists
        self.free = free

    @classmethod
    def of(cls, table: ZoneTable, rows: RowIndex) -> RowZones:
        """The zones of these rows of the table, as their objects report them."""
        return cls(table.exists[:, rows], {name: one[:, rows] for name, one in table.available.items()})

    def some(self, index: RowIndex) -> RowZones:
        """The zones of some of these rows."""
        return RowZones(self.exists[:, index], {name: one[:, index] for name, one in self.free.items()})

    def without(self, items: Iterable[Items]) -> RowZones:
        """What is certainly free: every zone without all the items, because each item may be in any zone."""
        left = dict(self.free)
        for amounts, counts in items:
            for name, amount in amounts:
                if name in left:
                    left[name] = np.where(left[name] >= 0, np.maximum(left[name] - amount * counts, 0), ABSENT)
        return RowZones(self.exists, left)

    def fit(self, requests: Amounts) -> Fits:
        """The zones where these amounts are free. A resource that no zone of a node has does not count there."""
        fits = self.exists.copy()
        for name, amount in requests:
            zones = self.free.get(name)
            if zones is not None:
                fits &= (zones >= amount) | (zones < 0).all(axis=0)
        return fits

    def aligned(self, needs: Sequence[Need]) -> list[BoolColumn]:
        """By need: the rows that fit it in one zone, if the kubelet chooses the first zone that fits for each."""
        zones = self
        found: list[BoolColumn] = []
        last = len(needs) - 1
        for place, need in enumerate(needs):
            fits = zones.fit(need.requests)
            any_zone: BoolColumn = np.logical_or.reduce(fits)
            found.append(any_zone)
            if need.stays and place < last and need.requests:
                first = np.zeros_like(fits)
                np.put_along_axis(first, fits.argmax(axis=0)[None], any_zone[None], axis=0)
                zones = zones.less(need.requests, first)
        return found

    def less(self, requests: Amounts, where: Fits) -> RowZones:
        """These zones without the requests in the zones of `where`."""
        left = dict(self.free)
        for name, amount in requests:
            if name in left:
                left[name] = np.where((left[name] >= 0) & where, left[name] - amount, left[name])
        return RowZones(self.exists, left)

    def sure(self, needs: Sequence[Need], items: Sequence[Items]) -> BoolColumn:
        """The rows that fit each need in one zone, wherever the kubelet allocates the items and the needs before."""
        found = np.ones(self.exists.shape[1], np.bool_)
        before = list(items)
        for need in needs:
            if need.requests:
                found &= self._sure(need.requests, before)
                if need.stays:
                    before.append(Items(need.requests, np.ones(len(found), np.int64)))
        return found

    def _sure(self, requests: Amounts, items: Sequence[Items]) -> BoolColumn:
        """The rows where the items cannot make all zones too small for the requests at once.

        A zone is too small if items of a certain amount are in it, and an item is in one zone. So for any set of zones
        and any weights of them: if the items' largest weighted shares of this amount add up to less than the weights
        of the zones, one of these zones has room. The weights here are 1, and the amount of each resource.
        """
        fits = self.fit(requests)
        counts = np.array([one.counts for one in items])
        shares = np.zeros((len(items), *fits.shape))
        """By item and zone: the largest part of the amount that makes the zone too small."""
        weights = [np.ones(fits.shape)]
        for name, amount in requests:
            zones = self.free.get(name)
            sizes = np.array([dict(one.amounts).get(name, 0) for one in items])
            if zones is None or not sizes.any():
                continue
            # every sum of items is a multiple of their greatest common divisor
            unit = np.maximum(np.gcd.reduce(np.where(counts > 0, sizes[:, None], 0)), 1)
            needed = -(-np.maximum(zones - amount + 1, 1) // unit) * unit
            weights.append(np.where(zones >= 0, needed, 0).astype(np.float64))
            np.maximum(shares, np.where(zones >= 0, sizes[:, None, None] / needed, 0), out=shares)
        np.minimum(shares, 1, out=shares)
        order = np.argsort(np.where(fits, (shares * counts[:, None]).sum(axis=0), np.inf), axis=0, kind="stable")
        fits, shares = np.take_along_axis(fits, order, axis=0), np.take_along_axis(shares, order[None], axis=1)
        found = np.zeros(fits.shape[1], np.bool_)
        for one in weights:
            weight = np.take_along_axis(one, order, axis=0)
            largest = np.maximum.accumulate(shares * weight, axis=1)
            total = (largest * counts[:, None]).sum(axis=0)
            found |= (fits & (total < np.cumsum(weight, axis=0) * _LESS)).any(axis=0)
        return found
