"""Counts the groups that a scheduler attempts to place."""

from __future__ import annotations

from collections import Counter

from session_scheduler.framework.observer import Observer
from session_scheduler.framework.statement import PlacementResult


class Attempts(Observer):
    """The attempts of each group, by its name."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def decided(self, outcome: PlacementResult) -> None:
        """Count one attempt."""
        self.of[outcome.group.name] += 1
