"""Volume matching: the volume for each claim on each node, for VolumeBinding.

A claim gets the smallest volume that fits, or a provisioned one. The computation covers all nodes at once. It offers a
volume to every node that reaches it; the first pod placed assumes the volume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from session_scheduler.builtin.assumed_volumes import AssumedVolumes
from session_scheduler.builtin.csi_migration import driver_of, migrated_affinity
from session_scheduler.framework.session import Session
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView, RowIndex
from session_scheduler.model.meta import LabelSelector, LabelSelectorRequirement, NodeSelector, NodeSelectorTerm
from session_scheduler.model.quantity import QuantityError, parse_quantity
from session_scheduler.model.selectors import selected_nodes
from session_scheduler.model.storage import (
    MIGRATED_PLUGINS,
    NO_PROVISIONER,
    SELECTED_NODE,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from session_scheduler.model.volume_offers import Offers, offers, size_of

_NONE = -1


class Reach:
    """The nodes that can reach each volume, as masks over all rows, cached until nodes or CSINodes change."""

    def __init__(self, session: Session) -> None:
        self.version = _version(session)
        self._nodes = session.table.all_rows()
        self._csi_nodes = session.objects(CSINode)
        self._masks: dict[NodeSelector | None, BoolColumn] = {}
        self._rows: dict[NodeSelector | None, RowIndex] = {}
        self._migrated: dict[str, BoolColumn] = {}

    def holds(self, session: Session) -> bool:
        """Whether the nodes and CSINodes are unchanged."""
        return self.version == _version(session)

    def of(self, volume: PersistentVolume) -> BoolColumn:
        """The nodes that reach a bound volume, by the CSI driver's labels on nodes that migrated its in-tree plugin."""
        mask = self.selected(_by_labels(volume.required))
        driver = driver_of(volume)
        if driver is None or not driver.topology:
            return mask
        migrated = self._migrated.get(driver.plugin)
        if migrated is None:
            migrated = self._migrated[driver.plugin] = self._migrated_nodes(driver.plugin)
        if not migrated.any():
            return mask
        return np.where(migrated, self.selected(_by_labels(migrated_affinity(volume, driver))), mask)

    def as_written(self, volume: PersistentVolume) -> BoolColumn:
        """The nodes that an unbound volume's own node affinity selects."""
        return self.selected(_by_labels(volume.required))

    def rows_as_written(self, volume: PersistentVolume) -> RowIndex:
        """Like `as_written`, as rows: with thousands of nodes many volumes are local to one node."""
        required = volume.required
        found = self._rows.get(required)
        if found is None:
            found = self._rows[required] = np.flatnonzero(self.as_written(volume))
        return found

    def selected(self, selector: NodeSelector | None) -> BoolColumn:
        """The nodes that a selector selects; all for None. Read-only."""
        found = self._masks.get(selector)
        if found is None:
            every = np.ones(len(self._nodes), np.bool_)
            found = every if selector is None else selected_nodes(self._nodes, selector)
            self._masks[selector] = found
        return found

    def _migrated_nodes(self, plugin: str) -> BoolColumn:
        mask = np.zeros(len(self._nodes), np.bool_)
        for name, node in self._csi_nodes.items():
            row = self._nodes.row_of(name)
            if row >= 0 and plugin in node.metadata.annotations.get(MIGRATED_PLUGINS, "").split(","):
                mask[row] = True
        return mask


def _version(session: Session) -> tuple[object, ...]:
    table = session.table
    return id(table), table.static_version, table.size, session.objects_version(CSINode)


def _by_labels(selector: NodeSelector | None) -> NodeSelector | None:
    """A volume's affinity without its terms on fields (a node's name): like Kubernetes, compare it with labels only."""
    if selector is None or not any(term.match_fields for term in selector.node_selector_terms):
        return selector
    return NodeSelector(node_selector_terms=tuple(
        term for term in selector.node_selector_terms if not term.match_fields))  # fmt: skip


# ------------------------------------------------------------------ candidates


