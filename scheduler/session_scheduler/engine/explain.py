"""Explains pending pods: evaluates each alone, node by node, with the rejecting plugin, what would help, and scores.

The offline commands and the server's endpoint use it. It opens a session and commits nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import Any, ParamSpec, cast

import numpy as np

from session_scheduler.actions.best_part import MOST_WAYS, best_part, is_gang
from session_scheduler.actions.placing import (
    GANG_WAITS,
    UNSCHEDULABLE,
    can_start,
    group_refusal,
    required_first,
    too_few,
)
from session_scheduler.actions.plugin_placement import ask_plugins
from session_scheduler.actions.request import PlacementRequest
from session_scheduler.actions.reserving import first_start
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.evaluation import Evaluation, evaluate
from session_scheduler.framework.hooks import HookCalls, PluginError
from session_scheduler.framework.node_refusals import Verdict, summarise
from session_scheduler.framework.nominated_pods import NAME as NOMINATED_PODS
from session_scheduler.framework.scores import ScorePart, score_parts, totals
from session_scheduler.framework.session import Session
from session_scheduler.model.columns import natural
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.refusals import Gate

NOT_TRIED = "not tried"
_P = ParamSpec("_P")
_LATEST = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()


def reason_of(scheduler: Scheduler, task: Task) -> str:
    """Why a task waits: its gates, or the last outcome of its group."""
    return gate_reason(scheduler, task) or outcome_reason(scheduler, task) or NOT_TRIED


def outcome_reason(scheduler: Scheduler, task: Task) -> str | None:
    """Why the last attempt did not place a task; None if there was none."""
    outcome = scheduler.outcomes.get(task.group.key)
    if outcome is None:
        return None
    if task in outcome.reasons:
        return outcome.reasons[task]
    return outcome.refusal.reason if outcome.refusal else None


def head_of(task: Task) -> dict[str, Any]:
    """The first keys of a pod's JSON: the pod, its group and its queue."""
    return {"namespace": task.namespace, "name": task.name, "group": None if task.group.single else task.group.name,
            "queue": task.group.queue}  # fmt: skip


def gate_reason(scheduler: Scheduler, task: Task) -> str | None:
    """Why a gated task waits: a plugin's gate, its scheduling gates, or its deletion; None for other tasks."""
    gate = scheduler.cache.gates.of(task)
    if gate is not None:
        return gate.reason
    if task.phase is not Phase.GATED:
        return None
    names = ", ".join(gate.name for gate in task.pod.spec.scheduling_gates)
    return f"Scheduling is blocked due to non-empty scheduling gates: {names}" if names else "the pod is being deleted"


def explain_pending(scheduler: Scheduler) -> dict[str, Any]:
    """The JSON of `explain` for every pending pod.

    `nodes` names every node with {"fits": true, "score": N, "scores": [...]} or {"fits": false, "plugin", "reason",
    "fitsIf": [...]}, and `summary` counts them in kube-scheduler's sentence. `reason` is why the pod is rejected on
    every node (a gate, a queue's limit, a gang that does not fit, the matcher), else None; `fitsIf`, if a plugin knows
    it, is what must change.
    `groups` reports how much of each gang could be placed; `seconds` the time of each plugin.
    """
    return explain_tasks(scheduler, waiting_tasks(scheduler))


def waiting_tasks(scheduler: Scheduler) -> list[Task]:
    """The pending pods in natural order."""
    waiting = (task for task in scheduler.cache.tasks.values() if task.phase in (Phase.PENDING, Phase.GATED))
    return sorted(waiting, key=lambda task: natural(task.key))


def explain_tasks(scheduler: Scheduler, waiting: Sequence[Task]) -> dict[str, Any]:
    """Like `explain_pending`, for these tasks."""
    before = _seconds(scheduler)
    callbacks: Counter[str] = Counter()
    gangs = {
        group: explain_gang(scheduler, group, spent=callbacks, asks=True)
        for group in dict.fromkeys(task.group for task in waiting if is_gang(task.group))
    }
    pods = [explain_task(scheduler, task, spent=callbacks) for task in waiting]
    for task, pod in zip(waiting, pods, strict=True):
        if pod["reason"] is None and task.group in gangs:
            pod["reason"] = gang_reason(gangs[task.group])
    answer = {"pods": pods, "groups": list(gangs.values())}
    callbacks.update(_seconds(scheduler))
    callbacks.subtract(before)
    return {**answer, "seconds": {name: round(seconds, 6) for name, seconds in callbacks.items() if seconds > 0}}


