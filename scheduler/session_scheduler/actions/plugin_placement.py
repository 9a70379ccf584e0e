"""Placement by plugins (`place_group`): asked, checked task by task, and asked again for what did not stand.

Ports, anti-affinity and spread inside a gang depend on the members placed before, so a plugin's answer is only a
proposal: each of its tasks goes through the filters again. Refused tasks are released, what stands is kept, room is
computed anew and the plugin is asked for the rest, until all stand or no task advances.
"""

from __future__ import annotations

import heapq
import operator
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from session_scheduler.framework.answers import Placement
from session_scheduler.framework.board import Board
from session_scheduler.framework.hooks import HookCall
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Held, Statement
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.groups import Group, Task, unique_classes
from session_scheduler.model.refusals import Refusal


@dataclass(slots=True)
class Answer:
    """How asking ended: why tasks were refused, the summed score of those that stand, the plugin's refusal."""

    refused: dict[Task, str] = field(default_factory=dict)
    score: float = 0.0
    refusal: Refusal | None = None


_Proposal = tuple[HookCall, object, Sequence[Task]]
"""Who proposed, what, and for which tasks."""


def has_placers(session: Session) -> bool:
    """Whether any plugin places groups."""
    return bool(session.calls.functions("place_group"))


def reserve_best(
    session: Session,
    statement: Statement,
    task: Task,
    subset: BoolColumn | None,
    expected: int,
    assigned: int | None = None,
) -> Answer | None:
    """Put a task on its best node, where the plugins that place groups can take its share of it; None: they are asked.

    `expected`: how many tasks of the class will follow, a hint. With `assigned` it is that row or none.
    """
    calls = session.calls.functions("reserve")
    if {call.plugin for call in calls} != {call.plugin for call in session.calls.functions("place_group")}:
        return None
    board = session.board(task, subset)
    row = board.pick(task, expected) if assigned is None else assigned
    if row < 0 or (assigned is not None and not board.fits(row, task)):
        return None
    for call in calls:
        proposal = call(session, task, session.node_at(row))
        if proposal is None:
            continue
        if isinstance(proposal, Refusal):
            return None
        _, nodes = _take_over(statement, call, proposal)
        if nodes != {task: session.node_at(row)}:
            raise call.wrong(f"it placed {nodes!r} in place of {task.key} on {session.node_at(row)!r}")
        answer = Answer(score=float(board.total[row]))
        statement.allocate(task, row)
        if assigned is None:
            board.took(row)
        return answer
    return None


def tells_of_each_node(session: Session, task: Task) -> bool:
    """Whether `reservable_on` and the filters say of each node, by what is there alone, whether a task of this class
    could be placed there.
    """
    placers, calls = session.calls.functions("place_group"), session.calls.functions("reservable")
    if not placers or not calls or placers[0].plugin != calls[0].plugin:
        return False
    unfollowed = not session.trial_followers <= {call.plugin for call in calls}
    if unfollowed or session.plan_for(task).any_filters:
        return False
    return calls[0](session, task, (), ()) is not None


def reservable_on(session: Session, task: Task, nodes: Sequence[str], gone: Container[Task]) -> Sequence[str | None]:
    """Of each node why the plugin that places groups would not take a task's share there if some running tasks were
    gone; None where it would. Only where `tells_of_each_node`. Raises PluginError.
    """
    call = session.calls.functions("reservable")[0]
    answer = call(session, task, nodes, gone)
    if not isinstance(answer, list | tuple) or len(answer) != len(nodes) or not all(map(_is_reason, answer)):
        raise call.wrong(f"it returned no reason or None for each of {len(nodes)} nodes")
    found: Sequence[str | None] = answer
    return found


def _is_reason(answer: object) -> bool:
    return answer is None or isinstance(answer, str)


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
        answer.refused = {t: _why(session, t, subset) for t in left if not room[t.cls].any()}
        asked = [task for task in left if task not in answer.refused]
        if not asked or (answer.refused and _too_few(session, tasks, answer.refused, needed)):
            return answer
        if assigned is None:
            stood = _ask_by_quota(session, statement, group, asked, subset, answer, room, scores)
            if stood:
                left = [task for task in left if task not in stood]
                continue
        call, proposal = _first_answer(session, group, asked, room, scores)
        if proposal is None:
            _note(session, call, asked)
            return None if len(left) == len(tasks) else _refused(answer, asked, Refusal(f"{len(asked)} tasks are left"))
        if isinstance(proposal, Refusal):
            _note(session, call, asked)
            return _refused(answer, asked, call.refusal(proposal))
        stood = _stand(session, statement, [(call, proposal, asked)], subset, answer, room)
        if not stood:
            _note(session, call, asked)
            refusal = Refusal(f"none of {call.plugin}'s placements passed the filters", call.plugin)
            return _refused(answer, asked, refusal)
        if assigned is not None:
            for task in stood:
                assigned[task.cls][task.row] -= (
                    1  # its share of the assignment, whichever of its class was meant for it
                )
        left = [task for task in left if task not in stood]
    return answer


def _ask_by_quota(
    session: Session,
    statement: Statement,
    group: Group,
    tasks: Sequence[Task],
    subset: BoolColumn | None,
    answer: Answer,
    room: Mapping[TaskClass, IntColumn],
    scores: Mapping[TaskClass, IntColumn],
) -> set[Task]:
    """Ask for the share of one domain after the other, where a plugin says what these are.

    What was proposed is checked in turns when all is there: a spread holds at every step. Returns the tasks that stand.
    """
    proposals: list[_Proposal] = []
    cls = tasks[0].cls
    quotas = _quotas(session, cls, len(tasks)) if len(room) == 1 and session.plan(cls).any_filters else ()
    begin = 0
    for mask, share in quotas:
        part, begin = tasks[begin : begin + share], begin + share
        there = {cls: np.where(mask, room[cls], 0)}
        if not part or not there[cls].any():
            continue
        call, proposal = _first_answer(session, group, part, there, scores)
        if proposal is not None and not isinstance(proposal, Refusal):
            proposals.append((call, proposal, part))
    return _stand(session, statement, proposals, subset, answer, room)


