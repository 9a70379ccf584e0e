"""Request bodies for the API server: pure functions from values to JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from session_scheduler.cluster.port import Event, EventSeries, Kube
from session_scheduler.cluster.write_rules import with_claim_ref
from session_scheduler.model.devices import ResourceClaim, ResourceClaimStatus
from session_scheduler.model.group_api import version_of
from session_scheduler.model.meta import OwnerReference
from session_scheduler.model.objects import Node, Pod, PodCondition, PodGroup, RequestMapping, Taint
from session_scheduler.model.queue_objects import Queue, QueueStatus
from session_scheduler.model.storage import PersistentVolume, PersistentVolumeClaim
from session_scheduler.model.times import micro_time_text

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
"""Changes at paths. It can set a value that contains null; a merge patch takes a null as a removal."""
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
"""Merges lists by key, for example conditions by type. Only built-in kinds support it."""
_CONTROLLER = "fluence"


def object_body(obj: Kube) -> bytes:
    """Return the body of a new object, with its apiVersion and without a status."""
    version = version_of(obj.api_version)
    body = version.written(obj) if isinstance(obj, PodGroup) and version is not None else msgspec.to_builtins(obj)
    body["apiVersion"] = obj.api_version  # the encoder omits defaults
    body.pop("status", None)
    return msgspec.json.encode(body)


# more than five parameters: the fields of a Binding
def binding_body(
    namespace: str, name: str, node: str, uid: str, resource_version: str, annotations: Mapping[str, str]
) -> bytes:
    """Return a core/v1 Binding: uid and resourceVersion are preconditions, the annotations go to the pod."""
    metadata: dict[str, Any] = {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": resource_version}
    if annotations:
        metadata["annotations"] = annotations
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return msgspec.json.encode({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target})


def metadata_patch(
    annotations: Mapping[str, str | None],
    labels: Mapping[str, str | None],
    resource_version: str | None,
    *,
    finalizers: Sequence[str] | None = None,
    owner_references: Sequence[OwnerReference] | None = None,
) -> bytes:
    """Return a merge patch of metadata; the resourceVersion, if given, is a precondition."""
    metadata: dict[str, Any] = {}
    if annotations:
        metadata["annotations"] = annotations
    if labels:
        metadata["labels"] = labels
    if finalizers is not None:
        metadata["finalizers"] = list(finalizers) or None
    if owner_references is not None:
        metadata["ownerReferences"] = list(owner_references) or None
    return msgspec.json.encode({"metadata": _guarded(metadata, resource_version)})


def gate_patch(pod: Pod, gate: str, annotations: Mapping[str, str | None]) -> bytes:
    """Return a merge patch that removes this gate of the pod; the pod's resourceVersion is a precondition."""
    metadata: dict[str, Any] = {"annotations": annotations} if annotations else {}
    left = [{"name": each.name} for each in pod.spec.scheduling_gates if each.name != gate]
    return msgspec.json.encode(
        {"metadata": _guarded(metadata, pod.metadata.resource_version), "spec": {"schedulingGates": left or None}}
    )


def taints_patch(node: Node, taints: Sequence[Taint]) -> bytes:
    """Return a JSON patch from the node's taints to these; the node's resourceVersion is a precondition.

    It does not touch taints that stay, because a taint has a field that the model drops: timeAdded.
    """
    there = node.spec.taints
    changes = _as_read(node)
    gone = [number for number, taint in enumerate(there) if taint not in taints]
    changes.extend(_removed(f"/spec/taints/{number}") for number in reversed(gone))
    new = [taint for taint in taints if taint not in there]
    if new and not there:
        changes.append(_put("/spec/taints", new))
    else:
        changes.extend(_put("/spec/taints/-", taint) for taint in new)
    return msgspec.json.encode(changes)


def status_patch(
    conditions: Sequence[PodCondition], nominated_node_name: str | None, resource_version: str | None
) -> bytes:
    """Return a strategic merge patch of a status. An empty nominated node removes the field."""
    status: dict[str, Any] = {}
    if conditions:
        status["conditions"] = [_condition(condition) for condition in conditions]
    if nominated_node_name is not None:
        status["nominatedNodeName"] = nominated_node_name or None
    return msgspec.json.encode({"metadata": _guarded({}, resource_version), "status": status})


def named_for_version(api_version: str, conditions: Sequence[PodCondition]) -> list[PodCondition]:
    """Return a PodGroup's conditions with the types that its API version uses."""
    version = version_of(api_version)
    if version is None:
        return list(conditions)
    return [msgspec.structs.replace(one, type=version.condition_type(one.type)) for one in conditions]


