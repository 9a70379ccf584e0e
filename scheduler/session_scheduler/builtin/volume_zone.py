"""The VolumeZone plugin: rejects nodes outside the zones and regions in the labels of a pod's volumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from session_scheduler.builtin import volume_hints
from session_scheduler.builtin.csi_migration import BETA_REGION, BETA_ZONE, REGION, ZONE, ZONES_SEPARATOR
from session_scheduler.builtin.volume_changes import zone_changes
from session_scheduler.builtin.volume_claims import not_found
from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Refusal, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import ABSENT, BoolColumn, NodeView
from session_scheduler.model.events import ClusterEventWithHint
from session_scheduler.model.selectors import nodes_with
from session_scheduler.model.storage import (
    WAIT_FOR_FIRST_CONSUMER,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from session_scheduler.model.volumes import claims_of

_STABLE: Final = {BETA_ZONE: ZONE, BETA_REGION: REGION}
Wanted = tuple[str, tuple[str, ...]]
"""A label, and the values that a node may have for it."""


class VolumeZone(WithoutArguments):
    """Rejects nodes outside the zones and regions of the pod's bound volumes. Nodes without such labels pass."""

    name = "VolumeZone"
    ignores_requests = True
    filter_scope = Scope.STATIC

    @hookimpl
    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        """See `volume_hints`."""
        return volume_hints.zone_events()

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Skip | Refusal | tuple[Wanted, ...]:
        """The labels that the volumes require of a node; a refusal if a claim's volume cannot be determined."""
        found: list[Wanted] = []
        for use in claims_of(cls.pod):
            if use.ephemeral:
                continue
            volume = _volume_of(session, cls.namespace, use.name)
            if isinstance(volume, Refusal):
                return volume
            if volume is not None:
                found += _wanted(volume)
        return tuple(found) or SKIP

    @hookimpl
    def filter(self, nodes: NodeView, mask: BoolColumn, state: Sequence[Wanted]) -> None:
        """Clear the nodes that have some zone or region label but not the required values."""
        labelled = np.zeros(len(nodes), np.bool_)
        for key in volume_hints.ZONE_LABELS:
            labelled |= nodes.label(key) != ABSENT
        fits = np.ones(len(nodes), np.bool_)
        for key, values in state:
            matching = nodes_with(nodes, key, values)
            if key in _STABLE:
                matching |= (nodes.label(key) == ABSENT) & nodes_with(nodes, _STABLE[key], values)
            fits &= matching
        np.logical_and(mask, ~labelled | fits, out=mask)

    @hookimpl
    def reasons(self) -> str:
        """kube-scheduler's message."""
        return "node(s) had no available volume zone"

    @hookimpl
    def fits_if(self, nodes: NodeView, state: Sequence[Wanted]) -> Sequence[Sequence[str] | None]:
        """The zone and region labels that each node lacks."""
        return zone_changes(nodes, state)


def _volume_of(session: Session, namespace: str, name: str) -> PersistentVolume | Refusal | None:
    """The volume of a claim; None if VolumeBinding chooses it with the pod's node."""
    if not name:
        return Refusal("PersistentVolumeClaim had no name")
    claim = session.objects(PersistentVolumeClaim).get(f"{namespace}/{name}")
    if claim is None:
        return not_found(PersistentVolumeClaim, name)
    if claim.spec.volume_name:
        volume = session.objects(PersistentVolume).get(claim.spec.volume_name)
        return volume if volume is not None else not_found(PersistentVolume, claim.spec.volume_name)
    if not claim.storage_class:
        return Refusal("PersistentVolumeClaim had no pv name and storageClass name")
    found = session.objects(StorageClass).get(claim.storage_class)
    if found is None:
        return not_found(StorageClass, claim.storage_class)
    if found.volume_binding_mode is None:
        return Refusal(f'VolumeBindingMode not set for StorageClass "{claim.storage_class}"')
    return None if found.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER else Refusal("PersistentVolume had no name")


def _wanted(volume: PersistentVolume) -> Iterator[Wanted]:
    """The labels that a volume requires. Two underscores separate zones; a label with an empty zone is ignored."""
    for key in volume_hints.ZONE_LABELS:
        if key in volume.metadata.labels:
            values = [part.strip() for part in volume.metadata.labels[key].split(ZONES_SEPARATOR)]
            if all(values):
                yield key, tuple(values)
