"""One group placed in a statement: the ways that are tried until as many of its tasks stand as must do so together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from session_scheduler.actions.members import can_start, required_first, too_few, wrong_sub_groups
from session_scheduler.actions.node_sets import Fit, NotFitting, best, node_sets, promising
from session_scheduler.actions.own_placement import constrained_first, greedy, search
from session_scheduler.actions.plugin_placement import ask_plugins, has_placers, reserve_best
from session_scheduler.framework.evaluation import NO_NODES
from session_scheduler.framework.session import Outcome, Session
from session_scheduler.framework.statement import Operation, Statement
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.groups import Group, Phase, Task, unique_classes
from session_scheduler.model.refusals import Refusal
from session_scheduler.model.sub_groups import as_text
from session_scheduler.state.scheduling_queue import GANG_SCHEDULING

UNSCHEDULABLE = "pod group is unschedulable"
GANG_WAITS = f"{UNSCHEDULABLE}, waiting for minCount pods from a gang to be scheduled"


@dataclass(slots=True)
class Attempt:
    """How a try ended: its score, and why tasks were refused. What it placed is in the statement."""

    refused: dict[Task, str]
    score: float = 0.0
    refusal: Refusal | None = None
    nowhere: bool = False
    """Whether there was not even a node set to try: then the refusal says it all."""
    placements: int = 0
    """In how many topology domains the group was tried; 0 without a topology constraint."""
    lacks: Mapping[str, int] = field(default_factory=dict)
    """By sub-group: how many more would have been needed beside what stood; nothing where none did."""


def place_group(session: Session, statement: Statement, group: Group, outcome: Outcome) -> None:
    """Fill in the outcome; the statement holds what was placed. Raises PluginError."""
    outcome.refusal = _group_refusal(session, group)
    if outcome.refusal is not None:
        return
    tasks = outcome.tried = required_first(session, group, _ready_tasks(session, group, outcome))
    place_ready(session, statement, group, tasks, outcome)


def place_ready(session: Session, statement: Statement, group: Group, tasks: Sequence[Task], outcome: Outcome) -> None:
    """As `place_group` for tasks that nothing holds back, those first that are required. Raises PluginError."""
    needed = group.needed
    if needed == 1 and group.topology_key is None and not group.lacks:
        _place_each(session, statement, tasks, outcome)
    elif can_start(group, tasks):
        if session.limits_capacity:
            tasks = _within_capacity(session, group, tasks, needed, outcome)
        if tasks:
            _place_together(session, statement, group, tasks, needed, outcome)
            outcome.placed_in_part |= bool(outcome.placed and outcome.over_capacity)
    elif needed > 1 or group.lacks:
        outcome.refusal = Refusal(too_few(group, tasks), GANG_SCHEDULING)
        outcome.tried = []


def _within_capacity(
    session: Session, group: Group, tasks: Sequence[Task], needed: int, outcome: Outcome
) -> list[Task]:
    """The tasks that may have what they request, together; none where these are too few to start, which is noted."""
    over = session.over_capacity(group, tasks)
    _note_over(outcome, over)
    left = required_first(session, group, [task for task in tasks if task not in over])
    if can_start(group, left):
        return left
    outcome.over_capacity_together = list(tasks)
    reason, plugin = next(iter(over.values()))
    outcome.refusal = Refusal(f"{UNSCHEDULABLE}: {reason}" if needed > 1 or group.lacks else reason, plugin)
    outcome.tried = []
    return []


def _note_over(outcome: Outcome, over: Mapping[Task, tuple[str, str]]) -> None:
    outcome.over_capacity += over
    outcome.reasons.update((task, reason) for task, (reason, _) in over.items())
    outcome.tried = [task for task in outcome.tried if task not in over]


def _group_refusal(session: Session, group: Group) -> Refusal | None:
    if group.missing:
        return Refusal(
            f"PodGroup {group.namespace}/{group.name} ({group.ref.api_group}) does not exist: create it, "
            "or remove the pod's group",
            GANG_SCHEDULING,
        )
    if group.terminating:
        return Refusal(f"PodGroup {group.namespace}/{group.name} is being deleted: its pods are not placed any more",
                       GANG_SCHEDULING)  # fmt: skip
    if group.ref.refusal is not None:
        return group.ref.refusal
    reason = wrong_sub_groups(group)
    if reason is not None:
        return Refusal(reason, GANG_SCHEDULING)
    for call in session.calls.functions("prefilter"):
        answer = call(session, group)
        if isinstance(answer, Refusal):
            return call.refusal(answer)
        if answer is not None:
            raise call.wrong(f"{answer!r} is no refusal: return a Refusal, or None")
    return session.pre_allocation(group)


def _ready_tasks(session: Session, group: Group, outcome: Outcome) -> list[Task]:
    """The pending tasks in order, without those that a pre-predicate or a plugin's `prepare` refuses."""
    ready = []
    for task in sorted(group.in_phase(Phase.PENDING), key=session.task_key):
        reason = session.pre_predicate(task)
        if reason is None:
            refusal = session.plan(task.cls).refusal
            if refusal is not None:
                reason = _of_all_nodes(session, refusal)
                outcome.barred.append(task)
                if refusal.plugin:
                    session.note_rejected(task, (refusal.plugin,))
        if reason is None:
            ready.append(task)
        else:
            outcome.reasons[task] = reason
    if not ready and outcome.reasons:
        outcome.refusal = Refusal(next(iter(outcome.reasons.values())))
    return ready


