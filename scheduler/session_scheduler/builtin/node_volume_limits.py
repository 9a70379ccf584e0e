"""The NodeVolumeLimits plugin: rejects nodes that would exceed the volume limit of a CSI driver in their CSINode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from session_scheduler.builtin import volume_hints
from session_scheduler.builtin.csi_migration import Attached, attached, attached_inline, attached_volume, provisioned_by
from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.events import ClusterEventWithHint
from session_scheduler.model.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from session_scheduler.model.volumes import CLAIM, EPHEMERAL, VolumeKey, claims_of, not_made_for
from session_scheduler.state.volume_use import VolumeUse

_READ: Final = (CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment)
_NOT_PROVISIONED: Final = "?"
"""The prefix of the handle of a volume that does not exist yet."""


class PodAttachments(msgspec.Struct, frozen=True):
    """The volumes that a pod attaches, or why they are unknown. VolumeBinding reports such a problem earlier."""

    volumes: frozenset[Attached] = frozenset()
    problem: str | None = None
    missing: str | None = None
    """The claim that does not exist."""


class _Known(msgspec.Struct):
    """Results cached until the objects or the pods of a node change."""

    use: VolumeUse | None = None
    versions: tuple[int, ...] = ()
    limits: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """By node: driver → limit of its volumes."""
    attachments: dict[str, list[Attached]] = msgspec.field(default_factory=dict)
    """By node: the volumes in VolumeAttachments."""
    used: dict[str, tuple[int, frozenset[Attached]]] = msgspec.field(default_factory=dict)
    """By node: the version of its volume use, and the volumes of its pods."""


class NodeVolumeLimits(WithoutArguments):
    """Rejects nodes that would exceed a driver's limit. Volumes already on the node count once."""

    name = "NodeVolumeLimits"
    ignores_requests = True
    filter_scope = Scope.NODE

    def __init__(self, arguments: None = None) -> None:
        super().__init__(arguments)
        self._known = _Known()

    def _refresh(self, session: Session) -> None:
        """Drop the cached results if one of the objects changed."""
        versions = tuple(session.objects_version(kind) for kind in _READ)
        if self._known.versions != versions or self._known.use is not session.volume_use:
            nodes = session.objects(CSINode).items()
            limits = {name: limited for name, node in nodes if (limited := volume_hints.limits_of(node))}
            self._known = _Known(session.volume_use, versions, limits, _attachments(session))

    @hookimpl
    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        """See `volume_hints`."""
        return volume_hints.limit_events()

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Skip | PodAttachments:
        """The volumes that a pod attaches. Skips pods that attach none."""
        uses = claims_of(cls.pod)
        if not uses and not any(attached_inline(key) for key in cls.volumes):
            return SKIP
        self._refresh(session)
        for use in uses:
            key = f"{cls.namespace}/{use.name}"
            claim = session.objects(PersistentVolumeClaim).get(key)
            if claim is None:
                return PodAttachments(
                    problem=f'looking up PVC {key}: persistentvolumeclaim "{use.name}" not found', missing=use.name
                )
            problem = not_made_for(cls.pod, claim) if use.ephemeral else None
            if problem is not None:
                return PodAttachments(problem=problem)
        found = (_resolved(session, key) for key in cls.volumes)
        volumes = frozenset(volume for volume in found if volume is not None)
        return PodAttachments(volumes) if volumes else SKIP

    @hookimpl
    def filter(self, session: Session, nodes: NodeView, mask: BoolColumn, state: PodAttachments) -> None:
        """Clear the nodes that would exceed a limit. A virtual row already has the class's volumes."""
        if state.problem is not None:
            mask[:] = False
            return
        drivers = {driver for driver, _ in state.volumes}
        limited = [name for name, limits in self._known.limits.items() if not drivers.isdisjoint(limits)]
        if not limited:
            return
        full = np.zeros(len(nodes), np.bool_)
        if nodes.rows is None:
            for name in limited:
                row = nodes.row_of(name)
                if row >= 0 and mask[row]:
                    full[row] = self._is_full(session, name, state.volumes)
        else:
            for index in np.flatnonzero(mask).tolist():
                if nodes.extra is None or not nodes.extra[index]:
                    full[index] = self._is_full(session, nodes.node(index).metadata.name, state.volumes)
        np.logical_and(mask, ~full, out=mask)

    @hookimpl
    def reasons(self, state: PodAttachments) -> str:
        """kube-scheduler's message."""
        return state.problem or "node(s) exceed max volume count"

    @hookimpl
    def unresolvable(self, nodes: NodeView, state: PodAttachments) -> BoolColumn:
        """All nodes if a claim does not exist."""
        return np.full(len(nodes), state.problem is not None)

    @hookimpl
    def fits_if(
        self, session: Session, nodes: NodeView, state: PodAttachments
    ) -> Sequence[Sequence[str] | None] | None:
        """The limit of each driver that the node would need."""
        if state.problem is not None:
            return None if state.missing is None else [[f"claim {state.missing} existed"]] * len(nodes)
        names = [nodes.node(index).metadata.name for index in range(len(nodes))]
        return [
            [f"{name} allowed {count} volumes of {driver} ({limit} now)"
             for driver, count, limit in self._exceeded(session, name, state.volumes)]
            for name in names
        ]  # fmt: skip

    def _is_full(self, session: Session, node: str, volumes: frozenset[Attached]) -> bool:
        return any(True for _ in self._exceeded(session, node, volumes))

    def _exceeded(self, session: Session, node: str, volumes: frozenset[Attached]) -> Iterator[tuple[str, int, int]]:
        """(driver, the number of its volumes with the pod, the limit) for each limit that the pod would exceed."""
        limits = self._known.limits.get(node)
        if limits is None:
            return
        used = self._used(session, node)
        new = volumes - used
        there = used.union(self._known.attachments.get(node, ()))
        for driver in sorted({driver for driver, _ in new}):
            count = _of(driver, there) + _of(driver, new)
            if driver in limits and count > limits[driver]:
                yield driver, count, limits[driver]

    def _used(self, session: Session, node: str) -> frozenset[Attached]:
        """The volumes of the node's pods, each once."""
        version = session.volume_use.version(node)
        known = self._known.used.get(node)
        if known is None or known[0] != version:
            found = (_resolved(session, key) for key in session.volume_use.on_node(node))
            known = self._known.used[node] = (version, frozenset(volume for volume in found if volume is not None))
        return known[1]


