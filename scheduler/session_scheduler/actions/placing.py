"""The placement of one group in a statement: tries node sets and task orders until enough tasks are placed together.

`allocate` calls this module for each group, a trial calls it with running pods removed, and `explain` calls it to find
reasons. The module builds on `node_sets`, `plugin_placement` and `search` (exhaustive, for small gangs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from session_scheduler.actions.node_sets import Fit, NotFitting, node_sets, promising, ranked
from session_scheduler.actions.plugin_placement import ask_plugins, reserve_best
from session_scheduler.actions.request import PlacementRequest
from session_scheduler.actions.search import constrained_first, search
from session_scheduler.framework.node_refusals import NO_NODES
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Operation, PlacementResult, Statement
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.groups import Group, Phase, Task, unique_classes
from session_scheduler.model.preferred_levels import preferred_levels, wrong_levels
from session_scheduler.model.refusals import Refusal
from session_scheduler.model.sub_groups import (
    SUB_GROUP_LABEL,
    SUB_GROUPS_ANNOTATION,
    SubGroupsError,
    as_text,
    minima_of,
)
from session_scheduler.state.scheduling_queue import GANG_SCHEDULING

UNSCHEDULABLE = "pod group is unschedulable"
GANG_WAITS = f"{UNSCHEDULABLE}, waiting for minCount pods from a gang to be scheduled"


def place_group(
    session: Session, statement: Statement, group: Group, result: PlacementResult, *, least: bool = False
) -> None:
    """Place a group: the statement records the placements, the result the outcome. Raises PluginError.

    With `least` a gang starts with the tasks that it needs, unless one topology domain must fit all of them.
    """
    result.refusal = group_refusal(session, group)
    if result.refusal is not None:
        return
    tasks = result.tried = required_first(session, group, _ready_tasks(session, group, result))
    needed = group.needed
    later = tasks[needed:] if least and group.has_minimum and not group.whole and group.topology_key is None else []
    place_ready(PlacementRequest(session, statement, group, tasks[: len(tasks) - len(later)], needed), result)
    if result.placed:
        result.placed_in_part |= bool(later)
        _note_retried(session, result, later)


def place_ready(request: PlacementRequest, result: PlacementResult) -> None:
    """Like `place_group`, for tasks that may be placed now, the required ones first. Raises PluginError."""
    group, needed = request.group, request.needed
    if needed == 1 and group.topology_key is None and not group.lacks:
        _place_each(request, result)
    elif can_start(group, request.tasks):
        if request.session.runner.limits_capacity:
            request = replace(request, tasks=_within_capacity(request, result))
        if request.tasks:
            _place_together(replace(request, expected=len(request.tasks)), result)
            result.placed_in_part |= bool(result.placed and result.over_capacity)
    elif needed > 1 or group.lacks:
        result.refusal = Refusal(too_few(group, request.tasks), GANG_SCHEDULING)
        result.tried = []


def _within_capacity(request: PlacementRequest, result: PlacementResult) -> list[Task]:
    """The tasks that fit their queue's limit together; none, with a refusal, if these are too few to start."""
    group, tasks = request.group, request.tasks
    over = request.session.runner.over_capacity(group, tasks)
    _note_over_capacity(result, over)
    left = required_first(request.session, group, [task for task in tasks if task not in over])
    if can_start(group, left):
        return left
    result.over_capacity_together = list(tasks)
    reason, plugin = next(iter(over.values()))
    together = request.needed > 1 or group.lacks
    result.refusal = Refusal(f"{UNSCHEDULABLE}: {reason}" if together else reason, plugin)
    result.tried = []
    return []


def _note_over_capacity(result: PlacementResult, over: Mapping[Task, tuple[str, str]]) -> None:
    result.over_capacity = (*result.over_capacity, *over)
    result.reasons.update((task, reason) for task, (reason, _) in over.items())
    result.tried = [task for task in result.tried if task not in over]


