"""The scheduler: maintains the cache and the queue over a cluster port, opens sessions and carries decisions out.

`Scheduler` builds its parts, passes each its collaborators, and runs the cycle. Event handlers run between sessions,
never during one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from time import perf_counter

from session_scheduler.actions import ACTIONS
from session_scheduler.base.clock import Clock
from session_scheduler.binding.binder import Binder
from session_scheduler.cluster.port import Cluster
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.completion import BindCompletion, Bound
from session_scheduler.engine.event_handlers import EventHandlers, Requeuer, gates_of, registered_hints
from session_scheduler.engine.extender_calls import ExtenderCalls, ExtenderTurns
from session_scheduler.engine.gang_starts import GangStarts
from session_scheduler.engine.in_flight import InFlight, kept, raise_first
from session_scheduler.engine.plan_cache import PlanCache
from session_scheduler.engine.plan_recovery import PlanRecovery
from session_scheduler.engine.plugin_sync import PluginSync
from session_scheduler.engine.preemption_executor import PreemptionExecutor
from session_scheduler.engine.retried_groups import FreedRetries
from session_scheduler.engine.sessions import Sessions
from session_scheduler.engine.unknown_binds import UnknownBinds
from session_scheduler.errors import InputError
from session_scheduler.framework import hooks
from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError
from session_scheduler.framework.observer import Observer
from session_scheduler.framework.session import Session, SessionOptions
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.cluster_view import ClusterView
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.device_resources import DeviceResources
from session_scheduler.model.devices import DEVICE_KINDS
from session_scheduler.model.groups import Group, Phase
from session_scheduler.model.node_topology import NodeResourceTopology
from session_scheduler.model.objects import KubeObject, Node, Pod, PodGroup, PriorityClass
from session_scheduler.model.policy import PodDisruptionBudget
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.refusals import Refusal
from session_scheduler.model.related import RELATED_KINDS
from session_scheduler.model.storage import STORAGE_KINDS
from session_scheduler.state.cache import Cache, schedulers_of
from session_scheduler.state.configured_queues import devices_of_config, of_config
from session_scheduler.state.rejections import LOWEST, Place
from session_scheduler.state.scheduling_queue import GANG_SCHEDULING, SchedulingQueue, Wants, lacks_pods
from session_scheduler.state.tables import ObjectTables

OPTIONAL_KINDS: tuple[type[KubeObject], ...] = (
    *RELATED_KINDS, *STORAGE_KINDS, *DEVICE_KINDS, PodDisruptionBudget, Queue, NodeResourceTopology,
)  # fmt: skip
"""The kinds of `KINDS` that the scheduler can do without, at the cost of a feature such as default spreading."""
KINDS: tuple[type[KubeObject], ...] = (PriorityClass, Node, PodGroup, *OPTIONAL_KINDS, Pod)
"""The watched kinds, in the order in which the cache needs them: a pod's group and priority before the pod."""
READ_BY: Mapping[type[KubeObject], str] = {NodeResourceTopology: "NodeResourceTopologyMatch"}
"""Kinds that only one plugin reads, which is off by default. Their objects change often."""
INGESTED_AT_ONCE = 500
"""Objects to ingest before yielding to other tasks: the renewal of the lease must not wait for all pods of a large
cluster."""
_DECIDED_AT_ONCE = 8
"""Pods to decide on, in about 3 ms, before yielding to other tasks: yielding costs a tenth of the time for a pod, and
cold processor caches. A session yields at once after a pod that needs preemption: that takes as long as many pods."""


def watched_kinds(profiles: Mapping[str, HookCalls]) -> list[type[KubeObject]]:
    """`KINDS`, without those that no plugin of these profiles reads."""
    enabled = {name for calls in profiles.values() for name in calls.instances}
    return [kind for kind in KINDS if READ_BY.get(kind) in (None, *enabled)]


