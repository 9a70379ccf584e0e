"""`fluence run`: one replica stands by, leads, syncs its cache, recovers, schedules and releases the lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib import metadata
from typing import Any

import msgspec
import structlog

from session_scheduler.base.clock import Clock, SystemClock
from session_scheduler.base.garbage_collection import collect_rarely, no_collections
from session_scheduler.base.signals import background, first_of, stop_on_signals
from session_scheduler.builtin import BUILTIN
from session_scheduler.builtin.extenders import Extenders
from session_scheduler.cluster.dynamic_client import KubeApi
from session_scheduler.cluster.errors import ClusterError, NotLeading
from session_scheduler.cluster.extender_client import ExtenderClient
from session_scheduler.cluster.full_objects import ApiObjects
from session_scheduler.cluster.kubernetes import KubernetesCluster
from session_scheduler.cluster.partition_claims import PartitionClaims
from session_scheduler.config.settings import SchedulerConfig, shown
from session_scheduler.engine.extender_calls import ExtenderCalls
from session_scheduler.engine.loop import SchedulerLoop
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.bindings import Runtime
from session_scheduler.framework.extender_answers import NAME as EXTENDERS
from session_scheduler.framework.extender_answers import ExtenderAnswers
from session_scheduler.framework.hooks import HookCall, HookCalls
from session_scheduler.registry.registry import Registry
from session_scheduler.reporting.live_observer import LiveObserver
from session_scheduler.reporting.metrics import Metrics
from session_scheduler.reporting.queue_status import QueueStatusWriter
from session_scheduler.reporting.recorder import Recorder
from session_scheduler.sdk.http_authorization import authorization_of
from session_scheduler.sdk.http_server import Endpoints
from session_scheduler.sdk.leader import Leadership, connect
from session_scheduler.server.explain_endpoint import Explanations
from session_scheduler.server.plugin_routes import PluginRoutes
from session_scheduler.server.source import Source, source_of, stand_by

_log = structlog.get_logger(__name__)
DRAIN_SECONDS = 4.0
"""How long binds in flight may take at shutdown."""
FLUSH_SECONDS = 1.0
"""How long queued events and conditions may take at shutdown."""
PLUGIN_SECONDS = 2.0
"""How long plugins' tasks may take to start, and to stop."""
_OTHER_CONNECTIONS = 64
"""In addition to those for binds: watches, lists, events, and the lease, which must never wait for a connection."""


async def run(config: SchedulerConfig, *, kubeconfig: str | None = None, context: str | None = None) -> int:
    """Schedule a live cluster until SIGTERM or SIGINT. Returns the exit status. Raises InputError."""
    answers = ExtenderAnswers(config.extenders) if config.extenders else None
    last = [(EXTENDERS, Extenders(answers))] if answers is not None else []
    with no_collections():  # it imports the plugins
        profiles = Registry(BUILTIN).load_calls(config, *last)
    replica = Replica(config, profiles, SystemClock(), answers)
    collect_rarely()
    connections = config.bindings_in_flight + _OTHER_CONNECTIONS
    async with connect(kubeconfig, context, config.leader_election, connections) as cluster:
        replica.metrics.follow_pod_groups(cluster.pod_groups)
        with stop_on_signals() as stop:
            async with background(cluster.pod_groups.find_gates()):
                return await replica.run(cluster, stop)


class _Parts(msgspec.Struct, frozen=True):
    """What a replica builds before the election."""

    cluster: KubernetesCluster
    stop: asyncio.Event
    recorder: Recorder
    observer: LiveObserver
    extenders: ExtenderCalls | None
    scheduler: Scheduler
    loop: SchedulerLoop
    source: Source


