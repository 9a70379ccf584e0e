"""The queueing hints of the volume plugins: the events of claims, volumes, classes and drivers that can help a pod."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from session_scheduler.builtin.csi_migration import BETA_REGION, BETA_ZONE, REGION, ZONE, attached_inline
from session_scheduler.builtin.volume_matching import volume_limit
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint, QueueingHint
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.storage import (
    MIGRATED_PLUGINS,
    WAIT_FOR_FIRST_CONSUMER,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from session_scheduler.model.volumes import CLAIM, EPHEMERAL, VolumeKey

ZONE_LABELS: Final = (BETA_ZONE, BETA_REGION, ZONE, REGION)
"""The labels of a volume that name its topology."""
_ADD: Final = ActionType.ADD
_CHANGE: Final = ActionType.ADD | ActionType.UPDATE
_NODE: Final = ActionType.ADD | ActionType.UPDATE_NODE_LABEL


def binding_events() -> Sequence[ClusterEventWithHint]:
    """The hints of VolumeBinding."""
    return [
        ClusterEventWithHint(StorageClass, _CHANGE, _class_allows_more),
        ClusterEventWithHint(PersistentVolumeClaim, _CHANGE, _own_claim),
        ClusterEventWithHint(PersistentVolume, _CHANGE),
        ClusterEventWithHint(Node, _NODE),
        ClusterEventWithHint(CSINode, _CHANGE, _changes_migration),
        ClusterEventWithHint(CSIDriver, ActionType.UPDATE | ActionType.DELETE, _stops_checking_capacity),
        ClusterEventWithHint(CSIStorageCapacity, _CHANGE, _has_more_capacity),
        # if a pod is not bound its assumed volumes are free again, and no event of a volume reports that
        ClusterEventWithHint(Pod, ActionType.DELETE, _had_claims),
    ]


def zone_events() -> Sequence[ClusterEventWithHint]:
    """The hints of VolumeZone."""
    return [
        ClusterEventWithHint(StorageClass, _ADD, _waits_for_consumers),
        ClusterEventWithHint(Node, _NODE),
        ClusterEventWithHint(PersistentVolumeClaim, _CHANGE, _own_claim),
        ClusterEventWithHint(PersistentVolume, _CHANGE, _changes_zones),
    ]


def limit_events() -> Sequence[ClusterEventWithHint]:
    """The hints of NodeVolumeLimits. A node without a CSINode has no limits."""
    return [
        ClusterEventWithHint(CSINode, ActionType.ADD | ActionType.DELETE),
        ClusterEventWithHint(CSINode, ActionType.UPDATE, _raises_limit),
        ClusterEventWithHint(Node, _ADD),
        ClusterEventWithHint(Pod, ActionType.DELETE, _had_volumes),
        ClusterEventWithHint(PersistentVolumeClaim, _CHANGE, _own_claim),
        ClusterEventWithHint(VolumeAttachment, ActionType.DELETE, _may_be_of_same_driver),
    ]


def restriction_events(frees: QueueingHint) -> Sequence[ClusterEventWithHint]:
    """The hints of VolumeRestrictions. `frees`: whether a deleted pod used an exclusive volume of the class."""
    return [
        ClusterEventWithHint(Pod, ActionType.DELETE, frees),
        ClusterEventWithHint(Node, _ADD),
        ClusterEventWithHint(PersistentVolumeClaim, _ADD, _own_claim),
    ]


# ------------------------------------------------------------------ claims and classes


def _own_claim(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether the claim is one of the pod's."""
    metadata = event.new.metadata
    return any((kind, metadata.namespace, metadata.name) in cls.volumes for kind in (CLAIM, EPHEMERAL))


def claims_among(volumes: Iterable[VolumeKey]) -> set[VolumeKey]:
    """The namespaces and names of the claims among these volumes."""
    return {key[1:] for key in volumes if key[0] in (CLAIM, EPHEMERAL)}


def _class_allows_more(_: TaskClass, event: ClusterEvent) -> bool:
    return event.old is None or event.old.allowed_topologies != event.new.allowed_topologies


def _waits_for_consumers(_: TaskClass, event: ClusterEvent) -> bool:
    return bool(event.new.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER)


def _changes_zones(_: TaskClass, event: ClusterEvent) -> bool:
    """Whether the labels that decide a volume's zones changed."""
    return event.old is None or any(
        event.old.metadata.labels.get(key) != event.new.metadata.labels.get(key) for key in ZONE_LABELS
    )


# ------------------------------------------------------------------ drivers


def _changes_migration(_: TaskClass, event: ClusterEvent) -> bool:
    if event.old is None:
        return True
    before, after = event.old.metadata.annotations, event.new.metadata.annotations
    return bool(before.get(MIGRATED_PLUGINS) != after.get(MIGRATED_PLUGINS))


def _stops_checking_capacity(_: TaskClass, event: ClusterEvent) -> bool:
    """Whether the driver's storage capacity is no longer checked."""
    return bool(event.old.spec.storage_capacity) and not (event.new is not None and event.new.spec.storage_capacity)


def _has_more_capacity(_: TaskClass, event: ClusterEvent) -> bool:
    return event.old is None or volume_limit(event.new) > volume_limit(event.old)


def _raises_limit(_: TaskClass, event: ClusterEvent) -> bool:
    """Whether the limit of a driver on the node was raised or removed."""
    before, after = limits_of(event.old), limits_of(event.new)
    return any(driver not in after or after[driver] > limit for driver, limit in before.items())


def limits_of(node: CSINode) -> dict[str, int]:
    """By driver, the limit of its volumes in the node's CSINode, if it has one."""
    return {
        driver.name: driver.allocatable.count
        for driver in node.spec.drivers or ()
        if driver.allocatable is not None and driver.allocatable.count is not None
    }


def _may_be_of_same_driver(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether the pod has claims, which may be of any driver, or a disk of the attachment's driver."""
    inline = (attached_inline(key) for key in cls.volumes if key[0] not in (CLAIM, EPHEMERAL))
    return bool(claims_among(cls.volumes)) or any(
        found is not None and found[0] == event.old.spec.attacher for found in inline
    )


# ------------------------------------------------------------------ deleted pods


def _volumes_of(event: ClusterEvent) -> tuple[VolumeKey, ...]:
    return event.old_class.volumes if event.old_class is not None else ()


def _had_claims(_: TaskClass, event: ClusterEvent) -> bool:
    return bool(claims_among(_volumes_of(event)))


def _had_volumes(_: TaskClass, event: ClusterEvent) -> bool:
    volumes = _volumes_of(event)
    return bool(claims_among(volumes)) or any(attached_inline(key) is not None for key in volumes)