def as_terms(selector: LabelSelector) -> NodeSelector | None:
    """A label selector as a node selector; None for an empty one, which selects all nodes."""
    labels = [LabelSelectorRequirement(key=k, operator="In", values=(v,)) for k, v in selector.match_labels.items()]
    expressions = (*labels, *selector.match_expressions)
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=expressions),)) if expressions else None


# ------------------------------------------------------------------ all nodes at once


class Matching(msgspec.Struct):
    """The result for a pod's claims on all nodes, as arrays over all rows."""

    conflict: BoolColumn
    """Rows without a volume or provisioner for one of the claims."""
    short: BoolColumn
    """Rows where the driver has too little storage for one of them."""
    claims: list[PersistentVolumeClaim] = msgspec.field(default_factory=list)
    chosen: list[IntColumn] = msgspec.field(default_factory=list)
    """For each claim, the index of its volume in `volumes`, or -1 to provision one."""
    volumes: list[PersistentVolume] = msgspec.field(default_factory=list)
    indices: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """By volume, its indices in `volumes`."""

    def add(self, volume: PersistentVolume) -> int:
        """Append a volume and return its index."""
        self.volumes.append(volume)
        self.indices.setdefault(volume.key, []).append(len(self.volumes) - 1)
        return len(self.volumes) - 1

    def used_before(self, volume: PersistentVolume, rows: RowIndex) -> BoolColumn | None:
        """The mask of these rows where another claim of the pod uses the volume; None if it is all False."""
        indices = self.indices.get(volume.key)
        if indices is None:
            return None
        used = np.zeros(len(rows), np.bool_)
        for chosen in self.chosen:
            used |= np.isin(chosen[rows], indices)
        return used if used.any() else None


