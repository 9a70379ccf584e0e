"""Paths of each kind in the API, and decoders for its lists and watches.

Source: the Kubernetes API reference, "API concepts" (paths, chunked lists, watches).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, get_args
from urllib.parse import quote

import msgspec
import structlog

from session_scheduler.cluster.errors import Invalid, Unavailable
from session_scheduler.cluster.kube_errors import Status
from session_scheduler.cluster.port import Kube
from session_scheduler.cluster.unreadable import UNREADABLE, outline, salvaged
from session_scheduler.model.group_api import GROUP_VERSIONS, PLURAL, GroupVersion, WirePodGroup
from session_scheduler.model.meta import Namespaced
from session_scheduler.model.objects import KubeObject, Node, Pod, PodGroup, PortObject
from session_scheduler.model.sharing import shared
from session_scheduler.model.workload_objects import Workload

_log = structlog.get_logger(__name__)
_Read = TypeVar("_Read")
Item = TypeVar("Item")


class _ListMeta(
    msgspec.Struct, rename={"resource_version": "resourceVersion", "continue_token": "continue"}, frozen=True
):
    resource_version: str = ""
    continue_token: str = ""


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """Part of a list. The API server sometimes writes an empty list as null."""

    metadata: _ListMeta
    items: tuple[Item, ...] | None = None


class WatchLine(msgspec.Struct, Generic[Kube], frozen=True):
    """One event of a watch. `object` is a Status if the type is ERROR."""

    type: str
    object: Kube | Status


class _Change(msgspec.Struct, frozen=True):
    """The type of a watch event."""

    type: str


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _ListMeta


class _Bookmark(msgspec.Struct, frozen=True):
    object: _Versioned


_BOOKMARK = b'{"type":"BOOKMARK"'
"""How the API server begins the line of a bookmark."""
_bookmarks = msgspec.json.Decoder(_Bookmark)
_versioned = msgspec.json.Decoder(_Versioned)
_changes = msgspec.json.Decoder(_Change)
_OBJECT, _ITEM = 1, 2
"""Nesting depth of an object in a watch event, and in a page."""


class Resource(Generic[Kube]):
    """One kind in one version of its API."""

    def __init__(
        self,
        kind: type[Kube],
        api_version: str,
        plural: str,
        *,
        namespaced: bool = True,
        version: GroupVersion | None = None,
        lax: bool = False,
    ) -> None:
        """`version` translates objects whose wire format differs from the model. With `lax` an object that cannot be
        decoded is ignored with a warning, and the rest of the list is used.
        """
        self.kind = kind
        self.api_version = api_version
        self.plural = plural
        self.namespaced = namespaced
        self._root = f"apis/{api_version}" if "/" in api_version else f"api/{api_version}"
        self._read: Callable[[Any], Any] = _unchanged
        shape: type[Any] = kind
        if version is not None and not version.plain:
            self._read, shape = version.read, WirePodGroup
        self._object: msgspec.json.Decoder[Any] = msgspec.json.Decoder(shape)
        self._page: msgspec.json.Decoder[Page[Any]] = msgspec.json.Decoder(Page[shape])  # type: ignore[valid-type]
        self._line: msgspec.json.Decoder[WatchLine[Any]] = msgspec.json.Decoder(WatchLine[shape])  # type: ignore[valid-type]
        self._shares = self._salvages = kind in (Pod, Node)
        """Such objects are never ignored, because they use resources; the readable parts are kept."""
        self._tolerant = lax or kind in get_args(KubeObject)
        self._is_default_version = kind().api_version == api_version

    def path(self, namespace: str = "", name: str = "", part: str = "") -> str:
        """Return the path of all objects, of those in a namespace, of one object, or of its subresource (`part`)."""
        place = f"{self._root}/namespaces/{quote(namespace)}" if namespace and self.namespaced else self._root
        return "/".join([place, self.plural, *(quote(step) for step in (name, part) if step)])

    def path_of(self, obj: Kube, part: str = "") -> str:
        """Return the path of the object, or of its subresource (`part`)."""
        return self.path(obj.metadata.namespace, obj.metadata.name, part)

    def object(self, text: bytes) -> Kube:
        """Decode an object. Raises Unavailable if that fails."""
        return _decoded(self._decode, text, self.plural)

    def _decode(self, text: bytes) -> Kube:
        found: Kube = self._read(self._object.decode(text))
        return shared(found)

    def _decode_page(self, text: bytes) -> Page[Kube]:
        page: Page[Kube] = self._page.decode(text)
        if self._read is _unchanged or not page.items:
            return page
        return msgspec.structs.replace(page, items=tuple(map(self._read, page.items)))

    def _decode_line(self, text: bytes) -> WatchLine[Kube]:
        line: WatchLine[Kube] = self._line.decode(text)
        if self._shares:
            shared(line.object)
        if self._read is _unchanged or isinstance(line.object, Status):
            return line
        return msgspec.structs.replace(line, object=self._read(line.object))

    def page(self, text: bytes, keep: Callable[[Kube], bool] | None = None) -> Page[Kube]:
        """Decode a page of a list; of its objects only those for which `keep` is true.

        Objects in a list have no apiVersion, so it is set here.
        """
        page = self._readable(text)
        items = page.items or ()
        if not self._is_default_version:
            items = tuple(msgspec.structs.replace(item, api_version=self.api_version) for item in items)
        if keep is not None:
            items = tuple(filter(keep, items))
        if self._shares:
            for item in items:
                shared(item)
        return Page(page.metadata, items)

    def _readable(self, text: bytes) -> Page[Kube]:
        """Decode a page. For most kinds, ignore objects that cannot be decoded: they affect only pods that name them.

        A pod or node keeps the parts that can be decoded, if its name and uid are among them.
        """
        if not self._tolerant:
            return _decoded(self._decode_page, text, self.plural)
        try:
            return self._decode_page(text)
        except UNREADABLE as error:
            rest, parts = outline(text, _ITEM)
            items = [item for part in parts if (item := self._one(part, error)) is not None]
        return Page(_decoded(_versioned.decode, rest, self.plural).metadata, tuple(items))

    def _one(self, text: bytes, why: Exception) -> Kube | None:
        """Decode one object as far as possible. None if it is ignored; raises Unavailable if it must not be."""
        try:
            return self._decode(text)
        except UNREADABLE as error:
            if not self._salvages:
                _log.warning("ignoring an object that cannot be decoded", kind=self.plural, error=str(error),
                             begins=text[:200].decode(errors="replace"))  # fmt: skip
                return None
        try:
            return salvaged(text, self.kind)  # type: ignore[type-var]  # a pod or a node
        except UNREADABLE:
            raise Unavailable(f"{self.plural}: cannot decode the API server's response: {why}") from None

    def line(self, text: bytes) -> WatchLine[Kube] | None:
        """Decode an event of a watch; None if its object is ignored, see `page` and `version_of_line`."""
        if not self._tolerant:
            return _decoded(self._decode_line, text, self.plural)
        try:
            return self._decode_line(text)
        except UNREADABLE as error:
            rest, parts = outline(text, _OBJECT)
            obj = self._one(parts[0] if parts else b"", error)
        return None if obj is None else WatchLine(_decoded(_changes.decode, rest, self.plural).type, obj)

    def version_of_line(self, text: bytes) -> str:
        """Return the resourceVersion in an event of a watch. Raises Unavailable if it has none."""
        try:
            return _bookmarks.decode(text).object.metadata.resource_version
        except UNREADABLE:
            rest, _ = outline(text, _ITEM + 1)
        return _decoded(_bookmarks.decode, rest, self.plural).object.metadata.resource_version

    def bookmark(self, text: bytes) -> str | None:
        """Return the resourceVersion of a bookmark; None for any other event.

        The object of a bookmark may be invalid: for pods its spec.containers is null.
        """
        return self.version_of_line(text) if text.startswith(_BOOKMARK) else None


def _unchanged(obj: Any) -> Any:
    return obj


def _decoded(decode: Callable[[bytes], _Read], text: bytes, what: str) -> _Read:
    try:
        return decode(text)
    except UNREADABLE as error:
        raise Unavailable(f"{what}: cannot decode the API server's response: {error}") from None


# ------------------------------------------------------------------ the kinds


def _plural(kind: str) -> str:
    """Return the plural of a kind, as the API forms it. Source: apimachinery's UnsafeGuessKindToResource."""
    name = kind.lower()
    if name.endswith("s"):
        return f"{name}es"
    return f"{name.removesuffix('y')}ies" if name.endswith("y") else f"{name}s"