def claim_patch(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bytes:
    """Return a merge patch of a volume (see `write_rules.with_claim_ref`); its resourceVersion is a precondition."""
    kept = with_claim_ref(volume, claim)
    metadata: dict[str, Any] = {"resourceVersion": volume.metadata.resource_version}
    if kept.metadata.annotations != volume.metadata.annotations:
        metadata["annotations"] = kept.metadata.annotations
    return msgspec.json.encode({"metadata": metadata, "spec": {"claimRef": kept.spec.claim_ref}})


def finalizer_patch(obj: Kube, finalizer: str) -> bytes:
    """Return a JSON patch that adds a finalizer; the object's resourceVersion is a precondition."""
    return msgspec.json.encode([*_as_read(obj), _put("/metadata/finalizers", [*obj.metadata.finalizers, finalizer])])


def claim_status_patch(claim: ResourceClaim, status: ResourceClaimStatus) -> bytes:
    """Return a JSON patch of the differences; the claim's resourceVersion is a precondition."""
    changes = _as_read(claim)
    if status.allocation != claim.status.allocation:
        path = "/status/allocation"
        changes.append(_put(path, status.allocation) if status.allocation is not None else _removed(path))
    if status.reserved_for != claim.status.reserved_for:
        changes.append(_put("/status/reservedFor", status.reserved_for))
    if claim.status.devices and not status.devices:
        changes.append(_removed("/status/devices"))
    return msgspec.json.encode(changes)


def queue_status_patch(queue: Queue, status: QueueStatus) -> bytes:
    """Return a JSON patch of the whole status; the queue's resourceVersion is a precondition."""
    return msgspec.json.encode([*_as_read(queue), _put("/status", status)])


def extended_claim_patch(pod: Pod, claim: str, mappings: Sequence[RequestMapping]) -> bytes:
    """Return a merge patch of the pod's status; the pod's uid is a precondition."""
    named = {"resourceClaimName": claim, "requestMappings": mappings}
    return msgspec.json.encode(
        {"metadata": {"uid": pod.metadata.uid}, "status": {"extendedResourceClaimStatus": named}}
    )


def _as_read(obj: Kube) -> list[dict[str, Any]]:
    """Return the first change of a JSON patch, which makes the object's resourceVersion a precondition."""
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": obj.metadata.resource_version}]


def _put(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def _removed(path: str) -> dict[str, Any]:
    return {"op": "remove", "path": path}


def _condition(condition: PodCondition) -> dict[str, str | None]:
    """Return all fields of the condition: a merge keeps the old value of a field that it does not name."""
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason or None,
        "message": condition.message or None,
        "lastTransitionTime": condition.last_transition_time,
    }


def deletion_body(uid: str, resource_version: str | None, grace_seconds: int | None) -> bytes:
    """Return metav1.DeleteOptions."""
    return msgspec.json.encode(_deletion(uid, resource_version, grace_seconds))


def eviction_body(pod: Pod, grace_seconds: int | None) -> bytes:
    """Return a policy/v1 Eviction of the pod; its uid is a precondition."""
    metadata = {"namespace": pod.metadata.namespace, "name": pod.metadata.name}
    options = _deletion(pod.metadata.uid, None, grace_seconds)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
    return msgspec.json.encode(eviction)


def _deletion(uid: str, resource_version: str | None, grace_seconds: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    preconditions = {"uid": uid} if uid else {}
    preconditions = _guarded(preconditions, resource_version)
    if preconditions:
        options["preconditions"] = preconditions
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    return options


def event_body(event: Event, namespace: str, name: str, time: datetime, instance: str) -> bytes:
    """Return an events.k8s.io/v1 Event. `time` is UTC."""
    obj = event.regarding
    regarding = {
        "apiVersion": obj.api_version,
        "kind": type(obj).__name__,
        "namespace": obj.metadata.namespace,
        "name": obj.metadata.name,
        "uid": obj.metadata.uid,
        "resourceVersion": obj.metadata.resource_version,
    }
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": name},
        "eventTime": micro_time_text(time),
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "action": event.action,
        "note": event.note,
        "regarding": regarding,
        "reportingController": _CONTROLLER,
        "reportingInstance": instance,
    }
    return msgspec.json.encode(body)


def series_patch(series: EventSeries) -> bytes:
    """Return a merge patch of an event's series, the only field that may change."""
    body = {"count": series.count, "lastObservedTime": micro_time_text(series.last_observed)}
    return msgspec.json.encode({"series": body})


def _guarded(fields: dict[str, Any], resource_version: str | None) -> dict[str, Any]:
    """Return the fields with the resourceVersion as a precondition, if there is one."""
    return fields if resource_version is None else {**fields, "resourceVersion": resource_version}
