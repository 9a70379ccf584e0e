"""MasterQueue objects as typed values: the spec that the controller reads, and the status that it writes.

Field names are the API's, in snake case; unknown fields are ignored.
Source: the MasterQueue of kueue-nats, vk.io/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from session_scheduler.model.meta import ObjectMeta, OwnerReference, Quantity
from session_scheduler.model.objects import Taint

API_VERSION: Final = "vk.io/v1"
POOL_TIMEOUT: Final = 60


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base of all objects: camel-case field names on the wire, and defaults omitted when encoded."""


# ------------------------------------------------------------------ spec


class Template(_Object, frozen=True):
    """spec.template: the fields that the main queue and its branches share, as in a ClusterQueue."""

    cohort: str = ""
    queueing_strategy: str = "BestEffortFIFO"
    stop_policy: str = "None"
    namespace_selector: dict[str, Any] = {}
    """A label selector; an empty one selects all namespaces."""
    flavor_fungibility: dict[str, Any] | None = None
    preemption: dict[str, Any] | None = None


class LendTo(_Object, frozen=True):
    """spec.flavors[].canLendTo[]: a branch queue, and how much it may borrow from each pool."""

    queue: str = ""
    lending_limit: dict[str, Quantity] = {}


class NatsFlavor(_Object, frozen=True):
    """spec.flavors[].natsFlavor: pools that publish below a subject, and the virtual node in front of them."""

    nats_connector: str = ""
    nats_subject: str = ""
    virtual_node: str = ""
    pools: tuple[str, ...] | None = None
    pool_reg_exp: str | None = None
    pool_timeout: int = POOL_TIMEOUT
    """Seconds of silence after which a pool is dropped."""

    @property
    def source(self) -> tuple[str, str]:
        """The connector and subject of the flavor's pools."""
        return self.nats_connector, self.nats_subject


class LocalFlavor(_Object, frozen=True):
    """spec.flavors[].localFlavor: a ResourceFlavor with the flavor's name, which the controller does not manage."""


class Flavor(_Object, frozen=True):
    """spec.flavors[]: equivalent pools, or one local flavor, with the quota of each."""

    name: str = ""
    nats_flavor: NatsFlavor | None = None
    local_flavor: LocalFlavor | None = None
    nominal_quota: dict[str, Quantity] = {}
    can_lend_to: tuple[LendTo, ...] = ()


class MasterQueueSpec(_Object, frozen=True):
    """spec of a MasterQueue."""

    template: Template = Template()
    flavors: tuple[Flavor, ...] = ()


# ------------------------------------------------------------------ status


class Condition(_Object, frozen=True):
    """status.conditions[] of a MasterQueue: Ready, NatsConnected and PoolsActive."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class PoolStatus(_Object, frozen=True):
    """status.pools[]: a pool and its last message, from which a restart restores its flavor."""

    name: str
    flavor: str
    state: str = ""
    last_message: str = ""
    """An RFC 3339 time."""
    quota: Mapping[str, Quantity] = {}
    """The published quota, which may exceed the offered one. The controller writes strings; others may use numbers."""
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    problems: tuple[str, ...] = ()


class MasterQueueStatus(_Object, frozen=True):
    """status of a MasterQueue, which the controller writes."""

    conditions: tuple[Condition, ...] = ()
    pools: tuple[PoolStatus, ...] = ()
    problems: tuple[str, ...] = ()
    active_pools: int | None = None
    known_pools: int | None = None
    """The pools that have ever sent a message, and those that the spec lists."""


class MasterQueueMeta(ObjectMeta, frozen=True):
    """metadata of a MasterQueue."""

    generation: int = 0


class MasterQueue(_Object, frozen=True, tag_field="kind", tag="MasterQueue"):
    """vk.io/v1 MasterQueue; it has no namespace."""

    api_version: str = API_VERSION
    metadata: MasterQueueMeta = MasterQueueMeta()
    spec: MasterQueueSpec = MasterQueueSpec()
    status: MasterQueueStatus = MasterQueueStatus()

    @property
    def key(self) -> str:
        """The name."""
        return self.metadata.name

    @property
    def owner(self) -> OwnerReference:
        """The owner reference for the objects that the controller creates for this MasterQueue."""
        meta = self.metadata
        return OwnerReference(
            api_version=API_VERSION, kind="MasterQueue", name=meta.name, uid=meta.uid, controller=True
        )
