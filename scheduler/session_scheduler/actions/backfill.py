"""The backfill action: places short groups on nodes that are reserved for a gang, if they end before the gang starts.

While it is configured, `allocate` reserves nodes for gangs that cannot start yet (see `reserving`), and other groups
leave that capacity free. This action retries the rejected groups of known duration. They may use the capacity of
gangs that start after their end.
"""

from __future__ import annotations

from collections.abc import Iterator

from session_scheduler.actions.allocate import attempt_statement, revisited
from session_scheduler.actions.placing import place_group
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.model.durations import known_seconds
from session_scheduler.model.groups import Group, Phase


def backfill(session: Session) -> Iterator[Decision | None]:
    """Retry the rejected groups in order. Yields a decision if pods are placed, else None."""
    starts = session.nominations.starts
    if not starts:
        return
    latest = max(starts.values()) - session.wall
    refused = [group for group, result in session.outcomes.items() if _ends_within(result, latest)]
    for group in revisited(session, refused):
        yield None if group is None else _fill(session, group)


def _ends_within(result: PlacementResult, seconds: float) -> bool:
    """Whether pods of a group wait for nodes or for their queue's quota, and all end within this many seconds."""
    failed = result.refusal is not None and result.refusal.failed
    together = result.group.is_gang or result.group.topology_key is not None  # else the rest can follow later
    if failed or any(result.nominated.values()) or (result.placed and together):
        return False
    waits = [task for task in (*result.tried, *result.over_capacity) if task.phase is Phase.PENDING]
    known = [known_seconds(task) for task in waits]
    return bool(known) and all(one is not None and one <= seconds for one in known)


def _fill(session: Session, group: Group) -> Decision | None:
    """Like `try_group`, without preemption. If nothing is placed, the result of `allocate` stays."""
    result = PlacementResult(group)
    with attempt_statement(session, result) as statement, session.nominated.backfilling():
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
