"""The stale-gang-eviction action: evicts the running pods of a gang that lost required members, so that it restarts.

`state.stale_gangs` finds the gangs that have been below their minimum for too long, and the snapshot lists them. A
member uses its node until it has terminated; the gang's pending pods wait for that.
"""

from __future__ import annotations

from collections.abc import Iterator

from session_scheduler.actions.allocate import attempt_statement
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.model.groups import Group, Phase


def evict_stale_gangs(session: Session) -> Iterator[Decision | None]:
    """Evict each stale gang. Yields the decision to evict its members, or None."""
    for group in session.snapshot.stale:
        yield _evict(session, group)


def _evict(session: Session, group: Group) -> Decision | None:
    """The decision to evict a group's running pods; None if its pods were placed in the meantime or a plugin fails."""
    running = {task: task.node or "" for task in sorted(group.in_phase(Phase.BOUND), key=lambda task: task.uid)}
    if not running or group.in_phase(Phase.ASSUMED):
        return None
    result = PlacementResult(group)
    with attempt_statement(session, result) as statement:
        for task in running:
            statement.evict(task)
        statement.rollback()  # the pods use their nodes until they have terminated
        return Decision(group, evicted=running)
    return None
