"""Stale gangs: those that ran whole and lost members that they need, and since when.

A member that succeeded is not lost: it has done its part. Only what is seen to be lost counts: after a restart of the
scheduler a gang that is short of members is left alone until it loses another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from session_scheduler.model.groups import Group, Phase, Task

_RUNNING: Final = (Phase.ASSUMED, Phase.BOUND, Phase.RELEASING)


class StaleGangs:
    """Of one cache. Costs nothing for pods alone and groups without a minimum."""

    def __init__(self) -> None:
        self._succeeded: dict[str, dict[str, str]] = {}
        """By group (key): its pods (uids) that succeeded, with their sub-groups; of each at most as many as the group
        needs."""
        self._since: dict[str, float] = {}

    def succeeded(self, group: str, uid: str, needed: int, sub_group: str = "") -> None:
        """A pod of a group (its key), which needs so many, has succeeded; said once or several times."""
        known = self._succeeded.setdefault(group, {})
        if sum(name == sub_group for name in known.values()) < needed:
            known[uid] = sub_group

    def lost(self, task: Task, now: float) -> None:
        """A task's group has just lost it: it ran and has not succeeded."""
        group = task.group
        if self._short(group) > 0 and (group.key not in self._since or self._short(group, (task,)) <= 0):
            self._since[group.key] = now  # it was whole before, whatever is known of an earlier loss

    def forget(self, group: str) -> None:
        """A group (its key) has no pods any more: what comes by its name is another start."""
        self._succeeded.pop(group, None)
        self._since.pop(group, None)

    def due(self, groups: dict[str, Group], now: float, seconds: float) -> Iterator[Group]:
        """Those that have been short of members for so long. Who is whole again, or runs no more, is forgotten."""
        for key in list(self._since):
            group = groups.get(key)
            if group is None or self._short(group) <= 0 or not group.in_phase(*_RUNNING):
                del self._since[key]
            elif self._since[key] + seconds <= now:  # as `next_after` reckons, to the last digit
                yield group

    def next_after(self, now: float, seconds: float) -> float | None:
        """When one will have been short for so long next, of those that are not due yet."""
        return min((since + seconds for since in self._since.values() if since + seconds > now), default=None)

    def _short(self, group: Group, beside: Sequence[Task] = ()) -> int:
        """How many members a gang lacks beside those that run and those that succeeded."""
        running = [*group.in_phase(*_RUNNING), *beside]
        done = Counter(self._succeeded.get(group.key, {}).values())
        short = group.min_count - len(running) - done.total()
        if not group.minima:
            return short
        return max(short, sum(max(0, count - done[name]) for name, count in group.short_of(running).items()))
