"""Admission for manifests: defaults, priority, uid and creation time, as the API server sets them.

The result depends only on the input, so two runs on the same files agree. Source: pkg/apis/core/v1 (defaults), the
Priority admission plugin.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from session_scheduler.cluster.label_keys import with_label_keys
from session_scheduler.cluster.workloads import made_up_uid
from session_scheduler.model.field_checks import FieldError
from session_scheduler.model.objects import (
    Container,
    KubeObject,
    Node,
    ObjectMeta,
    Pod,
    PodGroup,
    PodSpec,
    PriorityClass,
)
from session_scheduler.model.times import micro_time_text, parsed_time

_SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_FIRST_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_LAST_TIME = datetime(9999, 12, 31, tzinfo=UTC)
"""The latest time after which generated times can begin: a day before the largest datetime."""
_Kube = TypeVar("_Kube", bound=KubeObject)


class Admission:
    """Sets the priority of pods and groups, and the defaults of pods."""

    def __init__(self, classes: Iterable[PriorityClass]) -> None:
        self._classes = {
            name: PriorityClass(metadata=ObjectMeta(name=name), value=value) for name, value in _SYSTEM_CLASSES.items()
        }
        self._classes.update((c.metadata.name, c) for c in classes)
        self._default = min(
            (c for c in self._classes.values() if c.global_default), key=lambda c: c.value, default=None
        )
        self._last: tuple[PodSpec, PodSpec] | None = None

    def pod(self, pod: Pod) -> Pod:
        """Return the admitted pod. Raises FieldError for an unknown priority class or an invalid host port."""
        if self._last is None or self._last[0] is not pod.spec:  # pods of one workload share a spec
            self._last = (pod.spec, _with_host_ports(self._spec(pod.spec)))
        saved, spec = pod.spec.priority is not None, self._last[1]
        admitted = pod if spec is pod.spec else msgspec.structs.replace(pod, spec=spec)
        return admitted if saved else with_label_keys(admitted)

    def _spec(self, spec: PodSpec) -> PodSpec:
        if spec.priority is not None:  # a saved pod was admitted before it was saved
            return spec
        found = self._find(spec.priority_class_name, "spec.priorityClassName")
        if found is None:
            return msgspec.structs.replace(spec, priority=0)
        return msgspec.structs.replace(
            spec,
            priority=found.value,
            priority_class_name=found.metadata.name,
            preemption_policy=spec.preemption_policy or found.preemption_policy,
        )

    def pod_group(self, group: PodGroup) -> PodGroup:
        """Return the admitted group; a coscheduling one has no priority. Raises FieldError for an unknown class."""
        if not group.native or group.spec.priority is not None:
            return group
        found = self._find(group.spec.priority_class_name, "spec.priorityClassName")
        if found is None:
            return group
        spec = msgspec.structs.replace(group.spec, priority=found.value, priority_class_name=found.metadata.name)
        return msgspec.structs.replace(group, spec=spec)

    def _find(self, name: str, where: str) -> PriorityClass | None:
        if not name:
            return self._default
        found = self._classes.get(name)
        if found is None:
            raise FieldError(where, f"no PriorityClass with name {name!r} was found; add its manifest, "
                             "or remove the field")  # fmt: skip
        return found


def _with_host_ports(spec: PodSpec) -> PodSpec:
    """Copy every containerPort to hostPort if the pod uses the host's network."""
    if not spec.host_network:
        return spec
    containers = tuple(_on_host(c, f"spec.containers[{number}]") for number, c in enumerate(spec.containers))
    return msgspec.structs.replace(spec, containers=containers)


def _on_host(container: Container, where: str) -> Container:
    ports = []
    for number, port in enumerate(container.ports):
        if port.host_port not in (0, port.container_port):
            raise FieldError(f"{where}.ports[{number}].hostPort", f"{port.host_port} must equal the containerPort "
                             f"{port.container_port} because hostNetwork is true")  # fmt: skip
        ports.append(msgspec.structs.replace(port, host_port=port.container_port))
    return msgspec.structs.replace(container, ports=tuple(ports))


def with_defaults(node: Node) -> Node:
    """Return the node with its capacity as allocatable where it has no allocatable."""
    if node.status.allocatable or not node.status.capacity:
        return node
    status = msgspec.structs.replace(node.status, allocatable=node.status.capacity)
    return msgspec.structs.replace(node, status=status)


class Stamps:
    """Sets uid, resourceVersion and creationTimestamp where they are missing.

    Generated times are later than every time in the input and increase from object to object. So a pod that is added
    to a saved cluster is younger than the saved pods, and the order in the file breaks ties.
    """

    def __init__(self, read: Iterable[ObjectMeta]) -> None:
        times = [parsed_time(m.creation_timestamp) for m in read if m.creation_timestamp]
        latest = min(max((time for time in times if time is not None), default=_FIRST_TIME), _LAST_TIME)
        self._start = (latest + timedelta(seconds=1)).replace(microsecond=0)
        self._count = 0

    def on(self, value: _Kube) -> _Kube:
        """Return the object with the missing metadata set."""
        metadata = value.metadata
        self._count += 1
        if metadata.uid and metadata.resource_version and metadata.creation_timestamp:
            return value
        made_up = micro_time_text(self._start + timedelta(microseconds=self._count))
        stamped = msgspec.structs.replace(
            metadata,
            uid=metadata.uid or made_up_uid(_what(value), metadata.namespace, metadata.name),
            resource_version=metadata.resource_version or str(self._count),
            creation_timestamp=metadata.creation_timestamp or made_up,
        )
        return msgspec.structs.replace(value, metadata=stamped)


def _what(value: KubeObject) -> str:
    """Return the kind; for a coscheduling PodGroup with its API group, because a native one may have the same name."""
    kind = type(value).__name__
    return kind if not isinstance(value, PodGroup) or value.native else f"scheduling.x-k8s.io {kind}"