class Replica:
    """One process's scheduler, from standby to shutdown."""

    def __init__(
        self, config: SchedulerConfig, profiles: Mapping[str, HookCalls], clock: Clock,
        answers: ExtenderAnswers | None = None,
    ) -> None:  # fmt: skip
        """`answers` are those that the plugin `Extenders` reads, if the configuration has extenders.

        Raises InputError for certificates that cannot be used.
        """
        self._config = config
        self._profiles = profiles
        self._clock = clock
        self.metrics = metrics = Metrics(
            metadata.version("fluence-scheduler"), kube_scheduler=config.kube_scheduler_metrics
        )
        self._claims = PartitionClaims(config, lambda: self._leadership.renew())
        self._leadership = Leadership(config.leader_election, clock=clock, renewal_failed=metrics.renewal_failures.add,
                                      annotations=lambda: self._claims.annotations)  # fmt: skip
        self._answers = answers
        self._extenders = [ExtenderClient(extender, f"{config.source}: extenders[{index}]", metrics.extender_called)
                           for index, extender in enumerate(config.extenders)]  # fmt: skip
        self._loop: SchedulerLoop | None = None
        self._explanations: Explanations | None = None
        self._led = False
        """Whether this replica leads, or has led."""
        self._listed = False
        """Whether it has listed the cluster since it leads."""
        self._recovered = False

    async def run(self, cluster: KubernetesCluster, stop: asyncio.Event) -> int:
        """Schedule until `stop` is set or the lease is lost. Returns the exit status."""
        async with AsyncExitStack() as stack:
            if self._config.serving.enabled:
                serving = Endpoints(self._config.serving, metrics=self.metrics, health=self._health, ready=self._ready,
                                    config=lambda: shown(self._config), explain=self._explain,
                                    plugins=PluginRoutes(self._profiles.values()), clock=self._clock,
                                    authorize=authorization_of(self._config.serving, cluster.client))  # fmt: skip
                await stack.enter_async_context(serving)
            self.metrics.follow_leader(lambda: self._leadership.leading)
            self._claim_names()
            with suppress(ClusterError):  # the leader checks again
                await first_of(self._claims.check(cluster), stop.wait())
            parts = self._build(cluster, stop)
            return await self._leadership.lead(
                cluster, stop, partial(self._lead, parts), partial(self._stand_by, parts)
            )

    def _build(self, cluster: KubernetesCluster, stop: asyncio.Event) -> _Parts:
        config, metrics = self._config, self.metrics
        recorder = Recorder(cluster, clock=self._clock, events=config.events, meter=metrics.reports,
                            busy=lambda: len(scheduler.in_flight) > 0 and not stop.is_set())  # fmt: skip
        due = asyncio.Event()
        observer = LiveObserver(recorder, metrics, self._clock, self._profiles, finished=due.set)
        extenders = None
        if self._answers is not None:
            extenders = ExtenderCalls(self._extenders, ApiObjects(KubeApi(cluster.client)), self._answers)
        source = source_of(cluster, config, self._profiles, lambda change, obj: loop.deliver(change, obj), self._clock,
                           reconcile_seconds=config.reconcile_seconds, meter=metrics.watches)  # fmt: skip
        scheduler = Scheduler(cluster, config, self._profiles, self._clock, observer=observer,
                              holder=self._leadership.identity, token=lambda: self._leadership.token,
                              extenders=extenders, serves=source.serves)  # fmt: skip
        loop = self._loop = SchedulerLoop(scheduler, observer, metrics, self._clock, due)
        self._explanations = Explanations(scheduler, self._clock, due.set)
        loop.add_idle_task(self._explanations)
        return _Parts(cluster, stop, recorder, observer, extenders, scheduler, loop, source)

    # ------------------------------------------------------------------ standby

    async def _stand_by(self, parts: _Parts) -> None:
        """Keep the cache, and the plugins' view of nodes and bound pods, current, to take over at once."""
        await stand_by(parts.source, parts.loop, self._claim_names)

    # ------------------------------------------------------------------ leading

    async def _lead(self, parts: _Parts, keeping: Sequence[asyncio.Task[object]]) -> bool:
        """Schedule until `stop`, while other tasks renew the lease. Returns whether all binds completed."""
        cluster, stop, scheduler, loop = parts.cluster, parts.stop, parts.scheduler, parts.loop
        self._led = True
        self.metrics.follow_pending(loop.pending)
        self.metrics.follow_profiles(self._profiles, lambda: scheduler.in_session)
        queues = QueueStatusWriter(cluster, scheduler.cache, clock=self._clock, in_session=lambda: scheduler.in_session)
        self._claim_names()  # a file may have changed while the replica stood by
        await first_of(self._confirm_claims(cluster), stop.wait(), beside=keeping)
        async with background(parts.recorder.run(), queues.run()) as reporting, AsyncExitStack() as ends:
            if parts.extenders is not None:
                ends.push_async_callback(parts.extenders.close)
            ends.push_async_callback(scheduler.in_flight.abandon)  # cancel all binds, on any exit
            beside = [*keeping, *reporting]
            await first_of(self._recover(parts), stop.wait(), beside=beside)
            if stop.is_set():
                return True
            runtime = Runtime(loop.requeue, lambda: self._leadership.leading, cluster, loop.change,
                              parts.observer.says, KubeApi(cluster.client),
                              partial(self._claims.claim, cluster))  # fmt: skip
            async with self._serving(runtime), background(*parts.source.following(), loop.run()) as inner:
                await first_of(stop.wait(), beside=[*beside, *inner])
                _log.info("stopping: waiting for binds in flight")
                drained = await loop.stop(DRAIN_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_SECONDS):
                        await parts.recorder.flush()
        return drained

    def _claim_names(self) -> None:
        """Claim what plugins need for this scheduler alone. Raises PluginError."""
        found: dict[str, dict[str, set[str]]] = {}
        for calls in self._profiles.values():
            for call in calls.functions("exclusive_names"):
                for kind, names in (call() or {}).items():
                    found.setdefault(call.plugin, {}).setdefault(kind, set()).update(names)
        for plugin, by_kind in found.items():
            self._claims.put(plugin, by_kind)

    async def _confirm_claims(self, cluster: KubernetesCluster) -> None:
        """Raise PartitionError if the claims of another scheduler overlap. Retries while the API server does not
        answer."""
        while True:
            try:
                await self._claims.confirm(cluster)
            except NotLeading:
                raise
            except ClusterError as error:
                _log.warning("cannot compare the partition with those of other schedulers", why=str(error))
                await asyncio.sleep(self._config.leader_election.retry_seconds)
            else:
                return

    async def _recover(self, parts: _Parts) -> None:
        """List the cluster, then recover plans and the state of plugins.

        After a standby the list shows what its watches have not brought yet.
        """
        mirror, partition, scheduler = parts.source.mirror, parts.source.partition, parts.scheduler
        warm = mirror.synced
        if not warm and partition is not None:
            partition.forget_nodes()
        objects = await (mirror.resync() if warm else mirror.start())
        self._listed = True
        with self.metrics.timed("recover"):
            if warm:
                await parts.loop.absorb()
                for obj in objects:
                    scheduler.event_handlers.report_problem(obj)
                await scheduler.recover()
            else:
                await scheduler.start(objects)
        self._claim_names()  # pods may hold what is in no file any more
        self.metrics.exposition()  # collects plugins' metrics, which a scrape during a session cannot
        self._recovered = True
        _log.info("the cache is synced", objects=len(objects), groups=len(scheduler.cache.groups))

    @asynccontextmanager
    async def _serving(self, runtime: Runtime) -> AsyncGenerator[None]:
        """Run the plugins' tasks, which must start and stop in time. Raises PluginError."""
        plugins, served = AsyncExitStack(), set[int]()
        try:
            for calls in self._profiles.values():
                for call in calls.functions("serve"):
                    instance = id(calls.instances[call.plugin])  # profiles may share it
                    if instance not in served:
                        served.add(instance)
                        tasks = call(runtime)
                        if tasks is not None:
                            enter = HookCall(call.plugin, "serve", plugins.enter_async_context)
                            await enter.wait(tasks, patience=PLUGIN_SECONDS)
            yield
        finally:
            try:
                async with asyncio.timeout(PLUGIN_SECONDS):
                    await plugins.aclose()
            except TimeoutError:
                _log.error("plugins' tasks did not stop in time", seconds=PLUGIN_SECONDS)

    # ------------------------------------------------------------------ endpoints

    def _health(self) -> str | None:
        return self._loop.problem() if self._loop is not None else None

    async def _explain(self, namespace: str, name: str) -> tuple[int, dict[str, Any]]:
        if self._explanations is None or not self._recovered:
            return 503, {
                "error": "this replica is not the leader; query the replica whose /readyz?verbose shows `leading`"
            }
        return await self._explanations.ask(namespace, name)

    def _ready(self) -> Mapping[str, str | None]:
        if not self._leadership.leading:
            if not self._led:
                return self._leadership.problems()
            # a rolling update must not replace standbys by this replica
            leader = self._leadership.holder or "unknown"
            return {"standing-by": f"this replica lost the lease; the leader is {leader}"}
        return {
            "leading": None,
            "synced": None if self._listed else "the cluster's objects have not been listed yet",
            "recovered": None if self._recovered else "plans and bound pods have not been recovered yet",
        }