class Scheduler:
    """Profiles by schedulerName over one cluster. Call `start` once, then `cycle` whenever a group is due."""

    def __init__(
        self, cluster: Cluster, config: SchedulerConfig, profiles: Mapping[str, HookCalls], clock: Clock, *,
        evaluation: str = "heap", observer: Observer | None = None, holder: str = "", token: Callable[[], str] = str,
        extenders: ExtenderCalls | None = None, serves: Callable[[str], bool] | None = None,
    ) -> None:  # fmt: skip
        """`holder` and `token` identify this replica in plans and in Bindings.

        The last plugin of each profile must then read the answers of `extenders`. `serves`: whether a node is still in
        the scheduler's partition.
        """
        self.cluster = cluster
        self.config = config
        self.profiles = profiles
        self.clock = clock
        self.in_session = False
        """Whether a session is open: then its plugins' state is not consistent."""
        self._action_ends = math.inf
        """The deadline of the current or last action."""
        self.stopping = False
        """Whether sessions must not start another group."""
        self.left_over = False
        """Whether the last turn may have left groups that are due: it ran out of time, or preferred others."""
        self.observer = observer = observer or Observer()
        backoff, table = config.backoff, NodeTable(config.seed)
        self.queue = SchedulingQueue(
            backoff.initial_seconds, backoff.max_seconds, backoff.max_unschedulable_seconds,
            registered_hints(profiles, by_capacity="consolidate" not in config.actions),
            table=table, place_of=self._place_of, evictable=self._evictable,
            on_requeued=lambda key: self.cache.requeued(key),
            on_event=lambda event, plugin, keys: observer.requeued(
                event, plugin, list(filter(None, map(self.cache.groups.get, keys)))
            ),
        )  # fmt: skip
        self.cache = self._new_cache(table)
        self.binder = Binder(cluster, config.bindings_in_flight, holder=holder, token=token,
                             objects=self.cache.objects.of, record_event=observer.says,
                             nominated=self.cache.nominations.put,
                             extender=extenders.binder_of if extenders is not None else None,
                             namespace=config.leader_election.namespace, serves=serves)  # fmt: skip
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
            self.cache, self.queue, clock, observer, self.binder, in_flight, unknown, gang_starts, preemption,
            self.plugin_sync, requeuer.back_off, requeuer.freed,
        )  # fmt: skip
        self.outcomes = self.completion.outcomes
        self._extenders = (
            ExtenderTurns(
                extenders, self.cache, in_flight, self.completion, lambda key: self.queue.activate(key, clock.now())
            )
            if extenders is not None
            else None
        )
        self.in_flight, self.unknown_binds, self.preemption = in_flight, unknown, preemption
        self.plans, self.gang_starts = plans, gang_starts
        self.sessions = Sessions(self.cache, clock, _session_options(config, evaluation))
        self.plan_recovery = PlanRecovery(
            self.cache, self.queue, profiles, clock, observer, self.binder, in_flight, unknown, plans, gang_starts,
            self.sessions, self.completion, requeuer.ingest_written, alone=config.partition is None,
        )  # fmt: skip
        self.event_handlers = EventHandlers(
            self.cache, self.queue, requeuer, observer, self.binder, self.completion, gang_starts, preemption,
            self.plugin_sync,
        )  # fmt: skip

    def _new_cache(self, table: NodeTable) -> Cache:
        view, objects = ClusterView(), ObjectTables()
        devices = DeviceResources(map(devices_of_config, self.config.device_resources), lambda name: cache.labels(name))
        class_keys = [hooks.asked_class_key(call, view) for call in self._all("class_key")]
        class_keys += [lambda pod: devices.class_key(pod, cache.group_ref)] if devices.by_node else []
        footprints = [hooks.asked_footprint(call) for call in self._all("footprint")]
        group_of = [hooks.asked_group(call) for call in self._all("group_of")]
        classes = ClassTable(table, class_keys, footprints)
        cache = Cache(table, classes, self.profiles.__contains__, group_of, view=view, objects=objects,
                      pre_enqueue=gates_of(self.profiles, objects.of), class_changed=self.queue.changed_class,
                      opened=self.queue.requeue)  # fmt: skip
        cache.queues.configure(map(of_config, self.config.queues), devices)
        return cache

    def _all(self, hook: str) -> list[HookCall]:
        """A hook's implementations over all profiles, each plugin once."""
        found: dict[tuple[str, int], HookCall] = {}
        for calls in self.profiles.values():
            for call in calls.functions(hook):
                found.setdefault((call.plugin, id(calls.instances[call.plugin])), call)
        return list(found.values())

    # ------------------------------------------------------------------ start

    async def start(self, objects: Iterable[KubeObject] | None = None) -> None:
        """Ingest the whole cluster (listed unless given), then `recover`. Raises InputError or PluginError."""
        if objects is None:
            objects = [obj for kind in KINDS for obj in (await self.cluster.list(kind)).items]
        for number, obj in enumerate(objects, 1):
            try:
                self.event_handlers.ingest(obj)
            except Exception as error:  # noqa: BLE001 (a bug with one object must not stop the others)
                self.event_handlers.failed(obj, error)
            if not number % INGESTED_AT_ONCE:
                await asyncio.sleep(0)
        await self.recover()

    async def recover(self) -> None:
        """Let the plugins recover the allocations of the bound pods in the cache, then recover the plans.

        A replica that stood by recovers only the allocations that have changed since its last update. Raises InputError
        if a plugin's input does not match the cluster, else PluginError.
        """
        await self.plugin_sync.release_changed(lost=True)
        for failure in self.plugin_sync.sync_nodes().values():
            raise failure.__cause__ if isinstance(failure.__cause__, InputError) else failure
        self.plugin_sync.start()
        self.preemption.started()
        await self.plan_recovery.start()

    # ------------------------------------------------------------------ cycles

    async def cycle(self) -> list[Bound]:
        """Run a session for each profile over the due groups, and wait for their binds.

        Raises an unexpected error at the end, after all other work is completed.
        """
        errors: list[BaseException] = []
        await kept(self.unknown_binds.check_all(self.completion.resolve), errors)
        await kept(self.decide(), errors)
        await self.in_flight.wait(errors)
        done = await self.in_flight.complete_ended(errors)
        raise_first(errors)
        return done

    async def complete_finished(self) -> list[Bound]:
        """Complete the work in flight that has ended. Raises an unexpected error after all of it is completed."""
        errors: list[BaseException] = []
        done = await self.in_flight.complete_ended(errors)
        raise_first(errors)
        return done

    def stop(self) -> None:
        """Start no further group, and end the calls of extenders in flight."""
        self.stopping = True
        if self._extenders is not None:
            self._extenders.stop()

    async def decide(self) -> None:
        """Run a session for each profile over the due groups, and start their binds."""
        self.left_over = False
        self.cache.split_classes()
        failed = self.plugin_sync.sync()
        now = self.clock.now()
        self.queue.flush(now)
        for key in self.cache.moves.drain_held_up(now):
            self.queue.activate(key, now)
        self.cache.rest(self.queue.is_unschedulable)
        for task, gate in self.cache.gates.drain_new():
            self.observer.gated(task, gate.reason)
        errors: list[BaseException] = []
        await kept(self.plan_recovery.review(failed), errors)
        for name in self.profiles if not self.plans.gated() else ():
            due, retried = self._due(name)
            due = self._reject_mixed(due)
            begun = tuple(group for group in due if self.gang_starts.begun(group))
            others = tuple(group for group in due if group not in begun) if begun else due
            stale = tuple(group for group in self.gang_starts.stale() if self._profile_of(group) == name)
            for groups, short, more in ((begun, (), None), (others, stale, retried)):  # partly bound gangs first
                if name in failed and (groups or short):
                    self.completion.plugin_failed(groups, failed[name])
                elif name not in failed and (groups or short or more is not None):
                    await kept(self._run_sessions(name, groups, short, more), errors)
        raise_first(errors)

    async def _run_sessions(
        self, name: str, due: tuple[Group, ...], stale: tuple[Group, ...], retried: FreedRetries | None
    ) -> None:
        """Run a session, and another one over the remaining groups whenever a class was split: see `ObservedCall`."""
        while due or stale or retried is not None:
            session = await self._run_session(self.profiles[name], due, stale, retried)
            if session is not None:
                if retried is not None:
                    self.queue.fitted(name, retried.fitting)
                self.left_over |= self.queue.has_freed(name)
            if not self.cache.split_classes() or session is None or self._is_action_over():
                return
            due = tuple(group for group in due
                        if group not in session.outcomes and not self.in_flight.concerns(group.key))  # fmt: skip
            retried = None  # what it has taken and not attempted is active; the next turn takes the rest
            stale = tuple(group for group in stale if group not in session.outcomes)

    async def _run_session(
        self, calls: HookCalls, due: tuple[Group, ...], stale: tuple[Group, ...], retried: FreedRetries | None
    ) -> Session | None:
        """Open a session, run the actions, carry out their decisions, close it. Returns it; None if it did not open."""
        self.queue.begin(group.key for group in due)
        now = self.clock.now()
        for group in due:
            group.attempted = now
        try:
            session = self.sessions.open(calls, due, stale, self._is_action_over, retried)
        except PluginError as error:
            self.completion.plugin_failed(due, error)
            return None
        self.in_session, started = True, perf_counter()
        try:
            with self._extenders.asking(session) if self._extenders is not None else nullcontext():
                await self._run_actions(session, calls)
        finally:
            self.in_session = False
            left = len(session.outcomes) < len(due) or any(session.not_revisited.values())
            self.left_over |= session.cut_short and left
            self.sessions.close(session)
            self.completion.record(session.outcomes, partial(self._wanted, session))
            self.preemption.tried(session.outcomes)
            session.forget()
            self._release_nominations()
            self.observer.stage("session", perf_counter() - started)
        raise_first(session.errors)
        return session

    async def _run_actions(self, session: Session, calls: HookCalls) -> None:
        """Run the actions, and carry out each decision. An action starts no new group after its deadline.

        Each action has the same time, so that groups still reach the actions that revisit them when `allocate` takes
        long to reject them.
        """
        decided = tried = 0
        for action in self.config.actions:
            if self._is_interrupted():
                session.cut_short = True
                session.not_revisited.update(group for group, result in session.outcomes.items() if result.refused)
                return
            self._action_ends = self.clock.now() + self.config.cycle_seconds
            for decision in ACTIONS[action](session):
                if decision is not None:
                    self._carry_out(decision, session, calls)
                decided += max(1, len(decision.allocated) if decision is not None else 0)
                long = session.trials_made + session.held_up
                if decided >= _DECIDED_AT_ONCE or long > tried:
                    decided, tried = 0, long
                    await asyncio.sleep(0)
                if session.expired():
                    session.cut_short = True
                    break

    def _is_action_over(self) -> bool:
        return self.clock.now() > self._action_ends or self._is_interrupted()

    def _is_interrupted(self) -> bool:
        """Whether the session must end: the scheduler stops, or classes must be split first."""
        return self.stopping or self.cache.classes.reads.any_new

    def _carry_out(self, decision: Decision, session: Session, calls: HookCalls) -> None:
        """Start the binds, evictions and nominations of a decision."""
        group = decision.group
        if decision.allocated:
            self.completion.carry_out(decision, calls, self.gang_starts.plan_swap(group, decision.allocated))
        if decision.evicted:
            self.gang_starts.end_stale(group, list(decision.evicted))
        if decision.nominated or decision.preemptions:
            self.preemption.carry_out(decision, session.outcomes[group].reasons)

    # ------------------------------------------------------------------ due groups

    def _due(self, scheduler_name: str) -> tuple[tuple[Group, ...], FreedRetries | None]:
        """The active groups, and those to retry while freed capacity is left. If there are none, those that an event
        requeued before the end of their backoff, and those to retry in spite of theirs.
        """
        now = self.clock.now()
        retried = self._retried(scheduler_name, now)
        active = self._free(scheduler_name, lambda group: self.queue.is_active(group.key, now))
        if active or retried is not None:
            self.left_over |= self.queue.any_hurried
            return active, retried
        retried = self._retried(scheduler_name, None)
        if not self.queue.any_hurried:
            return (), retried
        return self._free(scheduler_name, lambda group: self.queue.is_hurried(group.key)), retried

    def _retried(self, scheduler_name: str, now: float | None) -> FreedRetries | None:
        """The unschedulable groups of a profile that may fit freed capacity. Requeues partly bound gangs at once."""
        fitting = self.queue.fitting(scheduler_name, now)
        if fitting is None:
            return None
        for key in self.gang_starts.begun_keys():
            self.queue.requeue_fitting(fitting, key)
        return FreedRetries(fitting, self.queue, self.cache, self.clock.now(), partial(self._is_free, scheduler_name))

    def _free(self, scheduler_name: str, wanted: Callable[[Group], bool]) -> tuple[Group, ...]:
        groups = self.cache.pending_groups(wanted)
        return tuple(group for group in groups if self._is_free(scheduler_name, group))

    def _is_free(self, scheduler_name: str, group: Group) -> bool:
        """Whether a session of the profile may attempt a group: it has no work in flight."""
        if self.unknown_binds.is_busy(group.key) or self.gang_starts.holds_back(group):
            return False
        return schedulers_of(group)[0] == scheduler_name

    def _place_of(self, key: str) -> Place:
        group = self.cache.groups.get(key)
        if group is None:
            return Place("", (key,))
        comes_next = self.cache.nominations.comes_next
        waits = self.preemption.awaits_victims(key) and any(map(comes_next, group.tasks.values()))
        return Place(group.queue, group.order, LOWEST if waits else group.priority)

    def _evictable(self, node: str) -> Iterator[tuple[int, TaskClass]]:
        """The pods on a node that preemption may evict, with their priorities. If it is off, there are none."""
        for task in self.cache.tasks_on(node) if "preempt" in self.config.actions else ():
            yield task.priority if task.group.single else min(task.standing, task.group.priority), task.cls

    def _wanted(self, session: Session, outcome: PlacementResult) -> Wants | None:
        """The plugins that rejected each class of a group; empty if it is retried whatever happens."""
        waits = self.preemption.awaits_victims(outcome.group.key)
        wants = session.evaluator.wants(outcome, awaits_victims=waits)
        again = session.not_revisited[outcome.group] > 0 and wants and not lacks_pods(wants)
        return frozenset() if again else wants

    def _profile_of(self, group: Group) -> str | None:
        """The profile of the group's pods, the first by name if there are several; None if no profile serves them."""
        names = {task.pod.spec.scheduler_name for task in group.tasks.values()}
        return min(names & self.profiles.keys(), default=None)

    def _reject_mixed(self, due: tuple[Group, ...]) -> tuple[Group, ...]:
        """Reject the groups whose pods have several schedulerNames: a session places its own profile's pods only."""
        mixed = [group for group in due if len(schedulers_of(group)) > 1]
        for group in mixed:
            names = " and ".join(schedulers_of(group))
            reason = f"{group.key}: its pods have different schedulerNames, {names}; give all of them the same one"
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
        moves_gangs=config.consolidation.move_gangs,
        rest_seconds=config.consolidation.rest_seconds,
    )


def _wants_other_pods(outcome: PlacementResult) -> Wants:
    """Only changes of the group's own pods requeue it."""
    rejector = frozenset((GANG_SCHEDULING,))
    return frozenset((task.cls, rejector) for task in outcome.group.in_phase(Phase.PENDING))
