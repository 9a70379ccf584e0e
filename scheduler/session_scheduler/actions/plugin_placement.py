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
from session_scheduler.hookspecs import Placement, Refusal
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.groups import Group, Task, unique_classes
from session_scheduler.session import Session
from session_scheduler.statement import Held, Statement


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
    needed: int = 1,
) -> Answer | None:
    """Keep and ask until every task stands or none advances; None where no plugin has an opinion.

    Tasks for which no node has room are not asked for, and nothing is where fewer than `needed` can stand. With an
    `assignment` the room is exactly its rows.
    """
    answer = Answer()
    assigned = _assigned_rows(session, assignment) if assignment is not None else None
    left = list(tasks)
    while left:
        room, scores = _room_and_scores(session, left, subset, assigned)
        answer.refused = {t: session.board(t, subset).why(t) for t in left if not room[t.cls].any()}
        asked = [task for task in left if task not in answer.refused]
        if not asked or (answer.refused and _too_few(session, tasks, len(tasks) - len(answer.refused), needed)):
            return answer
        call, proposal = _first_answer(session, group, asked, room, scores)
        if proposal is None:
            return None if len(left) == len(tasks) else _refused(answer, asked, Refusal(f"{len(asked)} tasks are left"))
        if isinstance(proposal, Refusal):
            return _refused(answer, asked, call.refusal(proposal))
        stood = _stand(session, statement, call, proposal, asked, subset, answer, room)
        if not stood:
            return _refused(answer, asked, Refusal(f"none of {call.plugin}'s placements passed the filters"))
        if assigned is not None:
            for task in stood:
                assigned[task.cls][task.row] -= (
                    1  # its share of the assignment, whichever of its class was meant for it
                )
        left = [task for task in left if task not in stood]
    return answer


def _too_few(session: Session, tasks: Sequence[Task], possible: int, needed: int) -> bool:
    """Whether the others alone cannot start the group; a filter that looks beyond its row may yet let the rest in."""
    return possible < needed and not any(session.plan(cls).any_filters for cls in unique_classes(tasks))


def _assigned_rows(session: Session, assignment: Mapping[Task, int]) -> dict[TaskClass, IntColumn]:
    rows: dict[TaskClass, IntColumn] = {}
    for task, row in assignment.items():
        if task.cls not in rows:
            rows[task.cls] = np.zeros(session.table.size, np.int64)
        rows[task.cls][row] += 1
    return rows


def _refused(answer: Answer, left: Sequence[Task], refusal: Refusal) -> Answer:
    answer.refusal = refusal
    for task in left:
        answer.refused.setdefault(task, refusal.reason)
    return answer


def _room_and_scores(
    session: Session,
    tasks: Sequence[Task],
    subset: BoolColumn | None,
    assigned: Mapping[TaskClass, IntColumn] | None,
) -> tuple[dict[TaskClass, IntColumn], dict[TaskClass, IntColumn]]:
    room: dict[TaskClass, IntColumn] = {}
    scores: dict[TaskClass, IntColumn] = {}
    for cls, wanted in Counter(task.cls for task in tasks).items():
        task = next(task for task in tasks if task.cls is cls)
        board = session.board(task, subset)
        board.sync(task)
        room[cls] = board.room(wanted) if assigned is None else assigned[cls]
        scores[cls] = board.total.astype(np.int64, copy=True)
    return room, scores


def _first_answer(
    session: Session,
    group: Group,
    tasks: Sequence[Task],
    room: Mapping[TaskClass, IntColumn],
    scores: Mapping[TaskClass, IntColumn],
) -> tuple[HookCall, object]:
    for call in session.calls.functions("place_group"):
        own = {cls: column.copy() for cls, column in room.items()}  # a plugin may count down in it
        answer = call(session, group, tuple(tasks), own, scores)
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
    held, nodes = _take_over(statement, call, proposal)
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
        row = session.table.row_of.get(name) if isinstance(name, str) else None
        if row is None:
            raise call.wrong(f"it placed {task.key} on {name!r}, which is no node")
        board = session.board(task, subset)
        fits = on_row[row] < room[task.cls][row] if trusted else board.fits(row, task)
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


def _take_over(statement: Statement, call: HookCall, proposal: object) -> tuple[Held, dict[Task, str]]:
    """Take the placement over, so that it is undone whatever comes, and read where it put the tasks."""
    if not call.guarded(_is_placement, proposal):
        raise call.wrong(f"{type(proposal).__name__} is no Placement, Refusal or None")
    placement: Placement = proposal  # type: ignore[assignment]
    held = statement.hold(call.plugin, placement)
    return held, call.guarded(lambda: dict(placement.nodes))


def _is_placement(proposal: object) -> bool:
    return all(callable(getattr(proposal, name, None)) for name in ("undo", "redo", "release"))
