"""Tracks gangs from their first bind to the last: the pods of a start, its success and its timeout.

It decides on the cache between sessions; its requests to the cluster are work in flight.
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
"""Seconds after which an evicted member that still exists is evicted again."""
_CHECK_AGAIN = 1.0
"""Seconds after which a timed-out gang with work in flight is checked again."""


@dataclass(eq=False, repr=False)
class GangStarts:
    """The starts of a scheduler's gangs."""

    cache: Cache
    clock: Clock
    observer: Observer
    binder: Binder
    in_flight: InFlight[Any]
    unknown_binds: UnknownBinds
    plans: PlanCache
    preemption: PreemptionExecutor
    ingest_written: Callable[[PodGroup], None]
    """Called with each PodGroup that a write returned."""
    release_nominations: Callable[[], None]
    timeout: float
    """The timeout of a start in seconds."""
    stale_seconds: float | None
    """How long a gang may run below its minimum after it lost members; None: forever."""
    _starting: dict[str, set[str]] = field(default_factory=dict, init=False)
    """By group that has not started: the pods (by uid) of its start."""
    _whole: dict[str, str] = field(default_factory=dict, init=False)
    """By started group: the attempt."""
    _deadlines: dict[str, float] = field(default_factory=dict, init=False)
    """By partly bound group: when to evict its members."""
    _evicting: set[str] = field(default_factory=set, init=False)

    # ------------------------------------------------------------------ decisions and binds

    def plan_swap(self, group: Group, allocated: Sequence[Task]) -> PlanSwap | None:
        """The plan to write before the binds of a decision; None if the decision needs no plan."""
        if not group.is_gang or _had_started(group, allocated):
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
        """A new plan for some tasks that replaces the current one."""
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
        """Whether the group must wait because the members of its start are being evicted."""
        if group.key not in self._evicting:
            return False
        if self._on_nodes(group, Phase.BOUND, Phase.RELEASING):
            return True
        self.forget_start(group.key)
        return False

    def completed(self, group: Group, swap: PlanSwap | None = None) -> None:
        """The known binds of a group are completed: check whether the gang has started."""
        if swap is not None:
            self.plans.carried_out(group.key, swap)
            if swap.written is not None:
                self.ingest_written(swap.written)
        if group.tasks and not self.cache.places(group):
            return
        if group.key not in self.cache.groups:  # its pods terminated before the response to the plan's write
            self.ended(group.key, self.cache.pod_group(group.key))
        elif group.missing:
            return
        elif group.suffice(group.in_phase(Phase.BOUND)):
            if group.is_gang and group.key in self._starting:
                self.observer.gang_started(group)
            self.forget_start(group.key)
            self.acknowledge(group)
        else:
            self._limit(group)
            if self.cache.nominations.kept and not self.may_have_begun(group):
                self._release_reserved(group)

    def acknowledge(self, group: Group) -> None:
        """Set the PodGroup's condition if the gang has started."""
        if group.pod_group is not None and group.suffice(group.in_phase(Phase.BOUND)):
            plan = self.plans.plan_of(group)
            if plan is not None:
                self._whole[group.key] = plan.attempt
            attempt = f" (attempt {plan.attempt})" if plan is not None else ""
            self.observer.group_scheduled(group.pod_group, f"minCount pods are bound{attempt}")

    def remind(self) -> None:
        """Set missing conditions of started gangs again: earlier writes may have failed."""
        for group in self.cache.groups.values():
            if group.pod_group is not None and self.cache.places(group):
                plan = self.plans.plan_of(group)
                if not (ever_scheduled(group.pod_group) if plan is None else acknowledged(group.pod_group, plan)):
                    self.acknowledge(group)

    def may_have_begun(self, group: Group) -> bool:
        """Whether members of the group's start are bound, or may be, so that the others must follow.

        Nodes of members whose binds fail stay reserved until these are placed again, the gang has started, or it times
        out: otherwise its running members could be evicted because of later pods.
        """
        starting = self._starting.get(group.key)
        if not starting or group.missing or group.key in self._evicting:
            return False
        started = (task for uid, task in group.tasks.items() if uid in starting)
        return any(task.phase is Phase.BOUND or task.uid in self.unknown_binds for task in started)

    def _release_reserved(self, group: Group | None) -> None:
        """Release the nodes reserved for a start."""
        known = self.cache.nominations
        kept = [task for uid, task in group.tasks.items() if uid in known.kept] if known.kept and group else []
        for task in kept:
            if task.pod.status.nominated_node_name:  # nominated before the start
                self.preemption.give_up(task)
            else:
                known.give_up(task, known.nominated_node_name(task))
        if kept:
            self.release_nominations()

    def ended(self, key: str, pod_group: PodGroup | None) -> None:
        """A group has no pods left: remove its plan."""
        self.forget_start(key)
        self.plans.forget(key)
        self._whole.pop(key, None)
        if pod_group is not None and PLAN_ANNOTATION in pod_group.metadata.annotations:
            self.in_flight.start(key, self._remove(pod_group), self._removed)

    def next_deadline(self, checked: float) -> float | None:
        """The next deadline of a gang after `checked`."""
        times = list(self._deadlines.values())
        if self.stale_seconds is not None:
            stale = self.cache.stale_gangs.next_after(checked, self.stale_seconds)
            times += [stale] if stale is not None else []
        return min(times, default=None)

    # ------------------------------------------------------------------ start of the scheduler

    def resume(self, group: Group, pod_group: PodGroup) -> None:
        """After the initial list and all plans: find out whether a gang has started, or only partly."""
        plan = self.plans.plan_of(group)
        if group.whole:
            self.acknowledge(group)
        elif plan is not None and not acknowledged(pod_group, plan):
            self.resume_start(group, plan)
        elif plan is None and not ever_scheduled(pod_group):
            self._starting[group.key] = {task.uid for task in group.tasks.values() if _by_plan(task)}
            self._limit(group)

    def joins_start(self, group: Group, tasks: Iterable[Task]) -> None:
        """Add tasks to the group's start."""
        self._starting.setdefault(group.key, set()).update(task.uid for task in tasks)

    def resume_start(self, group: Group, plan: GangPlan) -> None:
        """Resume a start with all pods of its plan, with a new timeout."""
        self._starting.setdefault(group.key, set()).update(plan.pods)
        self._limit(group)

    def _limit(self, group: Group) -> None:
        """Set the deadline of a partly bound gang."""
        if self._on_nodes(group, Phase.BOUND):
            self._deadlines.setdefault(group.key, self.clock.now() + self.timeout)

    # ------------------------------------------------------------------ before sessions

    def evict_late(self) -> None:
        """Evict the members of timed-out gangs."""
        now = self.clock.now()
        for key in [key for key, deadline in self._deadlines.items() if deadline <= now]:
            self._evict(key, now)

    def begun(self, group: Group) -> bool:
        """Whether the gang is partly bound: it goes before all other groups."""
        return group.key in self._deadlines

    def begun_keys(self) -> Iterable[str]:
        """The keys of the partly bound gangs."""
        return tuple(self._deadlines)

    # ------------------------------------------------------------------ finished groups

    async def _remove(self, pod_group: PodGroup) -> PodGroup | None:
        try:
            return await self.binder.plans.swap(pod_group, None)
        except (NotFound, Conflict):
            return None  # the PodGroup was deleted, or the group has pods and a plan again

    async def _removed(self, key: str, answer: PodGroup | BaseException | None) -> None:
        if isinstance(answer, PodGroup):
            self.ingest_written(answer)
        elif isinstance(answer, ClusterError):
            _log.warning("removing the plan of a finished group failed", group=key, error=str(answer))
        elif answer is not None:
            raise answer

    # ------------------------------------------------------------------ timeouts

    def _evict(self, key: str, now: float) -> None:
        """Evict the bound members until they have terminated; then the gang starts over.

        The first attempt respects disruption budgets, later ones do not: a partial gang provides no service to protect.
        """
        group = self.cache.groups.get(key)
        members = self._on_nodes(group, Phase.BOUND) if group is not None else []
        if group is None or not members or group.whole:
            self._deadlines.pop(key, None)
            self._release_reserved(group)
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
        self._release_reserved(group)

    async def _evicted(self, _: str, answer: BaseException | None) -> None:
        if answer is not None:
            raise answer

    # ------------------------------------------------------------------ stale gangs

    def lost(self, task: Task, *, succeeded: bool) -> None:
        """A bound member is gone."""
        group = task.group
        if group.is_gang and not succeeded and group.tasks and group.key not in self._starting:
            self.cache.stale_gangs.lost(task, self.clock.now())

    def stale(self) -> list[Group]:
        """The gangs that have run below their minimum for too long."""
        if self.stale_seconds is None:
            return []
        due = self.cache.stale_gangs.due(self.cache.groups, self.clock.now(), self.stale_seconds)
        waits = (
            group for group in due if group.key not in self._evicting and not self.unknown_binds.is_busy(group.key)
        )
        return [group for group in waits if group.in_phase(Phase.BOUND)]  # else its last members are terminating

    def end_stale(self, group: Group, members: Sequence[Task]) -> None:
        """Evict these members until they have terminated; the gang waits until then."""
        key = group.key
        self._starting[key] = {task.uid for task in members}
        self._evicting.add(key)
        self._deadlines[key] = self.clock.now() + _EVICT_AGAIN
        self.observer.gang_stale(group, len(members), self.stale_seconds or 0.0)
        self.in_flight.start(key, self.binder.evict_all(members), self._evicted)

    # ------------------------------------------------------------------ state

    def _on_nodes(self, group: Group, *phases: Phase) -> list[Task]:
        """The members of the group's start that are in one of these phases."""
        starting = self._starting.get(group.key, ())
        return [task for task in group.in_phase(*phases) if task.uid in starting]

    def _has_started(self, group: Group, plan: GangPlan) -> bool:
        """Whether the gang has started by this plan: then its members do not belong to a later start."""
        has_condition = group.pod_group is not None and acknowledged(group.pod_group, plan)
        return has_condition or self._whole.get(group.key) == plan.attempt

    def forget_start(self, key: str) -> None:
        """A group has started, or must start over: forget its start."""
        self._starting.pop(key, None)
        self._deadlines.pop(key, None)
        self._evicting.discard(key)
        self._release_reserved(self.cache.groups.get(key))


def _had_started(group: Group, allocated: Collection[Task]) -> bool:
    """Whether the gang had started before these tasks were placed."""
    if group.started - len(allocated) < group.min_count:
        return False
    if not group.minima:
        return True
    now = set(allocated)
    return group.suffice([task for task in group.in_phase(Phase.BOUND, Phase.ASSUMED) if task not in now])


def _by_plan(task: Task) -> bool:
    """Whether a pod's annotations show that a plan bound it."""
    return task.node is not None and ATTEMPT_ANNOTATION in task.pod.metadata.annotations


def _bound_before(task: Task, known: PlannedPod | None) -> PlannedPod:
    """A bound member's entry in a new plan; `known` is its entry in the previous plan, unless it is outdated."""
    if known is None or known.node != task.node:
        known = PlannedPod.of(task.name, task.node or "", held_by(task))
    return replace(known, bound=True)