_RESOURCES: dict[type, Resource[Any]] = {
    kind: Resource(kind, kind().api_version, _plural(kind.__name__), namespaced=issubclass(kind, Namespaced))
    for kind in get_args(PortObject)
    if kind is not PodGroup
}
POD_GROUPS: tuple[Resource[PodGroup], ...] = tuple(
    Resource(PodGroup, version.api_version, PLURAL, version=version) for version in GROUP_VERSIONS
)
"""Kubernetes' own PodGroups, and those of the coscheduling plugin. A cluster may serve neither."""


def resource_of(kind: type[Kube], api_version: str = "") -> Resource[Kube]:
    """Return the resource of a kind. `api_version` selects the PodGroup API, or the version of Workloads.

    Raises Invalid for a PodGroup of an unknown API.
    """
    if kind is not PodGroup:
        found = _RESOURCES[kind]
        return Resource(kind, api_version, found.plural) if api_version and kind is Workload else found
    wanted = api_version or PodGroup().api_version
    for resource in POD_GROUPS:
        if resource.api_version == wanted:
            return resource  # type: ignore[return-value]
    raise Invalid(f"PodGroup: unknown apiVersion {api_version!r}; use one of "
                  f"{', '.join(resource.api_version for resource in POD_GROUPS)}")  # fmt: skip


def served(listing: bytes) -> set[str]:
    """Return the names in an APIResourceList."""
    return {resource.name for resource in _decoded(_resources.decode, listing, "API discovery").resources}


class _Named(msgspec.Struct, frozen=True):
    name: str


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Named, ...] = ()


_resources = msgspec.json.Decoder(_Resources)
