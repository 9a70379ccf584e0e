"""The API server's rules for writes, for the in-memory cluster: pure functions over objects.

Source: pkg/registry/core/pod (BindingREST, the strategies for creation and deletion).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from session_scheduler.cluster.errors import Conflict, Invalid
from session_scheduler.cluster.object_checks import check_node, check_pod_group, check_pod_spec
from session_scheduler.cluster.port import Kube
from session_scheduler.model import devices
from session_scheduler.model.field_checks import FieldError, check_metadata
from session_scheduler.model.meta import ClusterScoped
from session_scheduler.model.objects import (
    Node,
    ObjectMeta,
    ObjectName,
    Pod,
    PodCondition,
    PodGroup,
    PodGroupStatus,
    PodStatus,
    PortObject,
    Taint,
)
from session_scheduler.model.storage import (
    BOUND_BY_CONTROLLER,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
)

_DEFAULT_GRACE = 30


# ------------------------------------------------------------------ rules


def check_unchanged(obj: PortObject, uid: str = "", resource_version: str = "") -> None:
    """Raise Conflict if the object has another uid or resourceVersion; an empty argument matches any."""
    metadata = obj.metadata
    if uid and uid != metadata.uid:
        raise Conflict(f"{described(obj)}: the UID in the precondition is {uid}, the object's is {metadata.uid}")
    if resource_version and resource_version != metadata.resource_version:
        versions = f"{resource_version}, the object's is {metadata.resource_version}"
        raise Conflict(f"{described(obj)}: it has been modified: the resourceVersion in the precondition is {versions}")


def check_has_version(obj: PortObject) -> None:
    """Raise Invalid for an object without a resourceVersion: the write would have no precondition."""
    if not obj.metadata.resource_version:
        raise Invalid(f"{described(obj)}: metadata.resourceVersion: must be specified for an update")


def check_binding(pod: str, node: str, uid: str, resource_version: str) -> None:
    """Raise Invalid for an empty node or precondition; the API server ignores an empty precondition."""
    for field, value in (("node", node), ("uid", uid), ("resourceVersion", resource_version)):
        if not value:
            raise Invalid(f"binding of pod {pod}: {field}: must not be empty")


def check_bindable(pod: Pod) -> None:
    """Raise Conflict for a pod that cannot be bound now, even if the preconditions hold."""
    if pod.metadata.deletion_timestamp is not None:
        raise Conflict(f"{described(pod)} is being deleted, cannot be assigned to a host")
    if pod.spec.node_name:
        raise Conflict(f"{described(pod)} is already assigned to node {pod.spec.node_name!r}")
    if pod.spec.scheduling_gates:
        raise Conflict(f"{described(pod)} has non-empty .spec.schedulingGates")


def check_new(obj: PortObject) -> None:
    """Raise Invalid if the API server would refuse to create the object."""
    try:
        check_metadata(obj.metadata)
        if isinstance(obj, Pod):
            check_pod_spec(obj.spec)
        elif isinstance(obj, Node):
            check_node(obj)
        elif isinstance(obj, PodGroup):
            check_pod_group(obj)
    except FieldError as error:
        raise Invalid(f"{described(obj)}: {error}") from None


def check_finalizers(obj: PortObject, finalizers: Sequence[str] | None, resource_version: str | None) -> None:
    """Raise Invalid for finalizers without a resourceVersion, which could overwrite other finalizers."""
    if finalizers is not None and not resource_version:
        raise Invalid(f"{described(obj)}: metadata.resourceVersion: must be specified with finalizers")


def check_no_new_finalizers(obj: PortObject, finalizers: Sequence[str]) -> None:
    """Raise Invalid for a new finalizer on an object that is being deleted."""
    more = [finalizer for finalizer in finalizers if finalizer not in obj.metadata.finalizers]
    if more and obj.metadata.deletion_timestamp is not None:
        raise Invalid(f"{described(obj)}: metadata.finalizers: no new finalizers can be added if the object is being "
                      f"deleted, found new finalizers {more}")  # fmt: skip


def check_taints(node: Node, taints: Sequence[Taint]) -> None:
    """Raise Invalid for invalid taints, and for a node that was decoded without some of its taints."""
    check_has_version(node)
    if node.unreadable:
        raise Invalid(f"{described(node)}: spec.taints: cannot change the taints of an invalid node: {node.unreadable}")
    try:
        check_node(replace(node, spec=replace(node.spec, taints=tuple(taints))))
    except FieldError as error:
        raise Invalid(f"{described(node)}: {error}") from None
    if len({(taint.key, taint.effect) for taint in taints}) < len(taints):
        raise Invalid(f"{described(node)}: spec.taints: must be unique by key and effect")


def grace_of(obj: PortObject, wanted: int | None) -> int:
    """Return an object's grace period in seconds; 0 unless it is a bound pod that still runs."""
    if not isinstance(obj, Pod) or not obj.spec.node_name or obj.terminal:
        return 0
    own = obj.spec.termination_grace_period_seconds
    return wanted if wanted is not None else _DEFAULT_GRACE if own is None else own