def _seconds(scheduler: Scheduler) -> Counter[str]:
    """The time of each plugin so far; a plugin that profiles share counts once."""
    total: Counter[str] = Counter()
    for calls in scheduler.profiles.values():
        total.update(calls.seconds())
    return total


def _by_final_classes(explain: Callable[_P, dict[str, Any]]) -> Callable[_P, dict[str, Any]]:
    """Explain again if a class was split meanwhile: see `ObservedCall`. The first argument is the scheduler."""

    @wraps(explain)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> dict[str, Any]:
        answer = explain(*args, **kwargs)
        while cast("Scheduler", args[0]).cache.split_classes():
            answer = explain(*args, **kwargs)
        return answer

    return call


@_by_final_classes
def explain_task(
    scheduler: Scheduler, task: Task, most: int | None = None, spent: Counter[str] | None = None
) -> dict[str, Any]:
    """One pending pod, as in `explain_pending`; changes nothing.

    With `most` it shows at most that many nodes, the best first; `refusals` counts the rejected nodes by plugin,
    `leftOut` the nodes that are not shown. The time of callbacks is added to `spent`, by plugin.
    """
    calls = scheduler.profiles[task.pod.spec.scheduler_name]
    answer: dict[str, Any] = {
        "namespace": task.namespace, "name": task.name, "reason": None, "summary": None, "nodes": {}
    }  # fmt: skip
    if most is not None:
        answer |= {"refusals": Counter(), "leftOut": 0}
    try:
        with _opened(scheduler, calls, task.group, spent) as session:
            answer["nodes"] = _nodes(session, task, most, answer)
            answer["reason"] = gate_reason(scheduler, task) or _reason(session, task, answer)
            changes = _changes_of_all(session, task, scheduler.cache.gates.of(task), answer["reason"])
            if changes:
                answer["fitsIf"] = changes
    except PluginError as error:
        answer["reason"] = str(error)
    return answer


def explain_one(scheduler: Scheduler, task: Task, most: int, ways: int = MOST_WAYS) -> dict[str, Any]:
    """One pending pod, as `explain_task` with `most`, and its gang under "gang"; None for a pod without one."""
    answer = explain_task(scheduler, task, most=most)
    answer["refusals"] = dict(sorted(answer["refusals"].items()))
    answer["gang"] = gang = explain_gang(scheduler, task.group, ways=ways) if is_gang(task.group) else None
    if answer["reason"] is None and gang is not None:
        answer["reason"] = gang_reason(gang)
    return answer


@_by_final_classes
def explain_gang(
    scheduler: Scheduler, group: Group, ways: int = MOST_WAYS, spent: Counter[str] | None = None, *, asks: bool = False
) -> dict[str, Any]:
    """How much of a gang could be placed now, where, and why not the rest; changes nothing.

    `reservation` has the nodes reserved for it; with `asks` also those that the action `backfill` would reserve.
    """
    reservation: dict[str, Any] = {}
    calls = scheduler.profiles[next(iter(group.tasks.values())).pod.spec.scheduler_name]
    try:
        with _opened(scheduler, calls, group, spent) as session:
            placed, refused, reason = best_part(session, group, ways)
            reservation = _reservation(session, group, asks=asks and not can_start(group, list(placed)))
    except PluginError as error:
        placed, refused, reason = {}, {}, str(error)
    return {
        "namespace": group.namespace,
        "name": group.name,
        "minCount": group.min_count,
        "started": group.started,
        "placeable": len(placed),
        "placement": _by_name(placed),
        "refused": _by_name(refused),
        **_sub_groups(group, placed),
        "reason": reason,
        **reservation,
    }


