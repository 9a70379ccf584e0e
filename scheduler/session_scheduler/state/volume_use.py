"""Usage of volumes: the number of pods that use each volume on each node. Most pods use none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from session_scheduler.model.volumes import VolumeKey

_Counted = TypeVar("_Counted", VolumeKey, str)
_NOTHING: Final[Mapping[VolumeKey, int]] = MappingProxyType({})
_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})


class VolumeUse:
    """Counts of pods by node and volume key, in the cache. A statement's rollback restores them."""

    def __init__(self) -> None:
        self._on_node: dict[str, dict[VolumeKey, int]] = {}
        self._nodes_of: dict[VolumeKey, dict[str, int]] = {}
        self._versions: dict[str, int] = {}

    def count(self, node: str, keys: Iterable[VolumeKey], sign: int) -> None:
        """Add one pod that uses these volumes on a node (`sign` 1), or remove it (-1)."""
        for key in keys:
            _add(self._on_node.setdefault(node, {}), key, sign)
            _add(self._nodes_of.setdefault(key, {}), node, sign)
            if not self._nodes_of[key]:
                del self._nodes_of[key]
        self._versions[node] = self._versions.get(node, 0) + 1
        if not self._on_node.get(node, True):
            del self._on_node[node]

    def on_node(self, node: str) -> Mapping[VolumeKey, int]:
        """By volume: the number of pods on a node that use it."""
        return self._on_node.get(node, _NOTHING)

    def nodes_of(self, key: VolumeKey) -> Mapping[str, int]:
        """By node: the number of its pods that use a volume."""
        return self._nodes_of.get(key, _NOWHERE)

    def version(self, node: str) -> int:
        """Incremented whenever the pods with volumes on a node change."""
        return self._versions.get(node, 0)


def _add(counts: dict[_Counted, int], key: _Counted, sign: int) -> None:
    number = counts.get(key, 0) + sign
    if number:
        counts[key] = number
    else:
        counts.pop(key, None)