def group_refusal(session: Session, group: Group) -> Refusal | None:
    """Why no pod of the group may be placed, before any node is evaluated. Raises PluginError."""
    if group.missing:
        return Refusal(
            f"PodGroup {group.namespace}/{group.name} ({group.ref.api_group}) does not exist; create it, "
            "or remove the group from the pod",
            GANG_SCHEDULING,
        )
    if group.terminating:
        name = f"PodGroup {group.namespace}/{group.name}"
        return Refusal(f"{name} is being deleted: the scheduler no longer places its pods", GANG_SCHEDULING)
    if group.ref.refusal is not None:
        return group.ref.refusal
    reason = wrong_sub_groups(group) or wrong_levels(group.pod_group)
    if reason is not None:
        return Refusal(reason, GANG_SCHEDULING)
    for call in session.calls.functions("prefilter"):
        answer = call(session, group)
        if isinstance(answer, Refusal):
            return call.refusal(answer)
        if answer is not None:
            raise call.wrong(f"expected a Refusal or None, got {answer!r}")
    return session.runner.pre_allocation(group)


def _ready_tasks(session: Session, group: Group, result: PlacementResult) -> list[Task]:
    """The pending tasks in order, except those that a pre-predicate or a plugin's `prepare` rejects."""
    ready: list[Task] = []
    barred: list[Task] = []
    for task in sorted(group.in_phase(Phase.PENDING), key=session.runner.task_key):
        reason = session.runner.pre_predicate(task)
        if reason is None:
            refusal = session.evaluator.evaluation(task.cls).refusal
            if refusal is not None:
                nodes = len(session.table.row_of)
                reason = f"0/{nodes} nodes are available: {refusal.reason}." if nodes else NO_NODES
                barred.append(task)
                if refusal.plugin:
                    session.runner.note_rejected(task, (refusal.plugin,))
        if reason is None:
            ready.append(task)
        else:
            result.reasons[task] = reason
    if barred:
        result.barred = barred
    if not ready and result.reasons:
        result.refusal = Refusal(next(iter(result.reasons.values())))
    return ready


def _place_each(request: PlacementRequest, result: PlacementResult) -> None:
    """Place independent tasks: single pods, basic groups, and the remaining pods of a gang that has started."""
    runner, statement, tasks = request.session.runner, request.statement, request.tasks
    for index, task in enumerate(tasks):
        if runner.limits_capacity and (over := runner.over_capacity(task.group, (task,))):
            _note_over_capacity(result, over)
            continue
        mark = statement.checkpoint()
        attempt = _try_levels(replace(request, tasks=[task], expected=len(tasks) - index, lone=True))
        if statement.placed_since(mark):
            result.placed.append(task)
        else:
            result.reasons[task] = attempt.reasons.get(task) or (
                attempt.refusal.reason if attempt.refusal else "no node fits the pod"
            )


def _place_together(request: PlacementRequest, result: PlacementResult) -> None:
    """Place a gang: all of its tasks if they fit, else at least the minimum that it needs to start.

    Groups in one topology domain are placed the same way: a basic group, or the remaining pods of a started gang, has
    the minimum 1.
    """
    group, tasks, needed, statement = request.group, request.tasks, request.needed, request.statement
    attempt = _try_levels(request)
    placed = statement.placed_since(0)
    if not placed and needed < len(tasks):
        refused = attempt.reasons
        attempt = _try_levels(replace(request, tasks=tasks[:needed], expected=needed))
        attempt.reasons = refused | attempt.reasons
        placed = statement.placed_since(0)
    result.placed.extend(placed)
    result.reasons.update(attempt.reasons)
    for task in placed:
        result.reasons.pop(task, None)
    if placed:
        result.placed_in_part = len(placed) < len(tasks)
        _note_retried(request.session, result, [task for task in tasks if task.phase is Phase.PENDING])
        return
    waits = _waiting_reason(attempt, together=needed > 1 or bool(group.lacks))
    result.refusal = _refusal(attempt, waits)
    for task in tasks:
        result.reasons.setdefault(task, result.refusal.reason if attempt.nowhere else waits)


def _note_retried(session: Session, result: PlacementResult, tasks: Iterable[Task]) -> None:
    for task in tasks:
        result.reasons.setdefault(task, "the gang started without this pod; the scheduler retries it alone")
        session.runner.forget_rejections(task)  # they were beside other tasks, which may be gone


