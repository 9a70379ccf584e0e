"""Builders of Kubernetes objects with defaults for all fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from session_scheduler.config.settings import DEFAULT_SCHEDULER_NAME
from session_scheduler.model.objects import (
    Container,
    ContainerPort,
    GangPolicy,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodSpec,
    PriorityClass,
    Quantity,
    ResourceRequirements,
    SchedulingConstraints,
    SchedulingGate,
    SchedulingGroup,
    SchedulingPolicy,
    Taint,
    TopologyConstraint,
)
from session_scheduler.model.queue_objects import Queue, QueueObjectSpec
from session_scheduler.model.queues import QUEUE_LABEL
from session_scheduler.model.sub_groups import SUB_GROUP_LABEL, SUB_GROUPS_ANNOTATION

COSCHEDULING_VERSION = "scheduling.x-k8s.io/v1alpha1"


# more than five parameters: each is a field of the object, with a default
def node(
    name: str,
    *,
    cpu: Quantity = "4",
    memory: Quantity = "16Gi",
    pods: Quantity = 110,
    offers: Mapping[str, Quantity] | None = None,
    labels: Mapping[str, str] | None = None,
    taints: Iterable[Taint] = (),
    unschedulable: bool = False,
) -> Node:
    """A node with the label kubernetes.io/hostname; `offers` are further resources."""
    allocatable = {"cpu": cpu, "memory": memory, "pods": pods, **(offers or {})}
    return Node(
        metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **(labels or {})}),
        spec=NodeSpec(unschedulable=unschedulable, taints=tuple(taints)),
        status=NodeStatus(allocatable=allocatable, capacity=allocatable),
    )


# more than five parameters: each is a field of the object, with a default
def pod(
    name: str,
    *,
    namespace: str = "default",
    cpu: Quantity = "100m",
    memory: Quantity = "100Mi",
    requests: Mapping[str, Quantity] | None = None,
    group: str = "",
    sub_group: str = "",
    queue: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    host_port: int = 0,
    priority: int | None = None,
    gates: Iterable[str] = (),
    bound_to: str = "",
    scheduler: str = DEFAULT_SCHEDULER_NAME,
    **spec: Any,
) -> Pod:
    """A pod with one container; `group` is its `schedulingGroup`, `spec` any further fields of a PodSpec.

    `queue` and `sub_group` become labels; a gang is in the queue of its pods.
    """
    named = {QUEUE_LABEL: queue, SUB_GROUP_LABEL: sub_group}
    labels = {**{label: name for label, name in named.items() if name}, **(labels or {})}
    ports = (ContainerPort(container_port=host_port, host_port=host_port),) if host_port else ()
    needs = ResourceRequirements(requests={"cpu": cpu, "memory": memory, **(requests or {})})
    return Pod(
        metadata=ObjectMeta(name=name, namespace=namespace, labels=labels, annotations=dict(annotations or {})),
        spec=PodSpec(
            scheduler_name=scheduler,
            node_name=bound_to,
            containers=(Container(name="c", resources=needs, ports=ports),),
            priority=priority,
            scheduling_gates=tuple(SchedulingGate(name=gate) for gate in gates),
            scheduling_group=SchedulingGroup(pod_group_name=group) if group else None,
            **spec,
        ),
    )


def pods(prefix: str, count: int, **options: Any) -> list[Pod]:
    """The pods `<prefix>-0` and so on. `options` go to `pod`."""
    return [pod(f"{prefix}-{index}", **options) for index in range(count)]


# more than five parameters: each is a field of the object, with a default
def pod_group(
    name: str,
    min_count: int | None = None,
    *,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    priority: int | None = None,
    coscheduling: bool = False,
    topology: str | None = None,
    disruption_mode: str | None = None,
    sub_groups: str | None = None,
) -> PodGroup:
    """A PodGroup: a gang with `min_count`, otherwise basic; one of scheduling.x-k8s.io with `coscheduling` (minMember).

    `topology`: the label whose value the nodes of all its pods share; `sub_groups`: "leader=1,worker=3".
    """
    annotations = {} if sub_groups is None else {SUB_GROUPS_ANNOTATION: sub_groups}
    metadata = ObjectMeta(name=name, namespace=namespace, labels=dict(labels or {}), annotations=annotations)
    if coscheduling:
        return PodGroup(
            api_version=COSCHEDULING_VERSION, metadata=metadata, spec=PodGroupSpec(min_member=min_count or 1)
        )
    policy = SchedulingPolicy(basic={}) if min_count is None else SchedulingPolicy(gang=GangPolicy(min_count=min_count))
    constraints = None if topology is None else SchedulingConstraints(topology=(TopologyConstraint(key=topology),))
    spec = PodGroupSpec(scheduling_policy=policy, priority=priority, scheduling_constraints=constraints,
                        disruption_mode=disruption_mode)  # fmt: skip
    return PodGroup(metadata=metadata, spec=spec)


def gang(
    name: str, size: int, *, min_count: int | None = None, topology: str | None = None, **options: Any
) -> list[PodGroup | Pod]:
    """A PodGroup and its pods `<name>-0` and so on; `min_count` defaults to `size`; `options` go to `pod`."""
    namespace = options.get("namespace", "default")
    group = pod_group(name, size if min_count is None else min_count, namespace=namespace, topology=topology)
    return [group, *pods(name, size, group=name, **options)]


# more than five parameters: each is a field of the object, with a default
def queue(
    name: str,
    *,
    parent: str = "",
    deserved: Mapping[str, Quantity] | None = None,
    limit: Mapping[str, Quantity] | None = None,
    weight: int = 1,
    priority: int = 0,
) -> Queue:
    """A Queue; `weight` is its overQuotaWeight."""
    spec = QueueObjectSpec(parent=parent, deserved=dict(deserved or {}), limit=dict(limit or {}),
                           over_quota_weight=weight, priority=priority)  # fmt: skip
    return Queue(metadata=ObjectMeta(name=name), spec=spec)


def priority_class(name: str, value: int, *, default: bool = False, preempts: bool = True) -> PriorityClass:
    """A PriorityClass; with `default`, the one for pods that name no PriorityClass."""
    policy = "PreemptLowerPriority" if preempts else "Never"
    metadata = ObjectMeta(name=name)
    return PriorityClass(metadata=metadata, value=value, global_default=default, preemption_policy=policy)


def taint(key: str, value: str = "", *, effect: str = "NoSchedule") -> Taint:
    """A taint for a node's `taints`."""
    return Taint(key=key, value=value, effect=effect)
