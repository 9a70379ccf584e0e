"""The actions of a scheduling cycle. The engine runs the configured ones in order.

An action is a generator function over a session. After each group it yields the group's decision, or None.
"""

from collections.abc import Callable, Iterator, Mapping

from session_scheduler.actions.allocate import allocate
from session_scheduler.actions.backfill import backfill
from session_scheduler.actions.consolidate import consolidate
from session_scheduler.actions.preempt import preempt
from session_scheduler.actions.reclaim import reclaim
from session_scheduler.actions.stale_gangs import evict_stale_gangs
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision

ACTIONS: Mapping[str, Callable[[Session], Iterator[Decision | None]]] = {
    "allocate": allocate,
    "preempt": preempt,
    "backfill": backfill,
    "reclaim": reclaim,
    "consolidate": consolidate,
    "stale-gang-eviction": evict_stale_gangs,
}