def _waiting_reason(attempt: PlacementResult, *, together: bool) -> str:
    """The reason for a task that fits on its own but waits for its group."""
    waits = GANG_WAITS if together else UNSCHEDULABLE
    refused = list(attempt.reasons.values())
    if attempt.lacks:
        refused = [why for task, why in attempt.reasons.items() if task.sub_group in attempt.lacks] or refused
        waits = f"{waits}, and lacks nodes for {as_text(attempt.lacks)}"
    blocking = next(iter(refused), attempt.refusal.reason if attempt.refusal else "")
    return f"{waits}: {blocking}" if blocking else waits


def _refusal(attempt: PlacementResult, waits: str) -> Refusal:
    """The refusal of a group that was not placed."""
    if attempt.nowhere and attempt.refusal is not None:
        return attempt.refusal
    plugin = attempt.refusal.plugin if attempt.refusal else ""
    tried = f"0/{attempt.placements} placements are available, first placement status: " if attempt.placements else ""
    return Refusal(tried + waits, plugin)


# ------------------------------------------------------------------ node sets and task orders


def _try_levels(request: PlacementRequest) -> PlacementResult:
    """Place all tasks in one domain of the first preferred level that fits them; otherwise anywhere."""
    session, tasks, statement = request.session, request.tasks, request.statement
    levels = preferred_levels(request.group.pod_group)
    if levels and not (session.nominations.node_by_uid and _nominated_rows(session, tasks)):
        mark = statement.checkpoint()
        for level in levels:
            attempt = _try_subsets(replace(request, level=level, needed=len(tasks)))
            if statement.placed_since(mark):
                return attempt
    return _try_subsets(request)


def _try_subsets(request: PlacementRequest) -> PlacementResult:
    """Try each node set and undo the attempt, then redo the best attempt that placed the group."""
    session, group, statement = request.session, request.group, request.statement
    if group.topology_key is None and request.level is None and not session.runner.divides_nodes:
        return _try_ways(request)
    try:
        sets = node_sets(session, group, request.level)
    except NotFitting as nowhere:
        return PlacementResult(group, refusal=nowhere.refusal, nowhere=True)
    if sets is None:
        return _try_ways(request)
    tried, best_first = promising(request, sets)
    attempts: list[PlacementResult] = []
    fits: list[tuple[Fit, PlacementResult, list[Operation]]] = []
    mark = statement.checkpoint()
    for nodes in tried or sets[:1]:  # without any, try one for its reasons
        attempt = _try_ways(replace(request, subset=nodes.mask))
        attempts.append(attempt)
        placed = statement.placed_since(mark)
        session.evaluator.forget_boards(nodes.mask)
        if placed and best_first:
            return attempt
        undone = statement.rollback(mark)
        if placed:
            fits.append((Fit(nodes, placed, attempt.score), attempt, undone))
    if not fits:
        return _fits_nowhere(group, attempts, len(sets))
    _, attempt, operations = fits[ranked(session, group, [fit for fit, _, _ in fits])[0]]
    statement.redo(operations)
    return attempt


def _fits_nowhere(group: Group, attempts: Sequence[PlacementResult], sets: int) -> PlacementResult:
    """The first set's reasons and the number of sets. kube-scheduler reports one placement only, too."""
    if not attempts:
        return PlacementResult(group, refusal=Refusal("plugins offer the group no nodes"))
    if group.topology_key is not None:
        attempts[0].placements = sets
    return attempts[0]


