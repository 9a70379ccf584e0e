"""Moves of consolidation: the running pods evicted to run elsewhere, and the nodes for their replacements.

A controller replaces an evicted pod. The cache nominates the next pods of that controller for the nodes that
consolidation has found. Moves are in memory only: after a restart the replacements go wherever they fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from session_scheduler.model.classes import ClassKey
from session_scheduler.model.disruption import MOVED, is_disrupted
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod

AWAITED_SECONDS: Final = 60.0
"""How long the scheduler waits for the replacement of a moved pod."""
_MAX_CONTROLLERS: Final = 10_000
"""For how many controllers the time of the last move is kept."""
_RECREATING: Final = frozenset({"Job", "ReplicaSet", "ReplicationController", "StatefulSet"})
"""The controllers whose replacement pods may run on any node, unlike those of DaemonSets and static pods."""


class _Place(msgspec.Struct, frozen=True):
    victim: str
    """The moved pod's uid."""
    cls: ClassKey
    """The key of its class."""
    node: str
    until: float


class Moves:
    """The moves of one cache. Times are in seconds of the scheduler's clock."""

    def __init__(self) -> None:
        self.leaving: set[str] = set()
        """The moved pods (uids), until they are gone."""
        self.places: dict[str, list[_Place]] = {}
        """By controller (uid): the places for its replacement pods."""
        self._last: dict[str, float] = {}
        """By controller (uid): when its last pod was moved."""
        self._postponed: dict[str, None] = {}
        """The groups (their keys) that consolidation has postponed because moves are in flight."""

    def decided(self, task: Task, node: str, now: float) -> None:
        """Record a move: a running task is being evicted, and its replacement is to go to this node."""
        owner = controller_of(task.pod)
        if owner is None:
            return
        self.leaving.add(task.uid)
        self._last.pop(owner, None)
        self._last[owner] = now
        if len(self._last) > _MAX_CONTROLLERS:
            del self._last[next(iter(self._last))]
        place = _Place(task.uid, task.cls.key, node, now + AWAITED_SECONDS)
        self.places.setdefault(owner, []).append(place)

    def place_for(self, task: Task) -> str | None:
        """The node for a new task that replaces a moved one, else None. It returns each place only once."""
        owner = controller_of(task.pod)
        places = self.places.get(owner, []) if owner is not None else []
        found = next((place for place in places if place.cls == task.cls.key), None)
        if found is None or owner is None:
            return None
        self._drop(owner, found)
        return found.node

    def leaves(self, task: Task) -> bool:
        """Whether the task is being evicted for a move, by this replica or another one."""
        pod = task.pod
        moved = pod.metadata.deletion_timestamp is not None and is_disrupted(pod, MOVED)
        return moved or task.uid in self.leaving

    def came_to_nothing(self, uid: str) -> None:
        """Forget the move of a pod (its uid) whose eviction failed."""
        if uid not in self.leaving:
            return
        self.leaving.discard(uid)
        for owner, places in list(self.places.items()):
            for place in [place for place in places if place.victim == uid]:
                self._drop(owner, place)

    def rests(self, task: Task, now: float, seconds: float) -> bool:
        """Whether a pod of the task's controller was moved less than `seconds` ago."""
        last = self._last.get(controller_of(task.pod) or "")
        return last is not None and now - last < seconds

    def in_flight(self, now: float) -> bool:
        """Whether the scheduler waits for the replacement of a moved pod."""
        for owner, places in list(self.places.items()):
            for place in [place for place in places if place.until <= now]:
                self._drop(owner, place)
        return bool(self.places)

    def hold_up(self, group: str) -> None:
        """Postpone consolidation for a group (its key) until no move is in flight."""
        self._postponed[group] = None

    def drain_held_up(self, now: float) -> Iterable[str]:
        """The postponed groups (their keys), once no move is in flight. It returns each group only once."""
        if not self._postponed or self.in_flight(now):
            return ()
        postponed, self._postponed = self._postponed, {}
        return postponed

    def _drop(self, owner: str, place: _Place) -> None:
        self.places[owner].remove(place)
        if not self.places[owner]:
            del self.places[owner]


def controller_of(pod: Pod) -> str | None:
    """The uid of the controller that will replace the pod on any node; None if it has none."""
    owners = (owner for owner in pod.metadata.owner_references if owner.controller)
    owner = next(owners, None)
    return owner.uid if owner is not None and owner.kind in _RECREATING else None
