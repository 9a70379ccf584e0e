"""Placement by plugins (`place_group`): asked, checked task by task, and asked again for what did not stand.

Ports, anti-affinity and spread inside a gang depend on the members placed before, so a plugin's answer is only a
proposal: each of its tasks goes through the filters again. Refused tasks are released, what stands is kept, room is
computed anew and the plugin is asked for the rest, until all stand or no task advances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from session_scheduler.hook_calls import HookCall
from session_scheduler.hookspecs import Refusal
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.groups import Group, Task
from session_scheduler.session import Session
from session_scheduler.statement import Statement


@dataclass(slots=True)
class Answer:
    """How asking ended: why tasks were refused, the summed score of those that stand, the plugin's refusal."""

    refused: dict[Task, str] = field(default_factory=dict)
    score: float = 0.0
    refusal: Refusal | None = None


def has_placers(session: Session) -> bool:
    """Whether any plugin places groups."""
    return bool(session.calls.functions("place_group"))


def ask_plugins(
    session: Session,
    statement: Statement,
    group: Group,
    tasks: Sequence[Task],
    subset: BoolColumn | None,
    assignment: Mapping[Task, int] | None = None,
) -> Answer | None:
    """Keep and ask until every task stands or none advances; None where no plugin has an opinion.

    With an `assignment` the room is exactly its rows.
    """
    answer = Answer()
    left = list(tasks)
    while left:
        room, scores = _room_and_scores(session, left, subset, assignment)
        blocked = {task: session.board(task, subset).why(task) for task in left if not room[task.cls].any()}
        if blocked:
            answer.refused = blocked
            return answer
        call, proposal = _first_answer(session, group, left, room, scores)
        if proposal is None:
            return None if len(left) == len(tasks) else _refused(answer, left, Refusal(f"{len(left)} tasks are left"))
        if isinstance(proposal, Refusal):
            return _refused(answer, left, Refusal(proposal.reason, call.plugin))
        stood = _stand(session, statement, call, proposal, left, subset, answer, room)
        if not stood:
            return _refused(answer, left, Refusal(f"none of {call.plugin}'s placements passed the filters"))
        left = [task for task in left if task not in stood]
    return answer


def _refused(answer: Answer, left: Sequence[Task], refusal: Refusal) -> Answer:
    answer.refusal = refusal
    for task in left:
        answer.refused.setdefault(task, refusal.reason)
    return answer


def _room_and_scores(
    session: Session, tasks: Sequence[Task], subset: BoolColumn | None, assignment: Mapping[Task, int] | None
) -> tuple[dict[TaskClass, IntColumn], dict[TaskClass, IntColumn]]:
    room: dict[TaskClass, IntColumn] = {}
    scores: dict[TaskClass, IntColumn] = {}
    wanted = Counter(task.cls for task in tasks)
    for task in tasks:
        if task.cls in room:
            continue
        board = session.board(task, subset)
        board.sync(task)
        room[task.cls] = board.room(wanted[task.cls])
        scores[task.cls] = board.total.astype(np.int64, copy=True)
    if assignment is not None:
        for cls, column in room.items():
            rows = [row for task, row in assignment.items() if task.cls is cls and task in set(tasks)]
            column[:] = np.bincount(rows, minlength=len(column)) if rows else 0
    return room, scores


def _first_answer(
    session: Session,
    group: Group,
    tasks: Sequence[Task],
    room: Mapping[TaskClass, IntColumn],
    scores: Mapping[TaskClass, IntColumn],
) -> tuple[HookCall, object]:
    for call in session.calls.functions("place_group"):
        answer = call(session, group, tuple(tasks), room, scores)
        if answer is not None:
            return call, answer
    return call, None


def _stand(
    session: Session,
    statement: Statement,
    call: HookCall,
    proposal: object,
    tasks: Sequence[Task],
    subset: BoolColumn | None,
    answer: Answer,
    room: Mapping[TaskClass, IntColumn],
) -> set[Task]:
    """Allocate each proposed task that passes its filters; release the others. Returns those that stand."""
    nodes = getattr(proposal, "nodes", None)
    if not isinstance(nodes, Mapping):
        raise call.wrong(f"{type(proposal).__name__} is no Placement, Refusal or None")
    held = statement.hold(call.plugin, proposal)  # type: ignore[arg-type]
    known = set(tasks)
    if strangers := [task for task in nodes if task not in known]:
        raise call.wrong(f"it placed {strangers[0]!r}, which it was not asked for")
    trusted = len(room) == 1 and not session.plan(tasks[0].cls).any_filters
    on_row: Counter[int] = Counter()
    stood: set[Task] = set()
    refused = []
    for task in tasks:
        name = nodes.get(task)
        if name is None:
            continue
        row = session.table.row_of.get(name, -1)
        board = session.board(task, subset)
        fits = row >= 0 and (on_row[row] < room[task.cls][row] if trusted else board.fits(row, task))
        if not fits:
            refused.append(task)
            continue
        answer.score += float(board.total[row])
        on_row[row] += 1
        statement.allocate(task, row)
        stood.add(task)
    if refused:
        held.release(refused)
    return stood
