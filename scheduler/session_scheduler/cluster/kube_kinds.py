"""Where each kind of object is served, and how its lists and watches are decoded.

Source: the Kubernetes API reference, "API concepts" (paths, chunked lists, watches).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec
import structlog

from session_scheduler.cluster.errors import Invalid, Unavailable
from session_scheduler.cluster.kube_errors import Status
from session_scheduler.cluster.port import Kube
from session_scheduler.cluster.write_rules import group_of
from session_scheduler.model.objects import ConfigMap, Lease, Node, Pod, PodGroup, PriorityClass
from session_scheduler.model.related import (
    RELATED_KINDS,
    Namespace,
    ReplicaSet,
    ReplicationController,
    Service,
    StatefulSet,
)
from session_scheduler.model.storage import (
    STORAGE_KINDS,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)

_log = structlog.get_logger()
_Read = TypeVar("_Read")


class _ListMeta(msgspec.Struct, rename={"resource_version": "resourceVersion", "go_on": "continue"}, frozen=True):
    resource_version: str = ""
    go_on: str = ""


class Page(msgspec.Struct, Generic[Kube], frozen=True):
    """Part of a list. The API server writes an empty one as null in places."""

    metadata: _ListMeta
    items: tuple[Kube, ...] | None = None


class _RawPage(msgspec.Struct, frozen=True):
    """A page whose objects are not looked at yet."""

    metadata: _ListMeta
    items: tuple[msgspec.Raw, ...] | None = None


class WatchLine(msgspec.Struct, Generic[Kube], frozen=True):
    """One event of a watch: an object, or for an ERROR the reason."""

    type: str
    object: Kube | Status


class _Moment(msgspec.Struct, frozen=True):
    metadata: _ListMeta


class _Bookmark(msgspec.Struct, frozen=True):
    object: _Moment


_BOOKMARK = b'{"type":"BOOKMARK"'
"""How the API server begins the line of one."""
_bookmarks = msgspec.json.Decoder(_Bookmark)
_raw_pages = msgspec.json.Decoder(_RawPage)


class Resource(Generic[Kube]):
    """One kind in one version of its API."""

    def __init__(self, kind: type[Kube], api_version: str, plural: str, *, namespaced: bool = True) -> None:
        self.kind = kind
        self.api_version = api_version
        self.plural = plural
        self.namespaced = namespaced
        self._root = f"apis/{api_version}" if "/" in api_version else f"api/{api_version}"
        self._object: msgspec.json.Decoder[Kube] = msgspec.json.Decoder(kind)
        self._page: msgspec.json.Decoder[Page[Kube]] = msgspec.json.Decoder(Page[kind])  # type: ignore[valid-type]
        self._line: msgspec.json.Decoder[WatchLine[Kube]] = msgspec.json.Decoder(WatchLine[kind])  # type: ignore[valid-type]
        self._lax = kind is PodGroup or kind in (*STORAGE_KINDS, *RELATED_KINDS)
        self._says_version = kind().api_version == api_version

    def path(self, namespace: str = "", name: str = "", part: str = "") -> str:
        """The path of all objects, of a namespace's, of one object, or of a part of it (a subresource)."""
        place = f"{self._root}/namespaces/{quote(namespace)}" if namespace and self.namespaced else self._root
        return "/".join([place, self.plural, *(quote(step) for step in (name, part) if step)])

    def path_of(self, obj: Kube, part: str = "") -> str:
        """The path of the object, or of a part of it."""
        return self.path(obj.metadata.namespace, obj.metadata.name, part)

    def object(self, text: bytes) -> Kube:
        """An object as the API server answers with it. Raises Unavailable for anything else."""
        return _decoded(self._object, text, self.plural)

    def page(self, text: bytes) -> Page[Kube]:
        """A page of a list: its objects do not say their kind and version, so they get them here."""
        page = self._readable(text)
        if self._says_version or not page.items:
            return page
        items = tuple(msgspec.structs.replace(item, api_version=self.api_version) for item in page.items)
        return msgspec.structs.replace(page, items=items)

    def _readable(self, text: bytes) -> Page[Kube]:
        """The page; of most kinds without objects that cannot be read: who does not name them need not suffer.

        A pod or node that cannot be read is another matter: what it holds must not be taken for free.
        """
        if not self._lax:
            return _decoded(self._page, text, self.plural)
        try:
            return self._page.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raw = _decoded(_raw_pages, text, self.plural)
        items = [self._one(item) for item in raw.items or ()]
        return Page(raw.metadata, tuple(item for item in items if item is not None))

    def _one(self, text: msgspec.Raw) -> Kube | None:
        try:
            return self._object.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("an object cannot be read: it is left out", kind=self.plural, error=str(error),
                         begins=bytes(text)[:200].decode(errors="replace"))  # fmt: skip
            return None

    def line(self, text: bytes) -> WatchLine[Kube] | None:
        """One event of a watch; None where it is left out as in a page. `moment` tells when it was."""
        if not self._lax:
            return _decoded(self._line, text, self.plural)
        try:
            return self._line.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("an event cannot be read: it is left out", kind=self.plural, error=str(error))
            return None

    def moment(self, text: bytes) -> str:
        """The resourceVersion of a line of a watch. Raises Unavailable where it has none."""
        return _decoded(_bookmarks, text, self.plural).object.metadata.resource_version

    def bookmark(self, text: bytes) -> str | None:
        """The resourceVersion that a line of a watch only moves on to; None where it says more.

        What such a line has as its object need be none: in one about pods spec.containers is null.
        """
        return self.moment(text) if text.startswith(_BOOKMARK) else None


