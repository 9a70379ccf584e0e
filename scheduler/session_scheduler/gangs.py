"""Gangs between their first bind and the last: their plans, what a crash left of them, and the time that they may take.

Pure decisions over the cache, made between sessions; what they ask of the cluster is spawned as work of the scheduler.
A plan that this replica did not make is *adopted*: held and carried out as its writer wanted, as far as that is still
possible. One of its own that came to nothing, or cannot be adopted, is taken back before the gang is placed anew.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from session_scheduler.binding import Planning, held_by
from session_scheduler.cluster.errors import ClusterError, Conflict, NotFound, TooManyRequests, Unavailable
from session_scheduler.hook_calls import HookCalls, PluginError
from session_scheduler.model.bindings import Holding
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import PodGroup
from session_scheduler.plans import (
    ATTEMPT_ANNOTATION,
    PLAN_ANNOTATION,
    NeedsConfigMap,
    Plan,
    PlanError,
    PlannedPod,
    attempt_of,
    plan_here,
)
from session_scheduler.state.cache import pod_group_key, schedulers_of
from session_scheduler.statement import Decision

if TYPE_CHECKING:
    from session_scheduler.service import Scheduler

_log = structlog.get_logger()
_EVICT_AGAIN = 5.0
"""Seconds after which a member that was to be evicted, and is still there, is evicted again."""
_LOOK_AGAIN = 1.0
"""Seconds after which a gang whose time is over is looked at again where something of it is under way."""
_LONGEST_GATE = 30.0
"""Seconds after the start for which plans that were found keep everything else waiting until they are void."""
_GIVEN_UP = 16
"""Attempts of a group that are remembered: one is on its PodGroup, others may come back by a late write."""
CONDITION = "PodGroupScheduled"


@dataclass(frozen=True, slots=True)
class _Read:
    """A plan as it was read, and the pods that were known then: what is kept of it depends on them."""

    text: str
    plan: Plan | None
    of: set[str]

    def says(self, text: str, pods: Collection[str]) -> bool:
        """Whether that is what the text says to a group of these pods."""
        whole = self.plan is None or not self.plan.gone
        return self.text == text and (whole or self.of == {*pods})


class GangKeeper:
    """Belongs to one scheduler, whose state it reads and changes in its turn."""

    def __init__(self, scheduler: Scheduler, timeout: float) -> None:
        self._scheduler = scheduler
        self._cache = scheduler.cache
        self._timeout = timeout
        self._read: dict[str, _Read] = {}
        """By group: the plan that its PodGroup's annotation says."""
        self._given_up: dict[str, dict[str, None]] = {}
        """By group: attempts that are not to be adopted, our own and those with which that failed."""
        self._starting: dict[str, set[str]] = {}
        """By group that has not started yet: the pods (by uid) of this start."""
        self._whole: dict[str, str] = {}
        """By group that has started: the attempt by which it did."""
        self._deadlines: dict[str, float] = {}
        """By group that is bound in part: when its members are evicted."""
        self._evicting: set[str] = set()
        self._gates: set[str] = set()
        """Groups whose plans were found at the start and are being voided."""
        self._started = scheduler.clock.now()

    # ------------------------------------------------------------------ what the scheduler asks

    def planning(self, group: Group, allocated: Sequence[Task]) -> Planning | None:
        """The plan that carrying out a decision must write; None where each Binding stands for itself."""
        if group.min_count <= 1 or group.started - len(allocated) >= group.min_count:
            return None
        plan = self._plan_of(group)
        starting = self._starting.setdefault(group.key, set())
        starting.update(task.uid for task in allocated)
        if plan is not None and not self._has_started(group, plan):
            starting.update(plan.pods)
        if group.pod_group is None:
            return None
        return self._replacing(group, group.pod_group, allocated)

    def _replacing(self, group: Group, pod_group: PodGroup, allocated: Sequence[Task]) -> Planning:
        """A new plan for some tasks in place of the one that there is."""
        plan = self._plan_of(group)
        known = plan.pods if plan is not None else {}
        starting = self._starting.get(group.key, ())
        bound = {
            uid: _bound_before(task, known.get(uid))
            for uid, task in group.tasks.items()
            if uid in starting and task.phase is Phase.BOUND and task.node is not None
        }
        others = [
            task.pod
            for uid, task in group.tasks.items()
            if uid in known and task.phase is Phase.PENDING and task not in allocated
        ]
        return Planning(pod_group, plan, bound=bound, others=others)

    def holds_back(self, group: Group) -> bool:
        """Whether nothing of the group is to be placed now: the members that it was bound with are being evicted."""
        if group.key not in self._evicting:
            return False
        if self._on_nodes(group, Phase.BOUND, Phase.RELEASING):
            return True
        self._forget_start(group.key)
        return False

    def settled(self, group: Group, planning: Planning | None) -> None:
        """A decision was carried out, as far as it could be: note whether the gang has started."""
        if planning is not None:
            self._gates.discard(group.key)
            self._give_up(group.key, planning.attempt)
            if planning.written is not None:
                self._take(planning.written)
        if group.key not in self._cache.groups:  # its pods ended before the plan was known to be written
            self.ended(group.key, self._cache.pod_group(group.key))
        elif group.missing:
            return
        elif len(group.in_phase(Phase.BOUND)) >= group.min_count:
            self._forget_start(group.key)
            self.acknowledge(group)
        else:
            self._limit(group)

    def acknowledge(self, group: Group) -> None:
        """Let the PodGroup say that it is scheduled, if it is."""
        if group.pod_group is not None and len(group.in_phase(Phase.BOUND)) >= group.min_count:
            plan = self._plan_of(group)
            if plan is not None:
                self._whole[group.key] = plan.attempt
            attempt = f", by attempt {plan.attempt}" if plan is not None else ""
            self._scheduler.observer.group_scheduled(group.pod_group, f"minCount pods are bound{attempt}")

    def remind(self) -> None:
        """Acknowledge again what no PodGroup says: the cluster may not have answered for longer than that is tried."""
        for group in self._cache.groups.values():
            if group.pod_group is not None and not self._is_acknowledged(group, group.pod_group):
                self.acknowledge(group)

    def _is_acknowledged(self, group: Group, pod_group: PodGroup) -> bool:
        plan = self._plan_of(group)
        return _ever_scheduled(pod_group) if plan is None else _acknowledged(pod_group, plan)

    def ended(self, key: str, pod_group: PodGroup | None) -> None:
        """A group has no live pod any more: its plan has nothing left to say."""
        self._forget_start(key)
        self._read.pop(key, None)
        self._given_up.pop(key, None)
        self._whole.pop(key, None)
        self._gates.discard(key)
        if pod_group is not None and PLAN_ANNOTATION in pod_group.metadata.annotations:
            self._scheduler.spawn(key, self._remove(pod_group), self._removed)

    def next_deadline(self) -> float | None:
        """When a gang's time is over next."""
        return min(self._deadlines.values(), default=None)

    # ------------------------------------------------------------------ at the start

    async def start(self) -> None:
        """After everything was listed: read every plan, see which gangs have started, and which only began to."""
        self._started = self._scheduler.clock.now()
        for pod_group in list(self._cache.pod_groups()):
            text = pod_group.metadata.annotations.get(PLAN_ANNOTATION)
            key = pod_group_key(pod_group)
            if text is not None and key in self._cache.groups:
                self._read[key] = _Read(text, await self._told(pod_group), {*self._cache.groups[key].tasks})
            elif text is not None:
                self.ended(key, pod_group)
        for group in list(self._cache.groups.values()):
            if group.pod_group is None:
                continue
            plan = self._plan_of(group)
            if group.started >= group.min_count:
                self.acknowledge(group)
            elif plan is not None and not _acknowledged(group.pod_group, plan):
                self._resume_start(group, plan)
            elif plan is None and not _ever_scheduled(group.pod_group):
                self._starting[group.key] = {task.uid for task in group.tasks.values() if _by_plan(task)}
                self._limit(group)

    def _resume_start(self, group: Group, plan: Plan) -> None:
        """A start that was under way concerns all of its plan; from now on it has the time that a start has."""
        self._starting.setdefault(group.key, set()).update(plan.pods)
        self._limit(group)

    def _limit(self, group: Group) -> None:
        """A gang that is bound in part may not stay so."""
        if self._on_nodes(group, Phase.BOUND):
            self._deadlines.setdefault(group.key, self._scheduler.clock.now() + self._timeout)

    # ------------------------------------------------------------------ before the sessions of a cycle

    async def review(self, failed: Container[str] = ()) -> None:
        """Carry on with what plans say of pending pods; evict where a gang's time is over.

        Profiles that `failed` cannot carry on with anything now.
        """
        now = self._scheduler.clock.now()
        for group in self._cache.pending_groups(self._has_plan):
            if any(name in failed for name in schedulers_of(group)):
                continue
            if self._scheduler.pending.is_due(group.key, now) and not self.holds_back(group):
                await self._look_at(group)
        for key in [key for key, deadline in self._deadlines.items() if deadline <= now]:
            self._evict(key, now)

    def _has_plan(self, group: Group) -> bool:
        pod_group = group.pod_group
        planned = pod_group is not None and PLAN_ANNOTATION in pod_group.metadata.annotations
        return planned and not self._scheduler.is_busy(group.key)

    async def _look_at(self, group: Group) -> None:
        plan = self._plan_of(group)
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
            if group.pod_group is not None and not _acknowledged(group.pod_group, plan):
                self._resume_start(group, plan)
                parts |= _vacated(group, plan) if begun else {}
            if parts and await self._adopt(group, plan, parts, begun=begun):
                return
            self._give_up(group.key, plan.attempt)
            if parts and begun and group.pod_group is not None:
                self._gate(group.key)
                planning = self._replacing(group, group.pod_group, ())
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
        if not isinstance(answer, Unavailable | TooManyRequests):
            self._gates.discard(key)

    def begun(self, group: Group) -> bool:
        """Whether some of the gang's members are bound and others still must be: it goes before all others."""
        return group.key in self._deadlines

    # ------------------------------------------------------------------ adopting

    async def _adopt(self, group: Group, plan: Plan, parts: Mapping[Task, PlannedPod], *, begun: bool) -> bool:
        """Carry out somebody else's plan. False where that is not possible any more.

        Before its first bind it is done whole or not at all; after that each pod that can goes where it says. `parts`
        are the pods to be bound; one that is not in the plan takes the place of one that is gone, by a plan of its own.
        """
        schedulers = schedulers_of(group)
        if len(schedulers) != 1 or group.terminating or (not begun and len(parts) < len(plan.pods) + plan.gone):
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
        self._carry_on(group, plan, decision, calls)
        return True

    def _carry_on(self, group: Group, plan: Plan, decision: Decision, calls: HookCalls) -> None:
        self._give_up(group.key, plan.attempt)
        self._starting.setdefault(group.key, set()).update(task.uid for task in decision.allocated)
        self._scheduler.observer.recovered("rolled forward", len(decision.allocated))
        if group.pod_group is None:
            return
        planning = self._replacing(group, group.pod_group, decision.allocated)
        if planning.others:
            self._gate(group.key)
        elif all(task.uid in plan.pods for task in decision.allocated):
            planning = Planning(group.pod_group, plan, resumed=True, attempt=plan.attempt)
        self._scheduler.carry_out(decision, calls, planning)

    def _judged(
        self, group: Group, parts: Mapping[Task, PlannedPod], calls: HookCalls, *, whole: bool
    ) -> Decision | None:
        """The pods that the filters let go where the plan says; None for none, or not all where `whole`.

        Nodes may have changed since, and a plan may be forged. Raises PluginError.
        """
        session = self._scheduler.open_session(calls, (group,))
        try:
            with session.statement(group) as statement:
                for task, part in parts.items():
                    row = session.table.row_of.get(part.node)
                    if row is None or session.plan(task.cls).refusal is not None:
                        continue
                    if session.board(task).fits(row, task):
                        statement.allocate(task, row)
                placed = len(statement.placed_since(0))
                return statement.commit() if placed and (not whole or placed == len(parts)) else None
        finally:
            try:
                session.close()
            except PluginError as error:
                _log.error("session close failed", plugin=error.plugin, error=str(error))

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
            self._take(answer)
        elif isinstance(answer, ClusterError):
            _log.warning("a plan cannot be changed yet", group=key, error=str(answer))
            self._given_up.pop(key, None)  # it is looked at again
            self._scheduler.back_off(key)
        else:
            raise answer

    async def _aborted(self, key: str, answer: PodGroup | BaseException) -> None:
        self._ungate(key, answer)
        if isinstance(answer, PodGroup):
            self._take(answer)
            if standing := attempt_of(answer):  # one of its pods was bound: it is carried on with
                self._given_up.get(key, {}).pop(standing, None)
                return
            self._forget_start(key)
            self._scheduler.observer.recovered("aborted", 0)
        elif isinstance(answer, ClusterError):
            _log.warning("a plan cannot be taken back yet", group=key, error=str(answer))
            self._scheduler.back_off(key)
        else:
            raise answer

    async def _remove(self, pod_group: PodGroup) -> PodGroup | None:
        try:
            return await self._scheduler.binder.plans.swap(pod_group, None)
        except (NotFound, Conflict):
            return None  # it went with its PodGroup; or the group has pods and a plan again

    async def _removed(self, key: str, answer: PodGroup | BaseException | None) -> None:
        if isinstance(answer, PodGroup):
            self._take(answer)
        elif isinstance(answer, ClusterError):
            _log.warning("the plan of a group that has ended is left on it", group=key, error=str(answer))
        elif answer is not None:
            raise answer

    # ------------------------------------------------------------------ time-outs

    def _evict(self, key: str, now: float) -> None:
        """Ask the members that are bound to end, again and again until they have; then the gang starts over.

        First as their disruption budgets allow, then without: a part of a gang gives no service that they could guard.
        """
        group = self._cache.groups.get(key)
        members = self._on_nodes(group, Phase.BOUND) if group is not None else []
        if group is None or not members or group.started >= group.min_count:
            self._deadlines.pop(key, None)
            return
        if self._scheduler.is_busy(key):
            self._deadlines[key] = now + _LOOK_AGAIN
            return
        self._deadlines[key] = now + _EVICT_AGAIN
        again = key in self._evicting
        if not again:
            self._evicting.add(key)
            self._scheduler.observer.gang_timed_out(group, len(members), self._timeout)
        self._scheduler.spawn(key, self._scheduler.binder.evict_all(members, delete=again), self._evicted)

    async def _evicted(self, _: str, answer: BaseException | None) -> None:
        if answer is not None:
            raise answer

    # ------------------------------------------------------------------ inside

    def _on_nodes(self, group: Group, *phases: Phase) -> list[Task]:
        """The members of the group's start that are in one of these phases."""
        starting = self._starting.get(group.key, ())
        return [task for task in group.in_phase(*phases) if task.uid in starting]

    def _has_started(self, group: Group, plan: Plan) -> bool:
        """Whether the gang has started by this plan: then its members run, and are no part of a later start."""
        told = group.pod_group is not None and _acknowledged(group.pod_group, plan)
        return told or self._whole.get(group.key) == plan.attempt

    def _give_up(self, key: str, attempt: str) -> None:
        attempts = self._given_up.setdefault(key, {})
        attempts[attempt] = None
        if len(attempts) > _GIVEN_UP:
            del attempts[next(iter(attempts))]

    def _take(self, pod_group: PodGroup) -> None:
        """Let the cache have what a write answered, unless events have told of a later state, or another PodGroup."""
        known = self._cache.pod_group(pod_group_key(pod_group))
        if known is not None and known.metadata.uid == pod_group.metadata.uid and not _is_older(pod_group, known):
            self._cache.put(pod_group)

    def _forget_start(self, key: str) -> None:
        self._starting.pop(key, None)
        self._deadlines.pop(key, None)
        self._evicting.discard(key)

    def _plan_of(self, group: Group) -> Plan | None:
        """The plan on the group's PodGroup; None where there is none that can be read."""
        pod_group = group.pod_group
        text = pod_group.metadata.annotations.get(PLAN_ANNOTATION) if pod_group is not None else None
        if pod_group is None or text is None:
            return None
        read = self._read.get(group.key)
        if read is None or not read.says(text, group.tasks):
            plan = self._parsed(group.key, pod_group)
            read = self._read[group.key] = _Read(text, plan, {*group.tasks})
        return read.plan

    def _parsed(self, key: str, pod_group: PodGroup) -> Plan | None:
        try:
            return self._of_interest(key, plan_here(pod_group))
        except NeedsConfigMap:
            self._scheduler.spawn(key, self._told(pod_group), partial(self._loaded, pod_group))
        except PlanError as error:
            self._scheduler.observer.problem(pod_group, str(error))
        return None

    async def _told(self, pod_group: PodGroup) -> Plan | None:
        """The plan, wherever it lies; people are told of one that cannot be read. Raises ClusterError."""
        try:
            plan = await self._scheduler.binder.plans.read(pod_group)
        except PlanError as error:
            self._scheduler.observer.problem(pod_group, str(error))
            return None
        return self._of_interest(pod_group_key(pod_group), plan)

    def _of_interest(self, key: str, plan: Plan | None) -> Plan | None:
        """What is kept of a plan: anybody who may create a PodGroup may have written it."""
        group = self._cache.groups.get(key)
        tasks = group.tasks if group is not None else {}
        return plan.of_interest(tasks, {task.name for task in tasks.values()}, len(tasks)) if plan is not None else None

    async def _loaded(self, pod_group: PodGroup, key: str, answer: Plan | BaseException | None) -> None:
        text = pod_group.metadata.annotations[PLAN_ANNOTATION]
        if isinstance(answer, ClusterError):
            _log.warning("a plan cannot be read yet", group=key, error=str(answer))
            self._read.pop(key, None)
            self._scheduler.back_off(key)
        elif isinstance(answer, BaseException):
            raise answer
        elif key in self._cache.groups:
            self._read[key] = _Read(text, answer, {*self._cache.groups[key].tasks})


