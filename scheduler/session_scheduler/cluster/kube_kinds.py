"""Where each kind of object is served, and how its lists and watches are decoded.

Source: the Kubernetes API reference, "API concepts" (paths, chunked lists, watches).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from session_scheduler.model.workload_objects import Workload

_log = structlog.get_logger(__name__)
_Read = TypeVar("_Read")
Item = TypeVar("Item")


class _ListMeta(msgspec.Struct, rename={"resource_version": "resourceVersion", "go_on": "continue"}, frozen=True):
    resource_version: str = ""
    go_on: str = ""


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """Part of a list. The API server writes an empty one as null in places."""

    metadata: _ListMeta
    items: tuple[Item, ...] | None = None


class WatchLine(msgspec.Struct, Generic[Kube], frozen=True):
    """One event of a watch: an object, or for an ERROR the reason."""

    type: str
    object: Kube | Status


class _Change(msgspec.Struct, frozen=True):
    """Of what type an event of a watch is."""

    type: str


class _Moment(msgspec.Struct, frozen=True):
    metadata: _ListMeta


class _Bookmark(msgspec.Struct, frozen=True):
    object: _Moment


_BOOKMARK = b'{"type":"BOOKMARK"'
"""How the API server begins the line of one."""
_bookmarks = msgspec.json.Decoder(_Bookmark)
_moments = msgspec.json.Decoder(_Moment)
_changes = msgspec.json.Decoder(_Change)
_OBJECT, _ITEM = 1, 2
"""Within how many others an object is: in an event of a watch, in a page."""


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
        """`version`: by what the objects are translated, where they do not come as they are kept. `lax`: what cannot
        be read is left out, with a warning, and not the whole list.
        """
        self.kind = kind
        self.api_version = api_version
        self.plural = plural
        self.namespaced = namespaced
        self._root = f"apis/{api_version}" if "/" in api_version else f"api/{api_version}"
        self._read: Callable[[Any], Any] = _as_it_is
        shape: type[Any] = kind
        if version is not None and not version.plain:
            self._read, shape = version.read, WirePodGroup
        self._object: msgspec.json.Decoder[Any] = msgspec.json.Decoder(shape)
        self._page: msgspec.json.Decoder[Page[Any]] = msgspec.json.Decoder(Page[shape])  # type: ignore[valid-type]
        self._line: msgspec.json.Decoder[WatchLine[Any]] = msgspec.json.Decoder(WatchLine[shape])  # type: ignore[valid-type]
        self._counted = kind in (Pod, Node)
        """What cannot be read of these is not left out: what they hold must not be taken for free."""
        self._tolerant = lax or kind in get_args(KubeObject)
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
        return _decoded(self._decode, text, self.plural)

    def _decode(self, text: bytes) -> Kube:
        found: Kube = self._read(self._object.decode(text))
        return found

    def _decode_page(self, text: bytes) -> Page[Kube]:
        page: Page[Kube] = self._page.decode(text)
        if self._read is _as_it_is or not page.items:
            return page
        return msgspec.structs.replace(page, items=tuple(map(self._read, page.items)))

    def _decode_line(self, text: bytes) -> WatchLine[Kube]:
        line: WatchLine[Kube] = self._line.decode(text)
        if self._read is _as_it_is or isinstance(line.object, Status):
            return line
        return msgspec.structs.replace(line, object=self._read(line.object))

    def page(self, text: bytes) -> Page[Kube]:
        """A page of a list: its objects do not say their kind and version, so they get them here."""
        page = self._readable(text)
        if self._says_version or not page.items:
            return page
        items = tuple(msgspec.structs.replace(item, api_version=self.api_version) for item in page.items)
        return msgspec.structs.replace(page, items=items)

    def _readable(self, text: bytes) -> Page[Kube]:
        """The page, of most kinds without objects that cannot be read: who does not name them need not suffer.

        Of a pod or node is there what can be read, if that is enough to tell which it is.
        """
        if not self._tolerant:
            return _decoded(self._decode_page, text, self.plural)
        try:
            return self._decode_page(text)
        except UNREADABLE as error:
            rest, parts = outline(text, _ITEM)
            items = [item for part in parts if (item := self._one(part, error)) is not None]
        return Page(_decoded(_moments.decode, rest, self.plural).metadata, tuple(items))

    def _one(self, text: bytes, why: Exception) -> Kube | None:
        """An object as far as it can be read; None where it is left out. Raises Unavailable where it must not be."""
        try:
            return self._decode(text)
        except UNREADABLE as error:
            if not self._counted:
                _log.warning("an object cannot be read: it is left out", kind=self.plural, error=str(error),
                             begins=text[:200].decode(errors="replace"))  # fmt: skip
                return None
        try:
            return salvaged(text, self.kind)  # type: ignore[type-var]  # a pod or a node
        except UNREADABLE:
            raise Unavailable(f"{self.plural}: the API server's answer cannot be read: {why}") from None

    def line(self, text: bytes) -> WatchLine[Kube] | None:
        """One event of a watch; None where it is left out as in a page. `moment` is when it was."""
        if not self._tolerant:
            return _decoded(self._decode_line, text, self.plural)
        try:
            return self._decode_line(text)
        except UNREADABLE as error:
            rest, parts = outline(text, _OBJECT)
            obj = self._one(parts[0] if parts else b"", error)
        return None if obj is None else WatchLine(_decoded(_changes.decode, rest, self.plural).type, obj)

    def moment(self, text: bytes) -> str:
        """The resourceVersion of a line of a watch. Raises Unavailable where it has none."""
        try:
            return _bookmarks.decode(text).object.metadata.resource_version
        except UNREADABLE:
            rest, _ = outline(text, _ITEM + 1)
        return _decoded(_bookmarks.decode, rest, self.plural).object.metadata.resource_version

    def bookmark(self, text: bytes) -> str | None:
        """The resourceVersion that a line of a watch only moves on to; None where it says more.

        What such a line has as its object need be none: in one about pods spec.containers is null.
        """
        return self.moment(text) if text.startswith(_BOOKMARK) else None


def _as_it_is(obj: Any) -> Any:
    return obj


def _decoded(decode: Callable[[bytes], _Read], text: bytes, what: str) -> _Read:
    try:
        return decode(text)
    except UNREADABLE as error:
        raise Unavailable(f"{what}: the API server's answer cannot be read: {error}") from None


# ------------------------------------------------------------------ the kinds


def _plural(kind: str) -> str:
    """The name of a kind's resource: the API forms it like this. Source: apimachinery's UnsafeGuessKindToResource."""
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
"""Kubernetes' own groups, and the coscheduling plugin's. Not every cluster serves them."""


def resource_of(kind: type[Kube], api_version: str = "") -> Resource[Kube]:
    """Where objects of the kind are; `api_version` chooses between the PodGroups, and the version of Workloads.

    Raises Invalid for a PodGroup of an unknown one.
    """
    if kind is not PodGroup:
        found = _RESOURCES[kind]
        return Resource(kind, api_version, found.plural) if api_version and kind is Workload else found
    wanted = api_version or PodGroup().api_version
    for resource in POD_GROUPS:
        if resource.api_version == wanted:
            return resource  # type: ignore[return-value]
    raise Invalid(f"PodGroup: apiVersion {api_version!r}: no such API is known: take one of "
                  f"{', '.join(resource.api_version for resource in POD_GROUPS)}")  # fmt: skip


def served(listing: bytes) -> set[str]:
    """The names in an APIResourceList."""
    return {resource.name for resource in _decoded(_resources.decode, listing, "API discovery").resources}


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


@dataclass(frozen=True, slots=True)
class _Resources:
    resources: tuple[_Named, ...] = ()


_resources = msgspec.json.Decoder(_Resources)
