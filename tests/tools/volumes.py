"""Claims, volumes and their providers, with sensible values for all that a test does not name."""

from __future__ import annotations

from typing import Any

import msgspec

from session_scheduler.model.storage import (
    BIND_COMPLETED,
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)


def storage_class(name: str, provisioner: str = "kubernetes.io/no-provisioner", *, waits: bool = True,
                  **fields: Any) -> StorageClass:  # fmt: skip
    """A StorageClass; `waits` for the first consumer."""
    mode = "WaitForFirstConsumer" if waits else "Immediate"
    body = {"kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}
    return msgspec.convert({**body, **fields}, StorageClass)


def claim(name: str, storage: str = "1Gi", *, of: str = "local", volume: str = "", phase: str = "",
          annotations: dict[str, str] | None = None, namespace: str = "default", owner: str = "",
          **spec: Any) -> PersistentVolumeClaim:  # fmt: skip
    """A claim, bound if a volume is named."""
    notes = {**({BIND_COMPLETED: "yes"} if volume else {}), **(annotations or {})}
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "annotations": notes}
    if owner:
        metadata["ownerReferences"] = [{"kind": "Pod", "name": owner, "uid": owner, "controller": True}]
    body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}, "storageClassName": of,
            "volumeName": volume, **spec}  # fmt: skip
    status = {"phase": phase or ("Bound" if volume else "Pending")}
    whole = {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": body, "status": status}
    return msgspec.convert(whole, PersistentVolumeClaim)


def volume(name: str, storage: str = "1Gi", *, on: str | tuple[str, ...] = (), of: str = "local",
           labels: dict[str, str] | None = None, phase: str = "Available",
           **spec: Any) -> PersistentVolume:  # fmt: skip
    """A volume that these nodes can reach; by default, all nodes."""
    nodes = (on,) if isinstance(on, str) else on
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}
    body = {"capacity": {"storage": storage}, "accessModes": ["ReadWriteOnce"], "storageClassName": of,
            **(affinity if nodes else {}), **spec}  # fmt: skip
    whole = {"kind": "PersistentVolume", "metadata": {"name": name, "labels": labels or {}}, "spec": body,
             "status": {"phase": phase}}  # fmt: skip
    return msgspec.convert(whole, PersistentVolume)


def csi_node(name: str, **limits: int) -> CSINode:
    """A CSINode: the drivers of a node, each with its limit of volumes."""
    drivers = [{"name": driver, "allocatable": {"count": count}} for driver, count in limits.items()]
    return msgspec.convert({"kind": "CSINode", "metadata": {"name": name}, "spec": {"drivers": drivers}}, CSINode)


def using(*claims: str) -> tuple[dict[str, Any], ...]:
    """spec.volumes of a pod that uses these claims."""
    return tuple(
        {"name": f"v{number}", "persistentVolumeClaim": {"claimName": name}} for number, name in enumerate(claims)
    )
