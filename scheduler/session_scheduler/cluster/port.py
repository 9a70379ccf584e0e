"""The port to a cluster: the requests that the scheduler sends to an API server.

`memory.MemoryCluster` implements it in memory, `kubernetes` with a live API server; one test suite covers both. Any
method may raise `Unavailable`, `TooManyRequests` or `Forbidden`; further errors are documented at each method. After
`Unavailable` the outcome of a write is unknown: read the object before sending the write again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import msgspec

from session_scheduler.model.devices import ResourceClaim, ResourceClaimStatus
from session_scheduler.model.meta import OwnerReference
from session_scheduler.model.objects import (
    KubeObject,
    Lease,
    Node,
    Pod,
    PodCondition,
    PortObject,
    RequestMapping,
    Taint,
)
from session_scheduler.model.queue_objects import Queue, QueueStatus
from session_scheduler.model.storage import PersistentVolume, PersistentVolumeClaim

Kube = TypeVar("Kube", bound=PortObject)
"""Any kind that the cluster supports. Both PodGroup APIs share one type; `api_version` distinguishes them."""
KubeCo = TypeVar("KubeCo", bound=PortObject, covariant=True)

Labels = Mapping[str, str | None]
"""The labels that objects must have; None: the label must be missing."""
ANY_LABELS: Labels = MappingProxyType({})
EVENT_NOTE_LIMIT = 1024
"""Maximum size of an event's note in bytes of UTF-8. The API server counts bytes, although it reports characters."""
_NAME_LIMIT = 253