def gang_reason(gang: Mapping[str, Any]) -> str | None:
    """Why the pods of a gang wait although each fits a node, from its `explain_gang`; None if the gang can start."""
    parts = [gang, *gang.get("subGroups", {}).values()]
    least = [part["minCount" if part is gang else "minimum"] for part in parts]
    if all(part["started"] + part["placeable"] >= count for part, count in zip(parts, least, strict=True)):
        return None
    if gang["reason"] is not None:
        return str(gang["reason"])
    why = next(iter(gang["refused"].values()), "")
    return f"{GANG_WAITS}: {why}" if why else GANG_WAITS


def _reservation(session: Session, group: Group, *, asks: bool) -> dict[str, Any]:
    """When and where a gang will start; empty if unknown. `asks` computes it if necessary."""
    known, starts = session.nominations, session.nominations.starts
    nodes = {task: node for task in group.tasks.values() if task in starts and (node := known.node_of(task))}
    start = max((starts[task] for task in nodes), default=0.0)
    tasks = sorted(group.in_phase(Phase.PENDING), key=session.runner.task_key)
    if not nodes and asks and tasks and session.options.reservations:
        found = first_start(session, group, tasks)
        if found is not None:
            nodes, start = dict(found.nominated), found.start
    return {"reservation": {"start": _time(start), "nodes": _by_name(nodes)}} if nodes else {}


def _time(seconds: float) -> str:
    """A time in RFC 3339, in whole seconds."""
    return f"{datetime.fromtimestamp(min(seconds, _LATEST), UTC):%Y-%m-%dT%H:%M:%SZ}"


def _by_name(values: Mapping[Task, str]) -> dict[str, str]:
    return {task.name: values[task] for task in sorted(values, key=lambda task: natural(task.name))}


@contextmanager
def _opened(scheduler: Scheduler, calls: HookCalls, group: Group, spent: Counter[str] | None) -> Iterator[Session]:
    """A session over one group, discarded at the end. Raises PluginError."""
    session = scheduler.sessions.open(calls, (group,))
    try:
        with closing(session):
            yield session
    finally:
        if spent is not None:
            spent.update(session.registered.seconds())
        session.forget()


# ------------------------------------------------------------------ node by node


