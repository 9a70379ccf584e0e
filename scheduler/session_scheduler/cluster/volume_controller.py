"""The volume controller and CSI drivers for the in-memory cluster: pure functions over objects."""

from __future__ import annotations

from msgspec.structs import replace

from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.storage import (
    BIND_COMPLETED,
    SELECTED_NODE,
    CSIVolumeSource,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
)


def needs_volume(claim: PersistentVolumeClaim) -> bool:
    """Whether the claim has a selected node and no volume."""
    return SELECTED_NODE in claim.metadata.annotations and not claim.spec.volume_name


def is_reserved_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the volume is reserved for this claim (its uid)."""
    return volume.is_for(claim) and volume.spec.claim_ref is not None and bool(volume.spec.claim_ref.uid)


def provisioned_volume(claim: PersistentVolumeClaim, driver: str) -> PersistentVolume:
    """Return the volume that the driver provisions for a claim."""
    spec = claim.spec
    metadata = claim.metadata
    ref = ObjectReference(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid)
    return PersistentVolume(
        metadata=ObjectMeta(name=f"pvc-{metadata.uid}"),
        spec=PersistentVolumeSpec(
            csi=CSIVolumeSource(driver=driver, volume_handle=f"pvc-{metadata.uid}"),
            capacity=spec.resources.requests,
            access_modes=spec.access_modes,
            claim_ref=ref,
            storage_class_name=claim.storage_class,
            volume_mode=spec.volume_mode,
            volume_attributes_class_name=spec.volume_attributes_class_name,
        ),
    )


def bound_pair(
    volume: PersistentVolume, claim: PersistentVolumeClaim
) -> tuple[PersistentVolume, PersistentVolumeClaim]:
    """Return the volume and the claim as bound to each other."""
    annotations = {**claim.metadata.annotations, BIND_COMPLETED: "yes"}
    bound = replace(
        claim,
        metadata=replace(claim.metadata, annotations=annotations),
        spec=replace(claim.spec, volume_name=volume.key),
        status=PersistentVolumeClaimStatus(phase="Bound"),
    )
    return replace(volume, status=PersistentVolumeStatus(phase="Bound")), bound
