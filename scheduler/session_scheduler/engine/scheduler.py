"""The scheduler itself: state, sessions and binding put together over a cluster port.

One owner: events are applied between sessions, never in one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import structlog

from session_scheduler.actions import ACTIONS
from session_scheduler.base.clock import Clock
from session_scheduler.binding.binder import Binder, BindResult, cancel, unexpected
from session_scheduler.binding.plan_store import PlanSwap
from session_scheduler.cluster.port import Cluster
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.event_handlers import Waking, gates_of, registered_hints
from session_scheduler.engine.gang_starts import GangKeeper
from session_scheduler.engine.in_flight import Settle, UnderWay, kept, raise_first
from session_scheduler.engine.ingest import Intake
from session_scheduler.engine.plugin_sync import Informing
from session_scheduler.engine.preemption_executor import Preempting
from session_scheduler.engine.unknown_binds import Doubts
from session_scheduler.errors import InputError
from session_scheduler.framework.bindings import Allocation, Failure
from session_scheduler.framework.hooks import (
    HookCall,
    HookCalls,
    PluginError,
    asked_class_key,
    asked_footprint,
    asked_group,
)
from session_scheduler.framework.observer import Observer
from session_scheduler.framework.session import Outcome, Session, SessionOptions
from session_scheduler.framework.statement import Decision
from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.cluster_view import ClusterView
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.devices import DEVICE_KINDS
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import KubeObject, Node, Pod, PodGroup, PriorityClass
from session_scheduler.model.policy import POLICY_KINDS
from session_scheduler.model.queue_objects import QUEUE_KINDS
from session_scheduler.model.refusals import Refusal
from session_scheduler.model.related import RELATED_KINDS
from session_scheduler.model.storage import STORAGE_KINDS
from session_scheduler.state.cache import Cache, schedulers_of
from session_scheduler.state.configured_queues import of_config
from session_scheduler.state.scheduling_queue import PendingGroups
from session_scheduler.state.snapshot import Snapshot
from session_scheduler.state.unschedulable import GANG_SCHEDULING, Wants, lacks_pods

_log = structlog.get_logger(__name__)

KINDS: tuple[type[KubeObject], ...] = (
    PriorityClass, Node, PodGroup, *RELATED_KINDS, *STORAGE_KINDS, *DEVICE_KINDS, *POLICY_KINDS,
    *QUEUE_KINDS, Pod,
)  # fmt: skip
"""What is listed and watched, in the order in which it must be known: a pod's group and priority before the pod."""
OPTIONAL_KINDS: tuple[type[KubeObject], ...] = (
    *RELATED_KINDS, *STORAGE_KINDS, *DEVICE_KINDS, *POLICY_KINDS, *QUEUE_KINDS,
)  # fmt: skip
"""Those of `KINDS` without which the rest can be served: without namespaces' labels, say, or default spread."""
TAKEN_IN_AT_ONCE = 500
"""Objects that are taken in between two looks at what is under way: the renewal of the lease must not wait for all pods
of a large cluster."""
_DECIDED_AT_ONCE = 8
"""Pods that a session decides on, some 3 ms, between two looks at what is under way: each look costs as much as a
tenth of a pod, and what the processor has at hand for the one is not what the other needs. A pod for which others may
have to end takes as long as many: the look comes right after it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What became of a decision: the tasks now bound, and those that are pending again, with the reason.

    `unknown` are those of which the cluster did not say: they keep their place and share until it does.
    """

    decision: Decision
    bound: list[Task]
    failed: Mapping[Task, str]
    unknown: Mapping[Task, str] = field(default_factory=dict)