def _ever_scheduled(pod_group: PodGroup) -> bool:
    return any(one.type == CONDITION and one.status == "True" for one in pod_group.status.conditions)


def _by_plan(task: Task) -> bool:
    """Whether a pod was bound by a plan, as far as it says."""
    return task.node is not None and ATTEMPT_ANNOTATION in task.pod.metadata.annotations


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


def _bound_before(task: Task, known: PlannedPod | None) -> PlannedPod:
    """A bound member as a new plan has it; `known` is what the plan before says of it, which a late bind may belie."""
    if known is None or known.node != task.node:
        known = PlannedPod.of(task.name, task.node or "", held_by(task))
    return replace(known, bound=True)


def _acknowledged(pod_group: PodGroup, plan: Plan) -> bool:
    """Whether the PodGroup says that the gang has started by this plan."""
    conditions = pod_group.status.conditions
    return any(one.type == CONDITION and one.status == "True" and plan.attempt in one.message for one in conditions)


def _is_older(pod_group: PodGroup, known: PodGroup) -> bool:
    """Whether a PodGroup's state is from before another one. resourceVersions are numbers that grow (KEP-5504)."""
    versions = pod_group.metadata.resource_version, known.metadata.resource_version
    return all(version.isdecimal() for version in versions) and int(versions[0]) < int(versions[1])
