"""The groups that one session retries because capacity was freed: the session takes them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from session_scheduler.model.groups import Group
from session_scheduler.state.cache import Cache
from session_scheduler.state.freed_capacity import FittingGroups
from session_scheduler.state.scheduling_queue import SchedulingQueue


@dataclass(eq=False, repr=False)
class FreedRetries:
    """Requeues the groups that may fit freed capacity when the session takes them."""

    fitting: FittingGroups
    queue: SchedulingQueue
    cache: Cache
    now: float
    may_be_attempted: Callable[[Group], bool]

    def queues(self) -> Iterable[str]:
        """The queues that may have such groups."""
        return self.fitting.queues()

    def first(self, queue: str) -> tuple[Any, ...] | None:
        """The sort key of a queue's next group; None if no other group may fit now."""
        return self.fitting.first(queue)

    def take(self, queue: str) -> Group | None:
        """Requeue the group that `first` has found. None if it is gated now, or has work in flight."""
        key = self.queue.requeue_next(self.fitting, queue)
        group = self.cache.groups.get(key)
        if group is None or not self.cache.recheck_gates(group) or not self.may_be_attempted(group):
            return None
        self.queue.begin((key,))
        group.attempted = self.now
        return group
