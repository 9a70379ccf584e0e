"""Queue objects as typed values. Source: the CustomResourceDefinition in `deploy/`."""

from __future__ import annotations

from typing import Final

import msgspec

from session_scheduler.model.meta import Condition, ObjectMeta, Quantity


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base of all objects: camel-case field names on the wire, defaults left out when encoded."""


class QueueObjectSpec(_Object, frozen=True):
    """spec of a Queue."""

    parent: str = ""
    deserved: dict[str, Quantity] = {}
    limit: dict[str, Quantity] = {}
    over_quota_weight: int = 1
    priority: int = 0


class QueueCondition(Condition, frozen=True):
    """status.conditions[] of a Queue."""


class QueueStatus(_Object, frozen=True):
    """status of a Queue, which the scheduler writes."""

    allocated: dict[str, Quantity] = {}
    pending: dict[str, Quantity] = {}
    fair_share: dict[str, Quantity] = {}
    conditions: tuple[QueueCondition, ...] = ()


class Queue(_Object, frozen=True, tag_field="kind", tag="Queue"):
    """fluence.flux-framework.org/v1alpha1 Queue; it has no namespace."""

    api_version: str = "fluence.flux-framework.org/v1alpha1"
    metadata: ObjectMeta = ObjectMeta()
    spec: QueueObjectSpec = QueueObjectSpec()
    status: QueueStatus = QueueStatus()

    @property
    def key(self) -> str:
        """The name."""
        return self.metadata.name


QUEUE_KINDS: Final[tuple[type[Queue], ...]] = (Queue,)