def _decoded(decoder: msgspec.json.Decoder[_Read], text: bytes, what: str) -> _Read:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unavailable(f"{what}: the API server's answer cannot be read: {error}") from None


# ------------------------------------------------------------------ the kinds

_CORE: dict[type, Resource[Any]] = {
    Pod: Resource(Pod, "v1", "pods"),
    Node: Resource(Node, "v1", "nodes", namespaced=False),
    Namespace: Resource(Namespace, "v1", "namespaces", namespaced=False),
    Service: Resource(Service, "v1", "services"),
    ReplicationController: Resource(ReplicationController, "v1", "replicationcontrollers"),
    ReplicaSet: Resource(ReplicaSet, "apps/v1", "replicasets"),
    StatefulSet: Resource(StatefulSet, "apps/v1", "statefulsets"),
    ConfigMap: Resource(ConfigMap, "v1", "configmaps"),
    Lease: Resource(Lease, "coordination.k8s.io/v1", "leases"),
    PriorityClass: Resource(PriorityClass, "scheduling.k8s.io/v1", "priorityclasses", namespaced=False),
    PersistentVolumeClaim: Resource(PersistentVolumeClaim, "v1", "persistentvolumeclaims"),
    PersistentVolume: Resource(PersistentVolume, "v1", "persistentvolumes", namespaced=False),
    StorageClass: Resource(StorageClass, "storage.k8s.io/v1", "storageclasses", namespaced=False),
    CSINode: Resource(CSINode, "storage.k8s.io/v1", "csinodes", namespaced=False),
    CSIDriver: Resource(CSIDriver, "storage.k8s.io/v1", "csidrivers", namespaced=False),
    CSIStorageCapacity: Resource(CSIStorageCapacity, "storage.k8s.io/v1", "csistoragecapacities"),
    VolumeAttachment: Resource(VolumeAttachment, "storage.k8s.io/v1", "volumeattachments", namespaced=False),
}
POD_GROUPS: tuple[Resource[PodGroup], ...] = (
    Resource(PodGroup, "scheduling.k8s.io/v1alpha2", "podgroups"),
    Resource(PodGroup, "scheduling.x-k8s.io/v1alpha1", "podgroups"),
)
"""Kubernetes' own groups, and the coscheduling plugin's. Not every cluster serves them."""


def resource_of(kind: type[Kube], api_version: str = "") -> Resource[Kube]:
    """Where objects of the kind are; `api_version` chooses between the PodGroups. Raises Invalid for an unknown one."""
    if kind is not PodGroup:
        return _CORE[kind]
    wanted = group_of(api_version or PodGroup().api_version)
    for resource in POD_GROUPS:
        if group_of(resource.api_version) == wanted:
            return resource  # type: ignore[return-value]
    raise Invalid(f"PodGroup: apiVersion {api_version!r}: no such API is known: take one of "
                  f"{', '.join(resource.api_version for resource in POD_GROUPS)}")  # fmt: skip


def resource_for(obj: Kube) -> Resource[Kube]:
    """Where this object is."""
    return resource_of(type(obj), obj.api_version)


def served(listing: bytes) -> set[str]:
    """The names in an APIResourceList."""
    return {resource.name for resource in _decoded(_resources, listing, "API discovery").resources}


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


@dataclass(frozen=True, slots=True)
class _Resources:
    resources: tuple[_Named, ...] = ()


_resources = msgspec.json.Decoder(_Resources)
