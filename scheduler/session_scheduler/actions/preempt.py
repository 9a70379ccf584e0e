"""The preempt action: evicts pods of lower priority for groups that fit on no node.

Configured right after `allocate`, it is a part of each group's attempt, as in kube-scheduler: later groups in the cycle
respect its nominations. Configured after other actions, as in KAI-Scheduler, it visits the groups that are still
rejected.
"""

from __future__ import annotations

from collections.abc import Iterator

from session_scheduler.actions.allocate import revisit
from session_scheduler.actions.postfilter import nominate
from session_scheduler.actions.postfilter import preempt as find_victims
from session_scheduler.framework.answers import Preemption
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.model.groups import Group


def preempt(session: Session) -> Iterator[Decision | None]:
    """Visit the rejected groups in order. Yields a decision if a group gets victims or its nominations change."""
    if not session.options.preempts_at_once:
        starts = session.nominations.starts
        yield from revisit(
            session,
            lambda result: not any(node and task not in starts for task, node in result.nominated.items()),
            _preempt_or_keep_reservation,
        )


def _preempt_or_keep_reservation(session: Session, group: Group, result: PlacementResult) -> list[Preemption]:
    """Preempt as in a group's attempt. Without victims, the group keeps the nodes that are reserved for it."""
    nominations = session.nominations
    kept = {task: (node, start) for task, start in nominations.starts.items()
            if task.group is group and (node := nominations.node_of(task))}  # fmt: skip
    preemptions = find_victims(session, group, result)
    for task, (node, start) in kept.items() if not preemptions else ():
        nominate(session, result, task, node, start=start)
    return preemptions
