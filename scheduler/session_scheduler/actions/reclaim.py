"""The reclaim action: groups whose queue has less than its share take room from queues that have more than theirs.

It goes after `allocate`, over what that refused. Which pods may end is for the session's reclaimable callbacks and
reclaim validators to say; which of them, and for which node, is worked out as for preemption. Nothing is reclaimed
where no callback is registered, within a queue, or from groups that are not preemptible.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from session_scheduler.actions.allocate import ask_in_order, waits_for_nodes
from session_scheduler.actions.postfilter import reclaimed
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision, PlacementResult


def reclaim(session: Session) -> Iterator[Decision | None]:
    """Try what was refused, in order. Yields a decision where pods are to end for a group, else None."""
    if session.runner.reclaims:
        yield from ask_in_order(session, partial(_waits_for_share, session), reclaimed)


def _waits_for_share(session: Session, result: PlacementResult) -> bool:
    """As `waits_for_nodes`; or a limit was in the way, and no pod ends for it already."""
    if not result.over_capacity:
        return waits_for_nodes(session, result)
    return not any(session.nominations.node_of(task) for task in (*result.tried, *result.over_capacity))
