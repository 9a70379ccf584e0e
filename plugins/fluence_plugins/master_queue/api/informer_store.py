"""A store of observed objects: the objects that the controller writes, and those that request LocalQueues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from fluence_plugins.master_queue.api import kueue, master_queue
from fluence_plugins.master_queue.api.master_queue import MasterQueue
from session_scheduler.model.meta import ObjectMeta
from session_scheduler.sdk.dynamic_informer import Change, Resource


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base of all objects: camel-case field names on the wire, and defaults omitted when encoded."""


class ManagedFields(_Object, frozen=True):
    """metadata.managedFields[]: the fields that a manager wrote last."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields_v1: dict[str, Any] = {}


class ObservedMeta(ObjectMeta, frozen=True):
    """metadata, with the managed fields."""

    generation: int = 0
    managed_fields: tuple[ManagedFields, ...] = ()


class Observed(_Object, frozen=True):
    """An object of Kueue, without its status."""

    api_version: str = msgspec.field(default_factory=lambda: kueue.API_VERSION)
    metadata: ObservedMeta = ObservedMeta()
    spec: dict[str, Any] = {}

    @property
    def key(self) -> str:
        """namespace/name, or the name."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name

    @property
    def owner(self) -> str:
        """The uid of the object's controller; empty without a controller."""
        return next((one.uid for one in self.metadata.owner_references if one.controller), "")

    def like(self, other: Observed) -> bool:
        """Whether all fields that matter are equal: Kueue writes statuses all the time."""
        mine, theirs = self.metadata, other.metadata
        return (
            (mine.uid, mine.generation, mine.deletion_timestamp, mine.labels, mine.owner_references)
            == (theirs.uid, theirs.generation, theirs.deletion_timestamp, theirs.labels, theirs.owner_references)
        )  # fmt: skip


class ObservedFlavor(Observed, frozen=True, tag_field="kind", tag="ResourceFlavor"):
    """A ResourceFlavor."""


class ObservedQueue(Observed, frozen=True, tag_field="kind", tag="ClusterQueue"):
    """A ClusterQueue."""


class ObservedLocalQueue(Observed, frozen=True, tag_field="kind", tag="LocalQueue"):
    """A LocalQueue."""


class ObservedNamespace(_Object, frozen=True, tag_field="kind", tag="Namespace"):
    """A Namespace, which may request LocalQueues."""

    api_version: str = msgspec.field(default_factory=lambda: "v1")
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> str:
        """The name."""
        return self.metadata.name


KUEUE: Final = kueue.API_VERSION
FLAVORS: Final = Resource(ObservedFlavor, KUEUE, "resourceflavors", namespaced=False, lax=True)  # type: ignore[type-var]
QUEUES: Final = Resource(ObservedQueue, KUEUE, "clusterqueues", namespaced=False, lax=True)  # type: ignore[type-var]
LOCAL_QUEUES: Final = Resource(ObservedLocalQueue, KUEUE, "localqueues", lax=True)  # type: ignore[type-var]
NAMESPACES: Final = Resource(ObservedNamespace, "v1", "namespaces", namespaced=False, lax=True)  # type: ignore[type-var]
MASTERS: Final = Resource(MasterQueue, master_queue.API_VERSION, "masterqueues", namespaced=False, lax=True)  # type: ignore[type-var]
UNLISTED: Final = (
    "the API server does not list these objects: is Kueue installed, and does this account have the ClusterRole "
    "fluence-master-queue?"
)
"""The problem if the objects of a kind are unknown; the controller then writes none."""
RESOURCES: Final = (FLAVORS, QUEUES, LOCAL_QUEUES, NAMESPACES, MASTERS)


_REMEMBERED: Final = 4096
"""How many deletions are remembered: a response with an older version of the object may be that late."""


class Store:
    """The latest version of each object, by type and key. Older versions are ignored.

    The versions of objects of one kind are increasing decimal numbers.
    Source: Kubernetes enhancement 5504.
    """

    def __init__(self) -> None:
        self._objects: dict[type, dict[str, Any]] = {}
        self._gone: dict[str, None] = {}
        """The uids of deleted objects, in order: a late response must not add one of them again."""

    def observe(self, change: Change, obj: Any) -> Any:
        """Apply a change. Returns the previous version; the object itself if it is older than that."""
        known = self._objects.setdefault(type(obj), {})
        before = known.get(obj.key)
        uid = obj.metadata.uid
        if change is Change.ADDED:  # only events add objects: one that was unreadable has returned
            self._gone.pop(uid, None)
        if uid in self._gone:
            return obj
        if change is Change.DELETED:
            self._forget(uid)
        # If a list shows the deletion, the version is that of the last event; a response may have been newer.
        ended = change is Change.DELETED and before is not None and before.metadata.uid == uid
        if before is not None and not ended and _version(obj) < _version(before):
            return obj
        if change is Change.DELETED:
            known.pop(obj.key, None)
        else:
            known[obj.key] = obj
        return before

    def _forget(self, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def get(self, kind: type, key: str) -> Any:
        """The object; None if it is unknown."""
        return self._objects.get(kind, {}).get(key)

    def all(self, kind: type) -> Iterable[Any]:
        """All objects of a type."""
        return self._objects.get(kind, {}).values()

    def owned(self, kind: type, uid: str) -> Iterator[Any]:
        """The objects whose controller has this uid."""
        return (one for one in self.all(kind) if one.owner == uid)


def _version(obj: Any) -> int:
    text = obj.metadata.resource_version
    return int(text) if text.isdecimal() else 0
