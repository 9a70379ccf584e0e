"""Observed pods: what plugins read of a pod beyond the fields that its class covers.

Pods of a class share the answers of filters and scores. A plugin's hook gets an observed pod, whose reads are noted. If
the hook reads a field in which pods of the class may differ, its answer is discarded, and the value of the field
becomes part of the class key: see `ClassTable` and `framework.hooks.ObservedCall`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn, cast

from session_scheduler.model.objects import Pod

Path = tuple[str, ...]
"""A field, such as ("spec", "priority"), or a key of a mapping, such as ("metadata", "labels", "app")."""

_COVERED: Final = frozenset(
    {("api_version",), ("unreadable",), ("metadata", "namespace")}
    | {
        ("spec", name)
        for name in (
            "node_name", "scheduler_name", "overhead", "resources", "node_selector", "affinity", "tolerations",
            "topology_spread_constraints", "volumes", "host_network", "host_users",
        )
    }
)  # fmt: skip
"""The fields that are part of every class key, whatever the pod's claims: see `ClassTable`."""
IDENTITY: Final = frozenset({(), ("key",), ("metadata",), ("metadata", "name"), ("metadata", "uid")})
"""The fields in which all pods differ."""
_WITH_FIELDS: Final = frozenset({("metadata",), ("spec",), ("status",)})
_MAPPINGS: Final = frozenset({("metadata", "labels"), ("metadata", "annotations")})
_MOST_KEYS: Final = 64
"""If plugins read more keys of a mapping than this, the class key has the whole mapping."""


class Reading:
    """The observed call that runs: the fields outside of the class key that it has read; None if none runs."""

    __slots__ = ("beyond",)

    def __init__(self) -> None:
        self.beyond: dict[Path, None] | None = None


reading: Final = Reading()


class PodReads:
    """The fields that plugins have read beyond those that every class covers."""

    def __init__(self) -> None:
        self._keyed: dict[Path, None] = {}
        """The fields in the class key, in order."""
        self._new: dict[Path, None] = {}

    @property
    def any_new(self) -> bool:
        """Whether a field was read that is not in the class key yet."""
        return bool(self._new)

    def note(self, path: Path) -> None:
        """Note that a plugin read a field of a pod."""
        if _within(path, self._keyed) is None:
            known = _within(path, self._new) or path
            self._new[known] = None
            if reading.beyond is not None:
                reading.beyond[known] = None

    def accept(self) -> bool:
        """Add the new fields to the class key. Returns whether there are any."""
        if not self._new:
            return False
        found = self._keyed | self._new
        for mapping in _MAPPINGS:
            if sum(path[:-1] == mapping for path in found) > _MOST_KEYS:
                found[mapping] = None
        self._keyed = {path: None for path in found if _within(path[:-1], found) is None or not path}
        self._new = {}
        return True

    def values(self, pod: Pod) -> list[Any] | None:
        """The pod's part of the class key: the values of these fields; None if there are none."""
        return [_value(pod, path) for path in self._keyed] if self._keyed else None


def _within(path: Path, known: Mapping[Path, None]) -> Path | None:
    """The field in `known` that is `path` or contains it."""
    return next((path[:length] for length in range(len(path) + 1) if path[:length] in known), None)


def _value(pod: Pod, path: Path) -> Any:
    value: Any = pod
    for place, name in enumerate(path):
        value = value.get(name) if path[:place] in _MAPPINGS else getattr(value, name)
    return value


# ------------------------------------------------------------------ what plugins see


class _Noting:
    """A value that plugins see in place of a pod or a part of it: it notes what is read."""

    __slots__ = ("_path", "_reads", "_value")

    def __init__(self, value: Any, reads: PodReads, path: Path = ()) -> None:
        self._value = value
        self._reads = reads
        self._path = path

    @property  # type: ignore[misc]  # so that isinstance answers as for the value
    def __class__(self) -> type:
        return type(self._value)

    def _all(self) -> Any:
        """The value itself, after noting that all of it is read."""
        self._reads.note(self._path)
        return self._value

    def __eq__(self, other: object) -> bool:
        noting = issubclass(type(other), _Noting)  # isinstance would answer for the value
        return bool(self._all() == (cast("_Noting", other)._all() if noting else other))

    def __repr__(self) -> str:
        return repr(self._all())


class Observed(_Noting):
    """A pod, or a part of it, as plugins see it: reads like the object itself, and notes what is read."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._value, name)
        path = (*self._path, name)
        if path in _WITH_FIELDS:
            return Observed(value, self._reads, path)
        if path in _MAPPINGS:
            return ObservedMapping(value, self._reads, path)
        if path not in _COVERED and not name.startswith("__"):
            self._reads.note(path)
        return value

    def __hash__(self) -> int:
        return hash(self._all())

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError("an observed pod cannot be copied; read the fields that you need")


class ObservedMapping(_Noting, Mapping[str, str]):
    """Labels or annotations as plugins see them: a look-up notes its key, any other read the whole mapping."""

    __slots__ = ()

    def __getitem__(self, key: str) -> str:
        if isinstance(key, str):
            self._reads.note((*self._path, key))
        value: str = self._value[key]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __or__(self, other: Mapping[str, str]) -> dict[str, str]:
        return {**self, **other}

    def __ror__(self, other: Mapping[str, str]) -> dict[str, str]:
        return {**other, **self}

    def copy(self) -> dict[str, str]:
        """As for a dict."""
        return dict(self._all())
