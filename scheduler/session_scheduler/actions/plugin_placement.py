"""Placement by plugins: calls `place_group` and `reserve`, and checks the proposals task by task.

Ports, anti-affinity and spread inside a gang depend on the members placed before, so a plugin's answer is only a
proposal. Each task passes its filters again and is placed, or is rejected and released. Then the free capacity is
computed again and the plugin is asked for the rejected tasks, until all are placed or none advances. `placing` tries
this before it places task by task; trials use `reservable_on`.
"""

from __future__ import annotations

import heapq
import operator
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from session_scheduler.actions.request import PlacementRequest
from session_scheduler.framework.answers import Placement
from session_scheduler.framework.hooks import HookCall
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Held, PlacementResult, Statement
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.groups import Task, unique_classes
from session_scheduler.model.refusals import Refusal

Columns = Mapping[TaskClass, IntColumn]
"""By class: a number for each row."""
_Proposal = tuple[HookCall, object, Sequence[Task]]
"""The plugin's hook, its proposal, and the tasks it is for."""


def reserve_best(request: PlacementRequest) -> PlacementResult | None:
    """Place the single task on its best node, or its assigned row, if the plugins that place groups can reserve its
    share there. None: call `ask_plugins` instead.
    """
    session, (task,) = request.session, request.tasks
    calls = session.calls.functions("reserve")
    if {call.plugin for call in calls} != {call.plugin for call in session.calls.functions("place_group")}:
        return None
    assigned = request.assignment[task] if request.assignment is not None else None
    board = session.evaluator.board(task, request.subset)
    row = board.pick(task, request.expected) if assigned is None else assigned
    if row < 0 or (assigned is not None and not board.fits(row, task)):
        return None
    node = session.ledger.node_at(row)
    for call in calls:
        proposal = call(session, task, node)
        if proposal is None:
            continue
        if isinstance(proposal, Refusal):
            return None
        _, nodes = _hold(request.statement, call, proposal)
        if nodes != {task: node}:
            raise call.wrong(f"expected a placement of {task.key} on {node!r}, got {nodes!r}")
        score = float(board.total[row])
        request.statement.allocate(task, row)
        if assigned is None:
            board.took(row)
        return PlacementResult(request.group, score=score)
    return None


def answers_by_node(session: Session, task: Task) -> bool:
    """Whether `reservable_on` and the filters decide for each node alone whether a task of this class fits there."""
    placers, calls = session.calls.functions("place_group"), session.calls.functions("reservable")
    if not placers or not calls or placers[0].plugin != calls[0].plugin:
        return False
    unfollowed = not session.registered.trial_followers <= {call.plugin for call in calls}
    if unfollowed or session.evaluator.evaluation_for(task).any_filters:
        return False
    return calls[0](session, task, (), ()) is not None


def reservable_on(session: Session, task: Task, nodes: Sequence[str], gone: Container[Task]) -> Sequence[str | None]:
    """For each node, why the plugin that places groups could not reserve a task's share there without the running tasks
    in `gone`; None if it could. Requires `answers_by_node`. Raises PluginError.
    """
    call = session.calls.functions("reservable")[0]
    answer = call(session, task, nodes, gone)
    has_reasons = isinstance(answer, list | tuple) and all(isinstance(one, str | None) for one in answer)
    if not has_reasons or len(answer) != len(nodes):
        raise call.wrong(f"expected a list with a reason or None for each of {len(nodes)} nodes")
    found: Sequence[str | None] = answer
    return found


