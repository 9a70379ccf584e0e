"""The postfilter step: asks plugins for victims if tasks fit on no node, and nominates the tasks.

`allocate` and `preempt` choose victims by priority, `reclaim` for a queue's share. Plugins receive a `Trial`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from session_scheduler.actions.plugin_placement import answers_by_node
from session_scheduler.actions.trial import Trial
from session_scheduler.framework.answers import NoPreemption, Preemption
from session_scheduler.framework.callback_runner import Rejectors
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.framework.trial_cache import KnownNoPreemption
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.reclaim_rules import DAMAGES
from session_scheduler.model.refusals import Refusal
from session_scheduler.state.scheduling_queue import GANG_SCHEDULING

MOVES_IN_FLIGHT: Final = "pods that move to other nodes are still on the nominated node."


def preempt(session: Session, group: Group, result: PlacementResult) -> list[Preemption]:
    """Find victims by priority for the group's rejected tasks, and update the result. Raises PluginError.

    If preemption is off for them, give up the nominations that wait for no victims.
    """
    give_up_nominations(session, result, [task for task in result.over_capacity if not _has_victims(session, task)])
    if result.placed_in_part or (result.refusal is not None and result.refusal.failed):
        return []
    if result.refusal is not None and result.refusal.plugin == GANG_SCHEDULING and not result.tried:
        # a gang that lacks pods or cannot start at all must not keep nodes from other pods
        give_up_nominations(session, result, [task for task in group.tasks.values() if task.node is None])
        for task in group.in_phase(Phase.PENDING):
            result.reasons.setdefault(task, result.refusal.reason)
        return []
    refused = [task for task in result.tried if task.phase is Phase.PENDING and task in result.reasons]
    if any(_has_moves_in_flight(session, task) for task in refused):
        for task in refused:
            result.reasons[task] = _joined(result.reasons[task], "consolidation", MOVES_IN_FLIGHT)
        return []
    if not session.options.preempts or not session.calls.functions("postfilter"):
        idle = [task for task in (*result.barred, *refused) if _awaits_no_victims(session, task)]
        give_up_nominations(session, result, idle)
        return []
    result.preempts = True
    together = group.topology_key is not None or (not group.single and not group.whole)
    if together:
        give_up_nominations(session, result, result.barred)
        tasks = refused or _outranking(session, group, result.over_capacity_together)
        answer = _run_plugins(session, group, tasks, alone=False) if tasks else None
        return _apply(session, result, tasks, answer) if refused or isinstance(answer, Preemption) else []
    found: list[Preemption] = []
    for task in _outranking(session, group, result.over_capacity):
        answer = _run_plugins_once(session, result, task, alone=False)
        found += _apply(session, result, [task], answer) if isinstance(answer, Preemption) else []
    for task in result.barred if session.table.row_of else ():
        found += _apply(session, result, [task], _run_plugins_once(session, result, task, alone=True))
    for task in refused:
        placeable = session.calls.places_groups and session.evaluator.board(task).mask.any()
        alone = not placeable or answers_by_node(session, task)
        found += _apply(session, result, [task], _run_plugins_once(session, result, task, alone=alone))
    return found


def reclaim_share(session: Session, group: Group, result: PlacementResult) -> list[Preemption]:
    """Find victims in other queues for the group's rejected tasks, up to its queue's share. Raises PluginError.

    Without victims the reasons stay unchanged.
    """
    refused = [task for task in result.tried if task.phase is Phase.PENDING and task in result.reasons]
    if group.topology_key is not None or (group.is_gang and not group.whole):
        together = refused or result.over_capacity_together
        return _reclaim(session, result, together[: group.needed], alone=False) if together else []
    found: list[Preemption] = []
    for task in (*refused, *result.over_capacity):
        session.asked_for = task
        try:
            # the victims for a task that exceeds a limit can be on any node
            placed = session.calls.places_groups and session.evaluator.board(task).mask.any()
            alone = task not in result.over_capacity and (not placed or answers_by_node(session, task))
            found += _reclaim(session, result, [task], alone=alone)
        finally:
            session.asked_for = None
    return found


def _reclaim(session: Session, result: PlacementResult, tasks: Sequence[Task], *, alone: bool) -> list[Preemption]:
    """Find victims that do the least damage."""
    group = result.group
    try:
        for damage in DAMAGES if session.registered.reclaims_together else (0,):
            session.reclaim_damage = damage
            if session.runner.can_reclaim(group) is not None:
                continue
            result.preempts = True
            if session.asked_for is not None:
                answer = _run_plugins_once(session, result, tasks[0], alone=alone, reclaims=True)
            else:
                answer = _run_plugins(session, group, tasks, alone=alone, reclaims=True)
            if isinstance(answer, Preemption):
                return _apply(session, result, tasks, answer)
            session.runner.note_unreclaimed(tasks)
    finally:
        session.reclaim_damage = 0
    return []


def _run_plugins_once(
    session: Session, result: PlacementResult, task: Task, *, alone: bool, reclaims: bool = False
) -> Preemption | NoPreemption | None:
    """Like `_run_plugins`, but reuses a NoPreemption for tasks that are alike until something changes."""
    group = result.group
    limited: object = None
    if reclaims:
        alike = session.runner.reclaim_alike(group) if session.registered.validates_alike else None
        limited = ("reclaim", session.reclaim_damage,
                   group if alike is None else (group.queue, group.preemptible, alike))  # fmt: skip
    elif session.runner.limits_preemption:
        limited = group.queue if session.registered.preempts_alike else group
    # plugins can offer different nodes to each group
    offered = group if session.runner.divides_nodes and not group.single else None
    of_task = task.cls.index if reclaims or limited is not None else session.evaluator.alike(task)
    key = (of_task, task.preemptor_priority, task.pod.spec.preemption_policy, alone, session.nominated.left_out(task),
           limited, offered)  # fmt: skip
    placed = (group, len(result.placed)) if result.placed else None  # not committed yet
    state = (session.ledger.committed, session.ledger.choices, session.nominations.version, placed)
    known = None if session.evaluator.naive else session.trials.no_preemption.get(key)
    if known is not None and known.state == state and session.nominations.node_of(task) is None:
        session.runner.note_rejected(task, known.rejectors.of_nodes)
        session.runner.note_limited(task, known.rejectors.of_victims)
        return known.answer
    rejectors = Rejectors()
    with session.runner.collecting(rejectors):
        answer = _run_plugins(session, group, [task], alone=alone, reclaims=reclaims)
    if isinstance(answer, NoPreemption) and not answer.keep and state[0] == session.ledger.committed:
        session.trials.no_preemption[key] = KnownNoPreemption(state, answer, rejectors)
    return answer


def _run_plugins(
    session: Session, group: Group, tasks: Sequence[Task], *, alone: bool, reclaims: bool = False
) -> Preemption | NoPreemption | None:
    """The first plugin's answer. Notes the plugin if more victims are possible once pods are bound: its queueing hint
    for that event requeues the tasks.
    """
    for call in session.calls.functions("postfilter"):
        session.trials_made += 1
        with Trial(session, group, tasks, alone=alone, reclaims=reclaims) as trial:
            answer = call(session, trial)
        if answer is None:
            continue
        if not isinstance(answer, Preemption | NoPreemption):
            raise call.wrong(f"expected a Preemption, a NoPreemption or None, got {answer!r}")
        found: Preemption | NoPreemption = answer
        if isinstance(found, Preemption):
            objection = trial.objection(found.nominated, found.victims)
            found = found if objection is None else NoPreemption(objection)
        for task in tasks if trial.awaits_binds and isinstance(found, NoPreemption) else ():
            session.runner.note_limited(task, (call.plugin,))
        return found
    return None


def _apply(
    session: Session, result: PlacementResult, tasks: Sequence[Task], answer: Preemption | NoPreemption | None
) -> list[Preemption]:
    """Nominate the tasks for a Preemption; else add the reason and give up their nominations."""
    if isinstance(answer, Preemption):
        for task, node in answer.nominated.items():
            nominate(session, result, task, node)
        session.ledger.choose_victims(answer.victims)
        return [answer]
    if answer is None:
        return []
    for task in tasks:
        result.reasons[task] = _joined(result.reasons[task], "preemption", answer.reason)
    if not answer.keep:
        give_up_nominations(session, result, tasks)
    if result.refusal is not None:
        refusal = result.refusal
        result.refusal = Refusal(_joined(refusal.reason, "preemption", answer.reason), refusal.plugin, refusal.failed)
    return []


def _has_victims(session: Session, task: Task) -> bool:
    """Whether a task over its queue's limit fits the limit once the victims chosen for it have terminated."""
    return session.nominations.node_of(task) is not None and session.queues.holds_as_decided(task.group)


