"""Typed Kubernetes objects, with only the fields that the scheduler reads; msgspec decodes them.

Field names are the API's, in snake case. Decoding ignores unknown fields. Objects are immutable: each change creates a
new one.
Source: the Kubernetes API reference (core/v1, apps/v1, scheduling.k8s.io/v1alpha2, scheduling.x-k8s.io/v1alpha1,
coordination.k8s.io/v1).
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from session_scheduler.model.devices import DeviceObject
from session_scheduler.model.meta import (
    PREFERRED_TERMS,
    REQUIRED_TERMS,
    ApiStruct,
    ClusterScoped,
    Condition,
    Namespaced,
)
from session_scheduler.model.meta import LabelSelector as LabelSelector
from session_scheduler.model.meta import LabelSelectorRequirement as LabelSelectorRequirement
from session_scheduler.model.meta import NodeSelector as NodeSelector
from session_scheduler.model.meta import NodeSelectorTerm as NodeSelectorTerm
from session_scheduler.model.meta import ObjectMeta as ObjectMeta
from session_scheduler.model.meta import OwnerReference as OwnerReference
from session_scheduler.model.meta import Quantity as Quantity
from session_scheduler.model.node_topology import NodeResourceTopology
from session_scheduler.model.policy import PodDisruptionBudget
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.related import RelatedObject
from session_scheduler.model.storage import StorageObject
from session_scheduler.model.workload_objects import WorkloadObject


class PreferredSchedulingTerm(ApiStruct, frozen=True):
    """A node preference with its weight, 1 to 100."""

    weight: int
    preference: NodeSelectorTerm


class NodeAffinity(ApiStruct, frozen=True):
    """spec.affinity.nodeAffinity."""

    required: NodeSelector | None = field(default=None, name=REQUIRED_TERMS)
    preferred: tuple[PreferredSchedulingTerm, ...] = field(default=(), name=PREFERRED_TERMS)


class Affinity(ApiStruct, frozen=True):
    """spec.affinity; the inter-pod terms stay undecoded (`model.pod_terms` decodes them)."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: dict[str, Any] | None = None
    pod_anti_affinity: dict[str, Any] | None = None


# ------------------------------------------------------------------ pods


class ContainerPort(ApiStruct, frozen=True):
    """containers[].ports[]; `host_port` 0 means none."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = field(default="", name="hostIP")
    protocol: str = "TCP"
    name: str = ""


class ResourceRequirements(ApiStruct, frozen=True):
    """containers[].resources."""

    requests: dict[str, Quantity] = field(default_factory=dict)
    limits: dict[str, Quantity] = field(default_factory=dict)


class FieldSelector(ApiStruct, frozen=True):
    """containers[].env[].valueFrom.fieldRef."""

    field_path: str = ""


class EnvVarSource(ApiStruct, frozen=True):
    """containers[].env[].valueFrom. Only a reference to a field of the pod is decoded."""

    field_ref: FieldSelector | None = None


class EnvVar(ApiStruct, frozen=True):
    """containers[].env[]: the name of a variable and where it comes from. Its value may be long or secret."""

    name: str
    value_from: EnvVarSource | None = None


class RestartRule(ApiStruct, frozen=True):
    """containers[].restartPolicyRules[]: the action after certain exits of the container."""

    action: str = ""


class Container(ApiStruct, frozen=True):
    """spec.containers[] and spec.initContainers[]; `restart_policy: Always` makes an init container a sidecar."""

    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    env: tuple[EnvVar, ...] = ()
    restart_policy: str = ""
    restart_policy_rules: tuple[RestartRule, ...] = ()


class Toleration(ApiStruct, frozen=True):
    """spec.tolerations[]; operators Equal (default), Exists, Lt and Gt."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class SchedulingGate(ApiStruct, frozen=True):
    """spec.schedulingGates[]."""

    name: str


class SchedulingGroup(ApiStruct, frozen=True):
    """spec.schedulingGroup: the native way to name a PodGroup."""

    pod_group_name: str = ""


