"""Objects as the API server has them: those that a MasterQueue's are compared with, and those that ask for queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from fluence_plugins.master_queue.api import kueue, master_queue
from fluence_plugins.master_queue.api.master_queue import MasterQueue
from session_scheduler.model.meta import ObjectMeta
from session_scheduler.sdk.dynamic_informer import Change, Resource


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base of all objects: camel-case field names on the wire, defaults left out when encoded."""


class ManagedFields(_Object, frozen=True):
    """metadata.managedFields[]: which fields a manager has written last."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields_v1: dict[str, Any] = {}


class ObservedMeta(ObjectMeta, frozen=True):
    """metadata, with what tells who wrote what."""

    generation: int = 0
    managed_fields: tuple[ManagedFields, ...] = ()


class Observed(_Object, frozen=True):
    """An object of Kueue's. Its status is not looked at."""

    api_version: str = msgspec.field(default_factory=lambda: kueue.API_VERSION)
    metadata: ObservedMeta = ObservedMeta()
    spec: dict[str, Any] = {}

    @property
    def key(self) -> str:
        """Namespace and name, or the name."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name

    @property
    def owner(self) -> str:
        """The uid of its controller; empty where it has none."""
        return next((one.uid for one in self.metadata.owner_references if one.controller), "")

    def like(self, other: Observed) -> bool:
        """Whether nothing differs that is looked at: Kueue writes statuses all the time."""
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
    """A Namespace, which may ask for LocalQueues."""

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
    "the API server does not list them: is Kueue there, and has this account the ClusterRole fluence-master-queue?"
)
"""What is said where it is not known which objects of a kind there are; nothing is written then."""
RESOURCES: Final = (FLAVORS, QUEUES, LOCAL_QUEUES, NAMESPACES, MASTERS)


_REMEMBERED: Final = 4096
"""Deletions that are remembered: an answer that tells of the object before may be that late."""


class Store:
    """The latest of each object by type and key. What is older than what is known already is not taken in.

    Versions of one kind of object are decimal numbers that grow. Source: Kubernetes enhancement 5504.
    """

    def __init__(self) -> None:
        self._objects: dict[type, dict[str, Any]] = {}
        self._gone: dict[str, None] = {}
        """The uids of what was deleted, in that order: late answers bring none of them back."""

    def observe(self, change: Change, obj: Any) -> Any:
        """Take in a change. Returns what was known before; the object itself where it is older than that."""
        known = self._objects.setdefault(type(obj), {})
        before = known.get(obj.key)
        uid = obj.metadata.uid
        if change is Change.ADDED:  # only events say so: one that could not be read for a while is there again
            self._gone.pop(uid, None)
        if uid in self._gone:
            return obj
        if change is Change.DELETED:
            self._forget(uid)
        # Of a deletion that a list shows, the version is the last that was told of: an answer may have been newer.
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
        """The object; None where none is known."""
        return self._objects.get(kind, {}).get(key)

    def all(self, kind: type) -> Iterable[Any]:
        """Every object of a type."""
        return self._objects.get(kind, {}).values()

    def owned(self, kind: type, uid: str) -> Iterator[Any]:
        """Those whose controller has this uid."""
        return (one for one in self.all(kind) if one.owner == uid)


def _version(obj: Any) -> int:
    text = obj.metadata.resource_version
    return int(text) if text.isdecimal() else 0