def _of(driver: str, volumes: frozenset[Attached]) -> int:
    return sum(name == driver for name, _ in volumes)


def _resolved(session: Session, key: VolumeKey) -> Attached | None:
    """The driver and volume that a volume key counts as; None if it does not count or is unknown."""
    if key[0] not in (CLAIM, EPHEMERAL):
        return attached_inline(key)
    claim = session.objects(PersistentVolumeClaim).get(f"{key[1]}/{key[2]}")
    if claim is None:
        return None
    volume = session.objects(PersistentVolume).get(claim.spec.volume_name) if claim.spec.volume_name else None
    if volume is not None:
        return attached_volume(volume)
    storage_class = session.objects(StorageClass).get(claim.storage_class) if claim.storage_class else None
    if storage_class is None:
        return None
    return attached(provisioned_by(storage_class.provisioner), f"{_NOT_PROVISIONED}{claim.key}")


def _attachments(session: Session) -> dict[str, list[Attached]]:
    """By node, the CSI volumes attached to it, in use or not."""
    volumes: Mapping[str, PersistentVolume] = session.objects(PersistentVolume)
    found: dict[str, list[Attached]] = {}
    for attachment in session.objects(VolumeAttachment).values():
        spec = attachment.spec
        volume = volumes.get(spec.source.persistent_volume_name or "")
        if spec.attacher and volume is not None and volume.spec.csi is not None:
            unique = f"{spec.attacher}/{volume.spec.csi.volume_handle}"
            found.setdefault(spec.node_name, []).append((spec.attacher, unique))
    return found
