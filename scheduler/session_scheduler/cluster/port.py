"""The port to a cluster: all that the scheduler asks of an API server, and nothing that one cannot do.

`memory.MemoryCluster` answers from memory, `kubernetes` from a live API server; both pass one test suite. Any method
may raise `Unavailable`, `TooManyRequests` or `Forbidden`; what else it raises is said with it. After `Unavailable`
a write has an unknown outcome: read before sending it again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from session_scheduler.model.devices import ResourceClaim, ResourceClaimStatus
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
"""Any kind behind the port. Both PodGroup APIs are one type; `api_version` tells them apart."""
KubeCo = TypeVar("KubeCo", bound=PortObject, covariant=True)

EVENT_NOTE_LIMIT = 1024
"""Bytes that an event's note may have in UTF-8; the API server counts bytes, though it speaks of characters."""
_NAME_LIMIT = 253


class Change(StrEnum):
    """What a watch event says; the values are the API's own."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    """Nothing happened up to this resourceVersion: watch from it after a break."""


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[KubeCo]):
    """One change. `object` is the object after it (DELETED: as it was last), None for a bookmark."""

    change: Change
    object: KubeCo | None
    resource_version: str
    """Where to watch from after this event."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[KubeCo]):
    """All objects of a kind at one moment, by namespace and name."""

    items: tuple[KubeCo, ...]
    resource_version: str
    """Where to watch from to miss nothing after this list. Opaque."""


@dataclass(frozen=True, slots=True)
class Event:
    """An events.k8s.io event about an object, as people see it in `kubectl describe`."""

    regarding: KubeObject
    reason: str
    action: str
    """What was being done: Binding, Scheduling. Required."""
    note: str
    """At most EVENT_NOTE_LIMIT bytes."""
    warning: bool = False
    time: datetime | None = None
    """When it happened, in UTC; None for the moment of writing."""
    name: str = ""
    """Its own, from `event_name`: then it can be sent again and is not there twice. Empty for one that is made."""


@dataclass(frozen=True, slots=True)
class EventSeries:
    """How often an event has happened by now: 2 or more; and when it last did, in UTC."""

    count: int
    last_observed: datetime


def event_name(regarding: KubeObject, suffix: str) -> str:
    """A name for an event about the object; the suffix (lower-case letters and digits) makes it its own."""
    return f"{regarding.metadata.name[: _NAME_LIMIT - len(suffix) - 1].rstrip('.-')}.{suffix}"


def event_namespace(regarding: KubeObject) -> str:
    """Where an event about the object lies: beside it; for what has no namespace, in `default`."""
    return regarding.metadata.namespace or "default"


