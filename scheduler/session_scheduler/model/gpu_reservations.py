"""Reservation pods: each holds one GPU of a node that other pods share, so that the kubelet gives it to no pod.

The scheduler creates a reservation pod on a node before it binds the first pod that shares the GPU. The device plugin
of the node reports which device the kubelet gave to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from session_scheduler.model.gpu_shares import GPU_DEVICE
from session_scheduler.model.meta import ObjectMeta, OwnerReference
from session_scheduler.model.objects import Container, Node, Pod, PodSpec, ResourceRequirements, Toleration

__all__ = ["NAME_PREFIX", "RESERVED_DEVICE"]

RESERVATION: Final = "fluence.flux-framework.org/gpu-reservation"
"""Label of a reservation pod: the index of its GPU on the node."""
RESERVED_DEVICE: Final = "fluence.flux-framework.org/reserved-device"
"""Annotation of a reservation pod: the ID of its device. Only the device plugin writes it."""
MANAGED: Final = MappingProxyType({"app.kubernetes.io/managed-by": "fluence"})
"""A label of reservation pods, and of other objects that Fluence creates."""
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""Annotation of a reservation pod: it keeps no node from being removed. The pods that share its GPU may."""
NAME_PREFIX: Final = "fluence-gpu-"
"""The names of reservation pods begin with this prefix. The rest is random: a name is never used twice."""

_INDEX: Final = re.compile(r"[0-9]{1,2}")
_DEVICE: Final = re.compile(r"[!-+\--~]{1,128}")
"""A device ID: printable, without commas."""


@dataclass(frozen=True, slots=True)
class Uncounted:
    """Footprint key: the pods of a class do not use what they request of this resource. A plugin counts it instead."""

    resource: str


class ReservationContainer(Container, frozen=True):
    """A container with the fields that the scheduler writes but never reads."""

    security_context: dict[str, Any] | None = None


class ReservationSpec(PodSpec, frozen=True):
    """A pod's spec with the fields that the scheduler writes but never reads."""

    automount_service_account_token: bool | None = None
    enable_service_links: bool | None = None
    security_context: dict[str, Any] | None = None


# more than five parameters: the fields of the pod
def reservation_pod(
    name: str, namespace: str, node: Node, gpu: int, *, resource: str, image: str, priority_class_name: str
) -> Pod:
    """A new reservation pod. The policy `fluence-creates-reservations` allows the scheduler to create this form only.

    It belongs to its node: `kubectl drain` refuses pods without a controller.
    """
    requests: dict[str, Any] = {"cpu": "1m", "memory": "16Mi", resource: "1"}
    limits: dict[str, Any] = {"cpu": "100m", "memory": "32Mi", resource: "1"}
    container = ReservationContainer(
        name="reservation",
        image=image,
        resources=ResourceRequirements(requests=requests, limits=limits),
        security_context={
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    )
    spec = ReservationSpec(
        node_name=node.metadata.name,
        containers=(container,),
        tolerations=(Toleration(operator="Exists"),),
        priority_class_name=priority_class_name,
        restart_policy="Always",
        termination_grace_period_seconds=1,
        automount_service_account_token=False,
        enable_service_links=False,
        security_context={
            "runAsNonRoot": True, "runAsUser": 65535, "runAsGroup": 65535,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    )  # fmt: skip
    owner = OwnerReference(
        api_version="v1", kind="Node", name=node.metadata.name, uid=node.metadata.uid, controller=True
    )
    metadata = ObjectMeta(
        name=name,
        namespace=namespace,
        labels={**MANAGED, RESERVATION: str(gpu)},
        annotations={SAFE_TO_EVICT: "true"},
        owner_references=(owner,),
    )
    return Pod(metadata=metadata, spec=spec)


def reserved_gpu(pod: Pod, namespace: str) -> int | None:
    """The index of the GPU that a reservation pod of this namespace holds; None for any other pod."""
    if pod.metadata.namespace != namespace:
        return None
    text = pod.metadata.labels.get(RESERVATION, "")
    return int(text) if _INDEX.fullmatch(text) else None


def reported_device(pod: Pod) -> str | None:
    """The device of a reservation pod; None until the device plugin has reported it."""
    text = pod.metadata.annotations.get(RESERVED_DEVICE, "")
    return text if _DEVICE.fullmatch(text) else None


def devices_of(metadata: ObjectMeta, gpus: Sequence[int]) -> dict[int, str] | None:
    """The device of each of a bound pod's GPUs; None if its annotation is missing or invalid."""
    devices = metadata.annotations.get(GPU_DEVICE, "").split(",")
    if len(devices) != len(gpus) or not all(map(_DEVICE.fullmatch, devices)):
        return None
    return dict(zip(gpus, devices, strict=True))
