"""The backfill action: groups that end in time use what is kept for a gang that cannot start yet.

While it is configured, `allocate` keeps nodes for gangs that wait (see `reserving`), and whatever else is placed leaves
that room. Groups of a known duration that `allocate` refused are tried again here without leaving the room of gangs
that start only when they have ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from session_scheduler.actions.allocate import ordered, trying
from session_scheduler.actions.placing import place_group
from session_scheduler.framework.outcome import Outcome
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision
from session_scheduler.model.durations import known_seconds
from session_scheduler.model.groups import Group, Phase


def backfill(session: Session) -> Iterator[Decision | None]:
    """Try what was refused, in order. Yields a decision where something was placed, else None."""
    starts = session.nominations.starts
    if not starts:
        return
    latest = max(starts.values()) - session.wall
    refused = [group for group, outcome in session.outcomes.items() if _ends_within(outcome, latest)]
    for group in ordered(session, refused):
        if session.expired():
            return
        yield None if group is None else _fill(session, group)


def _ends_within(outcome: Outcome, seconds: float) -> bool:
    """Whether something of a group waits for room, or for what its queue may have, and ends within so many seconds."""
    failed = outcome.refusal is not None and outcome.refusal.failed
    if failed or any(outcome.nominated.values()) or (outcome.placed and not _each_alone(outcome.group)):
        return False
    waits = [task for task in (*outcome.tried, *outcome.over_capacity) if task.phase is Phase.PENDING]
    known = [known_seconds(task) for task in waits]
    return bool(known) and all(one is not None and one <= seconds for one in known)


def _each_alone(group: Group) -> bool:
    """Whether each of its pods stands for itself: the rest can be placed when some were, in the same session."""
    return not group.is_gang and group.topology_key is None


def _fill(session: Session, group: Group) -> Decision | None:
    """As `try_group`, but nobody is asked to end; what `allocate` found out stands where nothing is placed."""
    outcome = Outcome(group)
    with trying(session, outcome), session.statement(group) as statement, session.backfilling():
        place_group(session, statement, group, outcome)
        if outcome.placed:
            outcome.filled_in = True
            mutations = session.bind_annotations(outcome.placed)
            decision = statement.commit()
            decision.mutations = mutations
            outcome.nominated = session.outcomes[group].nominated
            session.outcomes[group] = outcome
            return decision
    if outcome.refusal is not None and outcome.refusal.failed:
        session.outcomes[group] = outcome
    return None
