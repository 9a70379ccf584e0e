"""Recovers gang plans that another replica left: carries them out, or aborts them.

A plan without a bind is carried out all-or-nothing, or aborted. After its first bind each pod goes to its planned node
if it still fits, and the others are placed again. The rest of a plan is voided: no request in flight can bind by it any
more, and at startup all groups wait until then. A failed plan of this replica is aborted, too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from session_scheduler.base.clock import Clock
from session_scheduler.binding.binder import Binder
from session_scheduler.binding.plan_store import PlanSwap
from session_scheduler.cluster.errors import ClusterError
from session_scheduler.engine.completion import BindCompletion
from session_scheduler.engine.gang_starts import GangStarts
from session_scheduler.engine.in_flight import InFlight, raise_first
from session_scheduler.engine.plan_cache import PlanCache, acknowledged
from session_scheduler.engine.sessions import Sessions
from session_scheduler.engine.unknown_binds import UnknownBinds
from session_scheduler.framework.bindings import Holding
from session_scheduler.framework.hooks import ClassSplitError, HookCalls, PluginError
from session_scheduler.framework.observer import Observer
from session_scheduler.framework.statement import Decision
from session_scheduler.model.gang_plan import PLAN_ANNOTATION, GangPlan, PlannedPod, attempt_of
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import PodGroup
from session_scheduler.state.cache import Cache, pod_group_key, schedulers_of
from session_scheduler.state.scheduling_queue import SchedulingQueue

_log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class PlanRecovery:
    """Runs at the scheduler's start, and before the sessions of each cycle."""

    cache: Cache
    queue: SchedulingQueue
    profiles: Mapping[str, HookCalls]
    clock: Clock
    observer: Observer
    binder: Binder
    in_flight: InFlight[Any]
    unknown_binds: UnknownBinds
    plans: PlanCache
    gang_starts: GangStarts
    sessions: Sessions
    completion: BindCompletion
    ingest_written: Callable[[PodGroup], None]
    """Called with each PodGroup that a write returned."""
    alone: bool = True
    """Whether no scheduler of another partition has PodGroups."""

    async def start(self) -> None:
        """After the initial list: read all plans, and find out which gangs have started, and which only partly."""
        self.plans.start()
        for pod_group in list(self.cache.pod_groups()):
            text = pod_group.metadata.annotations.get(PLAN_ANNOTATION)
            key = pod_group_key(pod_group)
            if text is not None and key in self.cache.groups:
                await self.plans.fetch(key, pod_group, text)
            elif text is not None and self.alone:
                self.gang_starts.ended(key, pod_group)
        for group in list(self.cache.groups.values()):
            if group.pod_group is not None and self.cache.places(group):
                self.gang_starts.resume(group, group.pod_group)

    async def review(self, failed: Container[str] = ()) -> None:
        """Recover plans with pending pods, and evict timed-out gangs.

        Skips groups of `failed` profiles. An unexpected error backs its group off, and is raised at the end.
        """
        now = self.clock.now()
        errors: list[BaseException] = []
        for group in self.cache.pending_groups(self._has_plan):
            if any(name in failed for name in schedulers_of(group)):
                continue
            if self.queue.is_due(group.key, now) and not self.gang_starts.holds_back(group):
                try:
                    await self._review(group)
                except Exception as error:  # noqa: BLE001 (raised at the end)
                    self.completion.back_off(group.key)
                    errors.append(error)
        self.gang_starts.evict_late()
        raise_first(errors)

    def _has_plan(self, group: Group) -> bool:
        pod_group = group.pod_group
        planned = pod_group is not None and PLAN_ANNOTATION in pod_group.metadata.annotations
        return planned and not self.unknown_binds.is_busy(group.key)

    async def _review(self, group: Group) -> None:
        """Recover or abort the plan on a group's PodGroup."""
        plan = self.plans.plan_of(group)
        if plan is None:
            return
        parts = {
            task: plan.pods[uid]
            for uid, task in group.tasks.items()
            if uid in plan.pods and task.phase is Phase.PENDING
        }
        begun = any(task.node is not None for uid, task in group.tasks.items() if uid in plan.pods)
        found = not self.plans.is_given_up(group.key, plan.attempt)
        if plan.state == "abort":
            self._abort(group, plan, [task for uid, task in group.tasks.items() if uid in plan.pods], found=found)
            return
        if found:
            if group.pod_group is not None and not acknowledged(group.pod_group, plan):
                self.gang_starts.resume_start(group, plan)
                parts |= _vacated(group, plan) if begun else {}
            if parts and await self._recover(group, plan, parts, begun=begun):
                return
            self.plans.give_up(group.key, plan.attempt)
            if parts and begun and group.pod_group is not None:
                self.plans.gate(group.key)
                swap = self.gang_starts.replacing(group, group.pod_group, ())
                self.in_flight.start(group.key, self.binder.plans.strike(swap), self._struck)
        if parts and not begun:
            self._abort(group, plan, parts, found=found)

    # ------------------------------------------------------------------ carry out

    async def _recover(self, group: Group, plan: GangPlan, parts: Mapping[Task, PlannedPod], *, begun: bool) -> bool:
        """Carry out another replica's plan. Returns False if that is not possible any more.

        Before its first bind it is all-or-nothing; after that each pod that fits goes to its planned node. `parts` are
        the pods to bind; a pod that is not in the plan replaces a deleted one, by a new plan.
        """
        schedulers, pod_group = schedulers_of(group), group.pod_group
        if (
            pod_group is None
            or len(schedulers) != 1
            or group.terminating
            or (not begun and len(parts) < len(plan.pods) + plan.gone)
        ):
            return False
        calls = self.profiles[schedulers[0]]
        decision: Decision | None = None
        try:
            decision = self._evaluated(group, parts, calls, whole=not begun)
            if decision is None:
                return False
            refused = self._hold(decision, parts, calls)
        except PluginError as error:
            for task in decision.allocated if decision is not None else ():
                await self.completion.give_up(task, calls)
            self.completion.plugin_failed([group], error)
            return True
        undone = [task for task in decision.allocated if task.uid in refused or (refused and not begun)]
        for task in undone:
            await self.completion.give_up(task, calls)
        if len(undone) == len(decision.allocated):
            return False
        decision.allocated = [task for task in decision.allocated if task not in undone]
        decision.holds = {task: parts[task].holds for task in decision.allocated}
        self.plans.give_up(group.key, plan.attempt)
        self.gang_starts.joins_start(group, decision.allocated)
        self.observer.recovered("rolled forward", len(decision.allocated))
        swap = self.gang_starts.replacing(group, pod_group, decision.allocated)
        if swap.others:
            self.plans.gate(group.key)
        elif all(task.uid in plan.pods for task in decision.allocated):
            swap = PlanSwap(pod_group, plan, resumed=True, attempt=plan.attempt)
        self.plans.recover(group.key, plan.attempt)
        self.completion.carry_out(decision, calls, swap)
        return True

    def _evaluated(
        self, group: Group, parts: Mapping[Task, PlannedPod], calls: HookCalls, *, whole: bool
    ) -> Decision | None:
        """The pods that fit their planned nodes and queue; None if there are none, or if `whole` and not all fit.

        It runs the filters and limits, since nodes and queues may have changed, and a plan may be forged. Raises
        PluginError.
        """
        self.cache.split_classes()
        session = self.sessions.open(calls, (group,))
        try:
            over = session.runner.over_capacity(group, list(parts))
            if over and group.pod_group is not None:
                reason, _ = next(iter(over.values()))
                share = f"{len(over)} of {len(parts)} pods of its plan"
                text = f"PodGroup {group.pod_group.key}: {share} are not placed: {reason}"
                self.observer.problem(group.pod_group, text)
            with session.ledger.statement(group) as statement:
                for task, part in parts.items():
                    row = None if task in over else session.table.row_of.get(part.node)
                    if row is None or session.evaluator.evaluation(task.cls).refusal is not None:
                        continue
                    if session.evaluator.board(task).fits(row, task):
                        statement.allocate(task, row)
                placed = statement.placed_since(0)
                if not placed or (whole and len(placed) < len(parts)):
                    return None
                return statement.commit(session.runner.bind_annotations(placed))
        except ClassSplitError:  # evaluate again below, by the classes' new keys
            pass
        finally:
            self.sessions.close(session)
            session.forget()
        return self._evaluated(group, parts, calls, whole=whole)

    def _hold(self, decision: Decision, parts: Mapping[Task, PlannedPod], calls: HookCalls) -> set[str]:
        """Let the plugins recover the planned allocations. Returns the uids of the pods that a plugin rejects.

        Raises PluginError.
        """
        refused: set[str] = set()
        planned = [(task, parts[task]) for task in decision.allocated]
        for call in calls.functions("recover"):
            holdings = [Holding(task, part.node, part.holds.get(call.plugin), {}) for task, part in planned]
            refused.update(call.guarded(set, call(holdings) or ()))
        return refused

    # ------------------------------------------------------------------ abort

    def _abort(self, group: Group, plan: GangPlan, tasks: Iterable[Task], *, found: bool) -> None:
        if group.pod_group is None:
            return
        if found:
            self.plans.gate(group.key)
        pods = [task.pod for task in tasks]
        self.plans.give_up(group.key, plan.attempt)
        self.in_flight.start(group.key, self.binder.plans.abort(group.pod_group, plan, pods), self._aborted)

    async def _struck(self, key: str, answer: PodGroup | BaseException) -> None:
        if self._written(key, answer, "changing a plan failed") is None:
            self.plans.reconsider(key)

    async def _aborted(self, key: str, answer: PodGroup | BaseException) -> None:
        pod_group = self._written(key, answer, "aborting a plan failed")
        if pod_group is None:
            return
        if standing := attempt_of(pod_group):  # one of its pods was bound: recover it
            self.plans.reconsider(key, standing)
            return
        self.gang_starts.forget_start(key)
        self.observer.recovered("aborted", 0)

    def _written(self, key: str, answer: PodGroup | BaseException, problem: str) -> PodGroup | None:
        """The PodGroup after its plan was voided; None for a ClusterError. Raises any other error."""
        self.plans.ungate(key, answer)
        if isinstance(answer, PodGroup):
            self.ingest_written(answer)
            return answer
        if not isinstance(answer, ClusterError):
            raise answer
        _log.warning(problem, group=key, error=str(answer))
        self.completion.back_off(key)
        return None


def _vacated(group: Group, plan: GangPlan) -> dict[Task, PlannedPod]:
    """Pending pods that replace deleted pods of the plan, preferably of the same name."""
    free = [part for uid, part in plan.pods.items() if uid not in group.tasks]
    found: dict[Task, PlannedPod] = {}
    for task in group.in_phase(Phase.PENDING):
        place = next((part for part in free if part.name == task.name), None)
        if task.uid not in plan.pods and place is not None:
            found[task] = place
            free.remove(place)
    if len({task.cls for task in group.tasks.values()}) == 1:  # all pods are interchangeable
        others = [task for task in group.in_phase(Phase.PENDING) if task.uid not in plan.pods and task not in found]
        found.update(zip(others, free, strict=False))
    return found
