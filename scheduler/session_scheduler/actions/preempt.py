"""The preempt action: groups that nothing takes have pods of lower priority end for them.

Right after `allocate` it is a part of each group's try, as kube-scheduler's preemption is: what it nominates is kept
from the groups that come later. After other actions (reclaim, say, as in KAI-Scheduler) it goes over what was refused
and has found no other way.
"""

from __future__ import annotations

from collections.abc import Iterator

from session_scheduler.actions.preempting import preempt as ask
from session_scheduler.actions.refused import ask_in_order
from session_scheduler.session import Session
from session_scheduler.statement import Decision


def preempt(session: Session) -> Iterator[Decision | None]:
    """Try what was refused, in order. Yields a decision where pods are to end for a group, or end for it no more."""
    if not session.options.preempts_at_once:
        yield from ask_in_order(session, lambda outcome: not any(outcome.nominated.values()), ask)
