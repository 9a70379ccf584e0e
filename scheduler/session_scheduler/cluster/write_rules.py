"""The API server's rules for writes to the cluster in memory: pure functions over objects.

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
    """Raises Conflict where the object has another uid or resourceVersion than these (empty: any)."""
    metadata = obj.metadata
    if uid and uid != metadata.uid:
        raise Conflict(f"{described(obj)}: the UID in the precondition is {uid}, the object's is {metadata.uid}")
    if resource_version and resource_version != metadata.resource_version:
        versions = f"{resource_version}, the object's is {metadata.resource_version}"
        raise Conflict(f"{described(obj)}: it has been modified: the resourceVersion in the precondition is {versions}")


def check_has_version(obj: PortObject) -> None:
    """Raises Invalid for an object without a resourceVersion: it would be written whatever the object is by now."""
    if not obj.metadata.resource_version:
        raise Invalid(f"{described(obj)}: metadata.resourceVersion: is empty: give it")


def check_binding(pod: str, node: str, uid: str, resource_version: str) -> None:
    """Raises Invalid where the node or a precondition is empty: to the API server an absent one holds."""
    for field, value in (("node", node), ("uid", uid), ("resourceVersion", resource_version)):
        if not value:
            raise Invalid(f"binding of pod {pod}: {field}: is empty: give it")


def check_bindable(pod: Pod) -> None:
    """Raises Conflict for a pod that cannot be bound now, whatever the preconditions."""
    if pod.metadata.deletion_timestamp is not None:
        raise Conflict(f"{described(pod)} is being deleted, cannot be assigned to a host")
    if pod.spec.node_name:
        raise Conflict(f"{described(pod)} is already assigned to node {pod.spec.node_name!r}")
    if pod.spec.scheduling_gates:
        raise Conflict(f"{described(pod)} has non-empty .spec.schedulingGates")


def check_new(obj: PortObject) -> None:
    """Raises Invalid for what the API server refuses to create."""
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
    """Raises Invalid for finalizers that would be written whatever the object has."""
    if finalizers is not None and not resource_version:
        raise Invalid(f"{described(obj)}: metadata.resourceVersion: is empty: give it with finalizers")


def check_no_more_finalizers(obj: PortObject, finalizers: Sequence[str]) -> None:
    """Raises Invalid for one that an object that is being deleted does not have."""
    more = [finalizer for finalizer in finalizers if finalizer not in obj.metadata.finalizers]
    if more and obj.metadata.deletion_timestamp is not None:
        raise Invalid(f"{described(obj)}: metadata.finalizers: no new finalizers can be added if the object is being "
                      f"deleted, found new finalizers {more}")  # fmt: skip


def check_taints(node: Node, taints: Sequence[Taint]) -> None:
    """Raises Invalid for taints that no node may have, and for a node of which taints may have been left out."""
    check_has_version(node)
    if node.unreadable:
        raise Invalid(f"{described(node)}: spec.taints: are left as they are: {node.unreadable}")
    try:
        check_node(replace(node, spec=replace(node.spec, taints=tuple(taints))))
    except FieldError as error:
        raise Invalid(f"{described(node)}: {error}") from None
    if len({(taint.key, taint.effect) for taint in taints}) < len(taints):
        raise Invalid(f"{described(node)}: spec.taints: two have the same key and effect: leave one")


def grace_of(obj: PortObject, wanted: int | None) -> int:
    """Seconds that an object is given to end: only a bound pod that has not ended needs any."""
    if not isinstance(obj, Pod) or not obj.spec.node_name or obj.terminal:
        return 0
    own = obj.spec.termination_grace_period_seconds
    return wanted if wanted is not None else _DEFAULT_GRACE if own is None else own


def as_created(obj: Kube) -> Kube:
    """The object as a creation takes it: a new pod is pending, and says so where it is gated."""
    if isinstance(obj, devices.ResourceClaim):
        return replace(obj, status=devices.ResourceClaimStatus())
    if not isinstance(obj, Pod):
        return replace(obj, status=PodGroupStatus()) if isinstance(obj, PodGroup) else obj
    gated = PodCondition(type="PodScheduled", status="False", reason="SchedulingGated",
                         message="Scheduling is blocked due to non-empty scheduling gates")  # fmt: skip
    return replace(obj, status=PodStatus(conditions=(gated,) if obj.spec.scheduling_gates else ()))


# ------------------------------------------------------------------ values


def group_of(api_version: str) -> str:
    """The API group of an apiVersion; empty for core."""
    return api_version.rpartition("/")[0]


def by_name(name: ObjectName) -> ObjectName:
    """What objects are listed by: namespace, then name."""
    return name[1], name[2], name[0]


def described(obj: PortObject) -> str:
    """The object as messages name it."""
    return f"{type(obj).__name__} {obj.key}"


def kept_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> PersistentVolume:
    """The volume with a claimRef to this claim. One that names it already was chosen by people, and says no more."""
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
    """The object in `default` where it needs a namespace and names none."""
    if obj.metadata.namespace or isinstance(obj, ClusterScoped):
        return obj
    return with_metadata(obj, namespace="default")


def with_metadata(obj: Kube, **changes: Any) -> Kube:
    """The object with some of its metadata changed."""
    metadata: ObjectMeta = replace(obj.metadata, **changes)
    return replace(obj, metadata=metadata)


def merged_texts(old: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    """Labels or annotations with a merge patch applied: None removes a key."""
    merged: dict[str, str | None] = {**old, **patch}
    return {key: value for key, value in merged.items() if value is not None}


def merged_taints(old: Sequence[Taint], new: Sequence[Taint]) -> tuple[Taint, ...]:
    """The new taints, after those of the old that are among them."""
    return (*(taint for taint in old if taint in new), *(taint for taint in new if taint not in old))


def merged_conditions(old: Sequence[PodCondition], new: Sequence[PodCondition]) -> tuple[PodCondition, ...]:
    """The conditions, new ones in the place of old ones of their type."""
    by_type = {condition.type: condition for condition in (*old, *new)}
    return tuple(by_type.values())