def _of_all_nodes(session: Session, refusal: Refusal) -> str:
    """kube-scheduler's sentence for what a plugin refuses before it looks at any node."""
    nodes = len(session.table.row_of)
    return NO_NODES if not nodes else f"0/{nodes} nodes are available: {refusal.reason}."


def _place_each(session: Session, statement: Statement, tasks: Sequence[Task], outcome: Outcome) -> None:
    """Tasks that stand for themselves: pods alone, basic groups, and the rest of a gang that has started."""
    for index, task in enumerate(tasks):
        if session.limits_capacity and (over := session.over_capacity(task.group, (task,))):
            _note_over(outcome, over)
            continue
        mark = statement.checkpoint()
        attempt = _try_subsets(session, statement, task.group, [task], 1, len(tasks) - index, lone=True)
        if statement.placed_since(mark):
            outcome.placed.append(task)
        else:
            outcome.reasons[task] = attempt.refused.get(task) or (
                attempt.refusal.reason if attempt.refusal else "no node was found"
            )


def _place_together(
    session: Session, statement: Statement, group: Group, tasks: Sequence[Task], needed: int, outcome: Outcome
) -> None:
    """A gang: all its tasks if they fit, else at least as many as it needs to start.

    So are all groups that must stay in one topology domain, a basic one, or the rest of a gang, with one as its need.
    """
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
        outcome.placed_in_part = len(placed) < len(tasks)
        for task in tasks:
            if task.phase is Phase.PENDING:
                outcome.reasons.setdefault(task, "the gang has started without it; it is tried again on its own")
                session.forget_rejections(task)  # it was refused beside others, who may not be there now
        return
    waits = _waits(attempt, together=needed > 1 or bool(group.lacks))
    outcome.refusal = _refusal(attempt, waits)
    for task in tasks:
        outcome.reasons.setdefault(task, outcome.refusal.reason if attempt.nowhere else waits)


def _waits(attempt: Attempt, *, together: bool) -> str:
    """Why a task waits that would fit by itself."""
    waits = GANG_WAITS if together else UNSCHEDULABLE
    refused = list(attempt.refused.values())
    if attempt.lacks:
        refused = [why for task, why in attempt.refused.items() if task.sub_group in attempt.lacks] or refused
        waits = f"{waits}, and {as_text(attempt.lacks)} for which there is no place"
    blocking = next(iter(refused), attempt.refusal.reason if attempt.refusal else "")
    return f"{waits}: {blocking}" if blocking else waits


def _refusal(attempt: Attempt, waits: str) -> Refusal:
    """Why nothing of the group was placed."""
    if attempt.nowhere and attempt.refusal is not None:
        return attempt.refusal
    plugin = attempt.refusal.plugin if attempt.refusal else ""
    tried = f"0/{attempt.placements} placements are available, first placement status: " if attempt.placements else ""
    return Refusal(tried + waits, plugin)


def _try_subsets(
    session: Session,
    statement: Statement,
    group: Group,
    tasks: Sequence[Task],
    needed: int,
    expected: int,
    *,
    lone: bool = False,
) -> Attempt:
    """Try each node set on its own, undone; the best of those that hold the group is done again.

    `lone`: it is one task, of whose group no sub-group is short; that costs to find out in large groups.
    """
    try:
        sets = node_sets(session, group)
    except NotFitting as nowhere:
        return Attempt({}, refusal=nowhere.refusal, nowhere=True)
    if sets is None:
        return _try_ways(session, statement, group, tasks, needed, None, expected, lone=lone)
    tried, best_first = promising(session, group, sets, tasks, needed)
    attempts: list[Attempt] = []
    fits: list[tuple[Fit, Attempt, list[Operation]]] = []
    mark = statement.checkpoint()
    for nodes in tried or sets[:1]:  # one is tried for its reasons
        attempt = _try_ways(session, statement, group, tasks, needed, nodes.mask, expected, lone=lone)
        attempts.append(attempt)
        placed = statement.placed_since(mark)
        session.forget_boards(nodes.mask)
        if placed and best_first:
            return attempt
        undone = statement.rollback(mark)
        if placed:
            fits.append((Fit(nodes, placed, attempt.score), attempt, undone))
    if not fits:
        return _fits_nowhere(group, attempts, len(sets))
    _, attempt, operations = fits[best(session, group, [fit for fit, _, _ in fits])]
    statement.redo(operations)
    return attempt