class Scheduler:
    """Profiles by schedulerName over one cluster. `start` once, then `cycle` whenever something is due."""

    def __init__(
        self,
        cluster: Cluster,
        config: SchedulerConfig,
        profiles: Mapping[str, HookCalls],
        clock: Clock,
        *,
        evaluation: str = "heap",
        observer: Observer | None = None,
        holder: str = "",
        token: Callable[[], str] = str,
    ) -> None:
        """`holder` and `token` tell this replica from others in plans and in bindings."""
        self.cluster = cluster
        self.config = config
        self.profiles = profiles
        self.clock = clock
        self.outcomes: dict[str, Outcome] = {}
        """The last outcome of each group that is known, by its key."""
        self._options = SessionOptions(
            evaluation,
            config.placement_retries,
            preempts="preempt" in config.actions,
            preempts_at_once=("allocate", "preempt") in pairwise(config.actions),
            reservations=config.reservations if "backfill" in config.actions else 0,
            most_moves=config.consolidation.max_moves,
            rest_seconds=config.consolidation.rest_seconds,
        )
        table = NodeTable(config.seed)
        view = ClusterView()
        class_keys = [asked_class_key(call, view) for call in self._all("class_key")]
        footprints = [asked_footprint(call) for call in self._all("footprint")]
        group_of = [asked_group(call) for call in self._all("group_of")]
        classes = ClassTable(table, class_keys, footprints)
        self.cache = Cache(table, classes, profiles.__contains__, group_of, view=view)
        self.cache.queues.configure(map(of_config, config.queues))
        backoff = config.backoff
        self.pending = PendingGroups(
            backoff.initial_seconds, backoff.max_seconds, backoff.max_unschedulable_seconds, registered_hints(profiles)
        )
        self.waking = Waking(self.cache, self.pending, clock)
        self.cache.gates.ask = gates_of(profiles, self.cache.objects.of)
        self.observer = observer or Observer()
        self.intake = Intake(self.cache, self.observer)
        self.pending.on_event = self.observer.requeued
        self.binder = Binder(cluster, config.bindings_in_flight, holder=holder, token=token,
                             objects=self.cache.objects.of, tell=self.observer.says,
                             nominated=self.cache.nominations.put)  # fmt: skip
        self.preempting = Preempting(self, config.bindings_in_flight)
        stale = config.stale_gang_seconds if "stale-gang-eviction" in config.actions else None
        self.gangs = GangKeeper(self, config.gang_bind_timeout_seconds, stale)
        self.in_session = False
        """Whether a session is open: its plugins' state is half way."""
        self.stopping = False
        """Whether a session is to start no further group."""
        self.under_way: UnderWay[Bound] = UnderWay(self.observer.finished)
        self.left_over = False
        """Whether something may be due at once that the last turn left: its time was over, or others went before."""
        self.doubts = Doubts(self)
        self._informing = Informing(self)

    def _all(self, hook: str) -> list[HookCall]:
        """One hook's implementations over all profiles, each plugin once."""
        found: dict[tuple[str, int], HookCall] = {}
        for calls in self.profiles.values():
            for call in calls.functions(hook):
                found.setdefault((call.plugin, id(calls.instances[call.plugin])), call)
        return list(found.values())

    # ------------------------------------------------------------------ the cluster's state

    async def start(self, objects: Iterable[KubeObject] | None = None) -> None:
        """Take in the whole cluster (listed unless given), then let the plugins recover what live pods hold.

        Raises InputError where what the cluster has and what a plugin was given do not go together, else PluginError.
        """
        for number, obj in enumerate(await self._listed() if objects is None else objects, 1):
            try:
                self.intake.put(obj)
            except Exception as error:  # noqa: BLE001 (a bug that one object meets is told, and the others are served)
                self.intake.failed(obj, error)
            if not number % TAKEN_IN_AT_ONCE:
                await asyncio.sleep(0)
        for failure in self._informing.of_nodes().values():
            raise failure.__cause__ if isinstance(failure.__cause__, InputError) else failure
        self._informing.start()
        self.preempting.started()
        await self.gangs.start()

    async def _listed(self) -> list[KubeObject]:
        return [obj for kind in KINDS for obj in (await self.cluster.list(kind)).items]

    async def apply(self, change: str, obj: KubeObject) -> None:
        """A watch event: ADDED, MODIFIED or DELETED. Frees what ended, wakes whom it can help."""
        known = self.waking.look(obj)
        before = self.cache.tasks.get(obj.metadata.uid) if isinstance(obj, Pod) else None
        node, phase = (before.node, before.phase) if before is not None else (None, None)
        group = before.group.key if before is not None else None
        gone = change == "DELETED"
        if gone:
            self.intake.remove(obj)
            if isinstance(obj, Node):
                self.preempting.node_gone(obj.metadata.name)
        else:
            self.intake.put(obj)
        if before is not None and group is not None and group not in self.cache.groups:
            self.pending.placed(group)
            self.outcomes.pop(group, None)
            self.gangs.ended(group, self.cache.pod_group(group))
        if isinstance(obj, Pod) and (gone or obj.metadata.deletion_timestamp is not None):
            self.binder.ends(obj.metadata.uid)
        if before is not None and obj.metadata.uid not in self.cache.tasks:
            if phase in (Phase.BOUND, Phase.RELEASING):
                self.gangs.lost(before, succeeded=isinstance(obj, Pod) and obj.status.phase == "Succeeded")
            self.preempting.ended(before.uid)
            await self._ended(before, node)
        elif isinstance(obj, Pod):
            await self._noticed(obj.metadata.uid, phase)
        self.waking.changed(obj, known, gone=gone)

    async def _noticed(self, uid: str, before: Phase | None) -> None:
        """Decide where a pod's binding was in doubt; see the bound pods that no session here placed."""
        task = self.cache.tasks.get(uid)
        if task is None or not task.pod.spec.node_name:
            return
        doubt = self.doubts.take(uid)
        if doubt is not None:
            failure, keeps = replace(doubt.failure, unknown=False), self.gangs.may_have_begun(task.group)
            if not await self.undone(failure, doubt.calls, keeps=keeps):
                self.observer.bound(task, doubt.failure.node)
        elif before in (None, Phase.PENDING, Phase.GATED):
            self._informing.later(task)
        else:
            return
        self.gangs.settled(task.group, None)

    async def _ended(self, task: Task, node: str | None) -> None:
        self.doubts.take(task.uid)
        if node is None:
            return
        calls = self.profiles.get(task.pod.spec.scheduler_name)
        if calls is not None:
            await self._cancel(calls, task, node)

    async def _cancel(self, calls: HookCalls, task: Task, node: str) -> None:
        for error in await cancel(calls, Allocation(task.uid, task.pod, node)):
            _log.error("cancel failed", pod=task.key, plugin=error.plugin, error=str(error))

    # ------------------------------------------------------------------ cycles

    async def cycle(self) -> list[Bound]:
        """One session for each profile over what is due; what was decided is bound before this returns.

        An error that nobody expected is raised at the end, when everything else is done and settled.
        """
        errors: list[BaseException] = []
        await kept(self.doubts.settle(), errors)
        await kept(self.decide(), errors)
        await self.under_way.wait(errors)
        done = await self.under_way.settle_ended(errors)
        raise_first(errors)
        return done

    async def decide(self) -> None:
        """One session for each profile over what is due; what was decided is under way when this returns."""
        self.left_over = False
        failed = self._informing.of_nodes()
        self._informing.of_holdings(failed)
        self.pending.flush(self.clock.now())
        for key in self.cache.moves.take_held_up(self.clock.now()):
            self.pending.activate(key, self.clock.now())
        self.cache.rest(self.pending.is_asleep)
        errors: list[BaseException] = []
        await kept(self.gangs.review(failed), errors)
        for name in self.profiles if not self.gangs.gated() else ():
            due = self._refuse_mixed(self._due(name))
            begun = tuple(group for group in due if self.gangs.begun(group))
            others = tuple(group for group in due if group not in begun) if begun else due
            stale = tuple(group for group in self.gangs.stale() if self._profile_of(group) == name)
            if begun:  # to be ended first
                await self._decide_on(name, begun, (), failed, errors)
            if others or stale:
                await self._decide_on(name, others, stale, failed, errors)
        raise_first(errors)

    async def _decide_on(
        self, name: str, due: tuple[Group, ...], stale: tuple[Group, ...], failed: Mapping[str, PluginError],
        errors: list[BaseException],
    ) -> None:  # fmt: skip
        """One session of a profile, unless one of its plugins `failed` before."""
        if name in failed:
            self.failed(due, failed[name])
        else:
            await kept(self._session(self.profiles[name], due, stale), errors)

    # ------------------------------------------------------------------ work under way

    def spawn(self, group: str, work: Coroutine[Any, Any, Any], settle: Settle[Bound]) -> None:
        """Start work for a group (its key); `settle(group, answer or error)` is called in a later turn.

        Nothing else of the group is decided until then.
        """
        self.under_way.start(group, work, settle)

    def is_busy(self, group: str) -> bool:
        """Whether something is under way for a group (its key), or it is not known of a pod of it what became of it."""
        found = self.cache.groups.get(group) if self.doubts else None
        return (found is not None and self.doubts.concern(found)) or self.under_way.concerns(group)

    async def settle_finished(self) -> list[Bound]:
        """Settle the work that has ended. An error that nobody expected is raised when all of it is settled."""
        errors: list[BaseException] = []
        done = await self.under_way.settle_ended(errors)
        raise_first(errors)
        return done

    def failed(self, groups: Iterable[Group], error: PluginError) -> None:
        """A plugin failed when these groups were to be placed: they wait."""
        self._record(
            {group: Outcome(group, refusal=Refusal(str(error), error.plugin, failed=True)) for group in groups}
        )

    def _due(self, scheduler_name: str) -> tuple[Group, ...]:
        """What is to be tried: where that is nothing, what an event has woken before its backoff was over."""
        now = self.clock.now()
        active = self._free(scheduler_name, lambda group: self.pending.is_active(group.key, now))
        if active or not self.pending.any_hurried:
            self.left_over |= self.pending.any_hurried
            return active
        return self._free(scheduler_name, lambda group: self.pending.is_hurried(group.key))

    def _free(self, scheduler_name: str, wanted: Callable[[Group], bool]) -> tuple[Group, ...]:
        waiting = self.cache.pending_groups(wanted)
        free = (group for group in waiting if not self.is_busy(group.key) and not self.gangs.holds_back(group))
        return tuple(group for group in free if schedulers_of(group)[0] == scheduler_name)

    def _profile_of(self, group: Group) -> str | None:
        """Who places the group's pods, of several the first by name; None where nobody here does."""
        names = {task.pod.spec.scheduler_name for task in group.tasks.values()}
        return min(names & self.profiles.keys(), default=None)

    def _refuse_mixed(self, due: tuple[Group, ...]) -> tuple[Group, ...]:
        """The groups without those whose pods name several schedulers: a session places its own profile's pods only."""
        mixed = [group for group in due if len(schedulers_of(group)) > 1]
        for group in mixed:
            names = " and ".join(schedulers_of(group))
            reason = f"{group.key}: its pods name different schedulers, {names}: give all of them one schedulerName"
            self._record({group: Outcome(group, refusal=Refusal(reason, GANG_SCHEDULING))}, _wants_other_pods)
        return tuple(group for group in due if group not in mixed)

    async def _session(self, calls: HookCalls, due: tuple[Group, ...], stale: tuple[Group, ...]) -> None:
        self.pending.begin(group.key for group in due)
        try:
            session = self.open_session(calls, due, stale)
        except PluginError as error:
            self.failed(due, error)
            return
        self.in_session, started = True, perf_counter()
        try:
            decided = tried = 0
            for decision in self._decisions(session):
                if decision is not None and decision.allocated:
                    self.carry_out(decision, calls, self.gangs.planning(decision.group, decision.allocated))
                if decision is not None and decision.evicted:
                    self.gangs.end_stale(decision.group, list(decision.evicted))
                if decision is not None and (decision.nominated or decision.preemptions):
                    self.preempting.carry_out(decision, session.outcomes[decision.group].reasons)
                decided += max(1, len(decision.allocated) if decision is not None else 0)
                long = session.trials_made + session.held_up
                if decided >= _DECIDED_AT_ONCE or long > tried:
                    decided, tried = 0, long
                    await asyncio.sleep(0)
        finally:
            self.in_session = False
            self.left_over |= len(session.outcomes) < len(due) and session.expired()
            self.close_session(session)
            self._record(session.outcomes, session.wants)
            self.preempting.tried(session.outcomes)
            session.forget()
            self.waking.tell_nominations()
            self.observer.stage("session", perf_counter() - started)
        raise_first(session.errors)

    def carry_out(self, decision: Decision, calls: HookCalls, planning: PlanSwap | None) -> None:
        """Let a decision be bound; it is settled in a later turn."""
        work = self.binder.carry_out(decision, calls, planning)
        self.spawn(decision.group.key, work, partial(self._carried_out, decision, calls, planning))

    async def _carried_out(
        self,
        decision: Decision,
        calls: HookCalls,
        planning: PlanSwap | None,
        _: str,
        answer: BindResult | BaseException,
    ) -> Bound:
        started = perf_counter()
        result = unexpected(decision, answer) if isinstance(answer, BaseException) else answer
        failures = result.failures
        for stage, seconds in result.seconds.items():
            self.observer.stage(stage, seconds)
        bound = await self._settle(decision, failures, calls)
        self.gangs.settled(decision.group, planning)
        self.observer.stage("settle", perf_counter() - started)
        raise_first([failure.error for failure in failures if failure.error is not None])
        return bound

    def open_session(self, calls: HookCalls, due: tuple[Group, ...], stale: tuple[Group, ...] = ()) -> Session:
        """A session over these groups, with each plugin's facts. Raises PluginError."""
        facts = {call.plugin: call() for call in calls.functions("facts")}
        self.ask_offered(calls)
        self.cache.table.pods.trim()
        session = Session(
            Snapshot(self.cache, due, self.clock.now(), facts, self.clock.wall(), stale), calls, self._options
        )
        session.open()
        return session

    def ask_offered(self, calls: HookCalls) -> None:
        """Have queues share what plugins say that there is. Raises PluginError."""
        for call in calls.functions("offered") if self.cache.queues.active else ():
            answer = call() or {}
            if not all(type(amount) is int and amount >= 0 for amount in answer.values()):
                raise call.wrong("an amount is no whole number from 0 on")
            self.cache.queues.offered[call.plugin] = answer

    def close_session(self, session: Session) -> None:
        """Tell the plugins that it is over; one that fails is logged, for nothing depends on it any more."""
        try:
            session.close()
        except PluginError as error:
            _log.error("session close failed", plugin=error.plugin, error=str(error))

    def _decisions(self, session: Session) -> Iterator[Decision | None]:
        """What every action yields; no new group is started after the cycle's time is over."""
        end = self.clock.now() + self.config.cycle_seconds
        session.expired = lambda: self.stopping or self.clock.now() > end
        for action in self.config.actions:
            yield from ACTIONS[action](session)

    async def _settle(self, decision: Decision, failures: Sequence[Failure], calls: HookCalls) -> Bound:
        """After the session: what was bound stands, what was not is pending again and its share is freed.

        What was evicted keeps its place until it has ended.
        """
        if not failures and not decision.evicted:
            return self._settled(decision)
        for task, node in decision.evicted.items():
            self.cache.occupy(task, node)
            task.phase = Phase.RELEASING if await self.binder.evict(task) else Phase.BOUND
        not_bound = {failure.task for failure in failures}
        self._stands([task for task in decision.allocated if task not in not_bound])
        failed = await self._undone(decision.group, failures, calls)
        unknown = {
            failure.task: f"it is not known yet whether this was done: {failure.reason}"
            for failure in failures
            if failure.task.uid in self.doubts
        }
        bound = [task for task in decision.allocated if task not in failed and task not in unknown]
        self._stands([task for task in bound if task in not_bound])
        for failure in failures:
            self.observer.bind_failed(failure)
        if failed:
            self.tell_failed(decision.group, failed)
        elif not unknown:
            self._started(decision.group)
        self._note(decision.group, unknown)
        return Bound(decision, bound, failed, unknown)

    def _settled(self, decision: Decision) -> Bound:
        """Everything that was decided is done: the way of nearly every pod."""
        self._stands(decision.allocated)
        self._started(decision.group)
        return Bound(decision, decision.allocated, {})

    def _stands(self, bound: Sequence[Task]) -> None:
        for task in bound:
            if task.phase is Phase.ASSUMED:
                task.phase = Phase.BOUND
            self.observer.bound(task, task.node or "")

    def _started(self, group: Group) -> None:
        outcome = self.outcomes.get(group.key)
        if outcome is None or outcome.scheduled:
            self.pending.placed(group.key)

    async def _undone(self, group: Group, failures: Sequence[Failure], calls: HookCalls) -> dict[Task, str]:
        """Those of a group whose binds came to nothing, and why. What is unknown comes first: by it a gang may have
        begun.
        """
        found: dict[Task, str] = {}
        for doubtful in (True, False):
            keeps = self.gangs.may_have_begun(group)
            for failure in failures:
                if failure.unknown is doubtful and await self.undone(failure, calls, keeps=keeps):
                    found[failure.task] = failure.reason
        return found

    async def undone(self, failure: Failure, calls: HookCalls, *, keeps: bool) -> bool:
        """Whether the bind came to nothing: then the task is pending again and its share is free.

        With `keeps` nobody of its priority or less takes that before the task is placed again: its gang has begun.
        Nothing is freed of a task that is bound as decided (its event came before the answer), or may be.
        """
        task = failure.task
        if self.cache.tasks.get(task.uid) is not task:
            return True  # its end has freed its share
        if task.phase is not Phase.ASSUMED and failure.landed(task.pod):
            return False
        if task.phase is Phase.ASSUMED and failure.unknown:
            self.doubts.put(failure, calls)
            return False
        self.cache.forget(task)
        await self._cancel(calls, task, failure.node)
        self.waking.freed(task)
        if task.node is not None:  # somebody else bound it
            self._informing.later(task)
        elif keeps and failure.node in self.cache.table.row_of:
            self.cache.nominations.keep(task, failure.node)
        else:
            self.preempting.give_up(task)
        return True

    async def give_up(self, task: Task, calls: HookCalls) -> None:
        """A task that was placed is not to be bound after all: it is pending again, and its share is free."""
        node = task.node or ""
        self.cache.forget(task)
        await self._cancel(calls, task, node)
        self.waking.freed(task)
        self.preempting.give_up(task)

    def back_off(self, group: str) -> None:
        """Something of a group (its key) failed: it waits, if it is still there."""
        found = self.cache.groups.get(group)
        if found is not None:
            found.queued = self.clock.now()
            self.pending.failed(group, found.queued)

    def tell_failed(self, group: Group, reasons: Mapping[Task, str]) -> None:
        """Tasks that were placed are pending again, and the group waits; the reasons are told."""
        if self.cache.groups.get(group.key) is group:  # else it is gone, and what has its name now has not failed
            self.back_off(group.key)
            self._note(group, reasons)
        for task, reason in reasons.items():
            self.observer.failed(task, reason)
        if reasons and group.pod_group is not None and not group.whole:
            self.observer.group_failed(group.pod_group, next(iter(reasons.values())))

    def _note(self, group: Group, reasons: Mapping[Task, str]) -> None:
        """Let the group's last outcome tell what became of its placement."""
        if group.key in self.outcomes:
            self.outcomes[group.key].reasons.update(reasons)

    def _record(
        self, outcomes: Mapping[Group, Outcome], wants: Callable[[Outcome], Wants | None] = lambda _: None
    ) -> None:
        """`wants`: what those that were not placed wait for; None for those that failed by an error."""
        now = self.clock.now()
        for group, outcome in outcomes.items():
            self.outcomes[group.key] = outcome
            if not outcome.scheduled:
                wanted = wants(outcome)
                self.pending.failed(group.key, now, wanted)
                if not wanted or not lacks_pods(wanted):
                    group.queued = now
            elif not outcome.placed:  # else its binds must be done before its failures are forgotten
                self.pending.placed(group.key)
            self.observer.decided(outcome)


def _wants_other_pods(outcome: Outcome) -> Wants:
    """Only a change of its own pods helps the group."""
    rejector = frozenset((GANG_SCHEDULING,))
    return frozenset((task.cls, rejector) for task in outcome.group.in_phase(Phase.PENDING))
