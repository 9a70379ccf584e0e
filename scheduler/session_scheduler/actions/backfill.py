"""The backfill action: groups that end in time use what is kept for a gang that cannot start yet.

While it is configured, `allocate` keeps nodes for gangs that wait (see `reserving`), and whatever else is placed leaves
that room. Groups of a known duration that `allocate` refused are tried again here without leaving the room of gangs
that start only when they have ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from session_scheduler.actions.allocate import ordered, trying
from session_scheduler.actions.placing import place_group
from session_scheduler.model.durations import known_seconds
from session_scheduler.model.groups import Group
from session_scheduler.outcome import Outcome
from session_scheduler.session import Session
from session_scheduler.statement import Decision


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
    """Whether nodes were looked for in vain, and the group, once begun, ends within so many seconds."""
    if not outcome.refused or any(outcome.nominated.values()):
        return False
    known = [known_seconds(task) for task in outcome.tried]
    return bool(known) and all(one is not None and one <= seconds for one in known)


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
