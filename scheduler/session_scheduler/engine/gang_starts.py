"""Gangs between their first bind and the last: what belongs to a start, when it has succeeded, how long it may take.

Pure decisions over the cache, made between sessions; what they ask of the cluster is spawned as work of the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from session_scheduler.binding.held_record import held_by
from session_scheduler.binding.plan_store import PlanSwap
from session_scheduler.cluster.errors import ClusterError, Conflict, NotFound
from session_scheduler.engine.in_flight import raise_first
from session_scheduler.engine.plan_cache import PlanReader, acknowledged, ever_scheduled
from session_scheduler.engine.plan_recovery import Adoption
from session_scheduler.model.gang_plan import ATTEMPT_ANNOTATION, PLAN_ANNOTATION, GangPlan, PlannedPod
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import PodGroup
from session_scheduler.state.cache import pod_group_key, schedulers_of

if TYPE_CHECKING:
    from session_scheduler.engine.scheduler import Scheduler

_log = structlog.get_logger(__name__)
_EVICT_AGAIN = 5.0
"""Seconds after which a member that was to be evicted, and is still there, is evicted again."""
_LOOK_AGAIN = 1.0
"""Seconds after which a gang whose time is over is looked at again where something of it is under way."""


class GangKeeper:
    """Belongs to one scheduler, whose state it reads and changes in its turn."""

    def __init__(self, scheduler: Scheduler, timeout: float, stale_seconds: float | None) -> None:
        """`stale_seconds`: how long a gang may be short of members that it has lost; None: for ever."""
        self._scheduler = scheduler
        self._cache = scheduler.cache
        self._timeout = timeout
        self._stale_seconds = stale_seconds or 0.0
        self._evicts_stale = stale_seconds is not None
        self._reader = PlanReader(scheduler)
        self._adoption = Adoption(scheduler, self, self._reader)
        self._starting: dict[str, set[str]] = {}
        """By group that has not started yet: the pods (by uid) of this start."""
        self._whole: dict[str, str] = {}
        """By group that has started: the attempt by which it did."""
        self._deadlines: dict[str, float] = {}
        """By group that is bound in part: when its members are evicted."""
        self._evicting: set[str] = set()

    # ------------------------------------------------------------------ what the scheduler asks

    def planning(self, group: Group, allocated: Sequence[Task]) -> PlanSwap | None:
        """The plan that carrying out a decision must write; None where each Binding stands for itself."""
        if not group.is_gang or _stood_before(group, allocated):
            return None
        plan = self._reader.plan_of(group)
        starting = self._starting.setdefault(group.key, set())
        starting.update(task.uid for task in allocated)
        if plan is not None and not self._has_started(group, plan):
            starting.update(plan.pods)
        if group.pod_group is None:
            return None
        return self.replacing(group, group.pod_group, allocated)

    def replacing(self, group: Group, pod_group: PodGroup, allocated: Sequence[Task]) -> PlanSwap:
        """A new plan for some tasks in place of the one that there is."""
        plan = self._reader.plan_of(group)
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

    def settled(self, group: Group, planning: PlanSwap | None) -> None:
        """A decision was carried out, as far as it could be: note whether the gang has started."""
        if planning is not None:
            self._adoption.carried_out(group.key, planning)
            if planning.written is not None:
                self.take(planning.written)
        if group.key not in self._cache.groups:  # its pods ended before the plan was known to be written
            self.ended(group.key, self._cache.pod_group(group.key))
        elif group.missing:
            return
        elif group.suffice(group.in_phase(Phase.BOUND)):
            self.forget_start(group.key)
            self.acknowledge(group)
        else:
            self._limit(group)
            if self._cache.nominations.kept and not self.may_have_begun(group):
                self._give_places_up(group)

    def acknowledge(self, group: Group) -> None:
        """Let the PodGroup say that it is scheduled, if it is."""
        if group.pod_group is not None and group.suffice(group.in_phase(Phase.BOUND)):
            plan = self._reader.plan_of(group)
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
        plan = self._reader.plan_of(group)
        return ever_scheduled(pod_group) if plan is None else acknowledged(pod_group, plan)

    def may_have_begun(self, group: Group) -> bool:
        """Whether members of the group's start are bound, or may be, so that the others must follow.

        What these give back, because their binds fail, is kept for them until they are placed again, the gang has
        started, or its time is over: else what runs of it would be ended for somebody who came later.
        """
        starting = self._starting.get(group.key)
        if not starting or group.missing or group.key in self._evicting:
            return False
        return any(uid in starting and self._may_be_bound(task) for uid, task in group.tasks.items())

    def _may_be_bound(self, task: Task) -> bool:
        return task.phase is Phase.BOUND or task.uid in self._scheduler.doubts

    def _give_places_up(self, group: Group | None) -> None:
        """What is kept of a start is anybody's."""
        known = self._cache.nominations
        kept = [task for uid, task in group.tasks.items() if uid in known.kept] if known.kept and group else []
        for task in kept:
            if task.pod.status.nominated_node_name:  # since before the start
                self._scheduler.preempting.give_up(task)
            else:
                known.give_up(task, known.told_of(task))
        if kept:
            self._scheduler.waking.tell_nominations()

    def ended(self, key: str, pod_group: PodGroup | None) -> None:
        """A group has no live pod any more: its plan has nothing left to say."""
        self.forget_start(key)
        self._reader.forget(key)
        self._adoption.forget(key)
        self._whole.pop(key, None)
        if pod_group is not None and PLAN_ANNOTATION in pod_group.metadata.annotations:
            self._scheduler.spawn(key, self._remove(pod_group), self._removed)

    def next_deadline(self, looked: float) -> float | None:
        """When a gang's time is over next that was not when it was last looked."""
        times = list(self._deadlines.values())
        if self._evicts_stale:
            stale = self._cache.stale_gangs.next_after(looked, self._stale_seconds)
            times += [stale] if stale is not None else []
        return min(times, default=None)

    # ------------------------------------------------------------------ at the start

    async def start(self) -> None:
        """After everything was listed: read every plan, see which gangs have started, and which only began to."""
        self._adoption.start()
        for pod_group in list(self._cache.pod_groups()):
            text = pod_group.metadata.annotations.get(PLAN_ANNOTATION)
            key = pod_group_key(pod_group)
            if text is not None and key in self._cache.groups:
                await self._reader.fetch(key, pod_group, text)
            elif text is not None:
                self.ended(key, pod_group)
        for group in list(self._cache.groups.values()):
            if group.pod_group is None:
                continue
            plan = self._reader.plan_of(group)
            if group.whole:
                self.acknowledge(group)
            elif plan is not None and not acknowledged(group.pod_group, plan):
                self.resume_start(group, plan)
            elif plan is None and not ever_scheduled(group.pod_group):
                self._starting[group.key] = {task.uid for task in group.tasks.values() if _by_plan(task)}
                self._limit(group)

    def joins_start(self, group: Group, tasks: Iterable[Task]) -> None:
        """These tasks belong to the start that is under way."""
        self._starting.setdefault(group.key, set()).update(task.uid for task in tasks)

    def gated(self) -> bool:
        """Whether nothing is to be placed yet: requests of plans that were found may still take what looks free."""
        return self._adoption.gated()

    def resume_start(self, group: Group, plan: GangPlan) -> None:
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

        Profiles that `failed` cannot carry on with anything now. An error that nobody expected fails its group, and is
        raised at the end.
        """
        now = self._scheduler.clock.now()
        errors: list[BaseException] = []
        for group in self._cache.pending_groups(self._has_plan):
            if any(name in failed for name in schedulers_of(group)):
                continue
            if self._scheduler.pending.is_due(group.key, now) and not self.holds_back(group):
                try:
                    await self._adoption.look_at(group)
                except Exception as error:  # noqa: BLE001 (a bug: it is raised at the end)
                    self._scheduler.back_off(group.key)
                    errors.append(error)
        for key in [key for key, deadline in self._deadlines.items() if deadline <= now]:
            self._evict(key, now)
        raise_first(errors)

    def _has_plan(self, group: Group) -> bool:
        pod_group = group.pod_group
        planned = pod_group is not None and PLAN_ANNOTATION in pod_group.metadata.annotations
        return planned and not self._scheduler.is_busy(group.key)

    def begun(self, group: Group) -> bool:
        """Whether some of the gang's members are bound and others still must be: it goes before all others."""
        return group.key in self._deadlines

    # ------------------------------------------------------------------ groups that ended

    async def _remove(self, pod_group: PodGroup) -> PodGroup | None:
        try:
            return await self._scheduler.binder.plans.swap(pod_group, None)
        except (NotFound, Conflict):
            return None  # it went with its PodGroup; or the group has pods and a plan again

    async def _removed(self, key: str, answer: PodGroup | BaseException | None) -> None:
        if isinstance(answer, PodGroup):
            self.take(answer)
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
        if group is None or not members or group.whole:
            self._deadlines.pop(key, None)
            self._give_places_up(group)
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
        self._give_places_up(group)

    async def _evicted(self, _: str, answer: BaseException | None) -> None:
        if answer is not None:
            raise answer

    # ------------------------------------------------------------------ gangs that lost members

    def lost(self, task: Task, *, succeeded: bool) -> None:
        """A member that ran is gone."""
        group = task.group
        if group.is_gang and not succeeded and group.tasks and group.key not in self._starting:
            self._cache.stale_gangs.lost(task, self._scheduler.clock.now())

    def stale(self) -> list[Group]:
        """The gangs that are to be looked at because they are short of members they need for too long."""
        if not self._evicts_stale:
            return []
        due = self._cache.stale_gangs.due(self._cache.groups, self._scheduler.clock.now(), self._stale_seconds)
        waits = (group for group in due if group.key not in self._evicting and not self._scheduler.is_busy(group.key))
        return [group for group in waits if group.in_phase(Phase.BOUND)]  # else all that is left of it ends already

    def end_stale(self, group: Group, members: Sequence[Task]) -> None:
        """Let these members end, again and again until they have; nothing of the gang is placed until then."""
        key = group.key
        self._starting[key] = {task.uid for task in members}
        self._evicting.add(key)
        self._deadlines[key] = self._scheduler.clock.now() + _EVICT_AGAIN
        self._scheduler.observer.gang_stale(group, len(members), self._stale_seconds)
        self._scheduler.spawn(key, self._scheduler.binder.evict_all(members), self._evicted)

    # ------------------------------------------------------------------ inside

    def _on_nodes(self, group: Group, *phases: Phase) -> list[Task]:
        """The members of the group's start that are in one of these phases."""
        starting = self._starting.get(group.key, ())
        return [task for task in group.in_phase(*phases) if task.uid in starting]

    def _has_started(self, group: Group, plan: GangPlan) -> bool:
        """Whether the gang has started by this plan: then its members run, and are no part of a later start."""
        told = group.pod_group is not None and acknowledged(group.pod_group, plan)
        return told or self._whole.get(group.key) == plan.attempt

    def take(self, pod_group: PodGroup) -> None:
        """Let the cache have what a write answered, unless events have told of a later state, or another PodGroup.

        What others have changed of it meanwhile wakes whom it can help: its event will tell nothing new.
        """
        known = self._cache.pod_group(pod_group_key(pod_group))
        if known is not None and known.metadata.uid == pod_group.metadata.uid and not _is_older(pod_group, known):
            self._cache.put(pod_group)
            self._scheduler.waking.changed(pod_group, known, gone=False)

    def forget_start(self, key: str) -> None:
        """A group has started, or must start over: what belonged to its start does so no more."""
        self._starting.pop(key, None)
        self._deadlines.pop(key, None)
        self._evicting.discard(key)
        self._give_places_up(self._cache.groups.get(key))


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


def _is_older(pod_group: PodGroup, known: PodGroup) -> bool:
    """Whether a PodGroup's state is from before another one. resourceVersions are numbers that grow (KEP-5504)."""
    versions = pod_group.metadata.resource_version, known.metadata.resource_version
    return all(version.isdecimal() for version in versions) and int(versions[0]) < int(versions[1])
