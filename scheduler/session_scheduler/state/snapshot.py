"""Snapshot of the cluster for one session: the cache itself, which nothing else changes until the session closes.

It is not a copy, so opening a session is cheap for any cluster size. Events wait until the session closes. The session
changes the cache only through statements, which restore exactly what they do not commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from session_scheduler.model.groups import Group
from session_scheduler.state.cache import Cache


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent view: the cluster, the groups that are due, the facts of each plugin, and the time in seconds."""

    cache: Cache
    due: tuple[Group, ...]
    now: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    wall: float = 0.0
    """The time of day, in seconds since 1970."""
    stale: tuple[Group, ...] = ()
    """The gangs that have lacked members for longer than `staleGangSeconds`."""
