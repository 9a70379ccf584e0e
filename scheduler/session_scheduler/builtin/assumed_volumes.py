"""Assumed volumes: the volumes that the scheduler chose for claims and that are not bound yet.

VolumeBinding keeps them, so that it gives no volume to two claims.
"""

from __future__ import annotations

from collections import Counter

import msgspec


class PodVolumes(msgspec.Struct, frozen=True):
    """The decision for one pod on its node: existing volumes for claims, and claims to provision."""

    node: str
    static: tuple[tuple[str, str], ...] = ()
    """(volume, claim) by name and key."""
    provisioned: tuple[str, ...] = ()
    """Claims by key."""


class AssumedVolumes:
    """The assumed volumes by pod. Pods that share a claim share its volume; it is free after the last one's `drop`."""

    def __init__(self) -> None:
        self._of: dict[str, PodVolumes] = {}
        self._claims: dict[str, Counter[str]] = {}
        self._nodes: dict[str, Counter[str]] = {}
        self.version = 0
        """Increases with every change."""

    def of(self, uid: str) -> PodVolumes | None:
        """The decision for a pod."""
        return self._of.get(uid)

    def put(self, uid: str, volumes: PodVolumes) -> None:
        """Store the decision for a pod; it replaces an earlier one."""
        self.drop(uid)
        self._of[uid] = volumes
        self._count(volumes, 1)

    def drop(self, uid: str) -> None:
        """Forget the decision for a pod, if there is one."""
        volumes = self._of.pop(uid, None)
        if volumes is not None:
            self._count(volumes, -1)

    def claim_of(self, volume: str) -> str | None:
        """The claim that a volume is assumed for."""
        return _first(self._claims.get(volume))

    def node_of(self, claim: str) -> str | None:
        """The node that a claim's volume is provisioned for."""
        return _first(self._nodes.get(claim))

    def _count(self, volumes: PodVolumes, sign: int) -> None:
        for volume, claim in volumes.static:
            _add(self._claims, volume, claim, sign)
        for claim in volumes.provisioned:
            _add(self._nodes, claim, volumes.node, sign)
        self.version += 1


def _add(counts: dict[str, Counter[str]], key: str, value: str, sign: int) -> None:
    counter = counts.setdefault(key, Counter())
    counter[value] += sign
    if not counter[value]:
        del counter[value]
    if not counter:
        del counts[key]


def _first(counter: Counter[str] | None) -> str | None:
    return next(iter(counter)) if counter else None
