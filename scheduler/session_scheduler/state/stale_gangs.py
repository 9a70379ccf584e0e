"""Stale gangs: running gangs that have lost members that they need, and since when.

A member that succeeded is not lost. Only losses that the scheduler observes count: after a restart it leaves a gang
that lacks members alone until the gang loses another one. The action `stale-gang-eviction` evicts stale gangs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from session_scheduler.model.groups import Group, Phase, Task

_RUNNING: Final = (Phase.ASSUMED, Phase.BOUND, Phase.RELEASING)


class StaleGangs:
    """The stale gangs of one cache. Single pods and groups without a minimum cost nothing."""

    def __init__(self) -> None:
        self._succeeded: dict[str, dict[str, str]] = {}
        """By group (key) and pod (uid): the sub-group of each pod that succeeded, at most `needed` per sub-group."""
        self._since: dict[str, float] = {}

    def succeeded(self, group: str, uid: str, needed: int, sub_group: str = "") -> None:
        """Record that a pod of a group (its key) has succeeded. `needed` is the minimum of the group.

        Further calls for the same pod have no effect.
        """
        known = self._succeeded.setdefault(group, {})
        if sum(name == sub_group for name in known.values()) < needed:
            known[uid] = sub_group

    def lost(self, task: Task, now: float) -> None:
        """Record that a group has just lost this task, which was running and has not succeeded."""
        group = task.group
        if self._short(group) > 0 and (group.key not in self._since or self._short(group, (task,)) <= 0):
            self._since[group.key] = now  # with the task the group was complete, so an earlier loss is over

    def forget(self, group: str) -> None:
        """Forget a group (its key) without pods: new pods under its name are a new start."""
        self._succeeded.pop(group, None)
        self._since.pop(group, None)

    def due(self, groups: dict[str, Group], now: float, seconds: float) -> Iterator[Group]:
        """The gangs that have lacked members for `seconds`.

        It forgets gangs that are complete again, or no longer run.
        """
        for key in list(self._since):
            group = groups.get(key)
            if group is None or self._short(group) <= 0 or not group.in_phase(*_RUNNING):
                del self._since[key]
            elif self._since[key] + seconds <= now:  # the same expression as in `next_after`, for equal rounding
                yield group

    def next_after(self, now: float, seconds: float) -> float | None:
        """When the next gang that is not due yet becomes due; None if there is none."""
        return min((since + seconds for since in self._since.values() if since + seconds > now), default=None)

    def _short(self, group: Group, beside: Sequence[Task] = ()) -> int:
        """How many members a gang lacks besides those that run or have succeeded."""
        running = [*group.in_phase(*_RUNNING), *beside]
        done = Counter(self._succeeded.get(group.key, {}).values())
        short = group.min_count - len(running) - done.total()
        if not group.minima:
            return short
        return max(short, sum(max(0, count - done[name]) for name, count in group.short_of(running).items()))
