"""The stale-gang-eviction action: evicts what is left of a gang that lost members it needs, so that it starts again.

Which gangs these are the snapshot says (`state.stale_gangs`): those that are short of members for too long. The members
count where they are until they have ended; what is pending of the gang waits for that.
"""

from __future__ import annotations

from collections.abc import Iterator

from session_scheduler.actions.allocate import trying
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.model.groups import Group, Phase


def evict_stale_gangs(session: Session) -> Iterator[Decision | None]:
    """Evict each stale gang. Yields a decision where members are to end, else None."""
    for group in session.snapshot.stale:
        yield _evicted(session, group)


def _evicted(session: Session, group: Group) -> Decision | None:
    """The decision to end what runs of a group, unless it was placed meanwhile or a plugin fails on it."""
    running = {task: task.node or "" for task in sorted(group.in_phase(Phase.BOUND), key=lambda task: task.uid)}
    if not running or group.in_phase(Phase.ASSUMED):
        return None
    result = PlacementResult(group)
    with trying(session, result) as statement:
        for task in running:
            statement.evict(task)
        statement.rollback()  # they are there until they have ended
        return Decision(group, evicted=running)
    return None
