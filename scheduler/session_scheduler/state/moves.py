"""Moves: running pods that were evicted to run elsewhere, and where the pods that replace them are to go.

A controller makes a pod anew that has ended. The pods that it makes next are taken for those that were moved, and are
nominated for the nodes that were found for these. All of it is in memory only: after a restart they go where they fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from session_scheduler.model.disruption import MOVED, is_disrupted
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod

AWAITED_SECONDS: Final = 60.0
"""How long what comes in a moved pod's place is waited for."""
_REMEMBERED: Final = 10_000
"""Controllers of which it is known when a pod of theirs was moved."""
_RECREATING: Final = frozenset({"Job", "ReplicaSet", "ReplicationController", "StatefulSet"})
"""Controllers that replace a pod that ends, on whatever node: those of daemons and of nodes' own pods do not."""


@dataclass(frozen=True, slots=True)
class _Place:
    victim: str
    """The moved pod's uid."""
    cls: bytes
    """The key of its class."""
    node: str
    until: float


class Moves:
    """Times are in seconds of the scheduler's clock."""

    def __init__(self) -> None:
        self.leaving: set[str] = set()
        """Pods (uids) that were asked to end, until they have."""
        self.places: dict[str, list[_Place]] = {}
        """By controller (uid): the places for which its pods are awaited."""
        self._last: dict[str, float] = {}
        """By controller (uid): when a pod of it was moved last."""
        self._held_up: dict[str, None] = {}
        """Groups (their keys) for which nothing was tried because of others' moves."""

    def decided(self, task: Task, node: str, now: float) -> None:
        """A running task is made to end; what comes in its place is to go to this node."""
        owner = controller_of(task.pod)
        if owner is None:
            return
        self.leaving.add(task.uid)
        self._last.pop(owner, None)
        self._last[owner] = now
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]
        place = _Place(task.uid, task.cls.key, node, now + AWAITED_SECONDS)
        self.places.setdefault(owner, []).append(place)

    def place_for(self, task: Task) -> str | None:
        """The node that is kept for a task that has come, if it comes in a moved one's place; asked once."""
        owner = controller_of(task.pod)
        places = self.places.get(owner, []) if owner is not None else []
        found = next((place for place in places if place.cls == task.cls.key), None)
        if found is None or owner is None:
            return None
        self._drop(owner, found)
        return found.node

    def leaves(self, task: Task) -> bool:
        """Whether a task is still there that was moved, by whomever."""
        pod = task.pod
        moved = pod.metadata.deletion_timestamp is not None and is_disrupted(pod, MOVED)
        return moved or task.uid in self.leaving

    def came_to_nothing(self, uid: str) -> None:
        """A pod was to be moved, and could not be asked to end."""
        if uid not in self.leaving:
            return
        self.leaving.discard(uid)
        for owner, places in list(self.places.items()):
            for place in [place for place in places if place.victim == uid]:
                self._drop(owner, place)

    def rests(self, task: Task, now: float, seconds: float) -> bool:
        """Whether a pod of the task's controller was moved less than so long ago."""
        last = self._last.get(controller_of(task.pod) or "")
        return last is not None and now - last < seconds

    def in_flight(self, now: float) -> bool:
        """Whether anything is awaited in a moved pod's place."""
        for owner, places in list(self.places.items()):
            for place in [place for place in places if place.until <= now]:
                self._drop(owner, place)
        return bool(self.places)

    def hold_up(self, group: str) -> None:
        """Nothing is tried for a group (its key) until what is in flight is done."""
        self._held_up[group] = None

    def drain_held_up(self, now: float) -> Iterable[str]:
        """The groups (their keys) that were held up, once nothing is in flight any more."""
        if not self._held_up or self.in_flight(now):
            return ()
        held_up, self._held_up = self._held_up, {}
        return held_up

    def _drop(self, owner: str, place: _Place) -> None:
        self.places[owner].remove(place)
        if not self.places[owner]:
            del self.places[owner]


def controller_of(pod: Pod) -> str | None:
    """The uid of the controller that makes the pod anew where it ends; None where none does."""
    owners = (owner for owner in pod.metadata.owner_references if owner.controller)
    owner = next(owners, None)
    return owner.uid if owner is not None and owner.kind in _RECREATING else None
