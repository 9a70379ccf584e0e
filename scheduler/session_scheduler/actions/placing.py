"""One group placed in a statement: which tasks must stand together, and the ways that are tried until they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from session_scheduler.actions.own_placement import constrained_first, greedy, search
from session_scheduler.actions.plugin_placement import ask_plugins, has_placers
from session_scheduler.hookspecs import Refusal
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.groups import Group, Phase, Task, unique_classes
from session_scheduler.session import Outcome, Session
from session_scheduler.statement import Operation, Statement

GANG_WAITS = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled"


@dataclass(slots=True)
class Attempt:
    """How a try ended: its score, and why tasks were refused. What it placed is in the statement."""

    refused: dict[Task, str]
    score: float = 0.0
    refusal: Refusal | None = None


def place_group(session: Session, statement: Statement, group: Group, outcome: Outcome) -> None:
    """Fill in the outcome; the statement holds what was placed. Raises PluginError."""
    outcome.refusal = _group_refusal(session, group)
    if outcome.refusal is not None:
        return
    tasks = _ready_tasks(session, group, outcome)
    needed = group.min_count - group.started
    if needed <= 1:
        _place_each(session, statement, tasks, outcome)
        return
    if len(tasks) < needed:
        outcome.refusal = Refusal(too_few(group, len(tasks)))
        return
    _place_together(session, statement, group, tasks, needed, outcome)


def _group_refusal(session: Session, group: Group) -> Refusal | None:
    if group.missing:
        return Refusal(
            f"PodGroup {group.namespace}/{group.name} ({group.ref.api_group}) does not exist: create it, "
            "or remove the pod's group"
        )
    if group.terminating:
        return Refusal(f"PodGroup {group.namespace}/{group.name} is being deleted: its pods are not placed any more")
    if group.ref.refusal is not None:
        return group.ref.refusal
    for call in session.calls.functions("prefilter"):
        answer = call(session, group)
        if isinstance(answer, Refusal):
            return call.refusal(answer)
        if answer is not None:
            raise call.wrong(f"{answer!r} is no refusal: return a Refusal, or None")
    return None


def too_few(group: Group, ready: int) -> str:
    """The reason of a gang of which too few members can be placed at all; `ready` are pending and not held back."""
    gated = len(group.in_phase(Phase.GATED))
    held_back = f", {gated} of them gated" if gated else ""
    return (
        f"pod group {group.namespace}/{group.name} needs {group.min_count} pods to start and has "
        f"{len(group.tasks)}{held_back}: {ready + group.started} can be placed"
    )


def _ready_tasks(session: Session, group: Group, outcome: Outcome) -> list[Task]:
    """The pending tasks in order, without those that a pre-predicate or a plugin's `prepare` refuses."""
    ready = []
    for task in sorted(group.in_phase(Phase.PENDING), key=session.task_key):
        reason = session.pre_predicate(task)
        if reason is None:
            refusal = session.plan(task.cls).refusal
            reason = refusal.reason if refusal is not None else None
        if reason is None:
            ready.append(task)
        else:
            outcome.reasons[task] = reason
    if not ready and outcome.reasons:
        outcome.refusal = Refusal(next(iter(outcome.reasons.values())))
    return ready


def _place_each(session: Session, statement: Statement, tasks: Sequence[Task], outcome: Outcome) -> None:
    """Tasks that stand for themselves: pods alone, basic groups, and the rest of a gang that has started."""
    for index, task in enumerate(tasks):
        mark = statement.checkpoint()
        attempt = _try_subsets(session, statement, task.group, [task], 1, len(tasks) - index)
        if statement.placed_since(mark):
            outcome.placed.append(task)
        else:
            outcome.reasons[task] = attempt.refused.get(task) or (
                attempt.refusal.reason if attempt.refusal else "no node was found"
            )


def _place_together(
    session: Session, statement: Statement, group: Group, tasks: Sequence[Task], needed: int, outcome: Outcome
) -> None:
    """A gang: all its tasks if they fit, else at least as many as it needs to start."""
    attempt = _try_subsets(session, statement, group, tasks, needed, len(tasks))
    placed = statement.placed_since(0)
    if not placed and needed < len(tasks):
        refused = attempt.refused
        attempt = _try_subsets(session, statement, group, tasks[:needed], needed, needed)
        attempt.refused = refused | attempt.refused
        placed = statement.placed_since(0)
    outcome.placed.extend(placed)
    outcome.reasons.update(attempt.refused)
    for task in placed:
        outcome.reasons.pop(task, None)
    if placed:
        for task in tasks:
            if task.phase is Phase.PENDING:
                outcome.reasons.setdefault(task, "the gang has started without it; it is tried again on its own")
        return
    blocking = next(iter(attempt.refused.values()), attempt.refusal.reason if attempt.refusal else "")
    plugin = attempt.refusal.plugin if attempt.refusal else ""
    outcome.refusal = Refusal(f"{GANG_WAITS}: {blocking}" if blocking else GANG_WAITS, plugin)
    for task in tasks:
        outcome.reasons.setdefault(task, outcome.refusal.reason)


