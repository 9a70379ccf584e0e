"""Each pending pod judged alone, node by node: the first plugin that refuses it, or the score."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from session_scheduler.actions.placing import too_few
from session_scheduler.actions.plugin_placement import ask_plugins, has_placers
from session_scheduler.config import SchedulerConfig
from session_scheduler.errors import InputError
from session_scheduler.evaluation import Verdict, judge, totals
from session_scheduler.hook_calls import PluginError
from session_scheduler.hookspecs import Refusal
from session_scheduler.model.columns import natural
from session_scheduler.model.groups import Phase, Task
from session_scheduler.offline import ClusterState, open_state, read_state
from session_scheduler.service import Scheduler
from session_scheduler.session import Session


def explain(files: Sequence[str], *, config: SchedulerConfig, pod: str | None = None) -> dict[str, Any]:
    """Judge the pending pods of manifests (paths, directories, "-") or of a snapshot among them, or the one of that
    namespace/name.

    Returns the JSON of the command: {"pods": [{namespace, name, reason, nodes}]}. Raises InputError.
    """
    return asyncio.run(_explain(files, config, pod))


async def _explain(files: Sequence[str], config: SchedulerConfig, pod: str | None) -> dict[str, Any]:
    return await explain_state(await read_state(files), config, pod)


async def explain_state(state: ClusterState, config: SchedulerConfig, pod: str | None = None) -> dict[str, Any]:
    """As `explain`, for a state that was read."""
    return explain_pending(await open_state(state, config), pod)


def explain_pending(scheduler: Scheduler, pod: str | None = None) -> dict[str, Any]:
    """The JSON of `explain` for every pod that waits, or the one of that namespace/name. Raises InputError.

    `nodes` names every node with {"fits": true, "score": N} or {"fits": false, "plugin", "reason"}; `reason` is what
    refuses the pod as a whole (a gate, a missing group, the matcher), else None.
    """
    waiting = [task for task in scheduler.cache.tasks.values() if task.phase in (Phase.PENDING, Phase.GATED)]
    if pod is not None:
        waiting = [task for task in waiting if task.key == pod]
        if not waiting:
            raise InputError(f"--pod {pod}: no pod of that namespace and name is waiting: write NAMESPACE/NAME")
    return {"pods": [_explain_task(scheduler, task) for task in sorted(waiting, key=lambda t: natural(t.key))]}


def _explain_task(scheduler: Scheduler, task: Task) -> dict[str, Any]:
    calls = scheduler.profiles[task.pod.spec.scheduler_name]
    answer: dict[str, Any] = {"namespace": task.namespace, "name": task.name, "reason": None, "nodes": {}}
    try:
        with closing(scheduler.open_session(calls, (task.group,))) as session:
            answer["nodes"] = {name: _node(verdict) for name, verdict in _judged(session, task).items()}
            gate = scheduler.cache.gates.of(task)
            answer["reason"] = gate.reason if gate is not None else _reason(session, task)
    except PluginError as error:
        answer["reason"] = str(error)
    return answer


def _node(verdict: Verdict) -> dict[str, Any]:
    if verdict.plugin is None:
        return {"fits": True, "score": verdict.score}
    return {"fits": False, "plugin": verdict.plugin, "reason": ", ".join(verdict.reasons)}


def _judged(session: Session, task: Task) -> Mapping[str, Verdict]:
    """Every node's verdict, by name in natural order."""
    plan = session.plan_for(task)
    view = session.table.all_rows()
    mask = session.candidates()
    refused = judge(plan, view, mask, task)
    total = totals(plan, view, mask, task)
    rows = session.table.row_of
    return {
        name: refused.get(rows[name]) or Verdict(score=total[rows[name]].item()) for name in sorted(rows, key=natural)
    }


def _reason(session: Session, task: Task) -> str | None:
    """What refuses the pod whatever the node."""
    if task.group.missing:
        return missing_group(task)
    group = task.group
    ready = len(group.in_phase(Phase.PENDING))
    if task.phase is Phase.PENDING and ready + group.started < group.min_count:
        return too_few(group, ready)
    refusal = session.plan(task.cls).refusal
    if refusal is not None:
        return refusal.reason
    if task.group.ref.refusal is not None:
        return task.group.ref.refusal.reason
    for call in session.calls.functions("prefilter"):
        answer = call(session, task.group)
        if isinstance(answer, Refusal):
            return call.refusal(answer).reason
    reason = session.pre_predicate(task)
    placeable = task.phase is Phase.PENDING and has_placers(session)
    if reason is not None or not placeable or not session.board(task).mask.any():
        return reason
    with session.statement(task.group) as statement:
        placed = ask_plugins(session, statement, task.group, [task], None)
        return placed.refusal.reason if placed is not None and placed.refusal is not None else None


def missing_group(task: Task) -> str:
    """The text for a pod whose PodGroup does not exist."""
    ref = task.group.ref
    return f"PodGroup {ref.namespace}/{ref.name} ({ref.api_group}) does not exist: create it, or remove the pod's group"
