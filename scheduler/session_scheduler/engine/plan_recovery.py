"""Plans that this replica finds: adopted, which is held and carried out as their writers wanted, or taken back.

Before its first bind a plan is carried out whole or taken back; after it each pod that still can goes where the plan
says, and the others are placed anew. What of a plan is not carried out is made void: no request that is still on its
way can bind by it, and at a start nothing else is placed until then. One of our own that failed is taken back, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import structlog

from session_scheduler.binding.binder import Planning
from session_scheduler.binding.plan_store import Plan, PlannedPod, attempt_of
from session_scheduler.cluster.errors import ClusterError, TooManyRequests, Unavailable
from session_scheduler.engine.plan_cache import PlanReader, acknowledged
from session_scheduler.framework.bindings import Holding
from session_scheduler.framework.hooks import HookCalls, PluginError
from session_scheduler.framework.statement import Decision
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import PodGroup
from session_scheduler.state.cache import schedulers_of

if TYPE_CHECKING:
    from session_scheduler.engine.gang_starts import GangKeeper
    from session_scheduler.engine.scheduler import Scheduler

_log = structlog.get_logger(__name__)
_LONGEST_GATE = 30.0
"""Seconds after the start for which plans that were found keep everything else waiting until they are void."""
_MAY_YET_COME = (Unavailable, TooManyRequests)
"""Answers after which the same may succeed."""
_GIVEN_UP = 16
"""Attempts of a group that are remembered: one is on its PodGroup, others may come back by a late write."""


class Adoption:
    """Belongs to a keeper of gangs; works in the scheduler's turns."""

    def __init__(self, scheduler: Scheduler, gangs: GangKeeper, reader: PlanReader) -> None:
        self._scheduler = scheduler
        self._gangs = gangs
        self._reader = reader
        self._given_up: dict[str, dict[str, None]] = {}
        """By group: attempts that are not to be adopted, our own and those with which that failed."""
        self._gates: set[str] = set()
        """Groups whose plans were found at the start and are being voided."""
        self._adopting: dict[str, str] = {}
        """By group: the attempt that was found and is being carried out."""
        self._started = scheduler.clock.now()

    def start(self) -> None:
        """From now on what is found may still be under way."""
        self._started = self._scheduler.clock.now()

    def forget(self, key: str) -> None:
        """A group is gone."""
        self._given_up.pop(key, None)
        self._adopting.pop(key, None)
        self._gates.discard(key)

    def carried_out(self, key: str, planning: Planning) -> None:
        """A plan was carried out, as far as it could be. One that was found is void only once that is settled."""
        found = self._adopting.pop(key, None)
        if found is None or planning.settled:
            self._gates.discard(key)
            self._give_up(key, planning.attempt)
        elif isinstance(planning.error, _MAY_YET_COME):
            self._gate(key)
            self._given_up.get(key, {}).pop(found, None)  # it is looked at again
        else:  # what can be taken back is; what cannot must not keep others waiting
            self._gates.discard(key)

    async def look_at(self, group: Group) -> None:
        """Carry on with what the plan on a group's PodGroup says of its pending pods."""
        plan = self._reader.plan_of(group)
        if plan is None:
            return
        parts = {
            task: plan.pods[uid]
            for uid, task in group.tasks.items()
            if uid in plan.pods and task.phase is Phase.PENDING
        }
        begun = any(task.node is not None for uid, task in group.tasks.items() if uid in plan.pods)
        found = plan.attempt not in self._given_up.get(group.key, ())
        if plan.state == "abort":
            self._abort(group, plan, [task for uid, task in group.tasks.items() if uid in plan.pods], found=found)
            return
        if found:
            if group.pod_group is not None and not acknowledged(group.pod_group, plan):
                self._gangs.resume_start(group, plan)
                parts |= _vacated(group, plan) if begun else {}
            if parts and await self._adopt(group, plan, parts, begun=begun):
                return
            self._give_up(group.key, plan.attempt)
            if parts and begun and group.pod_group is not None:
                self._gate(group.key)
                planning = self._gangs.replacing(group, group.pod_group, ())
                self._scheduler.spawn(group.key, self._scheduler.binder.strike(planning), self._struck)
        if parts and not begun:
            self._abort(group, plan, parts, found=found)

    def gated(self) -> bool:
        """Whether nothing is to be placed yet: requests of plans that were found may still take what looks free."""
        return bool(self._gates) and self._is_start()

    def _is_start(self) -> bool:
        return self._scheduler.clock.now() < self._started + _LONGEST_GATE

    def _gate(self, key: str) -> None:
        if self._is_start():  # later nobody else's requests can be under way; and anybody may write a plan
            self._gates.add(key)

    def _ungate(self, key: str, answer: object) -> None:
        """A found plan was voided, or cannot be: only an answer that may yet come keeps the others waiting."""
        if not isinstance(answer, _MAY_YET_COME):
            self._gates.discard(key)

    def _give_up(self, key: str, attempt: str) -> None:
        attempts = self._given_up.setdefault(key, {})
        attempts[attempt] = None
        if len(attempts) > _GIVEN_UP:
            del attempts[next(iter(attempts))]

    # ------------------------------------------------------------------ adopting

    async def _adopt(self, group: Group, plan: Plan, parts: Mapping[Task, PlannedPod], *, begun: bool) -> bool:
        """Carry out somebody else's plan. False where that is not possible any more.

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
        calls = self._scheduler.profiles[schedulers[0]]
        decision: Decision | None = None
        try:
            decision = self._judged(group, parts, calls, whole=not begun)
            if decision is None:
                return False
            refused = self._hold(decision, parts, calls)
        except PluginError as error:
            for task in decision.allocated if decision is not None else ():
                await self._scheduler.give_up(task, calls)
            self._scheduler.failed([group], error)
            return True
        undone = [task for task in decision.allocated if task.uid in refused or (refused and not begun)]
        for task in undone:
            await self._scheduler.give_up(task, calls)
        if len(undone) == len(decision.allocated):
            return False
        decision.allocated = [task for task in decision.allocated if task not in undone]
        decision.holds = {task: parts[task].holds for task in decision.allocated}
        self._carry_on(group, pod_group, plan, decision, calls)
        return True

    def _carry_on(self, group: Group, pod_group: PodGroup, plan: Plan, decision: Decision, calls: HookCalls) -> None:
        self._give_up(group.key, plan.attempt)
        self._gangs.joins_start(group, decision.allocated)
        self._scheduler.observer.recovered("rolled forward", len(decision.allocated))
        planning = self._gangs.replacing(group, pod_group, decision.allocated)
        if planning.others:
            self._gate(group.key)
        elif all(task.uid in plan.pods for task in decision.allocated):
            planning = Planning(pod_group, plan, resumed=True, attempt=plan.attempt)
        self._adopting[group.key] = plan.attempt
        self._scheduler.carry_out(decision, calls, planning)

    def _judged(
        self, group: Group, parts: Mapping[Task, PlannedPod], calls: HookCalls, *, whole: bool
    ) -> Decision | None:
        """The pods that the filters let go where the plan says; None for none, or not all where `whole`.

        Nodes may have changed since, and a plan may be forged. Raises PluginError.
        """
        session = self._scheduler.open_session(calls, (group,))
        try:
            with session.ledger.statement(group) as statement:
                for task, part in parts.items():
                    row = session.table.row_of.get(part.node)
                    if row is None or session.evaluator.evaluation(task.cls).refusal is not None:
                        continue
                    if session.evaluator.board(task).fits(row, task):
                        statement.allocate(task, row)
                placed = statement.placed_since(0)
                if not placed or (whole and len(placed) < len(parts)):
                    return None
                return statement.commit(session.runner.bind_annotations(placed))
        finally:
            self._scheduler.close_session(session)
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
            self._gate(group.key)
        pods = [task.pod for task in tasks]
        self._give_up(group.key, plan.attempt)
        self._scheduler.spawn(group.key, self._scheduler.binder.abort(group.pod_group, plan, pods), self._aborted)

    async def _struck(self, key: str, answer: PodGroup | BaseException) -> None:
        self._ungate(key, answer)
        if isinstance(answer, PodGroup):
            self._gangs.take(answer)
        elif isinstance(answer, ClusterError):
            _log.warning("a plan cannot be changed yet", group=key, error=str(answer))
            self._given_up.pop(key, None)  # it is looked at again
            self._scheduler.back_off(key)
        else:
            raise answer

    async def _aborted(self, key: str, answer: PodGroup | BaseException) -> None:
        self._ungate(key, answer)
        if isinstance(answer, PodGroup):
            self._gangs.take(answer)
            if standing := attempt_of(answer):  # one of its pods was bound: it is carried on with
                self._given_up.get(key, {}).pop(standing, None)
                return
            self._gangs.forget_start(key)
            self._scheduler.observer.recovered("aborted", 0)
        elif isinstance(answer, ClusterError):
            _log.warning("a plan cannot be taken back yet", group=key, error=str(answer))
            self._scheduler.back_off(key)
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