def _subsets(session: Session, group: Group) -> list[BoolColumn] | None:
    """The first answer of `node_subsets`; None where no plugin has one."""
    for call in session.calls.functions("node_subsets"):
        answer = call(session, group)
        if answer is not None:
            subsets: list[BoolColumn] = call.guarded(list, answer)
            for mask in subsets:
                if getattr(mask, "shape", None) != (session.table.size,) or mask.dtype != np.bool_:
                    raise call.wrong(f"a subset is no mask of bools over all {session.table.size} rows")
            return subsets
    return None


def _try_subsets(
    session: Session, statement: Statement, group: Group, tasks: Sequence[Task], needed: int, expected: int
) -> Attempt:
    """Try each node subset on its own, undone; the one with the highest total is done again."""
    subsets = _subsets(session, group)
    if subsets is None:
        return _try_ways(session, statement, group, tasks, needed, None, expected)
    best: tuple[float, Attempt, list[Operation]] | None = None
    last = Attempt({}, refusal=Refusal("no subset of nodes is offered to the group"))
    mark = statement.checkpoint()
    for subset in subsets:
        last = _try_ways(session, statement, group, tasks, needed, subset, expected)
        placed = statement.placed_since(mark)
        session.forget_boards(subset)
        if placed and (best is None or last.score > best[0]):
            best = (last.score, last, statement.rollback(mark))
        else:
            statement.rollback(mark)
    if best is None:
        return last
    statement.redo(best[2])
    return best[1]


def _try_ways(
    session: Session,
    statement: Statement,
    group: Group,
    tasks: Sequence[Task],
    needed: int,
    subset: BoolColumn | None,
    expected: int,
) -> Attempt:
    """Try orders of the tasks, then the exhaustive search, until at least `needed` tasks stand."""
    mark = statement.checkpoint()
    first: Attempt | None = None
    for order in _orders(session, tasks, subset):
        attempt = _one_way(session, statement, group, order, subset, expected, needed)
        if len(statement.placed_since(mark)) >= needed:
            return attempt
        statement.rollback(mark)
        if first is None:
            first = attempt
            if not _worth_trying_on(session, tasks, needed, subset):
                return first
    if first is None:
        return Attempt({}, refusal=Refusal("the group has no task to place"))
    found = search(session, statement, tasks, subset, needed)
    if found is not None:
        placed = [task for task in tasks if task in found]
        attempt = _one_way(session, statement, group, placed, subset, expected, needed, found)
        if len(statement.placed_since(mark)) >= needed:
            return attempt
        statement.rollback(mark)
    return first


def _orders(session: Session, tasks: Sequence[Task], subset: BoolColumn | None) -> Iterator[list[Task]]:
    """The task order first; then, for tasks of several classes, the most constrained first and rotations of it."""
    yield list(tasks)
    if len(unique_classes(tasks)) == 1:
        return
    ordered = constrained_first(session, tasks, subset)
    of_class: dict[TaskClass, list[Task]] = {}
    for task in tasks:
        of_class.setdefault(task.cls, []).append(task)
    for _ in range(session.options.placement_retries):
        yield [task for cls in ordered for task in of_class[cls]]
        ordered = [*ordered[1:], ordered[0]]


def _worth_trying_on(session: Session, tasks: Sequence[Task], needed: int, subset: BoolColumn | None) -> bool:
    """Whether another order may place what one did not.

    Not where each filter looks at one row only, and there is but one class, or too little room even if each class had
    the nodes for itself.
    """
    counts = Counter(task.cls for task in tasks)
    if any(session.plan(cls).any_filters for cls in counts):
        return len(tasks) > 1
    first = {task.cls: task for task in reversed(tasks)}
    possible = 0
    for cls, count in counts.items():
        board = session.board(first[cls], subset)
        board.sync(first[cls])
        possible += min(count, int(board.room(count).sum()))
    return len(counts) > 1 and possible >= needed


def _one_way(
    session: Session,
    statement: Statement,
    group: Group,
    tasks: Sequence[Task],
    subset: BoolColumn | None,
    expected: int,
    needed: int,
    assignment: dict[Task, int] | None = None,
) -> Attempt:
    mark = statement.checkpoint()
    if has_placers(session):
        answer = ask_plugins(session, statement, group, tasks, subset, assignment, needed)
        if answer is not None:
            return Attempt(answer.refused, answer.score, answer.refusal)
        statement.rollback(mark)
    refused, score = greedy(session, statement, tasks, subset, expected, assignment)
    return Attempt(refused, score)