def _quotas(session: Session, cls: TaskClass, count: int) -> Sequence[tuple[BoolColumn, int]]:
    """The first answer of `domain_quota`; none where no plugin has one."""
    for call in session.calls.functions("domain_quota"):
        found = call(session, cls, count)
        if found is not None:
            quotas: list[tuple[BoolColumn, int]] = call.guarded(_as_quotas, found)
            size = (session.table.size,)
            if any(mask.shape != size or mask.dtype != np.bool_ or share < 0 for mask, share in quotas):
                raise call.wrong(f"a quota is no mask of bools over all {size[0]} rows with a whole number")
            return quotas
    return ()


def _as_quotas(answer: Any) -> list[tuple[BoolColumn, int]]:
    return [(np.asarray(mask), operator.index(share)) for mask, share in answer]


def _why(session: Session, task: Task, subset: BoolColumn | None) -> str:
    return session.board(task, subset).why(task) if session.reasons_wanted else ""


def _note(session: Session, call: HookCall, tasks: Sequence[Task]) -> None:
    """Whoever is refused here is so by the plugin, or by a filter on a node that the plugin would have taken."""
    for task in tasks:
        session.note_rejected(task, session.filters_of(task.cls) | {call.plugin})


def _too_few(session: Session, tasks: Sequence[Task], refused: Mapping[Task, str], needed: int) -> bool:
    """Whether the others alone cannot start the group; a filter that looks beyond its row may yet let the rest in."""
    enough = len(tasks) - len(refused) >= needed
    if enough and needed > 1 and (lacks := tasks[0].group.lacks):
        possible = Counter(task.sub_group for task in tasks if task.node is None and task not in refused)
        enough = all(possible[name] >= count for name, count in lacks.items())
    return not enough and not any(session.plan(cls).any_filters for cls in unique_classes(tasks))


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
        room[cls] = _room(session, board, cls, wanted, assigned)
        scores[cls] = board.total.astype(np.int64, copy=True)
    return room, scores


def _room(
    session: Session, board: Board, cls: TaskClass, wanted: int, assigned: Mapping[TaskClass, IntColumn] | None
) -> IntColumn:
    """How many tasks of a class each row takes; of its assignment what fits now: where somebody was nominated there may
    be no room yet. Filters that look beyond a row are asked task by task, where one may let the next one in.
    """
    if assigned is None:
        return board.room(wanted)
    return assigned[cls] if session.plan(cls).any_filters else np.minimum(assigned[cls], board.room(wanted))


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
    proposals: Sequence[_Proposal],
    subset: BoolColumn | None,
    answer: Answer,
    room: Mapping[TaskClass, IntColumn],
) -> set[Task]:
    """Allocate each proposed task that passes its filters; release the others. Returns those that stand."""
    taken = [(call, *_take_over(statement, call, proposal), tasks) for call, proposal, tasks in proposals]
    for call, _, nodes, tasks in taken:
        known = set(tasks)
        if strangers := [task for task in nodes if task not in known]:
            raise call.wrong(f"it placed {strangers[0]!r}, which it was not asked for")
    trusted = len(room) == 1 and not session.plan(next(iter(room))).any_filters
    on_row: Counter[int] = Counter()
    stood: set[Task] = set()
    refused: dict[int, list[Task]] = {}
    for number, task in _in_turns([tasks for _, _, _, tasks in taken]):
        call, _, nodes, _ = taken[number]
        name = nodes.get(task)
        if name is None:
            continue
        row = session.table.row_of.get(name) if isinstance(name, str) else None
        if row is None:
            raise call.wrong(f"it placed {task.key} on {name!r}, which is no node")
        board = session.board(task, subset)
        fits = on_row[row] < room[task.cls][row] if trusted else board.fits(row, task)
        if not fits:
            refused.setdefault(number, []).append(task)
            continue
        answer.score += float(board.total[row])
        on_row[row] += 1
        statement.allocate(task, row)
        stood.add(task)
    for number, tasks in refused.items():
        taken[number][1].release(tasks)
    return stood


def _in_turns(shares: Sequence[Sequence[Task]]) -> Iterator[tuple[int, Task]]:
    """(number of the share, task): always of the share of which most is left, so that domains fill evenly."""
    left = [(-len(tasks), number) for number, tasks in enumerate(shares) if tasks]
    heapq.heapify(left)
    while left:
        count, number = left[0]
        yield number, shares[number][count]
        if count + 1:
            heapq.heapreplace(left, (count + 1, number))
        else:
            heapq.heappop(left)


def _take_over(statement: Statement, call: HookCall, proposal: object) -> tuple[Held, dict[Task, str]]:
    """Take the placement over, so that it is undone whatever comes, and read where it put the tasks."""
    if not call.guarded(_is_placement, proposal):
        raise call.wrong(f"{type(proposal).__name__} is no Placement, Refusal or None")
    placement: Placement = proposal  # type: ignore[assignment]
    held = statement.hold(call.plugin, placement)
    return held, call.guarded(lambda: dict(placement.nodes))


def _is_placement(proposal: object) -> bool:
    return all(callable(getattr(proposal, name, None)) for name in ("undo", "redo", "release"))