def _fits_nowhere(group: Group, attempts: Sequence[Attempt], sets: int) -> Attempt:
    """The first set's reasons; kube-scheduler, too, tells of one placement only, and how many there were."""
    if not attempts:
        return Attempt({}, refusal=Refusal("no subset of nodes is offered to the group"))
    if group.topology_key is not None:
        attempts[0].placements = sets
    return attempts[0]


def _try_ways(
    session: Session,
    statement: Statement,
    group: Group,
    tasks: Sequence[Task],
    needed: int,
    subset: BoolColumn | None,
    expected: int,
    *,
    lone: bool = False,
) -> Attempt:
    """Try orders of the tasks, then the exhaustive search, until as many stand as start the group."""
    mark = statement.checkpoint()
    kept = _nominated_rows(session, tasks)
    if len(kept) >= needed:
        placed = [task for task in tasks if task in kept]
        attempt = one_way(session, statement, group, placed, subset, expected, needed, kept)
        if _stands(group, statement, mark, len(placed), lone=lone):
            return attempt
        statement.rollback(mark)
    elif kept and subset is None and not has_placers(session):  # somebody else chose for some of them
        others = _beside_nominated(session, statement, tasks, kept)
        attempt = one_way(session, statement, group, others, None, expected, needed)
        if _stands(group, statement, mark, needed, lone=lone):
            return attempt
        statement.rollback(mark)
    first: Attempt | None = None
    for order in orders(session, tasks, subset):
        attempt = one_way(session, statement, group, order, subset, expected, needed)
        if _stands(group, statement, mark, needed, lone=lone):
            return attempt
        attempt.lacks = group.lacks if statement.placed_since(mark) else {}
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
        attempt = one_way(session, statement, group, placed, subset, expected, needed, found)
        if _stands(group, statement, mark, needed, lone=lone):
            return attempt
        statement.rollback(mark)
    return first


def _stands(group: Group, statement: Statement, mark: int, needed: int, *, lone: bool) -> bool:
    """Whether what was placed since the mark lets the group start: as many tasks, and of each sub-group its minimum."""
    return len(statement.placed_since(mark)) >= needed and (lone or not group.lacks)


def _nominated_rows(session: Session, tasks: Sequence[Task]) -> dict[Task, int]:
    """Where tasks are nominated: these nodes are tried before all others."""
    if not session.nominations.node_by_uid:
        return {}
    rows = {task: session.table.row_of.get(session.nominations.node_of(task) or "", -1) for task in tasks}
    return {task: row for task, row in rows.items() if row >= 0}


def _beside_nominated(
    session: Session, statement: Statement, tasks: Sequence[Task], kept: Mapping[Task, int]
) -> list[Task]:
    """Place those that fit where they are nominated; returns the others."""
    others = []
    for task in tasks:
        if task in kept and session.fits_on(task, kept[task]):
            statement.allocate(task, kept[task])
        else:
            others.append(task)
    return others


def orders(session: Session, tasks: Sequence[Task], subset: BoolColumn | None) -> Iterator[list[Task]]:
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


def one_way(
    session: Session,
    statement: Statement,
    group: Group,
    tasks: Sequence[Task],
    subset: BoolColumn | None,
    expected: int,
    needed: int,
    assignment: dict[Task, int] | None = None,
) -> Attempt:
    """Ask the plugins that place groups, else place task by task; what stands is in the statement. PluginError."""
    mark = statement.checkpoint()
    if has_placers(session):
        answer = None
        if len(tasks) == 1:
            row = assignment[tasks[0]] if assignment is not None else None
            answer = reserve_best(session, statement, tasks[0], subset, expected, row)
        if answer is None:
            answer = ask_plugins(session, statement, group, tasks, subset, assignment, needed)
        if answer is not None:
            return Attempt(answer.refused, answer.score, answer.refusal)
        statement.rollback(mark)
    refused, score = greedy(session, statement, tasks, subset, expected, assignment)
    return Attempt(refused, score)
