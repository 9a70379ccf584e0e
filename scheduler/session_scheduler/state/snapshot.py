"""Snapshot of the cluster for one session: the cache itself, which nothing else changes until the session closes.

It is not a copy, so opening a session is cheap for any cluster size. Events wait until the session closes. The session
changes the cache only through statements, which restore exactly what they do not commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from session_scheduler.model.groups import Group
from session_scheduler.state.cache import Cache


class RetriedGroups(Protocol):
    """Unschedulable groups that become due one by one, while there is capacity for them."""

    def queues(self) -> Iterable[str]:
        """The queues that may have such groups."""

    def first(self, queue: str) -> tuple[Any, ...] | None:
        """The sort key (`Group.order`) of a queue's next group; None if no other group may fit now."""

    def take(self, queue: str) -> Group | None:
        """Make the group that `first` has found due. None if it cannot be attempted now."""


class Snapshot(msgspec.Struct, frozen=True):
    """A consistent view: the cluster, the groups that are due, the facts of each plugin, and the time in seconds."""

    cache: Cache
    due: tuple[Group, ...]
    now: float = 0.0
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    wall: float = 0.0
    """The time of day, in seconds since 1970."""
    stale: tuple[Group, ...] = ()
    """The gangs that have lacked members for longer than `staleGangSeconds`."""
    retried: RetriedGroups | None = None
    """The groups to attempt in addition to `due` while freed capacity is left."""
