"""The reclaim action: groups whose queue has less than its share take room from queues that have more than theirs.

It goes after `allocate`, over what that refused. Whose pods may end is for the session's reclaimable callbacks and
reclaim validators to say; which of them, and for which node, is worked out as for preemption. Nothing is reclaimed
where no callback is registered, within a queue, or from groups that are not preemptible.
"""

from __future__ import annotations

from collections.abc import Iterator

from session_scheduler.actions.allocate import ordered, trying
from session_scheduler.actions.preempting import reclaimed
from session_scheduler.model.groups import Group, Phase
from session_scheduler.outcome import Outcome
from session_scheduler.session import Session
from session_scheduler.statement import Decision


def reclaim(session: Session) -> Iterator[Decision | None]:
    """Try what was refused, in order. Yields a decision where pods are to end for a group, else None."""
    if not session.reclaims:
        return
    refused = [group for group, outcome in session.outcomes.items() if waits_for_room(session, outcome)]
    for group in ordered(session, refused):
        if session.expired():
            return
        yield None if group is None else _reclaim_for(session, group, session.outcomes[group])


def waits_for_room(session: Session, outcome: Outcome) -> bool:
    """Whether nodes were looked for in vain, nothing was placed, and nobody ends for it already."""
    if outcome.scheduled or not outcome.tried or outcome.placed or outcome.over_capacity:
        return False
    if outcome.refusal is not None and outcome.refusal.failed:
        return False
    return not any(session.nominations.node_of(task) for task in outcome.tried)


def _reclaim_for(session: Session, group: Group, outcome: Outcome) -> Decision | None:
    with trying(session, outcome), session.statement(group) as statement:
        preemptions = reclaimed(session, group, outcome)
        if preemptions:
            decision = statement.commit()
            decision.preemptions = preemptions
            decision.nominated = {task: node for task, node in outcome.nominated.items() if task.phase is Phase.PENDING}
            session.to_end.clear()  # who carries it out knows from now on
            return decision
    return None