def _try_ways(request: PlacementRequest) -> PlacementResult:
    """Try nominated nodes, orders of the tasks, then the exhaustive search, until enough tasks are placed."""
    session, statement, group, tasks, needed = (
        request.session, request.statement, request.group, request.tasks, request.needed)  # fmt: skip
    mark = statement.checkpoint()
    kept = _nominated_rows(session, tasks) if session.nominations.node_by_uid else {}
    if len(kept) >= needed:
        attempt = _as_assigned(request, kept)
        if _is_enough(request, mark, len(kept)):
            return attempt
        statement.rollback(mark)
    elif kept and request.subset is None and not session.calls.places_groups:  # some of the tasks are nominated
        attempt = one_way(replace(request, tasks=_beside_nominated(request, kept)))
        if _is_enough(request, mark, needed):
            return attempt
        statement.rollback(mark)
    first: PlacementResult | None = None
    for order in orders(request):
        attempt = one_way(replace(request, tasks=order))
        if _is_enough(request, mark, needed):
            return attempt
        attempt.lacks = group.lacks if statement.placed_since(mark) else {}
        statement.rollback(mark)
        if first is None:
            first = attempt
            if not _other_orders_may_help(request):
                return first
    if first is None:
        return PlacementResult(group, refusal=Refusal("the group has no pods to place"))
    found = search(request)
    if found is not None:
        attempt = _as_assigned(request, found)
        if _is_enough(request, mark, needed):
            return attempt
        statement.rollback(mark)
    return first


def _as_assigned(request: PlacementRequest, rows: Mapping[Task, int]) -> PlacementResult:
    return one_way(replace(request, tasks=[task for task in request.tasks if task in rows], assignment=rows))


def _is_enough(request: PlacementRequest, mark: int, needed: int) -> bool:
    """Whether the placements since the mark start the group: `needed` tasks, and each sub-group's minimum."""
    return len(request.statement.placed_since(mark)) >= needed and (request.lone or not request.group.lacks)


def _nominated_rows(session: Session, tasks: Sequence[Task]) -> dict[Task, int]:
    """The rows of the tasks' nominated nodes, which are tried first."""
    rows = {task: session.table.row_of.get(session.nominations.node_of(task) or "", -1) for task in tasks}
    return {task: row for task, row in rows.items() if row >= 0}


def _beside_nominated(request: PlacementRequest, kept: Mapping[Task, int]) -> list[Task]:
    """Place the tasks that fit on their nominated nodes; returns the others."""
    others = []
    for task in request.tasks:
        if task in kept and request.session.evaluator.fits_on(task, kept[task]):
            request.statement.allocate(task, kept[task])
        else:
            others.append(task)
    return others


def orders(request: PlacementRequest) -> Iterator[list[Task]]:
    """The task order; then, for tasks of several classes, the most constrained first, and rotations of that order."""
    yield list(request.tasks)
    if len(unique_classes(request.tasks)) == 1:
        return
    ordered = constrained_first(request)
    of_class: dict[TaskClass, list[Task]] = {}
    for task in request.tasks:
        of_class.setdefault(task.cls, []).append(task)
    for _ in range(request.session.options.placement_retries):
        yield [task for cls in ordered for task in of_class[cls]]
        ordered = [*ordered[1:], ordered[0]]


def _other_orders_may_help(request: PlacementRequest) -> bool:
    """Whether another order can place more tasks.

    If each filter reads one row only, no order helps tasks of one class, nor classes that lack capacity even if each
    had all nodes to itself.
    """
    evaluator, tasks = request.session.evaluator, request.tasks
    counts = Counter(task.cls for task in tasks)
    if any(evaluator.evaluation(cls).any_filters for cls in counts):
        return len(tasks) > 1
    if len(counts) == 1:
        return False
    first = {task.cls: task for task in reversed(tasks)}
    possible = 0
    for cls, count in counts.items():
        board = evaluator.synced_board(first[cls], request.subset)
        possible += min(count, int(board.capacity(count).sum()))
    return possible >= request.needed


def one_way(request: PlacementRequest) -> PlacementResult:
    """Place by the plugins that place groups, else task by task, in the statement. Raises PluginError."""
    if request.session.calls.places_groups:
        mark = request.statement.checkpoint()
        found = reserve_best(request) if len(request.tasks) == 1 else None
        if found is None:
            found = ask_plugins(request)
        if found is not None:
            return found
        request.statement.rollback(mark)
    return _one_by_one(request)