def _nodes(session: Session, task: Task, most: int | None, answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every node's verdict, by name in natural order; `most` and `answer` are those of `explain_task`."""
    evaluation = session.evaluator.evaluation_for(task)
    view = session.table.all_rows()
    mask = session.table.valid()
    refused = evaluate(evaluation, view, mask, task)
    total = totals(evaluation, view, mask, task)
    parts = score_parts(evaluation, view, mask, task)
    rows: Mapping[str, int] = session.table.row_of
    answer["summary"] = summarise(len(rows), refused.texts(), available=len(rows) - len(refused))
    if most is not None:
        answer["refusals"].update(refused.plugins())
        answer["leftOut"] = max(0, len(rows) - most)
        shown = sorted(rows, key=lambda name: (rows[name] in refused, -total[rows[name]], natural(name)))[:most]
        rows = {name: session.table.row_of[name] for name in shown}
    changes = _changes(session, evaluation, task, {row: refused[row] for row in rows.values() if row in refused})
    return {
        name: _refusal(refused[row], changes.get(row, [])) if (row := rows[name]) in refused
        else {"fits": True, "score": total[row].item(), "scores": [_part(part, row) for part in parts]}
        for name in sorted(rows, key=natural)
    }  # fmt: skip


def _part(part: ScorePart, row: int) -> dict[str, Any]:
    """`score` is 0 to 100 (for a node order the number itself); `weight` times `score` is added to the total."""
    raw, score = part.raw[row].item(), part.normalised[row].item()
    return {"plugin": part.plugin, "weight": part.weight, "raw": raw, "score": score}


def _refusal(verdict: Verdict, changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    named = [change["plugin"] for change in changes]
    first = [] if verdict.plugin in named else [{"plugin": verdict.plugin, "changes": None}]
    return {
        "fits": False,
        "plugin": verdict.plugin,
        "reason": ", ".join(verdict.reasons),
        "fitsIf": [*first, *changes],
    }


def _changes(
    session: Session, evaluation: Evaluation, task: Task, refused: Mapping[int, Verdict]
) -> dict[int, list[dict[str, Any]]]:
    """By row: every plugin that rejects it, not only the first, and what must change for it to pass."""
    found: dict[int, list[dict[str, Any]]] = {}
    view = session.table.all_rows()
    for filtering in evaluation.filters if refused else ():
        mask = session.table.valid()
        try:
            filtering.run(view, mask, task)
            gone = np.array([row for row in refused if not mask[row]], np.int64)
            if not len(gone) or filtering.plugin == NOMINATED_PODS:  # it repeats the filters with nominated pods
                continue
            answers = filtering.fits_if(view.some(gone))
        except PluginError:  # only evaluated for rows that another plugin rejected
            continue
        for row, changes in zip(gone.tolist(), answers, strict=True):
            change = {"plugin": filtering.plugin, "changes": None if changes is None else list(changes)}
            found.setdefault(row, []).append(change)
    return found


def _sub_groups(group: Group, placed: Iterable[Task]) -> dict[str, Any]:
    """Each sub-group's minimum, and its started and placeable pods; empty for a group without sub-groups."""
    if not group.minima:
        return {}
    started = Counter(task.sub_group for task in group.in_phase(Phase.BOUND, Phase.ASSUMED))
    placeable = Counter(task.sub_group for task in placed)
    return {"subGroups": {name: {"minimum": minimum, "started": started[name], "placeable": placeable[name]}
                          for name, minimum in group.minima.items()}}  # fmt: skip


def _reason(session: Session, task: Task, answer: dict[str, Any]) -> str | None:
    """Why the pod is rejected on every node. Adds `until` to `answer` if time alone changes that."""
    group = task.group
    refusal = group_refusal(session, group)
    if refusal is not None:
        return refusal.reason
    ready = group.in_phase(Phase.PENDING)
    if task.phase is Phase.PENDING and not can_start(group, ready):
        return too_few(group, ready)
    refusal = session.evaluator.evaluation(task.cls).refusal
    if refusal is not None:
        return refusal.reason
    reason = session.runner.pre_predicate(task) or _over_capacity(session, task)
    placeable = task.phase is Phase.PENDING and session.calls.places_groups
    if reason is not None or not placeable or not session.evaluator.board(task).mask.any():
        return reason
    with session.ledger.statement(group) as statement:
        placed = ask_plugins(PlacementRequest(session, statement, group, [task]))
        refusal = placed.refusal if placed is not None else None
    if refusal is not None and refusal.until is not None:
        answer["until"] = _time(refusal.until)
    return refusal.reason if refusal is not None else None


def _changes_of_all(session: Session, task: Task, gate: Gate | None, reason: str | None) -> list[str]:
    """What must change for that reason to disappear; empty if unknown."""
    if gate is not None:
        return [f"{gate.awaits[0].__name__} {gate.awaits[1]} existed and could be used"] if gate.awaits else []
    if task.group.missing:
        return [f"PodGroup {task.group.ref.namespace}/{task.group.ref.name} existed"]
    refusal = session.evaluator.evaluation(task.cls).refusal
    return list(refusal.fits_if) if refusal is not None and refusal.reason == reason else []


def _over_capacity(session: Session, task: Task) -> str | None:
    """Why the pod exceeds a capacity such as its queue's limit; a gang is checked as a whole."""
    group = task.group
    if not session.runner.limits_capacity or task.phase is not Phase.PENDING:
        return None
    together = group.needed > 1 or bool(group.lacks)
    pending = sorted(group.in_phase(Phase.PENDING), key=session.runner.task_key)
    tasks = required_first(session, group, pending) if together else [task]
    over = session.runner.over_capacity(group, tasks)
    if together and not can_start(group, [one for one in tasks if one not in over]):
        return f"{UNSCHEDULABLE}: {next(iter(over.values()))[0]}"
    return over[task][0] if task in over else None
