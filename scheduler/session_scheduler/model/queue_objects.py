"""Typed Queue object. Source: the CustomResourceDefinition in `deploy/`."""

from __future__ import annotations

from msgspec import field

from session_scheduler.model.meta import ApiStruct, ClusterScoped, Condition, Quantity


class QueueObjectSpec(ApiStruct, frozen=True):
    """spec of a Queue."""

    parent: str = ""
    deserved: dict[str, Quantity] = field(default_factory=dict)
    limit: dict[str, Quantity] = field(default_factory=dict)
    over_quota_weight: int = 1
    priority: int = 0


class QueueCondition(Condition, frozen=True):
    """status.conditions[] of a Queue."""


class QueueStatus(ApiStruct, frozen=True):
    """status of a Queue; the scheduler writes it."""

    allocated: dict[str, Quantity] = field(default_factory=dict)
    pending: dict[str, Quantity] = field(default_factory=dict)
    fair_share: dict[str, Quantity] = field(default_factory=dict)
    conditions: tuple[QueueCondition, ...] = ()


class Queue(ClusterScoped, frozen=True, tag_field="kind", tag="Queue"):
    """fluence.flux-framework.org/v1alpha1 Queue; cluster-scoped."""

    api_version: str = "fluence.flux-framework.org/v1alpha1"
    spec: QueueObjectSpec = QueueObjectSpec()
    status: QueueStatus = QueueStatus()