def ask_plugins(request: PlacementRequest) -> PlacementResult | None:
    """Call `place_group` until every task is placed or none advances; None if no plugin answers.

    It skips tasks that fit on no node, and skips all if too few are left to start the group. With an `assignment` the
    capacity is that of its rows only.
    """
    session, tasks = request.session, request.tasks
    result = PlacementResult(request.group)
    assigned = _assigned_rows(session, request.assignment) if request.assignment is not None else None
    if len(tasks) == 1 and assigned is None and not session.evaluator.synced_board(tasks[0], request.subset).mask.any():
        result.reasons = {tasks[0]: _why(request, tasks[0])}
        return result
    left = list(tasks)
    while left:
        capacity, scores = _capacity_and_scores(request, left, assigned)
        result.reasons = {t: _why(request, t) for t in left if not capacity[t.cls].any()}
        asked = [task for task in left if task not in result.reasons]
        if not asked or (result.reasons and _too_few(request, result.reasons)):
            return result
        if assigned is None:
            placed = _ask_by_quota(replace(request, tasks=asked), result, capacity, scores)
            if placed:
                left = [task for task in left if task not in placed]
                continue
        call, proposal = _first_answer(replace(request, tasks=asked), capacity, scores)
        if proposal is None:
            _note_rejected(session, call, asked)
            if len(left) == len(tasks):
                return None
            return _refuse(result, asked, Refusal(f"no plugin placed the remaining {len(asked)} tasks"))
        if isinstance(proposal, Refusal):
            _note_rejected(session, call, asked)
            return _refuse(result, asked, call.refusal(proposal))
        placed = _place(request, [(call, proposal, asked)], result, capacity)
        if not placed:
            _note_rejected(session, call, asked)
            refusal = Refusal(f"none of {call.plugin}'s placements passed the filters", call.plugin)
            return _refuse(result, asked, refusal)
        if assigned is not None:
            for task in placed:  # tasks of one class may swap their assigned rows
                assigned[task.cls][task.row] -= 1
        left = [task for task in left if task not in placed]
    return result


def _ask_by_quota(request: PlacementRequest, result: PlacementResult, capacity: Columns, scores: Columns) -> set[Task]:
    """Call `place_group` for one domain's share at a time, if a plugin answers `domain_quota`.

    Afterwards it checks the proposals of all domains in turns, so that a spread holds at every step. Returns the placed
    tasks.
    """
    session, tasks = request.session, request.tasks
    proposals: list[_Proposal] = []
    cls = tasks[0].cls
    by_quota = len(capacity) == 1 and session.evaluator.evaluation(cls).any_filters
    begin = 0
    for mask, share in _quotas(session, cls, len(tasks)) if by_quota else ():
        part, begin = tasks[begin : begin + share], begin + share
        there = {cls: np.where(mask, capacity[cls], 0)}
        if not part or not there[cls].any():
            continue
        call, proposal = _first_answer(replace(request, tasks=part), there, scores)
        if proposal is not None and not isinstance(proposal, Refusal):
            proposals.append((call, proposal, part))
    return _place(request, proposals, result, capacity)


def _quotas(session: Session, cls: TaskClass, count: int) -> Sequence[tuple[BoolColumn, int]]:
    """The first answer of `domain_quota`; empty if no plugin answers."""
    for call in session.calls.functions("domain_quota"):
        found = call(session, cls, count)
        if found is not None:
            quotas: list[tuple[BoolColumn, int]] = call.guarded(_as_quotas, found)
            size = (session.table.size,)
            if any(mask.shape != size or mask.dtype != np.bool_ or share < 0 for mask, share in quotas):
                raise call.wrong(
                    f"expected pairs, each of a boolean mask over all {size[0]} rows and a non-negative integer"
                )
            return quotas
    return ()


def _as_quotas(answer: Any) -> list[tuple[BoolColumn, int]]:
    return [(np.asarray(mask), operator.index(share)) for mask, share in answer]


def _why(request: PlacementRequest, task: Task) -> str:
    session = request.session
    return session.evaluator.board(task, request.subset).why(task) if session.reasons_wanted else ""


def _note_rejected(session: Session, call: HookCall, tasks: Sequence[Task]) -> None:
    """Record for the queue that the plugin, or any filter of the tasks' classes, rejected the tasks."""
    for task in tasks:
        filters = session.evaluator.evaluation(task.cls).filter_plugins
        session.runner.note_rejected(task, filters | {call.plugin})


def _too_few(request: PlacementRequest, refused: Mapping[Task, str]) -> bool:
    """Whether the other tasks cannot start the group. Filters that look beyond their row may still let the rest in."""
    tasks, needed, evaluator = request.tasks, request.needed, request.session.evaluator
    enough = len(tasks) - len(refused) >= needed
    if enough and needed > 1 and (lacks := tasks[0].group.lacks):
        possible = Counter(task.sub_group for task in tasks if task.node is None and task not in refused)
        enough = all(possible[name] >= count for name, count in lacks.items())
    return not enough and not any(evaluator.evaluation(cls).any_filters for cls in unique_classes(tasks))


def _assigned_rows(session: Session, assignment: Mapping[Task, int]) -> dict[TaskClass, IntColumn]:
    rows: dict[TaskClass, IntColumn] = {}
    for task, row in assignment.items():
        if task.cls not in rows:
            rows[task.cls] = np.zeros(session.table.size, np.int64)
        rows[task.cls][row] += 1
    return rows


