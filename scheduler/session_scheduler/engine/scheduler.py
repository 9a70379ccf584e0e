"""The scheduler: over a cluster port it keeps the cache and the queue, opens sessions and carries decisions out.

The parts stand side by side, each with the collaborators that it needs; `Scheduler` builds them and turns the cycle.
Events are applied between sessions, never in one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from time import perf_counter

from session_scheduler.actions import ACTIONS
from session_scheduler.base.clock import Clock
from session_scheduler.binding.binder import Binder
from session_scheduler.cluster.port import Cluster
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.completion import BindCompletion, Bound
from session_scheduler.engine.event_handlers import EventHandlers, Requeuer, gates_of, registered_hints
from session_scheduler.engine.gang_starts import GangStarts
from session_scheduler.engine.in_flight import InFlight, kept, raise_first
from session_scheduler.engine.plan_cache import PlanCache
from session_scheduler.engine.plan_recovery import PlanRecovery
from session_scheduler.engine.plugin_sync import PluginSync
from session_scheduler.engine.preemption_executor import PreemptionExecutor
from session_scheduler.engine.sessions import Sessions
from session_scheduler.engine.unknown_binds import UnknownBinds
from session_scheduler.errors import InputError
from session_scheduler.framework import hooks
from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError
from session_scheduler.framework.observer import Observer
from session_scheduler.framework.session import Session, SessionOptions
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.cluster_view import ClusterView
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.devices import DEVICE_KINDS
from session_scheduler.model.groups import Group, Phase
from session_scheduler.model.objects import KubeObject, Node, Pod, PodGroup, PriorityClass
from session_scheduler.model.policy import PodDisruptionBudget
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.refusals import Refusal
from session_scheduler.model.related import RELATED_KINDS
from session_scheduler.model.storage import STORAGE_KINDS
from session_scheduler.state.cache import Cache, schedulers_of
from session_scheduler.state.configured_queues import of_config
from session_scheduler.state.scheduling_queue import GANG_SCHEDULING, SchedulingQueue, Wants
from session_scheduler.state.tables import ObjectTables

OPTIONAL_KINDS: tuple[type[KubeObject], ...] = (
    *RELATED_KINDS, *STORAGE_KINDS, *DEVICE_KINDS, PodDisruptionBudget, Queue,
)  # fmt: skip
"""Those of `KINDS` without which the rest can be served: without namespaces' labels, say, or default spread."""
KINDS: tuple[type[KubeObject], ...] = (PriorityClass, Node, PodGroup, *OPTIONAL_KINDS, Pod)
"""What is listed and watched, in the order in which it must be known: a pod's group and priority before the pod."""
INGESTED_AT_ONCE = 500
"""Objects that are ingested between two checks for other work: the renewal of the lease must not wait for all pods of a
large cluster."""
_DECIDED_AT_ONCE = 8
"""Pods that a session decides on, some 3 ms, between two checks for other work: each check costs as much as a tenth of
a pod, and what the processor has at hand for the one is not what the other needs. A pod that needs preemption takes as
long as many: the check comes right after it."""


