"""What the API server and the volume controllers make of the claims and volumes in manifests, before pods use them.

A new claim without a StorageClass gets the default one. A claim that does not wait for a pod is bound to the smallest
volume that matches, or to a provisioned one. If there is neither, the claim stays unbound, and its pods wait. Objects
that a cluster has already are not changed, because the cluster's controllers have seen them.
Source: the admission plugin DefaultStorageClass, and pv_controller.go of kube-controller-manager.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from session_scheduler.cluster.admission import Stamps
from session_scheduler.cluster.volume_controller import bound_pair, provisioned_volume
from session_scheduler.model.label_selectors import SelectorError
from session_scheduler.model.quantity import QuantityError
from session_scheduler.model.storage import (
    CLASS_ANNOTATION,
    NO_PROVISIONER,
    WAIT_FOR_FIRST_CONSUMER,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeStatus,
    StorageClass,
    StorageObject,
)
from session_scheduler.model.volume_offers import offers

_DEFAULT = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")


def reconciled(
    objects: Sequence[StorageObject], known_classes: Iterable[StorageClass], stamps: Stamps
) -> list[StorageObject]:
    """Return the storage objects of manifests in order, stamped, and the provisioned volumes.

    `known_classes` are those of the cluster. An object with a uid comes from a cluster.
    """
    stamped = [(stamps.on(obj), not obj.metadata.uid) for obj in objects]
    classes = [obj for obj, _ in stamped if isinstance(obj, StorageClass)]
    volumes = {obj.key: _available(obj) if new else obj for obj, new in stamped if isinstance(obj, PersistentVolume)}
    controller = _Controller([*classes, *known_classes], volumes)
    claims = {
        obj.key: controller.reconcile(obj) if new else obj
        for obj, new in stamped
        if isinstance(obj, PersistentVolumeClaim)
    }
    provisioned = [stamps.on(volume) for key, volume in controller.volumes.items() if key not in volumes]
    after: dict[type[StorageObject], dict[str, StorageObject]] = {
        PersistentVolume: {**controller.volumes}, PersistentVolumeClaim: {**claims}
    }  # fmt: skip
    return [*(after.get(type(obj), {}).get(obj.key, obj) for obj, _ in stamped), *provisioned]


def _available(volume: PersistentVolume) -> PersistentVolume:
    """Return a new volume as the controller marks it."""
    return volume if volume.status.phase else replace(volume, status=PersistentVolumeStatus(phase="Available"))


class _Controller:
    def __init__(self, classes: Sequence[StorageClass], volumes: Mapping[str, PersistentVolume]) -> None:
        self.volumes = dict(volumes)
        self._unbound: dict[str, dict[str, PersistentVolume]] = {}
        """The volumes without a bound claim, by class and name."""
        for volume in volumes.values():
            self._unbound.setdefault(volume.storage_class, {})[volume.key] = volume
        self._classes = {one.key: one for one in classes}
        self._default = _default_class(classes)

    def reconcile(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        """Return a new claim with its StorageClass, bound if it does not wait for a pod and has a volume."""
        if claim.spec.storage_class_name is None and CLASS_ANNOTATION not in claim.metadata.annotations:
            claim = replace(claim, spec=replace(claim.spec, storage_class_name=self._default))
        if claim.bound:
            return claim
        volume = self._volume(claim)
        if volume is None:
            return claim
        ref = ObjectReference(namespace=claim.metadata.namespace, name=claim.metadata.name, uid=claim.metadata.uid)
        volume, claim = bound_pair(replace(volume, spec=replace(volume.spec, claim_ref=ref)), claim)
        self.volumes[volume.key] = volume
        self._unbound.get(volume.storage_class, {}).pop(volume.key, None)
        return claim

    def _volume(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        """The volume to bind now: the one that the claim names, the smallest that matches, or a provisioned one."""
        if claim.spec.volume_name:
            named = self.volumes.get(claim.spec.volume_name)
            return named if named is not None and (named.spec.claim_ref is None or named.is_for(claim)) else None
        storage_class = self._classes.get(claim.storage_class)
        if storage_class is not None and storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER:
            return None
        try:
            found = offers(claim, self._unbound.get(claim.storage_class, {}).values())
        except (QuantityError, SelectorError):  # VolumeBinding reports it
            return None
        for volume in (*found.reserved, *found.free):
            return volume
        if storage_class is None or storage_class.provisioner == NO_PROVISIONER:
            return None
        return provisioned_volume(claim, storage_class.provisioner)


def _default_class(classes: Iterable[StorageClass]) -> str | None:
    """The name of the newest default class, the first by name among equally old ones; None if there is none."""
    default = [one for one in classes if any(one.metadata.annotations.get(name) == "true" for name in _DEFAULT)]
    default.sort(key=lambda one: one.key)
    default.sort(key=lambda one: one.metadata.creation_timestamp or "", reverse=True)
    return default[0].key if default else None
