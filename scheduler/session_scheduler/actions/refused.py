"""What the actions share that go over the groups that `allocate` refused: they ask which pods may end for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from session_scheduler.actions.allocate import ordered, trying
from session_scheduler.framework.answers import Preemption
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.model.groups import Group, Phase

Ask = Callable[[Session, Group, PlacementResult], list[Preemption]]
"""Finds which pods may end for what of a group was refused, and nominates; the result says what came of it."""


def ask_in_order(session: Session, wanted: Callable[[PlacementResult], bool], ask: Ask) -> Iterator[Decision | None]:
    """Ask for each refused group whose result is `wanted`, in order. Yields a decision where pods are to end."""
    refused = [group for group, result in session.outcomes.items() if result.refused and wanted(result)]
    for group in ordered(session, refused):
        yield None if group is None else _asked(session, group, session.outcomes[group], ask)


def waits_for_room(session: Session, result: PlacementResult) -> bool:
    """Whether nodes were looked for in vain, and no pod ends for it already; nodes may be kept for it for later."""
    if not result.refused or not result.tried or result.over_capacity:
        return False
    known, starts = session.nominations, session.nominations.starts
    return not any(known.node_of(task) and task not in starts for task in result.tried)


def _asked(session: Session, group: Group, result: PlacementResult, ask: Ask) -> Decision | None:
    with trying(session, result) as statement:
        before = dict(result.nominated)
        preemptions = ask(session, group, result)
        if preemptions or result.nominated != before:
            new = {task: node for task, node in result.nominated.items() if before.get(task) != node}
            pending = {task: node for task, node in new.items() if task.phase is Phase.PENDING}
            return statement.commit(preemptions=preemptions, nominated=pending)
    return None