class Matcher:
    """The delayed claims of one class and the volumes that match them, for one session."""

    def __init__(self, session: Session, claims: Sequence[PersistentVolumeClaim], reach: Reach,
                 volumes: Mapping[str, Sequence[PersistentVolume]]) -> None:  # fmt: skip
        """`volumes` are all volumes by StorageClass. Raises QuantityError."""
        self._session = session
        self._reach = reach
        sized = sorted(claims, key=lambda claim: size_of(claim.spec.resources.requests))
        self.offers = [offers(claim, volumes.get(claim.storage_class, ())) for claim in sized]
        self._provisionable: dict[str, tuple[BoolColumn, BoolColumn]] = {}

    def match(self, assumed: AssumedVolumes) -> Matching:
        """The result for all nodes, without volumes that are assumed for other claims."""
        size = self._session.table.size
        found = Matching(np.zeros(size, np.bool_), np.zeros(size, np.bool_))
        selected, wanted = [], []
        for offer in self.offers:
            node = self.selected(offer, assumed)
            if node is None:
                wanted.append(offer)
                continue
            selected.append(offer.claim)
            found.conflict |= ~self._session.table.all_rows().named(node)
        for claim in selected:
            found.claims.append(claim)
            found.chosen.append(np.full(size, _NONE, np.int64))
        for offer in wanted:
            chosen = self._choose(offer, assumed, found)
            found.claims.append(offer.claim)
            found.chosen.append(chosen)
        for claim, chosen in zip(found.claims, found.chosen, strict=True):
            self._check_provisioning(claim, found, (chosen == _NONE) & ~found.conflict & ~found.short)
        return found

    @staticmethod
    def selected(offer: Offers, assumed: AssumedVolumes) -> str | None:
        """The node that is already selected for a claim, if any."""
        return assumed.node_of(offer.claim.key) or offer.claim.metadata.annotations.get(SELECTED_NODE)

    @staticmethod
    def reserved(offer: Offers, assumed: AssumedVolumes) -> list[PersistentVolume]:
        """The volumes reserved or assumed for the claim. It can use only the first of them."""
        return [*offer.reserved, *(one for one in offer.free if assumed.claim_of(one.key) == offer.claim.key)]

    def _choose(self, offer: Offers, assumed: AssumedVolumes, found: Matching) -> IntColumn:
        """The volume for a claim on each node, without volumes that the pod's earlier claims use there."""
        chosen = np.full(self._session.table.size, _NONE, np.int64)
        for volume in self.reserved(offer, assumed):  # the other nodes have no volume for this claim
            chosen[self._reach.as_written(volume)] = found.add(volume)
            return chosen
        served: set[NodeSelector | None] = set()
        left = len(chosen)
        for volume in offer.free:
            required = volume.required
            if required in served or assumed.claim_of(volume.key) is not None:
                continue
            rows = self._reach.rows_as_written(volume)
            rows = rows[chosen[rows] == _NONE]
            used = found.used_before(volume, rows)
            if used is None:
                served.add(required)
            else:
                rows = rows[~used]
            if len(rows):
                chosen[rows] = found.add(volume)
                left -= len(rows)
            if not left:
                break
        return chosen

    def _check_provisioning(self, claim: PersistentVolumeClaim, found: Matching, needed: BoolColumn) -> None:
        """Evaluate the nodes that must provision the claim's volume."""
        if not needed.any():
            return
        allowed, enough = self.provisionable(claim)
        found.conflict |= needed & ~allowed
        found.short |= needed & allowed & ~enough

    def provisionable(self, claim: PersistentVolumeClaim) -> tuple[BoolColumn, BoolColumn]:
        """The nodes that may provision a volume for the claim, and those with enough storage for it. Read-only."""
        known = self._provisionable.get(claim.key)
        if known is None:
            known = self._provisionable[claim.key] = self._find_provisionable(claim)
        return known

    def _find_provisionable(self, claim: PersistentVolumeClaim) -> tuple[BoolColumn, BoolColumn]:
        every = self._reach.selected(None)
        storage_class = self._session.objects(StorageClass).get(claim.storage_class)
        if storage_class is None or storage_class.provisioner in ("", NO_PROVISIONER):
            return ~every, every
        allowed = every
        if storage_class.allowed_topologies:
            allowed = self._reach.selected(NodeSelector(node_selector_terms=tuple(
                NodeSelectorTerm(match_expressions=tuple(
                    LabelSelectorRequirement(key=label.key, operator="In", values=label.values)
                    for label in term.match_label_expressions))
                for term in storage_class.allowed_topologies)))  # fmt: skip
        driver = self._session.objects(CSIDriver).get(storage_class.provisioner)
        if driver is None or not driver.spec.storage_capacity or "storage" not in claim.spec.resources.requests:
            return allowed, every
        return allowed, self._with_storage(claim, storage_class.key)

    def _with_storage(self, claim: PersistentVolumeClaim, storage_class: str) -> BoolColumn:
        wanted = size_of(claim.spec.resources.requests)
        enough = np.zeros(self._session.table.size, np.bool_)
        for capacity in self._session.objects(CSIStorageCapacity).values():
            nodes = capacity.node_topology
            if capacity.storage_class_name != storage_class or nodes is None:
                continue
            if volume_limit(capacity) >= wanted:
                enough |= self._reach.selected(as_terms(nodes))
        return enough


def volume_limit(capacity: CSIStorageCapacity) -> int:
    """The largest volume that the storage capacity allows; -1 if it is unknown."""
    limit = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
    try:
        return parse_quantity(limit) if limit is not None else -1
    except QuantityError:
        return -1


def bound_nodes(
    nodes: NodeView, claims: Sequence[PersistentVolumeClaim], volumes: Mapping[str, PersistentVolume], reach: Reach
) -> tuple[BoolColumn, BoolColumn]:
    """The rows that do not reach a bound claim's volume, and all rows if a volume does not exist. It stops there."""
    unreached = np.zeros(len(nodes), np.bool_)
    for claim in claims:
        volume = volumes.get(claim.spec.volume_name)
        if volume is None:
            return unreached, ~unreached
        unreached |= ~reach.of(volume)
    return unreached, np.zeros(len(nodes), np.bool_)