class Change(StrEnum):
    """The type of a watch event, with the values of the API."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    """No change up to this resourceVersion: after a break, watch from it."""


class WatchEvent(msgspec.Struct, Generic[KubeCo], frozen=True):
    """One change. `object` is its new state (DELETED: its last state), None for a bookmark."""

    change: Change
    object: KubeCo | None
    resource_version: str
    """The version to continue the watch from after this event."""


class Listing(msgspec.Struct, Generic[KubeCo], frozen=True):
    """All objects of a kind at one moment, ordered by namespace and name."""

    items: tuple[KubeCo, ...]
    resource_version: str
    """The version to watch from after this list. Opaque."""


class Event(msgspec.Struct, frozen=True):
    """An events.k8s.io event about an object, as `kubectl describe` shows it."""

    regarding: KubeObject
    reason: str
    action: str
    """The action that the scheduler took: Binding, Scheduling. Required."""
    note: str
    """At most EVENT_NOTE_LIMIT bytes."""
    warning: bool = False
    time: datetime | None = None
    """Time of the event in UTC; None for the time of the write."""
    name: str = ""
    """A name from `event_name`, so that a retry cannot write the event twice. Empty for a generated name."""


class EventSeries(msgspec.Struct, frozen=True):
    """The number of occurrences of an event (at least 2), and the time of the last one in UTC."""

    count: int
    last_observed: datetime


def event_name(regarding: KubeObject, suffix: str) -> str:
    """Return a name for an event about the object. The suffix (lower-case letters and digits) must be unique."""
    return f"{regarding.metadata.name[: _NAME_LIMIT - len(suffix) - 1].rstrip('.-')}.{suffix}"


def event_namespace(regarding: KubeObject) -> str:
    """Return the namespace for an event about the object: its own, or `default` for a cluster-scoped object."""
    return regarding.metadata.namespace or "default"


def has_labels(obj: PortObject, labels: Labels) -> bool:
    """Whether the object has these labels."""
    own = obj.metadata.labels
    return all(key not in own if value is None else own.get(key) == value for key, value in labels.items())


class Reader(Protocol):
    """The part of a cluster that a mirror needs."""

    async def list(self, kind: type[Kube]) -> Listing[Kube]:
        """See `Cluster`."""

    def watch(self, kind: type[Kube], resource_version: str) -> AsyncGenerator[WatchEvent[Kube], None]:
        """See `Cluster`."""


class Cluster(Protocol):
    """A cluster. Objects are immutable values."""

    simulated: bool
    """Whether no kubelets and controllers react to writes."""

    # more than five parameters: the ways to select objects
    async def list(
        self,
        kind: type[Kube],
        *,
        labels: Labels = ANY_LABELS,
        namespace: str = "",
        node: str = "",
        keep: Callable[[Kube], bool] | None = None,
    ) -> Listing[Kube]:
        """Return a consistent list of all objects of a kind, by default in all namespaces.

        Only those with these labels, in this namespace, bound to this node (pods), and for which `keep` is true. The
        memory that a list needs does not depend on objects that are not kept.
        """

    def watch(
        self, kind: type[Kube], resource_version: str, *, labels: Labels = ANY_LABELS
    ) -> AsyncGenerator[WatchEvent[Kube], None]:
        """Yield every change after this resourceVersion (of a list or an event), in order.

        With `labels`, an object that loses them counts as deleted, and one that gets them as added (a watch may report
        it as modified). The iterator may end at any time, like a connection: watch again from the last event's
        resourceVersion. It raises Gone if that version is too old (list again), and Invalid if it is not valid.
        `aclose` ends it early.
        """

    async def get(self, kind: type[Kube], namespace: str, name: str, *, api_version: str = "") -> Kube:
        """Read one object. Pass `api_version` if it is not the kind's usual one.

        Raises NotFound, including when the cluster does not serve the kind.
        """

    async def create(self, obj: Kube) -> Kube:
        """Create an object without its status. Return it with uid, resourceVersion, creation time and generated name.

        Raises AlreadyExists, or Invalid (no name, an invalid key, a resourceVersion).
        """

    async def replace(self, obj: Lease) -> Lease:
        """Update a Lease, its annotations too, and return it. Its uid and resourceVersion are preconditions.

        Raises Conflict if a precondition fails, NotFound or Conflict if the Lease does not exist, and Invalid without a
        resourceVersion. An update without a change keeps the resourceVersion.
        """

    # more than five parameters: the fields of a Binding
    async def bind(
        self,
        namespace: str,
        name: str,
        *,
        node: str,
        uid: str,
        resource_version: str,
        annotations: Mapping[str, str],
    ) -> None:
        """Bind a pod to a node and merge the annotations into the pod, in one write.

        It sets PodScheduled to True and clears the nominated node. uid and resourceVersion are required preconditions.
        Raises Conflict (another uid or resourceVersion, already bound even to this node, being deleted, gated),
        NotFound, or Invalid (an empty precondition or node). It does not check whether the node exists, the pod's
        phase, or the keys and size of the annotations.
        """

    # more than five parameters: the fields of the metadata
    async def patch_metadata(
        self,
        obj: Kube,
        *,
        annotations: Mapping[str, str | None] | None = None,
        labels: Mapping[str, str | None] | None = None,
        finalizers: Sequence[str] | None = None,
        owner_references: Sequence[OwnerReference] | None = None,
        resource_version: str | None = None,
    ) -> Kube:
        """Merge annotations and labels into the object of this kind, namespace and name; None removes a key.

        `owner_references` replaces all owner references. `finalizers` replaces all finalizers and requires
        `resource_version`, so that none is lost. An object that is being deleted disappears once it has no finalizer
        and its grace period has expired. `resource_version` is a precondition. A patch without a change keeps the
        resourceVersion. Raises Conflict (another resourceVersion), NotFound, or Invalid (an invalid key, more than 256
        KiB of annotations, finalizers without a resourceVersion, a new finalizer for an object that is being deleted).
        """

    async def patch_status(
        self,
        obj: Kube,
        *,
        conditions: Sequence[PodCondition] = (),
        nominated_node_name: str | None = None,
        resource_version: str | None = None,
    ) -> Kube:
        """Set conditions, each in place of the one with its type, and a pod's nominated node ("" clears it).

        `resource_version` and errors: see `patch_metadata`.
        """

    async def open_gate(self, pod: Pod, gate: str, annotations: Mapping[str, str | None]) -> Pod:
        """Remove this scheduling gate from the pod and merge the annotations (None removes a key), in one write.

        The pod's resourceVersion is a precondition. Raises Conflict (another resourceVersion), NotFound, or Invalid (no
        resourceVersion, an invalid key).
        """

    async def set_taints(self, node: Node, taints: Sequence[Taint]) -> Node:
        """Replace the node's taints. Taints that stay keep their order and their timeAdded.

        The node's resourceVersion is a precondition. An update without a change keeps the resourceVersion. Raises
        Conflict (another resourceVersion), NotFound, or Invalid (no resourceVersion, a node that was not decoded
        completely, an invalid taint, two taints with the same key and effect).
        """

    async def claim_volume(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> PersistentVolume:
        """Reserve a volume for a claim: set its claimRef. The volume controller then binds the two.

        The volume's resourceVersion is a precondition. Raises Conflict (another resourceVersion), NotFound, or Invalid
        (no resourceVersion).
        """

    async def allocate_claim(self, claim: ResourceClaim, status: ResourceClaimStatus) -> ResourceClaim:
        """Set the allocation and the consumers of a claim. With an allocation it also gets its finalizer.

        The claim's resourceVersion is a precondition. `claim` must be as it was read, because the patch contains only
        the difference to its status. Raises Conflict (another resourceVersion), NotFound, or Invalid (no
        resourceVersion, too many consumers).
        """

    async def write_queue_status(self, queue: Queue, status: QueueStatus) -> Queue:
        """Replace a queue's status. Its resourceVersion is a precondition. Raises Conflict (another resourceVersion),
        NotFound, or Invalid (no resourceVersion).
        """

    async def name_extended_claim(self, pod: Pod, claim: str, mappings: Sequence[RequestMapping]) -> Pod:
        """Write the claim for extended resources into the pod's status. Raises Conflict (another uid) or NotFound."""

    async def evict(self, pod: Pod, *, grace_seconds: int | None = None) -> None:
        """Evict the pod with this uid, if its disruption budgets allow that.

        Raises TooManyRequests (a budget does not allow it now), Conflict (another uid) or NotFound.
        """

    async def delete(self, obj: Kube, *, grace_seconds: int | None = None, resource_version: str | None = None) -> None:
        """Delete the object with this uid. Raises Conflict (another uid or resourceVersion) or NotFound.

        A bound pod with a grace period (by default its own), or an object with finalizers, first gets a deletion
        timestamp. Any other object is removed at once.
        """

    async def record_event(self, event: Event) -> str:
        """Write an event to `event_namespace`; return its name. The API server drops events after about an hour.

        Raises Invalid (the note is too long, the action is missing), AlreadyExists (the name is taken) or NotFound (the
        namespace is gone).
        """

    async def repeat_event(self, namespace: str, name: str, series: EventSeries) -> None:
        """Replace the series of an event, because it happened again.

        Raises NotFound if the API server has dropped the event, or Invalid for a count below 2.
        """
