"""Comparison of two states of an object: which `ActionType`s an update has. Event handlers and cache call it.

Source: kube-scheduler's framework.NodeSchedulingPropertiesChange and PodSchedulingPropertiesChange, Kubernetes 1.36.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from session_scheduler.model.events import ActionType
from session_scheduler.model.objects import KubeObject, Node, Pod, PodSpec
from session_scheduler.model.requests import effective_spec, is_infeasible

if TYPE_CHECKING:
    from session_scheduler.model.classes import TaskClass

ADD: Final = int(ActionType.ADD)
DELETE: Final = int(ActionType.DELETE)
OTHER: Final = int(ActionType.UPDATE_OTHER)
_ALLOCATABLE: Final = int(ActionType.UPDATE_NODE_ALLOCATABLE)
_NODE_LABEL: Final = int(ActionType.UPDATE_NODE_LABEL)
_TAINT: Final = int(ActionType.UPDATE_NODE_TAINT)
_CONDITION: Final = int(ActionType.UPDATE_NODE_CONDITION)
_ANNOTATION: Final = int(ActionType.UPDATE_NODE_ANNOTATION)
_FEATURE: Final = int(ActionType.UPDATE_NODE_DECLARED_FEATURE)
_POD_LABEL: Final = int(ActionType.UPDATE_POD_LABEL)
_SCALE_DOWN: Final = int(ActionType.UPDATE_POD_SCALE_DOWN)
_TOLERATION: Final = int(ActionType.UPDATE_POD_TOLERATION)
_GATES: Final = int(ActionType.UPDATE_POD_SCHEDULING_GATES_ELIMINATED)
_GENERATED: Final = int(ActionType.UPDATE_POD_GENERATED_RESOURCE_CLAIM)
_ENDING: Final = int(ActionType.UPDATE_POD_ENDING)


def node_actions(old: Node, new: Node) -> int:
    """The changes of a node, as bits of `ActionType`; 0 for a mere heartbeat."""
    if old is new:
        return 0
    taints = old.spec.taints != new.spec.taints or (old.spec.unschedulable and not new.spec.unschedulable)
    found = _ALLOCATABLE * (old.status.allocatable != new.status.allocatable)
    found |= _NODE_LABEL * (old.metadata.labels != new.metadata.labels)
    found |= _TAINT * taints
    found |= _CONDITION * (_conditions(old) != _conditions(new))
    found |= _ANNOTATION * (old.metadata.annotations != new.metadata.annotations)
    found |= _FEATURE * (old.status.declared_features != new.status.declared_features)
    found |= OTHER * (_others(old) != _others(new))
    return found


def _conditions(node: Node) -> dict[str, str]:
    return {condition.type: condition.status for condition in node.status.conditions}


def _others(node: Node) -> tuple[object, ...]:
    return node.metadata.uid, node.spec.unschedulable, node.status.capacity


def pod_actions(old: Pod, new: Pod, old_class: TaskClass, new_class: TaskClass) -> int:
    """The changes of a pod, as bits of `ActionType`; 0 for a mere status report."""
    if old is new:
        return 0
    found = _POD_LABEL * (old.metadata.labels != new.metadata.labels)
    found |= _SCALE_DOWN * (old_class is not new_class and requests_less(old_class, new_class))
    found |= _TOLERATION * (old.spec.tolerations != new.spec.tolerations)
    found |= _GATES * (bool(old.spec.scheduling_gates) and not new.spec.scheduling_gates)
    found |= _GENERATED * (old.status.resource_claim_statuses != new.status.resource_claim_statuses)
    found |= _ENDING * (old.metadata.deletion_timestamp is None and new.metadata.deletion_timestamp is not None)
    found |= OTHER * (not found and (old.spec != new.spec or old.metadata.annotations != new.metadata.annotations))
    return found


def requests_less(old: TaskClass, new: TaskClass) -> bool:
    """Whether the new class requests less of some resource."""
    return any(new.requests.get(name, 0) < amount for name, amount in old.requests.items())


def object_actions(old: KubeObject, new: KubeObject) -> int:
    """UPDATE_OTHER if a field changed that plugins may read, else 0."""
    same = replace(old, metadata=new.metadata) == new and _plugin_metadata(old) == _plugin_metadata(new)
    return 0 if same else OTHER


def _plugin_metadata(obj: KubeObject) -> tuple[object, ...]:
    """The metadata that plugins may read."""
    metadata = obj.metadata
    return (
        metadata.uid,
        metadata.labels,
        metadata.annotations,
        metadata.deletion_timestamp,
        metadata.owner_references,
    )


def scheduling_fields(node: Node) -> tuple[object, ...]:
    """The fields of a node that filters, scores and plugins may read."""
    metadata, status = node.metadata, node.status
    return (
        metadata.uid, metadata.labels, metadata.annotations, node.spec, status.allocatable, status.capacity,
        status.declared_features,
    )  # fmt: skip


def same_needs(before: Pod, pod: Pod) -> bool:
    """Whether a pod on a node has the same scheduling needs as before.

    A bind changes none of them: neither the node's name nor the annotations that a Binding adds. A resize changes them
    when the effective requests change.
    """
    old, new = before.metadata, pod.metadata
    is_bound_now = pod.spec.node_name != before.spec.node_name
    return (
        old.labels == new.labels
        and (
            old.annotations == new.annotations or (is_bound_now and old.annotations.items() <= new.annotations.items())
        )
        and _same_spec(before, pod)
        and before.status.resource_claim_statuses == pod.status.resource_claim_statuses
        and before.unreadable == pod.unreadable
    )


def _same_spec(before: Pod, pod: Pod) -> bool:
    """Whether the effective specs are equal except for the node."""
    old, new = before.status, pod.status
    if (
        old.container_statuses == new.container_statuses
        and old.init_container_statuses == new.init_container_statuses
        and old.resources == new.resources
        and old.allocated_resources == new.allocated_resources
        and (old.conditions == new.conditions or is_infeasible(old) == is_infeasible(new))
        and _on_node_of(before, pod.spec) == before.spec
    ):
        return True  # the common case, without the effective specs
    return _on_node_of(before, effective_spec(pod)) == effective_spec(before)


def _on_node_of(before: Pod, spec: PodSpec) -> PodSpec:
    node = before.spec.node_name
    return spec if spec.node_name == node else replace(spec, node_name=node)
