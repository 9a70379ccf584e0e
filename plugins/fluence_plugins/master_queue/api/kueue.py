"""Kueue's objects as the controller writes them. Source: kueue.x-k8s.io/v1beta2, Kueue 0.19."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.objects import Taint, Toleration

API_VERSION: Final = "kueue.x-k8s.io/v1beta2"
STOP_POLICIES: Final = ("None", "Hold", "HoldAndDrain")
QUEUEING_STRATEGIES: Final = ("BestEffortFIFO", "StrictFIFO")
MOST_FLAVORS: Final = 64
"""The maximum number of flavors of a resource group; a resource is in one group only."""


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base of all objects: camel-case field names on the wire, and defaults omitted when encoded."""


class ResourceFlavorSpec(_Object, frozen=True):
    """spec of a ResourceFlavor."""

    node_labels: dict[str, str] = {}
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()


class ResourceFlavor(_Object, frozen=True, kw_only=True, tag_field="kind", tag="ResourceFlavor"):
    """A ResourceFlavor; it has no namespace."""

    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    metadata: ObjectMeta
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class ResourceQuota(_Object, frozen=True):
    """resourceGroups[].flavors[].resources[]; without a borrowing limit, a queue may borrow all that others lend."""

    name: str
    nominal_quota: str
    borrowing_limit: str | None = None


class FlavorQuotas(_Object, frozen=True):
    """resourceGroups[].flavors[]: the quotas of all resources of the group, in its order."""

    name: str
    resources: tuple[ResourceQuota, ...]


class ResourceGroup(_Object, frozen=True):
    """resourceGroups[]."""

    covered_resources: tuple[str, ...]
    flavors: tuple[FlavorQuotas, ...]


class ClusterQueueSpec(_Object, frozen=True):
    """spec of a ClusterQueue. Fields with a default in Kueue are written, too, so that they are compared."""

    cohort_name: str
    queueing_strategy: str
    stop_policy: str
    namespace_selector: dict[str, Any]
    resource_groups: tuple[ResourceGroup, ...]
    flavor_fungibility: dict[str, Any] | None = None
    preemption: dict[str, Any] | None = None


class ClusterQueue(_Object, frozen=True, kw_only=True, tag_field="kind", tag="ClusterQueue"):
    """A ClusterQueue; it has no namespace."""

    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    metadata: ObjectMeta
    spec: ClusterQueueSpec


class LocalQueueSpec(_Object, frozen=True):
    """spec of a LocalQueue."""

    cluster_queue: str


class LocalQueue(_Object, frozen=True, kw_only=True, tag_field="kind", tag="LocalQueue"):
    """A LocalQueue, through which a namespace's jobs reach a ClusterQueue."""

    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    metadata: ObjectMeta
    spec: LocalQueueSpec
