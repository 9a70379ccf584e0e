"""`fluence run`: one replica's life: stand by, lead, take in the cluster, recover, schedule, give it back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from importlib import metadata
from typing import Any

import structlog

from session_scheduler.base.clock import Clock, SystemClock
from session_scheduler.base.signals import background, first_of, stop_on_signals
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.dynamic_client import KubeApi
from session_scheduler.cluster.errors import NotLeading
from session_scheduler.cluster.kube_requests import RequestSettings
from session_scheduler.cluster.kubernetes import KubernetesCluster, connect
from session_scheduler.cluster.leader_election import Elector, new_identity
from session_scheduler.cluster.mirror import Mirror
from session_scheduler.config.settings import SchedulerConfig, shown
from session_scheduler.engine.loop import Engine
from session_scheduler.engine.scheduler import KINDS, OPTIONAL_KINDS, Scheduler
from session_scheduler.framework.bindings import Runtime
from session_scheduler.framework.hooks import HookCall, HookCalls
from session_scheduler.model.objects import KubeObject
from session_scheduler.registry.registry import Registry
from session_scheduler.reporting.live_observer import LiveObserver
from session_scheduler.reporting.metrics import Metrics
from session_scheduler.reporting.queue_status import QueueStatusWriter
from session_scheduler.reporting.recorder import Recorder
from session_scheduler.sdk.http_server import Endpoints
from session_scheduler.server.explain_endpoint import Explanations
from session_scheduler.server.plugin_routes import PluginRoutes

_log = structlog.get_logger(__name__)
DRAIN_SECONDS = 4.0
"""How long bindings under way may take to end when the process is told to."""
FLUSH_SECONDS = 1.0
"""How long what is still to be told may take then."""
_COLLECT_AFTER = (200_000, 20, 20)
"""When the garbage collector looks for cycles, in containers more than before. What is kept here is kept for long and
has no cycles: by Python's own numbers it was looked through again and again, a tenth of all processor time."""
PLUGIN_SECONDS = 2.0
"""How long plugins' own tasks may take to begin, and to end."""
_OTHER_CONNECTIONS = 64
"""Beside those that bind: watches, lists, reports, and above all the lease, which must never wait for one."""
LOST = 1
"""Exit status where the lease was lost: whoever started the process starts it again, and it stands by."""


async def run(config: SchedulerConfig, *, kubeconfig: str | None = None, context: str | None = None) -> int:
    """Schedule a live cluster until SIGTERM or SIGINT. Returns the exit status. Raises InputError."""
    replica = Replica(config, Registry(BUILTIN).load_calls(config), SystemClock())
    gc.freeze()  # modules and plugins stay
    gc.set_threshold(*_COLLECT_AFTER)
    election = config.leader_election
    settings = RequestSettings.for_leader(election) if election.enabled else RequestSettings()
    settings = replace(settings, connections=max(settings.connections, config.bindings_in_flight + _OTHER_CONNECTIONS))
    async with await connect(kubeconfig, context, settings) as cluster:
        replica.metrics.follow_pod_groups(cluster.pod_groups)
        with stop_on_signals() as stop:
            async with background(cluster.pod_groups.find_gates()):
                return await replica.run(cluster, stop)


