"""The snapshot that a session reads: the cache's own columns and groups, which nothing else touches until it closes.

No copy is made, so opening costs nothing that exists and little that changed: events that arrive meanwhile wait, and a
session's own changes go through statements that put back to the last digit what they do not commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from session_scheduler.model.groups import Group
from session_scheduler.state.cache import Cache


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent view: the cluster, the groups that are due, each plugin's facts, and the time in seconds."""

    cache: Cache
    due: tuple[Group, ...]
    now: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    wall: float = 0.0
    """The time of day, in seconds since 1970."""
    stale: tuple[Group, ...] = ()
    """The gangs that run with fewer members than they need for longer than they may."""