def _refuse(result: PlacementResult, left: Sequence[Task], refusal: Refusal) -> PlacementResult:
    result.refusal = refusal
    for task in left:
        result.reasons.setdefault(task, refusal.reason)
    return result


def _capacity_and_scores(
    request: PlacementRequest, tasks: Sequence[Task], assigned: Columns | None
) -> tuple[Columns, Columns]:
    """By class: how many of the tasks fit on each row, and the row's score.

    An assignment is limited to what fits now, because victims may still be on a nominated node; not for filters that
    look beyond their own row, because one placed task can make the next one fit.
    """
    evaluator = request.session.evaluator
    capacity: dict[TaskClass, IntColumn] = {}
    scores: dict[TaskClass, IntColumn] = {}
    for cls, wanted in Counter(task.cls for task in tasks).items():
        task = next(task for task in tasks if task.cls is cls)
        board = evaluator.synced_board(task, request.subset)
        if assigned is None:
            capacity[cls] = board.capacity(wanted)
        elif evaluator.evaluation(cls).any_filters:
            capacity[cls] = assigned[cls]
        else:
            capacity[cls] = np.minimum(assigned[cls], board.capacity(wanted))
        fits = capacity[cls].any()
        scores[cls] = board.total.astype(np.int64, copy=True) if fits else np.zeros(len(capacity[cls]), np.int64)
    return capacity, scores


def _first_answer(request: PlacementRequest, capacity: Columns, scores: Columns) -> tuple[HookCall, object]:
    for call in request.session.calls.functions("place_group"):
        own = {cls: column.copy() for cls, column in capacity.items()}  # the plugin may change it
        answer = call(request.session, request.group, tuple(request.tasks), own, scores)
        if answer is not None:
            return call, answer
    return call, None


def _place(
    request: PlacementRequest, proposals: Sequence[_Proposal], result: PlacementResult, capacity: Columns
) -> set[Task]:
    """Allocate each proposed task that passes its filters; release the others. Returns the placed tasks."""
    session, statement = request.session, request.statement
    held = [(call, *_hold(statement, call, proposal), tasks) for call, proposal, tasks in proposals]
    for call, _, nodes, tasks in held:
        known = set(tasks)
        if strangers := [task for task in nodes if task not in known]:
            raise call.wrong(f"expected placements of the requested tasks only, got a placement of {strangers[0]!r}")
    trusted = len(capacity) == 1 and not session.evaluator.evaluation(next(iter(capacity))).any_filters
    on_row: Counter[int] = Counter()
    placed: set[Task] = set()
    refused: dict[int, list[Task]] = {}
    for number, task in _in_turns([tasks for _, _, _, tasks in held]):
        call, _, nodes, _ = held[number]
        name = nodes.get(task)
        if name is None:
            continue
        row = session.table.row_of.get(name) if isinstance(name, str) else None
        if row is None:
            raise call.wrong(f"expected a node name for {task.key}, got {name!r}")
        board = session.evaluator.board(task, request.subset)
        fits = on_row[row] < capacity[task.cls][row] if trusted else board.fits(row, task)
        if not fits:
            refused.setdefault(number, []).append(task)
            continue
        result.score += float(board.total[row])
        on_row[row] += 1
        statement.allocate(task, row)
        placed.add(task)
    for number, tasks in refused.items():
        held[number][1].release(tasks)
    return placed


def _in_turns(shares: Sequence[Sequence[Task]]) -> Iterator[tuple[int, Task]]:
    """(number of the share, task): the next task of the largest remaining share, so that domains fill evenly."""
    left = [(-len(tasks), number) for number, tasks in enumerate(shares) if tasks]
    heapq.heapify(left)
    while left:
        count, number = left[0]
        yield number, shares[number][count]
        if count + 1:
            heapq.heapreplace(left, (count + 1, number))
        else:
            heapq.heappop(left)


def _hold(statement: Statement, call: HookCall, proposal: object) -> tuple[Held, dict[Task, str]]:
    """Add the placement to the statement, which undoes it if an error follows, and read its nodes."""
    if not call.guarded(_is_placement, proposal):
        raise call.wrong(f"expected a Placement, a Refusal or None, got {type(proposal).__name__}")
    placement: Placement = proposal  # type: ignore[assignment]
    held = statement.hold(call.plugin, placement)
    return held, call.guarded(lambda: dict(placement.nodes))


def _is_placement(proposal: object) -> bool:
    return all(callable(getattr(proposal, name, None)) for name in ("undo", "redo", "release"))
