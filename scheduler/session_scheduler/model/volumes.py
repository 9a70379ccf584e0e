"""Volumes of a pod, as the volume plugins read them: its claims, and the disks that it names directly.

A *volume key* identifies a volume that several pods may use: a tuple of strings; the first is its kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from session_scheduler.model.objects import ObjectMeta, OwnerReference, Pod
from session_scheduler.model.storage import PersistentVolumeClaim, PersistentVolumeClaimSpec

VolumeKey = tuple[str, ...]
CLAIM: Final = "claim"
"""("claim", namespace, name): a claim that a pod names."""
EPHEMERAL: Final = "ephemeral"
"""("ephemeral", namespace, name): a claim that a controller creates for one pod."""
READ_ONLY, READ_WRITE = "ro", "rw"


class ClaimUse(msgspec.Struct, frozen=True):
    """A claim among a pod's volumes: its name, and whether a controller creates it for the pod."""

    name: str
    ephemeral: bool


def claims_of(pod: Pod) -> tuple[ClaimUse, ...]:
    """The claims that a pod uses, in the order of its volumes; a generic ephemeral volume's is named POD-VOLUME."""
    found = []
    for volume in pod.spec.volumes:
        if (claim := _source(volume, "persistentVolumeClaim")) is not None:
            found.append(ClaimUse(_text(claim, "claimName"), ephemeral=False))
        elif _source(volume, "ephemeral") is not None:
            found.append(ClaimUse(f"{pod.metadata.name}-{_text(volume, 'name')}", ephemeral=True))
    return tuple(found)


def has_ephemeral_claims(pod: Pod) -> bool:
    """Whether the pod has generic ephemeral volumes: no other pod shares their claims or its class."""
    return any(_source(volume, "ephemeral") is not None for volume in pod.spec.volumes)


def made_claims(pod: Pod) -> Iterator[PersistentVolumeClaim]:
    """The claims that a controller creates for a pod's generic ephemeral volumes; it skips invalid templates."""
    owner = OwnerReference(api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid, controller=True)
    for volume in pod.spec.volumes:
        template = (_source(volume, "ephemeral") or {}).get("volumeClaimTemplate")
        if isinstance(template, dict):
            name = f"{pod.metadata.name}-{_text(volume, 'name')}"
            metadata = ObjectMeta(name=name, namespace=pod.metadata.namespace, owner_references=(owner,))
            try:
                spec = msgspec.convert(template.get("spec", {}), PersistentVolumeClaimSpec)
            except msgspec.ValidationError:
                continue
            yield PersistentVolumeClaim(metadata=metadata, spec=spec)


def not_made_for(pod: Pod, claim: PersistentVolumeClaim) -> str | None:
    """Why the claim of a pod's ephemeral volume does not belong to the pod; None if it does."""
    owners = claim.metadata.owner_references
    if any(owner.controller and owner.uid == pod.metadata.uid for owner in owners):
        return None
    return f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)"


def volume_keys(pod: Pod) -> tuple[VolumeKey, ...]:
    """The keys of the pod's volumes that other pods may use too, each once, in order."""
    namespace = pod.metadata.namespace
    claims = [(EPHEMERAL if use.ephemeral else CLAIM, namespace, use.name) for use in claims_of(pod)]
    return tuple(dict.fromkeys([*claims, *(key for volume in pod.spec.volumes for key in disk_keys(volume))]))


def disk_keys(volume: dict[str, Any]) -> Iterator[VolumeKey]:
    """The keys of a volume that names a disk directly; for rbd, one per monitor."""
    if (disk := _source(volume, "gcePersistentDisk")) is not None:
        yield ("gcePersistentDisk", _text(disk, "pdName"), _mode(disk))
    if (disk := _source(volume, "awsElasticBlockStore")) is not None:
        yield ("awsElasticBlockStore", _text(disk, "volumeID"))
    if (disk := _source(volume, "iscsi")) is not None:
        yield ("iscsi", _text(disk, "iqn"), _mode(disk))
    if (disk := _source(volume, "rbd")) is not None:
        pool = _text(disk, "pool") or "rbd"
        for monitor in disk.get("monitors") or ():
            yield ("rbd", str(monitor), pool, _text(disk, "image"), _mode(disk))
    if (disk := _source(volume, "azureDisk")) is not None:
        yield ("azureDisk", _text(disk, "diskURI"), _text(disk, "kind"))
    for source in ("cinder", "portworxVolume"):
        if (disk := _source(volume, source)) is not None:
            yield (source, _text(disk, "volumeID"))


def _source(volume: dict[str, Any], name: str) -> dict[str, Any] | None:
    found = volume.get(name)
    return found if isinstance(found, dict) else None


def _text(source: dict[str, Any], name: str) -> str:
    return str(source.get(name) or "")


def _mode(disk: dict[str, Any]) -> str:
    return READ_ONLY if disk.get("readOnly") else READ_WRITE