class Cluster(Protocol):
    """A cluster. Objects are values: what is returned never changes afterwards."""

    async def list(self, kind: type[Kube]) -> Listing[Kube]:
        """All objects of a kind, in all namespaces, consistent."""

    def watch(self, kind: type[Kube], resource_version: str) -> AsyncGenerator[WatchEvent[Kube], None]:
        """Every change after this resourceVersion (of a list or an event), in order.

        The iterator may end at any time, as connections do: watch again from the last event's resourceVersion. It
        raises Gone where that is too old (list again), Invalid where it is none. `aclose` ends it early.
        """

    async def get(self, kind: type[Kube], namespace: str, name: str, *, api_version: str = "") -> Kube:
        """One object as it is now; `api_version` where it is not the kind's usual one.

        Raises NotFound, also where no API of the cluster has such a kind.
        """

    async def create(self, obj: Kube) -> Kube:
        """Create an object; returns it with uid, resourceVersion and creation time, and a name for generateName.

        Raises AlreadyExists, Invalid (no name, a bad key, a resourceVersion of its own). A status is not taken.
        """

    async def replace(self, obj: Lease) -> Lease:
        """Write a Lease in place of the one that its uid and resourceVersion name; returns it as it is then.

        Raises Conflict where that is not (any more) the one that is there, NotFound or Conflict where none is, and
        Invalid without a resourceVersion. What changes nothing does not move the resourceVersion.
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
        """Bind a pod to a node and merge the annotations into it, in one write.

        PodScheduled becomes True, a nominated node is cleared. uid and resourceVersion are preconditions: give both.
        Raises Conflict (another uid or resourceVersion, already bound even to this node, being deleted, gated),
        NotFound, and Invalid where a precondition or the node is empty. Not checked: that the node exists, the pod's
        phase, and the annotations' keys and size.
        """

    async def patch_metadata(
        self,
        obj: Kube,
        *,
        annotations: Mapping[str, str | None] | None = None,
        labels: Mapping[str, str | None] | None = None,
        finalizers: Sequence[str] | None = None,
        resource_version: str | None = None,
    ) -> Kube:
        """Merge annotations and labels into the object of this kind, namespace and name; None removes a key.

        `finalizers` are all that it is to have from then on, and need a `resource_version`: those that it was read
        with are those that it has. Without any, what is being deleted goes once its grace period is over.
        With `resource_version` a compare-and-swap. What changes nothing does not move the resourceVersion.
        Raises Conflict (it moved), NotFound, Invalid (a bad key, more than 256 KiB of annotations, finalizers without
        a resourceVersion, one more for what is being deleted).
        """

    async def patch_status(
        self,
        obj: Kube,
        *,
        conditions: Sequence[PodCondition] = (),
        nominated_node_name: str | None = None,
        resource_version: str | None = None,
    ) -> Kube:
        """Set conditions, each in place of the one of its type, and a pod's nominated node ("" clears it).

        `resource_version` and what is raised: as for `patch_metadata`.
        """

    async def open_gate(self, pod: Pod, gate: str, annotations: Mapping[str, str | None]) -> Pod:
        """Take this scheduling gate from the pod and merge the annotations (None removes a key), in one write.

        The pod's resourceVersion is a precondition: the gates that it was read with are those that it has. Raises
        Conflict (it moved), NotFound, Invalid (no resourceVersion, a bad key).
        """

    async def set_taints(self, node: Node, taints: Sequence[Taint]) -> Node:
        """Let the node have these taints and no others; those that it has keep their places, and when they came.

        The node's resourceVersion is a precondition: the taints that it was read with are those that it has. What
        changes nothing does not move the resourceVersion. Raises Conflict (it moved), NotFound, Invalid (no
        resourceVersion, a node that could not be read whole, a bad taint, two of one key and effect).
        """

    async def claim_volume(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> PersistentVolume:
        """Keep a volume for a claim: its claimRef names the claim, and the volume controller binds the two.

        The volume's resourceVersion is a precondition. Raises Conflict (it moved), NotFound, Invalid without one.
        """

    async def allocate_claim(self, claim: ResourceClaim, status: ResourceClaimStatus) -> ResourceClaim:
        """Give a claim this allocation and these consumers; with an allocation it gets the finalizer that keeps it.

        The claim's resourceVersion is a precondition, and `claim` must be as it was read: its status says what
        changes. Raises Conflict (it moved), NotFound, Invalid (no resourceVersion, too many consumers).
        """

    async def write_queue_status(self, queue: Queue, status: QueueStatus) -> Queue:
        """Write a queue's status, all of it. Its resourceVersion is a precondition. Raises Conflict (it moved),
        NotFound, Invalid (no resourceVersion).
        """

    async def name_extended_claim(self, pod: Pod, claim: str, mappings: Sequence[RequestMapping]) -> Pod:
        """Let the pod's status name the claim for its extended resources. Raises Conflict (another uid), NotFound."""

    async def evict(self, pod: Pod, *, grace_seconds: int | None = None) -> None:
        """Ask that this very pod (its uid) ends, as a disruption budget allows.

        Raises TooManyRequests where a budget forbids it for now, Conflict (another uid), NotFound.
        """

    async def delete(self, obj: Kube, *, grace_seconds: int | None = None, resource_version: str | None = None) -> None:
        """Delete this very object (its uid). Raises Conflict (another uid or resourceVersion), NotFound.

        A bound pod with a grace period (its own unless given), or an object with finalizers, gets a deletion time
        first and goes later; anything else goes at once.
        """

    async def record_event(self, event: Event) -> str:
        """Write an event; returns its name. It lies in `event_namespace` and is forgotten after about an hour.

        Raises Invalid where the note is too long or the action is missing, AlreadyExists where the name is taken,
        NotFound where the namespace is gone.
        """

    async def repeat_event(self, namespace: str, name: str, series: EventSeries) -> None:
        """Say of an event that it happened again, in place of what was said of that before.

        Raises NotFound where the event is forgotten, Invalid for a count below 2.
        """
