"""The preempt action: preempts pods of lower priority for groups that fit nowhere.

Right after `allocate` it is a part of each group's attempt, as kube-scheduler's preemption is: what it nominates is
kept from the groups that come later. After other actions (reclaim, say, as in KAI-Scheduler) it goes over what was
refused and has found no other way.
"""

from __future__ import annotations

from collections.abc import Iterator

from session_scheduler.actions.allocate import ask_in_order
from session_scheduler.actions.postfilter import nominate
from session_scheduler.actions.postfilter import preempt as ask
from session_scheduler.framework.answers import Preemption
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.model.groups import Group


def preempt(session: Session) -> Iterator[Decision | None]:
    """Try what was refused, in order. Yields a decision where pods are to end for a group, or end for it no more."""
    if not session.options.preempts_at_once:
        starts = session.nominations.starts
        yield from ask_in_order(
            session,
            lambda result: not any(node and task not in starts for task, node in result.nominated.items()),
            _ask,
        )


def _ask(session: Session, group: Group, result: PlacementResult) -> list[Preemption]:
    """As in a group's try; where no pod ends for it, the nodes that are kept for it for later still are."""
    nominations = session.nominations
    kept = {task: (node, start) for task, start in nominations.starts.items()
            if task.group is group and (node := nominations.node_of(task))}  # fmt: skip
    preemptions = ask(session, group, result)
    for task, (node, start) in kept.items() if not preemptions else ():
        nominate(session, result, task, node, start=start)
    return preemptions