def _one_by_one(request: PlacementRequest) -> PlacementResult:
    """The core's own placement: the best node for each task in turn.

    Retries rejected tasks while other tasks are placed and a filter looks beyond its own row: a member placed later may
    satisfy an affinity. With an `assignment`, tasks go to their assigned rows. Scores rank subsets, so an assignment
    without a `subset` skips them.
    """
    session, statement, subset, assignment = request.session, request.statement, request.subset, request.assignment
    evaluator, expected, score = session.evaluator, request.expected, 0.0
    left: Sequence[Task] = request.tasks
    while True:
        refused: dict[Task, str] = {}
        for index, task in enumerate(left):
            if assignment is not None and subset is None and evaluator.fits_on(task, assignment[task]):
                statement.allocate(task, assignment[task])
                continue
            board = evaluator.board(task, subset)
            if assignment is None:
                row = board.pick(task, expected - index)
            else:
                row = assignment[task] if board.fits(assignment[task], task) else -1
            if row < 0:
                refused[task] = board.why(task) if session.reasons_wanted else ""
                continue
            score += float(board.total[row])
            statement.allocate(task, row)
            board.took(row)
        again = len(refused) < len(left) and any(evaluator.evaluation(task.cls).any_filters for task in refused)
        if not again:
            return PlacementResult(request.group, reasons=refused, score=score)
        left = list(refused)


# ------------------------------------------------------------------ the members of a gang


def wrong_sub_groups(group: Group) -> str | None:
    """Why a PodGroup's sub-groups annotation is invalid; None if it is valid or absent."""
    pod_group = group.pod_group
    text = pod_group.metadata.annotations.get(SUB_GROUPS_ANNOTATION) if pod_group is not None else None
    if text is None:
        return None
    try:
        minima_of(text)
    except SubGroupsError as error:
        return (
            f"PodGroup {group.namespace}/{group.name}: metadata.annotations[{SUB_GROUPS_ANNOTATION}] {error}; "
            "or remove the annotation"
        )
    return None


def can_start(group: Group, tasks: Sequence[Task]) -> bool:
    """Whether these pending tasks, with those already bound or assumed, are enough to start the group."""
    if not group.minima:
        return len(tasks) >= group.needed
    return bool(tasks) and group.suffice([*group.in_phase(Phase.BOUND, Phase.ASSUMED), *tasks])


def too_few(group: Group, ready: Sequence[Task]) -> str:
    """The reason for a gang with too few placeable members; `ready` are its pending tasks that may be placed."""
    gated = len(group.in_phase(Phase.GATED))
    held_back = f", {gated} of them gated" if gated else ""
    name = f"pod group {group.namespace}/{group.name}"
    can = len(ready) + group.started
    rejected = f", but only {can} can be placed" if can + gated < len(group.tasks) else ""
    short = group.short_of([*group.in_phase(Phase.BOUND, Phase.ASSUMED), *ready])
    if not short:
        return f"{name} needs {group.min_count} pods to start and has {len(group.tasks)}{held_back}{rejected}"
    has = Counter(task.sub_group for task in group.tasks.values())
    least = ((one, group.minima[one]) for one in short)
    needs = (f"{n} pod{'s' * (n != 1)} of sub-group {one} to start and has {has[one]}" for one, n in least)
    unnamed = f"; {has['']} of its pods name none of its sub-groups (label {SUB_GROUP_LABEL})" if has[""] else ""
    return f"{name} needs {', and '.join(needs)}{held_back and f' ({gated} of its pods are gated)'}{unnamed}"


def required_first(session: Session, group: Group, tasks: list[Task]) -> list[Task]:
    """Tasks in placement order: first those that the sub-groups need to start, then the others.

    Both parts are in sub-group order, with tasks without a sub-group last. Without sub-groups the task order stays.
    Raises PluginError.
    """
    if not group.minima:
        return tasks
    names = sorted(group.minima, key=lambda name: session.runner.sub_group_key(group, name))
    rank = {name: number for number, name in enumerate([*names, ""])}
    ordered = sorted(tasks, key=lambda task: rank[task.sub_group])
    lacks = Counter(group.lacks)
    required: list[Task] = []
    others: list[Task] = []
    for task in ordered:
        part = required if lacks[task.sub_group] > 0 else others
        lacks[task.sub_group] -= 1
        part.append(task)
    return required + others
