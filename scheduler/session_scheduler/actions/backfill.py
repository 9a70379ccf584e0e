"""The backfill action: groups that end in time use what is kept for a gang that cannot start yet.

While it is configured, `allocate` keeps nodes for gangs that wait (see `reserving`), and whatever else is placed leaves
that room. Groups of a known duration that `allocate` refused are tried again here without leaving the room of gangs
that start only when they have ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from session_scheduler.actions.allocate import ordered, trying
from session_scheduler.actions.placing import place_group
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.model.durations import known_seconds
from session_scheduler.model.groups import Group, Phase


def backfill(session: Session) -> Iterator[Decision | None]:
    """Try what was refused, in order. Yields a decision where something was placed, else None."""
    starts = session.nominations.starts
    if not starts:
        return
    latest = max(starts.values()) - session.wall
    refused = [group for group, result in session.outcomes.items() if _ends_within(result, latest)]
    for group in ordered(session, refused):
        yield None if group is None else _fill(session, group)


def _ends_within(result: PlacementResult, seconds: float) -> bool:
    """Whether something of a group waits for room, or for what its queue may have, and ends within so many seconds."""
    failed = result.refusal is not None and result.refusal.failed
    together = result.group.is_gang or result.group.topology_key is not None  # else the rest can be placed later
    if failed or any(result.nominated.values()) or (result.placed and together):
        return False
    waits = [task for task in (*result.tried, *result.over_capacity) if task.phase is Phase.PENDING]
    known = [known_seconds(task) for task in waits]
    return bool(known) and all(one is not None and one <= seconds for one in known)


def _fill(session: Session, group: Group) -> Decision | None:
    """As `try_group`, but no pod is preempted; what `allocate` found out stands where nothing is placed."""
    result = PlacementResult(group)
    with trying(session, result) as statement, session.nominated.backfilling():
        place_group(session, statement, group, result)
        if result.placed:
            result.filled_in = True
            decision = statement.commit(session.runner.bind_annotations(result.placed))
            result.nominated = session.outcomes[group].nominated
            session.outcomes[group] = result
            return decision
    if result.refusal is not None and result.refusal.failed:
        session.outcomes[group] = result
    return None