def as_created(obj: Kube) -> Kube:
    """Return the object as a new one: a new pod is pending, and its condition says so if it is gated."""
    if isinstance(obj, devices.ResourceClaim):
        return replace(obj, status=devices.ResourceClaimStatus())
    if not isinstance(obj, Pod):
        return replace(obj, status=PodGroupStatus()) if isinstance(obj, PodGroup) else obj
    gated = PodCondition(type="PodScheduled", status="False", reason="SchedulingGated",
                         message="Scheduling is blocked due to non-empty scheduling gates")  # fmt: skip
    return replace(obj, status=PodStatus(conditions=(gated,) if obj.spec.scheduling_gates else ()))


# ------------------------------------------------------------------ values


def group_of(api_version: str) -> str:
    """Return the API group of an apiVersion; empty for core."""
    return api_version.rpartition("/")[0]


def by_name(name: ObjectName) -> ObjectName:
    """Return a sort key for lists: namespace, then name."""
    return name[1], name[2], name[0]


def described(obj: PortObject) -> str:
    """Return the object's name for messages."""
    return f"{type(obj).__name__} {obj.key}"


def with_claim_ref(volume: PersistentVolume, claim: PersistentVolumeClaim) -> PersistentVolume:
    """Return the volume with a claimRef to this claim, and as bound by a controller unless a user pre-bound it."""
    metadata = claim.metadata
    ref = ObjectReference(
        api_version="v1",
        kind="PersistentVolumeClaim",
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
    )
    kept = replace(volume, spec=replace(volume.spec, claim_ref=ref))
    if volume.is_for(claim) or BOUND_BY_CONTROLLER in volume.metadata.annotations:
        return kept
    return with_metadata(kept, annotations={**volume.metadata.annotations, BOUND_BY_CONTROLLER: "yes"})


def in_namespace(obj: Kube) -> Kube:
    """Return the object in the namespace `default` if it needs a namespace and has none."""
    if obj.metadata.namespace or isinstance(obj, ClusterScoped):
        return obj
    return with_metadata(obj, namespace="default")


def with_metadata(obj: Kube, **changes: Any) -> Kube:
    """Return the object with some of its metadata changed."""
    metadata: ObjectMeta = replace(obj.metadata, **changes)
    return replace(obj, metadata=metadata)


def merged_texts(old: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    """Apply a merge patch to labels or annotations; None removes a key."""
    merged: dict[str, str | None] = {**old, **patch}
    return {key: value for key, value in merged.items() if value is not None}


def merged_taints(old: Sequence[Taint], new: Sequence[Taint]) -> tuple[Taint, ...]:
    """Return the new taints; those that the node already has come first, in their old order."""
    return (*(taint for taint in old if taint in new), *(taint for taint in new if taint not in old))


def merged_conditions(old: Sequence[PodCondition], new: Sequence[PodCondition]) -> tuple[PodCondition, ...]:
    """Merge conditions by type: a new one replaces the old one of its type."""
    by_type = {condition.type: condition for condition in (*old, *new)}
    return tuple(by_type.values())