def _outranking(session: Session, group: Group, tasks: Sequence[Task]) -> list[Task]:
    """The tasks over their queue's limit that outrank pods of their queue: evicting these may keep the limit."""
    return [
        task
        for task in tasks
        if session.nominations.node_of(task) is None and session.queues.outranks_any(group, task.preemptor_priority)
    ]


def _joined(reason: str, what: str, why: str) -> str:
    """Two sentences, even if a plugin's reason has no full stop."""
    return f"{reason.removesuffix('.')}. {what}: {why}"


def _has_moves_in_flight(session: Session, task: Task) -> bool:
    """Whether pods that consolidation moves are still on the task's nominated node. The task keeps that node."""
    node, cache = session.nominations.node_of(task), session.snapshot.cache
    return node is not None and any(cache.moves.leaves(other) for other in cache.tasks_on(node))


def _awaits_no_victims(session: Session, task: Task) -> bool:
    """Whether the task's nominated node has no terminating pods."""
    cache, node = session.snapshot.cache, session.nominations.node_of(task)
    return node is None or not any(map(session.ledger.is_ending, cache.tasks_on(node)))


def give_up_nominations(session: Session, result: PlacementResult, tasks: Sequence[Task]) -> None:
    """Remove the nominations of these tasks, including those only in the pods' status. Skips nominations to keep."""
    for task in tasks:
        if task.uid in session.nominations.kept:
            continue
        if session.nominations.node_of(task) is not None or task.pod.status.nominated_node_name:
            nominate(session, result, task, "")


def nominate(session: Session, result: PlacementResult, task: Task, node: str, *, start: float | None = None) -> None:
    """Nominate a task for a node, or for none with an empty name. `start` is that of `session.ledger.nominate`."""
    result.nominated_before.setdefault(task, session.nominations.node_of(task) or "")
    session.ledger.nominate(task, node, start)
    result.nominated[task] = node
