"""Volumes that were decided on and are not bound yet: whose they are, so that no other claim takes them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """What one pod's node decided: volumes for claims, and claims for which the node's driver makes one."""

    node: str
    kept: tuple[tuple[str, str], ...] = ()
    """(volume, claim) by name and key."""
    made: tuple[str, ...] = ()
    """Claims by key."""


class AssumedVolumes:
    """By pod. Pods that share a claim share its volume, which is free when the last of them lets go."""

    def __init__(self) -> None:
        self._of: dict[str, PodVolumes] = {}
        self._claims: dict[str, Counter[str]] = {}
        self._nodes: dict[str, Counter[str]] = {}
        self.version = 0
        """Moves with every change."""

    def of(self, uid: str) -> PodVolumes | None:
        """What was decided for a pod."""
        return self._of.get(uid)

    def put(self, uid: str, volumes: PodVolumes) -> None:
        """Keep what was decided for a pod, in place of what was before."""
        self.drop(uid)
        self._of[uid] = volumes
        self._count(volumes, 1)

    def drop(self, uid: str) -> None:
        """Let go of what was decided for a pod, if anything was."""
        volumes = self._of.pop(uid, None)
        if volumes is not None:
            self._count(volumes, -1)

    def claim_of(self, volume: str) -> str | None:
        """The claim that a volume is kept for."""
        return _most(self._claims.get(volume))

    def node_of(self, claim: str) -> str | None:
        """The node for which a claim's volume is made."""
        return _most(self._nodes.get(claim))

    def _count(self, volumes: PodVolumes, sign: int) -> None:
        for volume, claim in volumes.kept:
            _add(self._claims, volume, claim, sign)
        for claim in volumes.made:
            _add(self._nodes, claim, volumes.node, sign)
        self.version += 1


def _add(counts: dict[str, Counter[str]], key: str, value: str, sign: int) -> None:
    counter = counts.setdefault(key, Counter())
    counter[value] += sign
    if not counter[value]:
        del counter[value]
    if not counter:
        del counts[key]


def _most(counter: Counter[str] | None) -> str | None:
    return next(iter(counter)) if counter else None