class PodSpec(ApiStruct, frozen=True):
    """spec of a pod."""

    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, Quantity] = field(default_factory=dict)
    resources: ResourceRequirements | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[dict[str, Any], ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""
    volumes: tuple[dict[str, Any], ...] = ()
    resource_claims: tuple[dict[str, Any], ...] = ()
    host_network: bool = False
    host_users: bool | None = None
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int | None = None
    restart_policy: str = ""


class PodCondition(Condition, frozen=True):
    """status.conditions[]."""


class ContainerStatus(ApiStruct, frozen=True):
    """status.containerStatuses[] and initContainerStatuses[]: what the kubelet allocated, and what the runtime has."""

    name: str = ""
    allocated_resources: dict[str, Quantity] = field(default_factory=dict)
    resources: ResourceRequirements | None = None


class ClaimStatus(ApiStruct, frozen=True):
    """status.resourceClaimStatuses[]: the claim created for an entry of spec.resourceClaims; None if none is needed."""

    name: str = ""
    resource_claim_name: str | None = None


class RequestMapping(ApiStruct, frozen=True):
    """requestMappings[]: the claim's request for an extended resource of a container."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class ExtendedClaimStatus(ApiStruct, frozen=True):
    """status.extendedResourceClaimStatus."""

    request_mappings: tuple[RequestMapping, ...] = ()
    resource_claim_name: str = ""


class PodStatus(ApiStruct, frozen=True):
    """status of a pod."""

    phase: str = "Pending"
    conditions: tuple[PodCondition, ...] = ()
    nominated_node_name: str = ""
    start_time: str | None = None
    """An RFC 3339 string, which sorts by time; None before the kubelet starts the pod."""
    resource_claim_statuses: tuple[ClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedClaimStatus | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    allocated_resources: dict[str, Quantity] = field(default_factory=dict)
    resources: ResourceRequirements | None = None
    """With `allocated_resources`, as in ContainerStatus, for the pod-level resources."""


class Pod(Namespaced, frozen=True, tag_field="kind", tag="Pod"):
    """core/v1 Pod."""

    api_version: str = "v1"
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    unreadable: str = field(default="", name="(unreadable)")
    """Which field is invalid, and why; such fields keep their default. Not a field of the API."""

    @property
    def terminal(self) -> bool:
        """Whether the pod has finished, and so uses no resources."""
        return self.status.phase in ("Succeeded", "Failed")


# ------------------------------------------------------------------ nodes


class Taint(ApiStruct, frozen=True):
    """spec.taints[]."""

    key: str
    value: str = ""
    effect: str = ""


class NodeSpec(ApiStruct, frozen=True):
    """spec of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class ContainerImage(ApiStruct, frozen=True):
    """status.images[]: an image on the node, with all its names; null if it has none."""

    names: tuple[str, ...] | None = None
    size_bytes: int = 0


class NodeAddress(ApiStruct, frozen=True):
    """status.addresses[]: types InternalIP, ExternalIP, Hostname, …."""

    type: str = ""
    address: str = ""


class NodeStatus(ApiStruct, frozen=True):
    """status of a node; quantities are not parsed."""

    allocatable: dict[str, Quantity] = field(default_factory=dict)
    capacity: dict[str, Quantity] = field(default_factory=dict)
    conditions: tuple[PodCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    images: tuple[ContainerImage, ...] = ()
    declared_features: tuple[str, ...] = ()


class Node(ClusterScoped, frozen=True, tag_field="kind", tag="Node"):
    """core/v1 Node."""

    api_version: str = "v1"
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
    unreadable: str = field(default="", name="(unreadable)")
    """As `Pod.unreadable`."""


# ------------------------------------------------------------------ pod groups


class GangPolicy(ApiStruct, frozen=True):
    """schedulingPolicy.gang: at least `min_count` pods start together, or none."""

    min_count: int


class SchedulingPolicy(ApiStruct, frozen=True):
    """spec.schedulingPolicy: exactly one of gang and basic."""

    gang: GangPolicy | None = None
    basic: dict[str, Any] | None = None


class TopologyConstraint(ApiStruct, frozen=True):
    """schedulingConstraints.topology[]: all pods of the group go to nodes with the same value of this label."""

    key: str = ""


class SchedulingConstraints(ApiStruct, frozen=True):
    """spec.schedulingConstraints; the API allows at most one entry."""

    topology: tuple[TopologyConstraint, ...] = ()


class WorkloadPodGroupTemplateReference(ApiStruct, frozen=True):
    """podGroupTemplateRef.workload: a template in a Workload."""

    workload_name: str = ""
    pod_group_template_name: str = ""


class PodGroupTemplateReference(ApiStruct, frozen=True):
    """spec.podGroupTemplateRef: the template from which a controller created the group."""

    workload: WorkloadPodGroupTemplateReference | None = None


class PodGroupSpec(ApiStruct, frozen=True):
    """spec of a native PodGroup, or of a coscheduling one (scheduling.x-k8s.io), which has only `min_member`."""

    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints | None = None
    pod_group_template_ref: PodGroupTemplateReference | None = None
    min_member: int | None = None
    resource_claims: tuple[dict[str, Any], ...] = ()
    """Claims that its pods share; a pod names one by an equal entry of its own spec.resourceClaims."""
    disruption_mode: str | None = None
    """"PodGroup": its pods are disrupted only together; "Pod": each on its own; None: not below the gang's minimum."""
    priority: int | None = None
    priority_class_name: str = ""


class PodGroupStatus(ApiStruct, frozen=True):
    """status of a PodGroup."""

    conditions: tuple[PodCondition, ...] = ()


class PodGroup(Namespaced, frozen=True, tag_field="kind", tag="PodGroup"):
    """A PodGroup of any version in `group_api` (`api_version`), with the fields of scheduling.k8s.io/v1alpha2."""

    api_version: str = "scheduling.k8s.io/v1alpha2"
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()

    @property
    def native(self) -> bool:
        """Whether this is Kubernetes' own PodGroup, not a coscheduling one."""
        return not self.api_version.startswith("scheduling.x-k8s.io/")

    @property
    def disrupted_whole(self) -> bool:
        """Whether the PodGroup's pods may be disrupted only together."""
        return self.spec.disruption_mode == "PodGroup"

    @property
    def disrupted_singly(self) -> bool:
        """Whether each of its pods may be disrupted on its own, even if that leaves fewer than its minimum."""
        return self.spec.disruption_mode == "Pod"

    @property
    def is_gang(self) -> bool:
        """Whether the PodGroup's policy is a gang, with any minimum."""
        policy = self.spec.scheduling_policy
        return self.spec.min_member is not None or (policy is not None and policy.gang is not None)

    @property
    def min_count(self) -> int:
        """How many pods must be placed together; 1 for the basic policy."""
        if self.spec.min_member is not None:
            return max(1, self.spec.min_member)
        policy = self.spec.scheduling_policy
        return policy.gang.min_count if policy and policy.gang else 1

    @property
    def topology_key(self) -> str | None:
        """The node label whose value must be equal on all its pods' nodes; None without a topology constraint."""
        constraints = self.spec.scheduling_constraints
        return constraints.topology[0].key if constraints is not None and constraints.topology else None


class PriorityClass(ClusterScoped, frozen=True, tag_field="kind", tag="PriorityClass"):
    """scheduling.k8s.io/v1 PriorityClass."""

    api_version: str = "scheduling.k8s.io/v1"
    value: int = 0
    global_default: bool = False
    preemption_policy: str = ""


class ConfigMap(Namespaced, frozen=True, tag_field="kind", tag="ConfigMap"):
    """core/v1 ConfigMap, which holds a gang plan that is too large for an annotation. Never watched."""

    api_version: str = "v1"
    data: dict[str, str] = field(default_factory=dict)


class LeaseSpec(ApiStruct, frozen=True):
    """spec of a Lease. Any field may be missing; times are RFC 3339 strings with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Namespaced, frozen=True, tag_field="kind", tag="Lease"):
    """coordination.k8s.io/v1 Lease, for leader election."""

    api_version: str = "coordination.k8s.io/v1"
    spec: LeaseSpec = LeaseSpec()


KubeObject = (
    Pod | Node | PodGroup | PriorityClass | StorageObject | DeviceObject | RelatedObject | PodDisruptionBudget | Queue
    | NodeResourceTopology
)  # fmt: skip
"""The kinds that the scheduler lists and watches."""
PortObject = KubeObject | ConfigMap | Lease | WorkloadObject
"""All kinds that the scheduler can read from a cluster."""

ObjectName = tuple[str, str, str]
"""(API group, namespace, name)."""


def name_of(obj: PortObject) -> ObjectName:
    """The API group, namespace and name of an object: unique among the objects of its kind."""
    return obj.api_version.rpartition("/")[0], obj.metadata.namespace, obj.metadata.name