class Scheduler:
    """Profiles by schedulerName over one cluster. `start` once, then `cycle` whenever something is due."""

    def __init__(
        self, cluster: Cluster, config: SchedulerConfig, profiles: Mapping[str, HookCalls], clock: Clock, *,
        evaluation: str = "heap", observer: Observer | None = None, holder: str = "", token: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        """`holder` and `token` identify this replica in plans and in bindings."""
        self.cluster = cluster
        self.config = config
        self.profiles = profiles
        self.clock = clock
        self.in_session = False
        """Whether a session is open: its plugins' state is half way."""
        self._cycle_ends = math.inf
        """When the time of the cycle that runs, or ran last, is over."""
        self.stopping = False
        """Whether a session is to start no further group."""
        self.left_over = False
        """Whether something may be due at once that the last turn left: its time was over, or others went before."""
        self.observer = observer = observer or Observer()
        backoff = config.backoff
        self.queue = SchedulingQueue(
            backoff.initial_seconds, backoff.max_seconds, backoff.max_unschedulable_seconds, registered_hints(profiles),
            on_requeued=lambda key: self.cache.requeued(key), on_event=observer.requeued,
        )  # fmt: skip
        self.cache = self._new_cache()
        self.binder = Binder(cluster, config.bindings_in_flight, holder=holder, token=token,
                             objects=self.cache.objects.of, record_event=observer.says,
                             nominated=self.cache.nominations.put)  # fmt: skip
        requeuer = Requeuer(self.cache, self.queue, clock)
        self._release_nominations = requeuer.release_nominations
        in_flight: InFlight[Bound] = InFlight(observer.finished)
        unknown = UnknownBinds(self.cache.groups, in_flight, self.binder.resolve)
        preemption = PreemptionExecutor(
            cluster, self.cache, self.queue, clock, observer, in_flight, requeuer.back_off,
            requeuer.release_nominations, asyncio.Semaphore(config.bindings_in_flight),
        )  # fmt: skip
        plans = PlanCache(self.cache, self.binder.plans, observer, clock, in_flight, requeuer.back_off)
        stale_seconds = config.stale_gang_seconds if "stale-gang-eviction" in config.actions else None
        gang_starts = GangStarts(
            self.cache, clock, observer, self.binder, in_flight, unknown, plans, preemption, requeuer.ingest_written,
            requeuer.release_nominations, config.gang_bind_timeout_seconds, stale_seconds,
        )  # fmt: skip
        self.plugin_sync = PluginSync(self.cache, profiles, observer)
        self.completion = BindCompletion(
            profiles, self.cache, self.queue, clock, observer, self.binder, in_flight, unknown, gang_starts, preemption,
            self.plugin_sync, requeuer.back_off, requeuer.freed,
        )  # fmt: skip
        self.outcomes = self.completion.outcomes
        self.in_flight, self.unknown_binds, self.preemption = in_flight, unknown, preemption
        self.plans, self.gang_starts = plans, gang_starts
        self.sessions = Sessions(self.cache, clock, _session_options(config, evaluation))
        self.plan_recovery = PlanRecovery(
            self.cache, self.queue, profiles, clock, observer, self.binder, in_flight, unknown, plans, gang_starts,
            self.sessions, self.completion, requeuer.ingest_written,
        )  # fmt: skip
        self.event_handlers = EventHandlers(
            self.cache, self.queue, requeuer, observer, self.binder, self.completion, gang_starts, preemption
        )

    def _new_cache(self) -> Cache:
        table, view, objects = NodeTable(self.config.seed), ClusterView(), ObjectTables()
        class_keys = [hooks.asked_class_key(call, view) for call in self._all("class_key")]
        footprints = [hooks.asked_footprint(call) for call in self._all("footprint")]
        group_of = [hooks.asked_group(call) for call in self._all("group_of")]
        classes = ClassTable(table, class_keys, footprints)
        cache = Cache(table, classes, self.profiles.__contains__, group_of, view=view, objects=objects,
                      pre_enqueue=gates_of(self.profiles, objects.of), class_changed=self.queue.changed_class,
                      opened=self.queue.requeue)  # fmt: skip
        cache.queues.configure(map(of_config, self.config.queues))
        return cache

    def _all(self, hook: str) -> list[HookCall]:
        """One hook's implementations over all profiles, each plugin once."""
        found: dict[tuple[str, int], HookCall] = {}
        for calls in self.profiles.values():
            for call in calls.functions(hook):
                found.setdefault((call.plugin, id(calls.instances[call.plugin])), call)
        return list(found.values())

    # ------------------------------------------------------------------ the start

    async def start(self, objects: Iterable[KubeObject] | None = None) -> None:
        """Ingest the whole cluster (listed unless given), then let the plugins recover what live pods hold.

        Raises InputError where what the cluster has and what a plugin was given do not go together, else PluginError.
        """
        if objects is None:
            objects = [obj for kind in KINDS for obj in (await self.cluster.list(kind)).items]
        for number, obj in enumerate(objects, 1):
            try:
                self.event_handlers.ingest(obj)
            except Exception as error:  # noqa: BLE001 (a bug that one object meets is reported, and the others are served)
                self.event_handlers.failed(obj, error)
            if not number % INGESTED_AT_ONCE:
                await asyncio.sleep(0)
        for failure in self.plugin_sync.sync_nodes().values():
            raise failure.__cause__ if isinstance(failure.__cause__, InputError) else failure
        self.plugin_sync.start()
        self.preemption.started()
        await self.plan_recovery.start()

    # ------------------------------------------------------------------ cycles

    async def cycle(self) -> list[Bound]:
        """One session for each profile over what is due; what was decided is bound before this returns.

        An unexpected error is raised at the end, when everything else is done and completed.
        """
        errors: list[BaseException] = []
        await kept(self.unknown_binds.check_all(self.completion.resolve), errors)
        await kept(self.decide(), errors)
        await self.in_flight.wait(errors)
        done = await self.in_flight.complete_ended(errors)
        raise_first(errors)
        return done

    async def complete_finished(self) -> list[Bound]:
        """Complete the work that has ended. An unexpected error is raised when all of it is completed."""
        errors: list[BaseException] = []
        done = await self.in_flight.complete_ended(errors)
        raise_first(errors)
        return done

    async def decide(self) -> None:
        """One session for each profile over what is due; what was decided is in flight when this returns."""
        self.left_over = False
        failed = self.plugin_sync.sync()
        now = self.clock.now()
        self.queue.flush(now)
        for key in self.cache.moves.drain_held_up(now):
            self.queue.activate(key, now)
        self.cache.rest(self.queue.is_unschedulable)
        errors: list[BaseException] = []
        await kept(self.plan_recovery.review(failed), errors)
        for name in self.profiles if not self.plans.gated() else ():
            due = self._refuse_mixed(self._due(name))
            begun = tuple(group for group in due if self.gang_starts.begun(group))
            others = tuple(group for group in due if group not in begun) if begun else due
            stale = tuple(group for group in self.gang_starts.stale() if self._profile_of(group) == name)
            for groups, short in ((begun, ()), (others, stale)):  # those that have begun first
                if name in failed and (groups or short):
                    self.completion.plugin_failed(groups, failed[name])
                elif groups or short:
                    await kept(self._run_session(self.profiles[name], groups, short), errors)
        raise_first(errors)

    async def _run_session(self, calls: HookCalls, due: tuple[Group, ...], stale: tuple[Group, ...]) -> None:
        """Open a session, run the actions, carry out what they decide, close it."""
        self.queue.begin(group.key for group in due)
        try:
            session = self.sessions.open(calls, due, stale, self._is_cycle_over)
        except PluginError as error:
            self.completion.plugin_failed(due, error)
            return
        self.in_session, started = True, perf_counter()
        try:
            await self._run_actions(session, calls)
        finally:
            self.in_session = False
            self.left_over |= len(session.outcomes) < len(due) and session.expired()
            self.sessions.close(session)
            self.completion.record(session.outcomes, session.evaluator.wants)
            self.preemption.tried(session.outcomes)
            session.forget()
            self._release_nominations()
            self.observer.stage("session", perf_counter() - started)
        raise_first(session.errors)

    async def _run_actions(self, session: Session, calls: HookCalls) -> None:
        """Run the actions, and carry out each decision; no new group is started after the cycle's time is over."""
        self._cycle_ends = self.clock.now() + self.config.cycle_seconds
        decided = tried = 0
        for action in self.config.actions:
            if session.expired():
                return
            for decision in ACTIONS[action](session):
                if decision is not None:
                    self._carry_out(decision, session, calls)
                decided += max(1, len(decision.allocated) if decision is not None else 0)
                long = session.trials_made + session.held_up
                if decided >= _DECIDED_AT_ONCE or long > tried:
                    decided, tried = 0, long
                    await asyncio.sleep(0)
                if session.expired():
                    return

    def _is_cycle_over(self) -> bool:
        return self.stopping or self.clock.now() > self._cycle_ends

    def _carry_out(self, decision: Decision, session: Session, calls: HookCalls) -> None:
        """Bind, evict and nominate what was decided, in flight."""
        group = decision.group
        if decision.allocated:
            self.completion.carry_out(decision, calls, self.gang_starts.plan_swap(group, decision.allocated))
        if decision.evicted:
            self.gang_starts.end_stale(group, list(decision.evicted))
        if decision.nominated or decision.preemptions:
            self.preemption.carry_out(decision, session.outcomes[group].reasons)

    # ------------------------------------------------------------------ what is due

    def _due(self, scheduler_name: str) -> tuple[Group, ...]:
        """The active groups; where there are none, those that an event requeued before their backoff was over."""
        now = self.clock.now()
        active = self._free(scheduler_name, lambda group: self.queue.is_active(group.key, now))
        if active or not self.queue.any_hurried:
            self.left_over |= self.queue.any_hurried
            return active
        return self._free(scheduler_name, lambda group: self.queue.is_hurried(group.key))

    def _free(self, scheduler_name: str, wanted: Callable[[Group], bool]) -> tuple[Group, ...]:
        return tuple(group for group in self.cache.pending_groups(wanted)
                     if not self.unknown_binds.is_busy(group.key) and not self.gang_starts.holds_back(group)
                     and schedulers_of(group)[0] == scheduler_name)  # fmt: skip

    def _profile_of(self, group: Group) -> str | None:
        """The profile that places the group's pods, of several the first by name; None where none does."""
        names = {task.pod.spec.scheduler_name for task in group.tasks.values()}
        return min(names & self.profiles.keys(), default=None)

    def _refuse_mixed(self, due: tuple[Group, ...]) -> tuple[Group, ...]:
        """The groups without those whose pods name several schedulers: a session places its own profile's pods only."""
        mixed = [group for group in due if len(schedulers_of(group)) > 1]
        for group in mixed:
            names = " and ".join(schedulers_of(group))
            reason = f"{group.key}: its pods name different schedulers, {names}: give all of them one schedulerName"
            outcome = PlacementResult(group, refusal=Refusal(reason, GANG_SCHEDULING))
            self.completion.record({group: outcome}, _wants_other_pods)
        return tuple(group for group in due if group not in mixed)


def _session_options(config: SchedulerConfig, evaluation: str) -> SessionOptions:
    return SessionOptions(
        evaluation,
        config.placement_retries,
        preempts="preempt" in config.actions,
        preempts_at_once=("allocate", "preempt") in pairwise(config.actions),
        reservations=config.reservations if "backfill" in config.actions else 0,
        most_moves=config.consolidation.max_moves,
        rest_seconds=config.consolidation.rest_seconds,
    )


def _wants_other_pods(outcome: PlacementResult) -> Wants:
    """Only a change of its own pods helps the group."""
    rejector = frozenset((GANG_SCHEDULING,))
    return frozenset((task.cls, rejector) for task in outcome.group.in_phase(Phase.PENDING))
