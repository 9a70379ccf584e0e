"""What is known of one kind, and what each list or event changes in it: no I/O.

resourceVersions are opaque: they are compared for equality only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from session_scheduler.cluster.port import Change, WatchEvent
from session_scheduler.cluster.write_rules import Name, name_of
from session_scheduler.model.objects import KubeObject

Delivery = tuple[Change, KubeObject]
"""ADDED or MODIFIED with the object after it, DELETED with the last that is known of it. Never a bookmark."""


class KnownObjects:
    """The latest objects of one kind, by (API group, namespace, name)."""

    def __init__(self) -> None:
        self._objects: dict[Name, KubeObject] = {}
        self._comparison: Comparison | None = None

    def take(self, event: WatchEvent[KubeObject]) -> Sequence[Delivery]:
        """What a watch event changes. Another uid under a known name is another object: the old one was deleted."""
        if event.object is None or event.change is Change.BOOKMARK:
            return ()
        name = name_of(event.object)
        self._remember(name, event.object)
        if event.change is not Change.DELETED:
            return self._put(name, event.object)
        known = self._objects.pop(name, None)
        if known is None:
            return ()
        return ((Change.DELETED, event.object if _same(known, event.object) else known),)

    def replace(self, listed: Iterable[KubeObject]) -> list[Delivery]:
        """What a list changes: first all that is gone, then what is new or different, in the list's order."""
        named = {name_of(obj): obj for obj in listed}
        gone = [name for name in self._objects if name not in named]
        changes: list[Delivery] = [(Change.DELETED, self._objects.pop(name)) for name in gone]
        for name, obj in named.items():
            changes += self._put(name, obj)
        return changes

    def _put(self, name: Name, obj: KubeObject) -> Sequence[Delivery]:
        known = self._objects.get(name)
        self._objects[name] = obj
        if known is None:
            return ((Change.ADDED, obj),)
        if not _same(known, obj):
            return ((Change.DELETED, known), (Change.ADDED, obj))
        if known.metadata.resource_version == obj.metadata.resource_version:
            return ()
        return ((Change.MODIFIED, obj),)

    # -------------------------------------------------------------- comparing with a list while events come

    @contextmanager
    def comparing(self) -> Iterator[Comparison]:
        """Remember what events say from here on, to compare all of it with a list that is asked for inside."""
        self._comparison = Comparison(self._objects)
        try:
            yield self._comparison
        finally:
            self._comparison = None

    def _remember(self, name: Name, obj: KubeObject) -> None:
        if self._comparison is not None:
            known = self._objects.get(name)
            self._comparison.passed |= {(name, each.metadata.resource_version) for each in (known, obj) if each}


class Comparison:
    """A list against what is known, while events go on: what passed during it is known too."""

    def __init__(self, objects: dict[Name, KubeObject]) -> None:
        self._objects = objects
        self.passed: set[tuple[Name, str]] = set()
        """Names and resourceVersions that events brought or replaced since the comparison began."""

    def untold(self, listed: Iterable[KubeObject]) -> set[Name]:
        """The names of which the list says what was at no moment known: changed or deleted, and no event said so."""
        versions = {name_of(obj): obj.metadata.resource_version for obj in listed}
        untold = {name for name, version in versions.items() if not self._was_known(name, version)}
        for name, obj in self._objects.items():
            if name not in versions and (name, obj.metadata.resource_version) not in self.passed:
                untold.add(name)
        return untold

    def _was_known(self, name: Name, version: str) -> bool:
        known = self._objects.get(name)
        return (known is not None and known.metadata.resource_version == version) or (name, version) in self.passed


def _same(one: KubeObject, other: KubeObject) -> bool:
    return one.metadata.uid == other.metadata.uid