class Replica:
    """One process's scheduler, from standing by to its end."""

    def __init__(self, config: SchedulerConfig, profiles: Mapping[str, HookCalls], clock: Clock) -> None:
        self._config = config
        self._profiles = profiles
        self._clock = clock
        self.metrics = Metrics(metadata.version("fluence-scheduler"))
        self._elector: Elector | None = None
        self._mirror: Mirror | None = None
        self._engine: Engine | None = None
        self._explanations: Explanations | None = None
        self._identity = new_identity()
        self._recovered = False

    async def run(self, cluster: KubernetesCluster, stop: asyncio.Event) -> int:
        """Schedule until `stop` is set, or the lease is lost. Returns the exit status."""
        async with AsyncExitStack() as stack:
            if self._config.serving.enabled:
                serving = Endpoints(
                    self._config.serving,
                    metrics=self.metrics,
                    health=self._health,
                    ready=self._ready,
                    config=lambda: shown(self._config),
                    explain=self._explain,
                    plugins=PluginRoutes(self._profiles.values()),
                )
                await stack.enter_async_context(serving)
            try:
                if not await self._elected(cluster, stop):
                    return 0
                if await self._lead(cluster, stop) and self._elector is not None:
                    await self._elector.release()  # else a write may be under way: the lease ends by itself
            except NotLeading as error:
                _log.error("this replica leads no more: it ends, and stands by when it is started again",
                           why=str(error))  # fmt: skip
                return LOST
            return 0

    # ------------------------------------------------------------------ election

    async def _elected(self, cluster: KubernetesCluster, stop: asyncio.Event) -> bool:
        """Wait until this replica leads; False where it was stopped before."""
        if not self._config.leader_election.enabled:
            self.metrics.follow_leader(lambda: True)
            return True
        elector = Elector(cluster, self._config.leader_election, identity=self._identity, clock=self._clock,
                          failed=self.metrics.renewal_failed)  # fmt: skip
        cluster.fence_writes(elector.fence.check)
        self.metrics.follow_leader(lambda: elector.fence.leading)
        self._elector = elector
        await first_of(elector.acquire(), stop.wait())
        if stop.is_set():
            await elector.release()
        return not stop.is_set()

    def _token(self) -> str:
        return self._elector.token if self._elector is not None else ""

    # ------------------------------------------------------------------ leading

    async def _lead(self, cluster: KubernetesCluster, stop: asyncio.Event) -> bool:
        """Schedule until `stop`; whether everything that was under way has ended then."""
        config, metrics = self._config, self.metrics
        recorder = Recorder(cluster, clock=self._clock, events=config.events, meter=metrics.reports,
                            busy=lambda: len(scheduler.under_way) > 0 and not stop.is_set())  # fmt: skip
        due = asyncio.Event()
        observer = LiveObserver(recorder, metrics, self._clock, self._profiles, due.set)
        scheduler = Scheduler(cluster, config, self._profiles, self._clock, observer=observer,
                              holder=self._identity, token=self._token)  # fmt: skip
        engine = self._engine = Engine(scheduler, observer, metrics, self._clock, due)
        self._explanations = Explanations(scheduler, self._clock, engine.notify)
        engine.add_idle_task(self._explanations)
        metrics.follow_pending(lambda: engine)
        metrics.follow_profiles(self._profiles, lambda: scheduler.in_session)
        mirror = self._mirror = Mirror(cluster, KINDS, engine.deliver, clock=self._clock,
                                       reconcile_seconds=config.reconcile_seconds, meter=metrics.watches,
                                       optional=OPTIONAL_KINDS)  # fmt: skip
        queues = QueueStatusWriter(cluster, scheduler.cache, clock=self._clock, in_session=lambda: scheduler.in_session)
        async with background(recorder.run(), queues.run(), *self._kept()) as beside, _abandoned(scheduler):
            await first_of(self._recover(mirror, scheduler), stop.wait(), beside=beside)
            if stop.is_set():
                return True
            async with self._serving(engine, cluster, observer.says), background(mirror.run(), engine.run()) as inner:
                await first_of(stop.wait(), beside=[*beside, *inner])
                _log.info("stopping: bindings under way may end")
                drained = await engine.stop(DRAIN_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_SECONDS):
                        await recorder.flush()
        return drained

    def _kept(self) -> list[Coroutine[Any, Any, None]]:
        return [self._elector.keep()] if self._elector is not None else []

    async def _recover(self, mirror: Mirror, scheduler: Scheduler) -> None:
        """List everything, then let plugins and plans recover what is there."""
        objects = await mirror.start()
        with self.metrics.timed("recover"):
            await scheduler.start(objects)
        self._recovered = True
        _log.info("the cluster is taken in", objects=len(objects), groups=len(scheduler.cache.groups))

    @asynccontextmanager
    async def _serving(
        self, engine: Engine, cluster: KubernetesCluster, tell: Callable[[KubeObject, str, str], None]
    ) -> AsyncGenerator[None]:
        """Each plugin's own tasks, which have little time to begin and to end."""
        plugins = AsyncExitStack()
        try:
            await self._serve(plugins, engine, cluster, tell)
            yield
        finally:
            try:
                async with asyncio.timeout(PLUGIN_SECONDS):
                    await plugins.aclose()
            except TimeoutError:
                _log.error("tasks of plugins have not ended in time", seconds=PLUGIN_SECONDS)

    async def _serve(
        self, plugins: AsyncExitStack, engine: Engine, cluster: KubernetesCluster,
        tell: Callable[[KubeObject, str, str], None],
    ) -> None:  # fmt: skip
        """Start each plugin's own tasks. Raises PluginError."""
        runtime = Runtime(engine.wake, lambda: self._elector is None or self._elector.fence.leading, cluster,
                          engine.change, tell, KubeApi(cluster.client))  # fmt: skip
        served: set[int] = set()
        for calls in self._profiles.values():
            for call in calls.functions("serve"):
                instance = id(calls.instances[call.plugin])
                if instance not in served:
                    served.add(instance)
                    tasks = call(runtime)
                    if tasks is not None:
                        await HookCall(call.plugin, "serve", plugins.enter_async_context).wait(
                            tasks, patience=PLUGIN_SECONDS
                        )

    # ------------------------------------------------------------------ endpoints

    def _health(self) -> str | None:
        return self._engine.problem() if self._engine is not None else None

    async def _explain(self, namespace: str, name: str) -> tuple[int, dict[str, Any]]:
        if self._explanations is None or not self._recovered:
            return 503, {"error": "this replica does not schedule: ask the one that leads, which is ready as `leading`"}
        return await self._explanations.ask(namespace, name)

    def _ready(self) -> Mapping[str, str | None]:
        elector = self._elector
        if elector is not None and not elector.fence.leading:
            return {"standing-by": self._why_not_standing_by(elector)}
        synced = self._mirror is not None and self._mirror.synced
        return {
            "leading": None,
            "synced": None if synced else "the cluster was not listed yet",
            "recovered": None if self._recovered else "plans and bound pods were not recovered yet",
        }

    def _why_not_standing_by(self, elector: Elector) -> str | None:
        """A replica that could not take over is not ready: else an update would replace those that can by it."""
        if self._engine is not None:
            return f"this replica led, and does no more; the leader is {elector.holder or 'nobody'}"
        if elector.silent > self._config.leader_election.lease_seconds:
            return "the lease was not seen lately: look into the log for why"
        return None


# ------------------------------------------------------------------ tasks


@asynccontextmanager
async def _abandoned(scheduler: Scheduler) -> AsyncGenerator[None]:
    """However it ends, nothing of the scheduler's work is left running."""
    try:
        yield
    finally:
        await scheduler.under_way.abandon()
