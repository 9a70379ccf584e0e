"""The cache's tables of the other objects that plugins read: one per kind, by key."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from session_scheduler.model.objects import KubeObject

_Kube = TypeVar("_Kube", bound=KubeObject)


class ObjectTables:
    """Objects of any kind by `key`: namespace/name, or the name of a cluster-scoped object."""

    def __init__(self) -> None:
        self._tables: dict[type[Any], dict[str, Any]] = {}
        self._versions: dict[type[Any], int] = {}
        self._newest: dict[type[Any], int] = {}

    def put(self, obj: KubeObject) -> KubeObject | None:
        """Add or update an object. Returns the previous one, or None."""
        kind = type(obj)
        table = self._tables.setdefault(kind, {})
        before: KubeObject | None = table.get(obj.key)
        table[obj.key] = obj
        self._count_change(obj)
        return before

    def remove(self, obj: KubeObject) -> None:
        """Remove an object, if the table has it."""
        kind = type(obj)
        if self._tables.get(kind, {}).pop(obj.key, None) is not None:
            self._count_change(obj)

    def _count_change(self, obj: KubeObject) -> None:
        kind, text = type(obj), obj.metadata.resource_version
        self._versions[kind] = self.version(kind) + 1
        self._newest[kind] = max(self.newest(kind), int(text) if text.isdecimal() else 0)

    def of(self, kind: type[_Kube]) -> Mapping[str, _Kube]:
        """All objects of a kind by key: a read-only view that follows later changes."""
        return MappingProxyType(self._tables.setdefault(kind, {}))

    def version(self, kind: type[Any]) -> int:
        """Incremented whenever an object of the kind is added, changed or deleted."""
        return self._versions.get(kind, 0)

    def newest(self, kind: type[Any]) -> int:
        """The highest resourceVersion of all changes of the kind that the cache has seen, deletions included.

        resourceVersions are increasing numbers (Kubernetes 1.35 and later); 0 if none was a number.
        """
        return self._newest.get(kind, 0)
