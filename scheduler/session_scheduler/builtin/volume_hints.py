"""Which events can help pods that a plugin for volumes refused: claims, volumes, classes and drivers that change."""

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
"""Of a volume: from where it can be reached."""
_ADD: Final = ActionType.ADD
_CHANGE: Final = ActionType.ADD | ActionType.UPDATE
_NODE: Final = ActionType.ADD | ActionType.UPDATE_NODE_LABEL


def binding_events() -> Sequence[ClusterEventWithHint]:
    """VolumeBinding's."""
    return [
        ClusterEventWithHint(StorageClass, _CHANGE, _class_allows_more),
        ClusterEventWithHint(PersistentVolumeClaim, _CHANGE, _own_claim),
        ClusterEventWithHint(PersistentVolume, _CHANGE),
        ClusterEventWithHint(Node, _NODE),
        ClusterEventWithHint(CSINode, _CHANGE, _migrates_otherwise),
        ClusterEventWithHint(CSIDriver, ActionType.UPDATE | ActionType.DELETE, _asks_for_no_capacity),
        ClusterEventWithHint(CSIStorageCapacity, _CHANGE, _offers_more),
        # a volume that was kept for a pod is free again where the pod is not bound: no volume's event shows it
        ClusterEventWithHint(Pod, ActionType.DELETE, _had_claims),
    ]


def zone_events() -> Sequence[ClusterEventWithHint]:
    """VolumeZone's."""
    return [
        ClusterEventWithHint(StorageClass, _ADD, _waits_for_consumers),
        ClusterEventWithHint(Node, _NODE),
        ClusterEventWithHint(PersistentVolumeClaim, _CHANGE, _own_claim),
        ClusterEventWithHint(PersistentVolume, _CHANGE, _in_other_zones),
    ]


def limit_events() -> Sequence[ClusterEventWithHint]:
    """NodeVolumeLimits'. A node that comes has no limits until its CSINode does, and none where that goes."""
    return [
        ClusterEventWithHint(CSINode, ActionType.ADD | ActionType.DELETE),
        ClusterEventWithHint(CSINode, ActionType.UPDATE, _limits_more),
        ClusterEventWithHint(Node, _ADD),
        ClusterEventWithHint(Pod, ActionType.DELETE, _had_volumes),
        ClusterEventWithHint(PersistentVolumeClaim, _CHANGE, _own_claim),
        ClusterEventWithHint(VolumeAttachment, ActionType.DELETE, _of_a_driver),
    ]


def restriction_events(frees: QueueingHint) -> Sequence[ClusterEventWithHint]:
    """VolumeRestrictions'; `frees` tells whether a pod that is gone had what one of the class wants for itself."""
    return [
        ClusterEventWithHint(Pod, ActionType.DELETE, frees),
        ClusterEventWithHint(Node, _ADD),
        ClusterEventWithHint(PersistentVolumeClaim, _ADD, _own_claim),
    ]


# ------------------------------------------------------------------ claims and classes


def _own_claim(cls: TaskClass, event: ClusterEvent) -> bool:
    """The claim is one of the pod's."""
    metadata = event.new.metadata
    return any((kind, metadata.namespace, metadata.name) in cls.volumes for kind in (CLAIM, EPHEMERAL))


def claims_among(volumes: Iterable[VolumeKey]) -> set[VolumeKey]:
    """Namespace and name of the claims among them."""
    return {key[1:] for key in volumes if key[0] in (CLAIM, EPHEMERAL)}


def _class_allows_more(_: TaskClass, event: ClusterEvent) -> bool:
    return event.old is None or event.old.allowed_topologies != event.new.allowed_topologies


def _waits_for_consumers(_: TaskClass, event: ClusterEvent) -> bool:
    return bool(event.new.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER)


def _in_other_zones(_: TaskClass, event: ClusterEvent) -> bool:
    """These labels alone decide in which zones a volume is."""
    return event.old is None or any(
        event.old.metadata.labels.get(key) != event.new.metadata.labels.get(key) for key in ZONE_LABELS
    )


# ------------------------------------------------------------------ drivers


def _migrates_otherwise(_: TaskClass, event: ClusterEvent) -> bool:
    if event.old is None:
        return True
    before, after = event.old.metadata.annotations, event.new.metadata.annotations
    return bool(before.get(MIGRATED_PLUGINS) != after.get(MIGRATED_PLUGINS))


def _asks_for_no_capacity(_: TaskClass, event: ClusterEvent) -> bool:
    """What the driver has room for is looked at no more."""
    return bool(event.old.spec.storage_capacity) and not (event.new is not None and event.new.spec.storage_capacity)


def _offers_more(_: TaskClass, event: ClusterEvent) -> bool:
    return event.old is None or volume_limit(event.new) > volume_limit(event.old)


def _limits_more(_: TaskClass, event: ClusterEvent) -> bool:
    """The node takes more volumes of a driver, or as many as there are."""
    before, after = limits_of(event.old), limits_of(event.new)
    return any(driver not in after or after[driver] > limit for driver, limit in before.items())


def limits_of(node: CSINode) -> dict[str, int]:
    """By driver, how many of its volumes a node takes, where its CSINode says so."""
    return {
        driver.name: driver.allocatable.count
        for driver in node.spec.drivers or ()
        if driver.allocatable is not None and driver.allocatable.count is not None
    }


def _of_a_driver(cls: TaskClass, event: ClusterEvent) -> bool:
    """The pod has claims, which may be of any driver, or a disk that this one serves."""
    inline = (attached_inline(key) for key in cls.volumes if key[0] not in (CLAIM, EPHEMERAL))
    return bool(claims_among(cls.volumes)) or any(
        found is not None and found[0] == event.old.spec.attacher for found in inline
    )


# ------------------------------------------------------------------ pods that end


def _volumes_of(event: ClusterEvent) -> tuple[VolumeKey, ...]:
    return event.old_class.volumes if event.old_class is not None else ()


def _had_claims(_: TaskClass, event: ClusterEvent) -> bool:
    return bool(claims_among(_volumes_of(event)))


def _had_volumes(_: TaskClass, event: ClusterEvent) -> bool:
    volumes = _volumes_of(event)
    return bool(claims_among(volumes)) or any(attached_inline(key) is not None for key in volumes)
