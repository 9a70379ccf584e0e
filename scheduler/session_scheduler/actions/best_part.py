"""The largest part of a gang that fits on the nodes. `explain` reports it for a gang that cannot start."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Final

from msgspec.structs import replace

from session_scheduler.actions.node_sets import NotFitting, node_sets
from session_scheduler.actions.placing import one_way, orders, required_first
from session_scheduler.actions.request import PlacementRequest
from session_scheduler.framework.session import Session
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.groups import Group, Phase, Task

MOST_WAYS: Final = 64
"""How many pairs of a task order and a node set are tried; a cluster may have thousands of domains."""
Part = tuple[dict[Task, str], dict[Task, str], str | None]
"""The node of each placed task, the reason for each other task, and the reason that rejects the rest, if any."""


def is_gang(group: Group) -> bool:
    """Whether the group still needs several of its tasks placed together."""
    return not group.single and not group.missing and (group.needed > 1 or bool(group.lacks))


def best_part(session: Session, group: Group, ways: int = MOST_WAYS) -> Part:
    """The part that lacks the fewest required sub-group members, then the one with the most tasks, then the first
    found. The session is unchanged afterwards. Raises PluginError.
    """
    tasks = required_first(session, group, sorted(group.in_phase(Phase.PENDING), key=session.runner.task_key))
    refusals = {task: session.evaluator.evaluation(task.cls).refusal for task in tasks}
    barred = {task: refusal.reason for task, refusal in refusals.items() if refusal is not None}
    tasks = [task for task in tasks if task not in barred]
    barred |= {task: reason for task, (reason, _) in session.runner.over_capacity(group, tasks).items()}
    tasks = [task for task in tasks if task not in barred]
    best: Part = ({}, barred, None)
    if not tasks:
        return best
    try:
        sets = node_sets(session, group)
    except NotFitting as nowhere:
        return {}, barred, nowhere.refusal.reason
    masks = [None] if sets is None else [one.mask for one in sets]
    with session.ledger.statement(group) as statement:
        request = PlacementRequest(session, statement, group, tasks, expected=len(tasks))
        for number, way in enumerate(islice(_ways(request, masks), ways)):
            placed, refused, reason = _try_part(way)
            if not number or _rank(group, placed) > _rank(group, best[0]):
                best = placed, {**barred, **refused}, reason
            if len(placed) == len(tasks):
                break
    return best


def _rank(group: Group, placed: Collection[Task]) -> tuple[int, int]:
    short = group.short_of([*group.in_phase(Phase.BOUND, Phase.ASSUMED), *placed]) if group.minima else {}
    return -sum(short.values()), len(placed)


def _ways(request: PlacementRequest, masks: Sequence[BoolColumn | None]) -> Iterator[PlacementRequest]:
    for mask in masks:
        there = replace(request, subset=mask)
        for order in orders(there):
            yield replace(there, tasks=order)


def _try_part(request: PlacementRequest) -> Part:
    """Place the tasks together, then the rest one by one, and undo it all."""
    statement = request.statement
    attempt = one_way(request)
    closed: dict[TaskClass, str] = {}  # the reason that rejects the class until another task is placed
    for task in request.tasks:
        if task.node is not None or task.cls in closed:
            continue
        mark = statement.checkpoint()
        alone = one_way(replace(request, tasks=[task], expected=1))
        if statement.placed_since(mark):
            closed.clear()
        else:
            closed[task.cls] = alone.reasons.get(task, "")
    placed = {task: task.node or "" for task in statement.placed_since(0)}
    left = [task for task in request.tasks if task not in placed]
    refused = {task: closed.get(task.cls) or attempt.reasons.get(task, "") for task in left}
    statement.rollback()
    request.session.evaluator.forget_boards(request.subset)
    return placed, refused, attempt.refusal.reason if attempt.refusal is not None else None
