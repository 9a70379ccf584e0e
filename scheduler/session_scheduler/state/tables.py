"""Object tables of the cache: what plugins read beside nodes and pods, one table a kind, by key."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from session_scheduler.model.objects import KubeObject

_Kube = TypeVar("_Kube", bound=KubeObject)


class ObjectTables:
    """Objects of any kind by `key`: namespace/name, or the name where the kind has no namespace."""

    def __init__(self) -> None:
        self._tables: dict[type[Any], dict[str, Any]] = {}
        self._versions: dict[type[Any], int] = {}
        self._newest: dict[type[Any], int] = {}

    def put(self, obj: KubeObject) -> KubeObject | None:
        """Add or replace an object; returns the one that was there."""
        kind = type(obj)
        table = self._tables.setdefault(kind, {})
        before: KubeObject | None = table.get(obj.key)
        table[obj.key] = obj
        self._moved(obj)
        return before

    def remove(self, obj: KubeObject) -> None:
        """Take an object out, if it is there."""
        kind = type(obj)
        if self._tables.get(kind, {}).pop(obj.key, None) is not None:
            self._moved(obj)

    def _moved(self, obj: KubeObject) -> None:
        kind, text = type(obj), obj.metadata.resource_version
        self._versions[kind] = self.version(kind) + 1
        self._newest[kind] = max(self.newest(kind), int(text) if text.isdecimal() else 0)

    def of(self, kind: type[_Kube]) -> Mapping[str, _Kube]:
        """All objects of a kind by key, to be read only: a view of what is there at any time."""
        return MappingProxyType(self._tables.setdefault(kind, {}))

    def version(self, kind: type[Any]) -> int:
        """Moves whenever an object of the kind comes, goes or changes."""
        return self._versions.get(kind, 0)

    def newest(self, kind: type[Any]) -> int:
        """The highest resourceVersion with which an object of the kind came, changed or went: what is older was seen.

        resourceVersions are numbers that grow (Kubernetes 1.35 and later); 0 where none was one.
        """
        return self._newest.get(kind, 0)
