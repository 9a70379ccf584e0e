"""The use of volumes: which are used on which node, counted by volume key; sparse, for most pods use none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from session_scheduler.model.volumes import VolumeKey

_Counted = TypeVar("_Counted", VolumeKey, str)
_NOTHING: Final[Mapping[VolumeKey, int]] = MappingProxyType({})
_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})


class VolumeUse:
    """How many pods use a volume, by node and by volume. Kept by the cache, undone with what a session undoes."""

    def __init__(self) -> None:
        self._on_node: dict[str, dict[VolumeKey, int]] = {}
        self._nodes_of: dict[VolumeKey, dict[str, int]] = {}
        self._versions: dict[str, int] = {}

    def count(self, node: str, keys: Iterable[VolumeKey], sign: int) -> None:
        """Count one pod that uses these on a node (`sign` 1), or no more (-1)."""
        for key in keys:
            _add(self._on_node.setdefault(node, {}), key, sign)
            _add(self._nodes_of.setdefault(key, {}), node, sign)
            if not self._nodes_of[key]:
                del self._nodes_of[key]
        self._versions[node] = self._versions.get(node, 0) + 1
        if not self._on_node.get(node, True):
            del self._on_node[node]

    def on_node(self, node: str) -> Mapping[VolumeKey, int]:
        """The volumes that pods on a node use, with how many pods each."""
        return self._on_node.get(node, _NOTHING)

    def nodes_of(self, key: VolumeKey) -> Mapping[str, int]:
        """The nodes on which pods use a volume, with how many pods on each."""
        return self._nodes_of.get(key, _NOWHERE)

    def version(self, node: str) -> int:
        """Moves whenever the pods that use volumes on a node do."""
        return self._versions.get(node, 0)


def _add(counts: dict[_Counted, int], key: _Counted, sign: int) -> None:
    number = counts.get(key, 0) + sign
    if number:
        counts[key] = number
    else:
        counts.pop(key, None)
