"""Typed namespaces, services and controllers of pods, with only their metadata and selectors.

`model.cluster_view` keeps them. Source: the Kubernetes API reference (core/v1, apps/v1).
"""

from __future__ import annotations

from msgspec import field

from session_scheduler.model.meta import ApiStruct, ClusterScoped, LabelSelector, Namespaced

__all__ = ["Namespace", "ReplicaSet", "StatefulSet"]


class Namespace(ClusterScoped, frozen=True, tag_field="kind", tag="Namespace"):
    """core/v1 Namespace: namespace selectors match its labels."""

    api_version: str = "v1"


class ServiceSpec(ApiStruct, frozen=True):
    """spec of a Service."""

    selector: dict[str, str] | None = None


class Service(Namespaced, frozen=True, tag_field="kind", tag="Service"):
    """core/v1 Service, with its selector."""

    api_version: str = "v1"
    spec: ServiceSpec = ServiceSpec()


class ReplicationControllerSpec(ApiStruct, frozen=True):
    """spec of a ReplicationController."""

    selector: dict[str, str] = field(default_factory=dict)


class ReplicationController(Namespaced, frozen=True, tag_field="kind", tag="ReplicationController"):
    """core/v1 ReplicationController, with its selector."""

    api_version: str = "v1"
    spec: ReplicationControllerSpec = ReplicationControllerSpec()


class SetSpec(ApiStruct, frozen=True):
    """spec of a ReplicaSet and of a StatefulSet."""

    selector: LabelSelector | None = None


class ReplicaSet(Namespaced, frozen=True, tag_field="kind", tag="ReplicaSet"):
    """apps/v1 ReplicaSet, with its selector."""

    api_version: str = "apps/v1"
    spec: SetSpec = SetSpec()


class StatefulSet(Namespaced, frozen=True, tag_field="kind", tag="StatefulSet"):
    """apps/v1 StatefulSet, with its selector."""

    api_version: str = "apps/v1"
    spec: SetSpec = SetSpec()


RelatedObject = Namespace | Service | ReplicationController | ReplicaSet | StatefulSet
RELATED_KINDS: tuple[type[RelatedObject], ...] = (Namespace, Service, ReplicationController, ReplicaSet, StatefulSet)
"""In the order in which the scheduler lists them."""
