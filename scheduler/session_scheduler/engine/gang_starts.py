"""Gangs between their first bind and the last: what belongs to a start, when it has succeeded, how long it may take.

Decides over the cache between sessions. What it asks of the cluster is work in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from msgspec.structs import replace

from session_scheduler.base.clock import Clock
from session_scheduler.binding.binder import Binder
from session_scheduler.binding.held_record import held_by
from session_scheduler.binding.plan_store import PlanSwap
from session_scheduler.cluster.errors import ClusterError, Conflict, NotFound
from session_scheduler.engine.in_flight import InFlight
from session_scheduler.engine.plan_cache import PlanCache, acknowledged, ever_scheduled
from session_scheduler.engine.preemption_executor import PreemptionExecutor
from session_scheduler.engine.unknown_binds import UnknownBinds
from session_scheduler.framework.observer import Observer
from session_scheduler.model.gang_plan import ATTEMPT_ANNOTATION, PLAN_ANNOTATION, GangPlan, PlannedPod
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import PodGroup
from session_scheduler.state.cache import Cache

_log = structlog.get_logger(__name__)
_EVICT_AGAIN = 5.0
"""Seconds after which a member that was to be evicted, and is still there, is evicted again."""
_CHECK_AGAIN = 1.0
"""Seconds after which a gang whose time is over is checked again where work of it is in flight."""


@dataclass(eq=False, repr=False)
class GangStarts:
    """The starts of one scheduler's gangs."""

    cache: Cache
    clock: Clock
    observer: Observer
    binder: Binder
    in_flight: InFlight[Any]
    unknown_binds: UnknownBinds
    plans: PlanCache
    preemption: PreemptionExecutor
    ingest_written: Callable[[PodGroup], None]
    """Called with each PodGroup as a write answered it."""
    release_nominations: Callable[[], None]
    timeout: float
    """Seconds that a start may take."""
    stale_seconds: float | None
    """How long a gang may be short of members that it has lost; None: for ever."""
    _starting: dict[str, set[str]] = field(default_factory=dict, init=False)
    """By group that has not started yet: the pods (by uid) of this start."""
    _whole: dict[str, str] = field(default_factory=dict, init=False)
    """By group that has started: the attempt by which it did."""
    _deadlines: dict[str, float] = field(default_factory=dict, init=False)
    """By group that is bound in part: when its members are evicted."""
    _evicting: set[str] = field(default_factory=set, init=False)

    # ------------------------------------------------------------------ decisions and their binds

    def plan_swap(self, group: Group, allocated: Sequence[Task]) -> PlanSwap | None:
        """The plan that carrying out a decision must write; None where each Binding stands for itself."""
        if not group.is_gang or _stood_before(group, allocated):
            return None
        plan = self.plans.plan_of(group)
        starting = self._starting.setdefault(group.key, set())
        starting.update(task.uid for task in allocated)
        if plan is not None and not self._has_started(group, plan):
            starting.update(plan.pods)
        if group.pod_group is None:
            return None
        return self.replacing(group, group.pod_group, allocated)

    def replacing(self, group: Group, pod_group: PodGroup, allocated: Sequence[Task]) -> PlanSwap:
        """A new plan for some tasks in place of the one that there is."""
        plan = self.plans.plan_of(group)
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
        return PlanSwap(pod_group, plan, bound=bound, others=others)

    def holds_back(self, group: Group) -> bool:
        """Whether nothing of the group is to be placed now: the members that it was bound with are being evicted."""
        if group.key not in self._evicting:
            return False
        if self._on_nodes(group, Phase.BOUND, Phase.RELEASING):
            return True
        self.forget_start(group.key)
        return False

    def completed(self, group: Group, swap: PlanSwap | None = None) -> None:
        """Binds of a group are completed, as far as possible: note whether the gang has started."""
        if swap is not None:
            self.plans.carried_out(group.key, swap)
            if swap.written is not None:
                self.ingest_written(swap.written)
        if group.key not in self.cache.groups:  # its pods ended before the plan was known to be written
            self.ended(group.key, self.cache.pod_group(group.key))
        elif group.missing:
            return
        elif group.suffice(group.in_phase(Phase.BOUND)):
            self.forget_start(group.key)
            self.acknowledge(group)
        else:
            self._limit(group)
            if self.cache.nominations.kept and not self.may_have_begun(group):
                self._give_up_places(group)

    def acknowledge(self, group: Group) -> None:
        """Let the PodGroup say that it is scheduled, if it is."""
        if group.pod_group is not None and group.suffice(group.in_phase(Phase.BOUND)):
            plan = self.plans.plan_of(group)
            if plan is not None:
                self._whole[group.key] = plan.attempt
            attempt = f", by attempt {plan.attempt}" if plan is not None else ""
            self.observer.group_scheduled(group.pod_group, f"minCount pods are bound{attempt}")

    def remind(self) -> None:
        """Acknowledge again what no PodGroup says: the cluster may not have answered for longer than that is tried."""
        for group in self.cache.groups.values():
            if group.pod_group is not None:
                plan = self.plans.plan_of(group)
                if not (ever_scheduled(group.pod_group) if plan is None else acknowledged(group.pod_group, plan)):
                    self.acknowledge(group)

    def may_have_begun(self, group: Group) -> bool:
        """Whether members of the group's start are bound, or may be, so that the others must follow.

        What these give back, because their binds fail, is kept for them until they are placed again, the gang has
        started, or its time is over: else its running members would be evicted for pods that came later.
        """
        starting = self._starting.get(group.key)
        if not starting or group.missing or group.key in self._evicting:
            return False
        started = (task for uid, task in group.tasks.items() if uid in starting)
        return any(task.phase is Phase.BOUND or task.uid in self.unknown_binds for task in started)

    def _give_up_places(self, group: Group | None) -> None:
        """Nothing is kept of a start any more."""
        known = self.cache.nominations
        kept = [task for uid, task in group.tasks.items() if uid in known.kept] if known.kept and group else []
        for task in kept:
            if task.pod.status.nominated_node_name:  # since before the start
                self.preemption.give_up(task)
            else:
                known.give_up(task, known.nominated_node_name(task))
        if kept:
            self.release_nominations()

    def ended(self, key: str, pod_group: PodGroup | None) -> None:
        """A group has no live pod any more: its plan has nothing left to say."""
        self.forget_start(key)
        self.plans.forget(key)
        self._whole.pop(key, None)
        if pod_group is not None and PLAN_ANNOTATION in pod_group.metadata.annotations:
            self.in_flight.start(key, self._remove(pod_group), self._removed)

    def next_deadline(self, checked: float) -> float | None:
        """When a gang's time is over next that was not at `checked`."""
        times = list(self._deadlines.values())
        if self.stale_seconds is not None:
            stale = self.cache.stale_gangs.next_after(checked, self.stale_seconds)
            times += [stale] if stale is not None else []
        return min(times, default=None)

    # ------------------------------------------------------------------ at the scheduler's start

    def resume(self, group: Group, pod_group: PodGroup) -> None:
        """After everything was listed and every plan read: see whether a gang has started, or only began to."""
        plan = self.plans.plan_of(group)
        if group.whole:
            self.acknowledge(group)
        elif plan is not None and not acknowledged(pod_group, plan):
            self.resume_start(group, plan)
        elif plan is None and not ever_scheduled(pod_group):
            self._starting[group.key] = {task.uid for task in group.tasks.values() if _by_plan(task)}
            self._limit(group)

    def joins_start(self, group: Group, tasks: Iterable[Task]) -> None:
        """These tasks belong to the start that is in flight."""
        self._starting.setdefault(group.key, set()).update(task.uid for task in tasks)

    def resume_start(self, group: Group, plan: GangPlan) -> None:
        """A start that was in flight concerns all of its plan; from now on it has the time that a start has."""
        self._starting.setdefault(group.key, set()).update(plan.pods)
        self._limit(group)

    def _limit(self, group: Group) -> None:
        """A gang that is bound in part may not stay so."""
        if self._on_nodes(group, Phase.BOUND):
            self._deadlines.setdefault(group.key, self.clock.now() + self.timeout)

    # ------------------------------------------------------------------ before the sessions of a cycle

    def evict_late(self) -> None:
        """Evict the members of gangs whose time is over."""
        now = self.clock.now()
        for key in [key for key, deadline in self._deadlines.items() if deadline <= now]:
            self._evict(key, now)

    def begun(self, group: Group) -> bool:
        """Whether some of the gang's members are bound and others still must be: it goes before all others."""
        return group.key in self._deadlines

    # ------------------------------------------------------------------ groups that ended

    async def _remove(self, pod_group: PodGroup) -> PodGroup | None:
        try:
            return await self.binder.plans.swap(pod_group, None)
        except (NotFound, Conflict):
            return None  # it went with its PodGroup; or the group has pods and a plan again

    async def _removed(self, key: str, answer: PodGroup | BaseException | None) -> None:
        if isinstance(answer, PodGroup):
            self.ingest_written(answer)
        elif isinstance(answer, ClusterError):
            _log.warning("the plan of a group that has ended is left on it", group=key, error=str(answer))
        elif answer is not None:
            raise answer

    # ------------------------------------------------------------------ time-outs

    def _evict(self, key: str, now: float) -> None:
        """Ask the members that are bound to end, again and again until they have; then the gang starts over.

        First as their disruption budgets allow, then without: a part of a gang gives no service that they could guard.
        """
        group = self.cache.groups.get(key)
        members = self._on_nodes(group, Phase.BOUND) if group is not None else []
        if group is None or not members or group.whole:
            self._deadlines.pop(key, None)
            self._give_up_places(group)
            return
        if self.unknown_binds.is_busy(key):
            self._deadlines[key] = now + _CHECK_AGAIN
            return
        self._deadlines[key] = now + _EVICT_AGAIN
        again = key in self._evicting
        if not again:
            self._evicting.add(key)
            self.observer.gang_timed_out(group, len(members), self.timeout)
        self.in_flight.start(key, self.binder.evict_all(members, delete=again), self._evicted)
        self._give_up_places(group)

    async def _evicted(self, _: str, answer: BaseException | None) -> None:
        if answer is not None:
            raise answer

    # ------------------------------------------------------------------ gangs that lost members

    def lost(self, task: Task, *, succeeded: bool) -> None:
        """A member that ran is gone."""
        group = task.group
        if group.is_gang and not succeeded and group.tasks and group.key not in self._starting:
            self.cache.stale_gangs.lost(task, self.clock.now())

    def stale(self) -> list[Group]:
        """The gangs that have been short of members they need for too long."""
        if self.stale_seconds is None:
            return []
        due = self.cache.stale_gangs.due(self.cache.groups, self.clock.now(), self.stale_seconds)
        waits = (
            group for group in due if group.key not in self._evicting and not self.unknown_binds.is_busy(group.key)
        )
        return [group for group in waits if group.in_phase(Phase.BOUND)]  # else all that is left of it ends already

    def end_stale(self, group: Group, members: Sequence[Task]) -> None:
        """Let these members end, again and again until they have; nothing of the gang is placed until then."""
        key = group.key
        self._starting[key] = {task.uid for task in members}
        self._evicting.add(key)
        self._deadlines[key] = self.clock.now() + _EVICT_AGAIN
        self.observer.gang_stale(group, len(members), self.stale_seconds or 0.0)
        self.in_flight.start(key, self.binder.evict_all(members), self._evicted)

    # ------------------------------------------------------------------ inside

    def _on_nodes(self, group: Group, *phases: Phase) -> list[Task]:
        """The members of the group's start that are in one of these phases."""
        starting = self._starting.get(group.key, ())
        return [task for task in group.in_phase(*phases) if task.uid in starting]

    def _has_started(self, group: Group, plan: GangPlan) -> bool:
        """Whether the gang has started by this plan: then its members run, and are no part of a later start."""
        says_so = group.pod_group is not None and acknowledged(group.pod_group, plan)
        return says_so or self._whole.get(group.key) == plan.attempt

    def forget_start(self, key: str) -> None:
        """A group has started, or must start over: what belonged to its start does so no more."""
        self._starting.pop(key, None)
        self._deadlines.pop(key, None)
        self._evicting.discard(key)
        self._give_up_places(self.cache.groups.get(key))


def _stood_before(group: Group, allocated: Collection[Task]) -> bool:
    """Whether the gang had started before these were placed."""
    if group.started - len(allocated) < group.min_count:
        return False
    if not group.minima:
        return True
    now = set(allocated)
    return group.suffice([task for task in group.in_phase(Phase.BOUND, Phase.ASSUMED) if task not in now])


def _by_plan(task: Task) -> bool:
    """Whether a pod was bound by a plan, as far as it says."""
    return task.node is not None and ATTEMPT_ANNOTATION in task.pod.metadata.annotations


def _bound_before(task: Task, known: PlannedPod | None) -> PlannedPod:
    """A bound member as a new plan has it; `known` is what the plan before says of it, which a late bind may belie."""
    if known is None or known.node != task.node:
        known = PlannedPod.of(task.name, task.node or "", held_by(task))
    return replace(known, bound=True)
