"""What actions have in common that go over what `allocate` refused: they ask whose end would make room."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from session_scheduler.actions.allocate import ordered, trying
from session_scheduler.framework.answers import Preemption
from session_scheduler.framework.outcome import Outcome
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision
from session_scheduler.model.groups import Group, Phase

Ask = Callable[[Session, Group, Outcome], list[Preemption]]
"""Finds who may end for what of a group was refused, and nominates; the outcome says what came of it."""


def ask_in_order(session: Session, wanted: Callable[[Outcome], bool], ask: Ask) -> Iterator[Decision | None]:
    """Ask for each refused group whose outcome is `wanted`, in order. Yields a decision where pods are to end."""
    refused = [group for group, outcome in session.outcomes.items() if outcome.refused and wanted(outcome)]
    for group in ordered(session, refused):
        if session.expired():
            return
        yield None if group is None else _asked(session, group, session.outcomes[group], ask)


def waits_for_room(session: Session, outcome: Outcome) -> bool:
    """Whether nodes were looked for in vain, and nobody ends for it already; nodes may be kept for it for later."""
    if not outcome.refused or not outcome.tried or outcome.over_capacity:
        return False
    known, starts = session.nominations, session.nominations.starts
    return not any(known.node_of(task) and task not in starts for task in outcome.tried)


def _asked(session: Session, group: Group, outcome: Outcome, ask: Ask) -> Decision | None:
    with trying(session, outcome), session.statement(group) as statement:
        before = dict(outcome.nominated)
        preemptions = ask(session, group, outcome)
        if preemptions or outcome.nominated != before:
            decision = statement.commit()
            decision.preemptions = preemptions
            new = {task: node for task, node in outcome.nominated.items() if before.get(task) != node}
            decision.nominated = {task: node for task, node in new.items() if task.phase is Phase.PENDING}
            session.to_end.clear()  # who carries it out knows from now on
            return decision
    return None
