"""The reclaim action: evicts pods of queues above their share for groups of queues below theirs.

It runs after `allocate`, over the rejected groups. The session's reclaimable callbacks and reclaim validators decide
which pods are eligible; victims and nodes are chosen as for preemption. Without a callback, within one queue and from
non-preemptible groups it reclaims nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from session_scheduler.actions.allocate import revisit, waits_for_nodes
from session_scheduler.actions.postfilter import reclaim_share
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision, PlacementResult


def reclaim(session: Session) -> Iterator[Decision | None]:
    """Visit the rejected groups in order. Yields a decision if a group gets victims, else None."""
    if session.runner.reclaims:
        yield from revisit(session, partial(_waits_for_share, session), reclaim_share)


def _waits_for_share(session: Session, result: PlacementResult) -> bool:
    """Whether the group waits for nodes, or exceeds a limit and waits for no victims."""
    if not result.over_capacity:
        return waits_for_nodes(session, result)
    return not any(session.nominations.node_of(task) for task in (*result.tried, *result.over_capacity))
