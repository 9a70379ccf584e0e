"""Recovers gang plans that this replica finds: each is carried out as its writer wanted, or taken back.

Before its first bind a plan is carried out whole or taken back; after it each pod that still can goes where the plan
says, and the others are placed anew. What of a plan is not carried out is made void: no request that is still on its
way can bind by it, and at a start nothing else is placed until then. One of our own that failed is taken back, too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import structlog

from session_scheduler.base.clock import Clock
from session_scheduler.binding.binder import Binder, Planning
from session_scheduler.binding.plan_store import PLAN_ANNOTATION, Plan, PlannedPod, attempt_of
from session_scheduler.cluster.errors import ClusterError
from session_scheduler.engine.completion import BindCompletion
from session_scheduler.engine.gang_starts import GangStarts
from session_scheduler.engine.in_flight import InFlight, raise_first
from session_scheduler.engine.plan_cache import PlanCache, acknowledged
from session_scheduler.engine.sessions import Sessions
from session_scheduler.engine.unknown_binds import UnknownBinds
from session_scheduler.framework.bindings import Holding
from session_scheduler.framework.hooks import HookCalls, PluginError
from session_scheduler.framework.observer import Observer
from session_scheduler.framework.statement import Decision
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import PodGroup
from session_scheduler.state.cache import Cache, pod_group_key, schedulers_of
from session_scheduler.state.scheduling_queue import SchedulingQueue

_log = structlog.get_logger(__name__)


class PlanRecovery:
    """At the scheduler's start, and before the sessions of each cycle."""

    def __init__(
        self,
        *,
        cache: Cache,
        queue: SchedulingQueue,
        profiles: Mapping[str, HookCalls],
        clock: Clock,
        observer: Observer,
        binder: Binder,
        in_flight: InFlight[Any],
        unknown_binds: UnknownBinds,
        plans: PlanCache,
        gang_starts: GangStarts,
        sessions: Sessions,
        completion: BindCompletion,
        ingest_written: Callable[[PodGroup], None],
    ) -> None:
        """`ingest_written` gets each PodGroup as a write answered it."""
        self._cache = cache
        self._queue = queue
        self._profiles = profiles
        self._clock = clock
        self._observer = observer
        self._binder = binder
        self._in_flight = in_flight
        self._unknown_binds = unknown_binds
        self._plans = plans
        self._gang_starts = gang_starts
        self._sessions = sessions
        self._completion = completion
        self._ingest_written = ingest_written

    async def start(self) -> None:
        """After everything was listed: read every plan, see which gangs have started, and which only began to."""
        self._plans.start()
        for pod_group in list(self._cache.pod_groups()):
            text = pod_group.metadata.annotations.get(PLAN_ANNOTATION)
            key = pod_group_key(pod_group)
            if text is not None and key in self._cache.groups:
                await self._plans.fetch(key, pod_group, text)
            elif text is not None:
                self._gang_starts.ended(key, pod_group)
        for group in list(self._cache.groups.values()):
            if group.pod_group is not None:
                self._gang_starts.resume(group, group.pod_group)

    async def review(self, failed: Container[str] = ()) -> None:
        """Carry on with what plans say of pending pods; evict where a gang's time is over.

        Profiles that `failed` cannot carry on with anything now. An unexpected error fails its group, and is raised at
        the end.
        """
        now = self._clock.now()
        errors: list[BaseException] = []
        for group in self._cache.pending_groups(self._has_plan):
            if any(name in failed for name in schedulers_of(group)):
                continue
            if self._queue.is_due(group.key, now) and not self._gang_starts.holds_back(group):
                try:
                    await self._review(group)
                except Exception as error:  # noqa: BLE001 (a bug: it is raised at the end)
                    self._completion.back_off(group.key)
                    errors.append(error)
        self._gang_starts.evict_late()
        raise_first(errors)

    def _has_plan(self, group: Group) -> bool:
        pod_group = group.pod_group
        planned = pod_group is not None and PLAN_ANNOTATION in pod_group.metadata.annotations
        return planned and not self._unknown_binds.is_busy(group.key)

    async def _review(self, group: Group) -> None:
        """Carry on with what the plan on a group's PodGroup says of its pending pods."""
        plan = self._plans.plan_of(group)
        if plan is None:
            return
        parts = {
            task: plan.pods[uid]
            for uid, task in group.tasks.items()
            if uid in plan.pods and task.phase is Phase.PENDING
        }
        begun = any(task.node is not None for uid, task in group.tasks.items() if uid in plan.pods)
        found = not self._plans.is_given_up(group.key, plan.attempt)
        if plan.state == "abort":
            self._abort(group, plan, [task for uid, task in group.tasks.items() if uid in plan.pods], found=found)
            return
        if found:
            if group.pod_group is not None and not acknowledged(group.pod_group, plan):
                self._gang_starts.resume_start(group, plan)
                parts |= _vacated(group, plan) if begun else {}
            if parts and await self._recover(group, plan, parts, begun=begun):
                return
            self._plans.give_up(group.key, plan.attempt)
            if parts and begun and group.pod_group is not None:
                self._plans.gate(group.key)
                planning = self._gang_starts.replacing(group, group.pod_group, ())
                self._in_flight.start(group.key, self._binder.strike(planning), self._struck)
        if parts and not begun:
            self._abort(group, plan, parts, found=found)

    # ------------------------------------------------------------------ carrying out

    async def _recover(self, group: Group, plan: Plan, parts: Mapping[Task, PlannedPod], *, begun: bool) -> bool:
        """Carry out another replica's plan. False where that is not possible any more.

        Before its first bind it is done whole or not at all; after that each pod that can goes where it says. `parts`
        are the pods to be bound; one that is not in the plan takes the place of one that is gone, by a plan of its own.
        """
        schedulers, pod_group = schedulers_of(group), group.pod_group
        if (
            pod_group is None
            or len(schedulers) != 1
            or group.terminating
            or (not begun and len(parts) < len(plan.pods) + plan.gone)
        ):
            return False
        calls = self._profiles[schedulers[0]]
        decision: Decision | None = None
        try:
            decision = self._evaluated(group, parts, calls, whole=not begun)
            if decision is None:
                return False
            refused = self._hold(decision, parts, calls)
        except PluginError as error:
            for task in decision.allocated if decision is not None else ():
                await self._completion.give_up(task, calls)
            self._completion.plugin_failed([group], error)
            return True
        undone = [task for task in decision.allocated if task.uid in refused or (refused and not begun)]
        for task in undone:
            await self._completion.give_up(task, calls)
        if len(undone) == len(decision.allocated):
            return False
        decision.allocated = [task for task in decision.allocated if task not in undone]
        decision.holds = {task: parts[task].holds for task in decision.allocated}
        self._carry_on(group, pod_group, plan, decision, calls)
        return True

    def _carry_on(self, group: Group, pod_group: PodGroup, plan: Plan, decision: Decision, calls: HookCalls) -> None:
        self._plans.give_up(group.key, plan.attempt)
        self._gang_starts.joins_start(group, decision.allocated)
        self._observer.recovered("rolled forward", len(decision.allocated))
        planning = self._gang_starts.replacing(group, pod_group, decision.allocated)
        if planning.others:
            self._plans.gate(group.key)
        elif all(task.uid in plan.pods for task in decision.allocated):
            planning = Planning(pod_group, plan, resumed=True, attempt=plan.attempt)
        self._plans.recover(group.key, plan.attempt)
        self._completion.carry_out(decision, calls, planning)

    def _evaluated(
        self, group: Group, parts: Mapping[Task, PlannedPod], calls: HookCalls, *, whole: bool
    ) -> Decision | None:
        """The pods that the filters let go where the plan says; None for none, or not all where `whole`.

        Nodes may have changed since, and a plan may be forged. Raises PluginError.
        """
        session = self._sessions.open(calls, (group,))
        try:
            with session.statement(group) as statement:
                for task, part in parts.items():
                    row = session.table.row_of.get(part.node)
                    if row is None or session.plan(task.cls).refusal is not None:
                        continue
                    if session.board(task).fits(row, task):
                        statement.allocate(task, row)
                placed = statement.placed_since(0)
                if not placed or (whole and len(placed) < len(parts)):
                    return None
                mutations = session.bind_annotations(placed)
                decision = statement.commit()
                decision.mutations = mutations
                return decision
        finally:
            self._sessions.close(session)
            session.forget()

    def _hold(self, decision: Decision, parts: Mapping[Task, PlannedPod], calls: HookCalls) -> set[str]:
        """Let the plugins hold what the plan says. Returns the pods (uids) for which one cannot. Raises PluginError."""
        refused: set[str] = set()
        holds = {task: parts[task].holds for task in decision.allocated}
        for call in calls.functions("recover"):
            holdings = [
                Holding(task, parts[task].node, holds[task].get(call.plugin), {}) for task in decision.allocated
            ]
            refused.update(call.guarded(set, call(holdings) or ()))
        return refused

    # ------------------------------------------------------------------ taking back

    def _abort(self, group: Group, plan: Plan, tasks: Iterable[Task], *, found: bool) -> None:
        if group.pod_group is None:
            return
        if found:
            self._plans.gate(group.key)
        pods = [task.pod for task in tasks]
        self._plans.give_up(group.key, plan.attempt)
        self._in_flight.start(group.key, self._binder.abort(group.pod_group, plan, pods), self._aborted)

    async def _struck(self, key: str, answer: PodGroup | BaseException) -> None:
        self._plans.ungate(key, answer)
        if isinstance(answer, PodGroup):
            self._ingest_written(answer)
        elif isinstance(answer, ClusterError):
            _log.warning("a plan cannot be changed yet", group=key, error=str(answer))
            self._plans.reconsider(key)
            self._completion.back_off(key)
        else:
            raise answer

    async def _aborted(self, key: str, answer: PodGroup | BaseException) -> None:
        self._plans.ungate(key, answer)
        if isinstance(answer, PodGroup):
            self._ingest_written(answer)
            if standing := attempt_of(answer):  # one of its pods was bound: it is carried on with
                self._plans.reconsider(key, standing)
                return
            self._gang_starts.forget_start(key)
            self._observer.recovered("aborted", 0)
        elif isinstance(answer, ClusterError):
            _log.warning("a plan cannot be taken back yet", group=key, error=str(answer))
            self._completion.back_off(key)
        else:
            raise answer


def _vacated(group: Group, plan: Plan) -> dict[Task, PlannedPod]:
    """Pending pods that are not in the plan, each with the place of one that is gone: its namesake's, as a rule."""
    free = [part for uid, part in plan.pods.items() if uid not in group.tasks]
    found: dict[Task, PlannedPod] = {}
    for task in group.in_phase(Phase.PENDING):
        place = next((part for part in free if part.name == task.name), None)
        if task.uid not in plan.pods and place is not None:
            found[task] = place
            free.remove(place)
    if len({task.cls for task in group.tasks.values()}) == 1:  # any of them is as good
        others = [task for task in group.in_phase(Phase.PENDING) if task.uid not in plan.pods and task not in found]
        found.update(zip(others, free, strict=False))
    return found
