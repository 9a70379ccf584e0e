"""The bridge between pods and Slurm jobs: the facts that sessions read, the jobs that they request, and the loop that
submits them.

Each turn of the loop lists Slurm's jobs, requeues the groups whose job changed, submits the requested jobs, and
reconciles pods and jobs. All state is in Slurm and in the API server, so that another replica can continue after a
crash.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fluence_plugins.slurm_bridge.jobs.job_table import JobTable, PodJob, identity
from fluence_plugins.slurm_bridge.jobs.lister import JobLister
from fluence_plugins.slurm_bridge.jobs.node_cache import NodeCache
from fluence_plugins.slurm_bridge.jobs.pod_informer import PodInformer
from fluence_plugins.slurm_bridge.jobs.reconciler import Reconciler
from fluence_plugins.slurm_bridge.jobs.submitter import JobRequest, Submitter
from fluence_plugins.slurm_bridge.metrics import BridgeMetrics
from fluence_plugins.slurm_bridge.slurm.client import SlurmClient
from fluence_plugins.slurm_bridge.slurm.model import JobDefaults, NodeShare
from session_scheduler.errors import FluenceError
from session_scheduler.model.related import Namespace
from session_scheduler.sdk.bindings import Runtime
from session_scheduler.sdk.tasks import alongside

if TYPE_CHECKING:
    from session_scheduler.sdk.cluster import Cluster

log = logging.getLogger("slurm-bridge")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a session reads from the bridge."""

    pod_jobs: Mapping[str, PodJob] = field(default_factory=dict)
    """The job of each pod, by the pod's uid."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why a group has no job, by the group's key."""


class Bridge:
    """The bridge of one profile. `serve` opens its Slurm client with `connect`."""

    def __init__(
        self,
        table: JobTable,
        defaults: JobDefaults,
        connect: Callable[[], AbstractAsyncContextManager[SlurmClient]],
        *,
        tick: float,
        ambiguous_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tick`: seconds between two job lists while a job is pending. `ambiguous_seconds`: how long Slurm may still
        execute a request whose response was lost.
        """
        self.table = table
        self.metrics = BridgeMetrics()
        self._defaults = defaults
        self._connect = connect
        self._tick = tick
        self._ambiguous_seconds = ambiguous_seconds
        self._now = now
        self._changed = asyncio.Event()
        self._submitter: Submitter | None = None
        self._nodes: NodeCache | None = None

    # ------------------------------------------------------------------ sessions

    @property
    def served(self) -> bool:
        """Whether the bridge has a Slurm client; a simulation has none."""
        return self._nodes is not None

    def facts(self) -> Facts:
        """The facts at this moment."""
        return Facts(self.table.pod_jobs, self._submitter.problems() if self._submitter is not None else {})

    def track(self, group: str, uids: Iterable[str]) -> None:
        """Requeue the group when the job of one of these pods changes."""
        if self._submitter is not None:
            self._submitter.track(group, uids)

    def request(self, request: JobRequest) -> None:
        """Request a job; the last request of a group counts."""
        if self._submitter is not None:
            self._submitter.request(request)

    def resync(self) -> None:
        """Take a turn now: something changed that a job list does not show."""
        self._changed.set()

    def has_nodes(self, job_id: int) -> bool:
        """Whether a job still has its nodes, according to the last list."""
        job = self.table.jobs.get(job_id)
        return job is not None and job.allocated

    async def share_of(self, job_id: int, node: str) -> tuple[NodeShare, str] | None:
        """What Slurm allocated to a job on one of its nodes, and all GRES of that node; None if Slurm does not report
        it.

        Raises FluenceError.
        """
        return await self._nodes.share_of(job_id, node) if self._nodes is not None else None

    # ------------------------------------------------------------------ the task

    @asynccontextmanager
    async def serve(self, runtime: Runtime) -> AsyncGenerator[None]:
        """Keep pods and jobs synchronised while this context is open."""
        cluster = runtime.cluster
        if cluster is None:
            yield
            return
        table, metrics, now = self.table, self.metrics, self._now
        changed = self._changed = asyncio.Event()
        async with self._connect() as client:
            nodes = self._nodes = NodeCache(client, metrics, self._tick, now)
            lister = JobLister(client, table, metrics, self._tick, now)
            reconciler = Reconciler(runtime, cluster, client, table=table, metrics=metrics, now=now)
            submitter = self._submitter = Submitter(
                runtime,
                cluster,
                client,
                table=table,
                defaults=self._defaults,
                nodes=nodes,
                lister=lister,
                reconciler=reconciler,
                metrics=metrics,
                changed=changed,
                ambiguous_seconds=self._ambiguous_seconds,
                now=now,
            )
            informer = PodInformer(table, submitter, changed)
            loop = _Loop(runtime, cluster, table, informer, lister, nodes, submitter, reconciler, metrics, changed, now)
            try:
                async with alongside(informer.run(cluster)), alongside(loop.run(self._tick)):
                    yield
            finally:
                self._submitter = self._nodes = None
                nodes.close()


@dataclass(slots=True)
class _Loop:
    """The loop: takes a turn when something changed or a retry is due."""

    runtime: Runtime
    cluster: Cluster
    table: JobTable
    pods: PodInformer
    lister: JobLister
    nodes: NodeCache
    submitter: Submitter
    reconciler: Reconciler
    metrics: BridgeMetrics
    changed: asyncio.Event
    now: Callable[[], float]
    identity_error: str = ""
    """Why the cluster's identity is still unknown."""

    async def run(self, tick: float) -> None:
        """Take turns forever. `tick`: seconds between two checks whether this replica leads."""
        due = self.lister.due
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - self.now())):
                    await self.changed.wait()
            self.changed.clear()
            if self.runtime.elected and self.pods.synced and (self.table.cluster or await self._identify_cluster()):
                await self._turn(tick)
                due = min(self.lister.due, self.submitter.next_due())
            else:
                self.lister.reset()
                self.submitter.reset()
                due = self.now() + tick

    async def _turn(self, tick: float) -> None:
        now, lister, submitter = self.now(), self.lister, self.submitter
        if lister.down and now < lister.due:
            submitter.refuse_as_down()
            return
        if (now >= lister.due or (submitter.pending and now >= lister.listed_at + tick)) and not await self._list():
            return
        self._requeue_changed()
        submitter.retry_due()
        await submitter.submit_requests()
        await self.reconciler.reconcile()
        self._requeue_changed()
        if submitter.pending:
            self.changed.set()

    async def _list(self) -> bool:
        """List Slurm's jobs. Returns whether Slurm responded."""
        lister, submitter = self.lister, self.submitter
        was_down = bool(lister.down)
        try:
            full = await lister.list()
        except FluenceError as error:
            lister.failed(str(error))
            submitter.slurm_down()
            return False
        if full:
            submitter.prune_groups()
        submitter.jobs_listed(lister.listed_at)
        self.nodes.prune(self.table.jobs)
        if submitter.ambiguous:
            lister.expect_change()
        if was_down:
            submitter.slurm_up()
        return True

    def _requeue_changed(self) -> None:
        """Requeue the groups whose job changed."""
        table = self.table
        changed = table.refresh()
        self.metrics.jobs = Counter("allocated" if job.allocated else "pending" for job in table.jobs.values())
        for uid in changed:
            if uid not in table.pod_jobs and uid in table.pods:
                log.info("[slurm-bridge] pod %s no longer has a Slurm job", table.pods[uid].key)
        self.submitter.jobs_changed(changed)

    async def _identify_cluster(self) -> bool:
        try:
            found = await self.cluster.get(Namespace, "", "kube-system")
        except FluenceError as error:
            if self.identity_error != str(error):
                log.warning("[slurm-bridge] cluster identity unknown (set the argument `cluster`): %s", error)
            self.identity_error = str(error)
            self.submitter.refuse_all(
                f"the cluster's identity in Slurm is unknown (set the argument `cluster`): {error}"
            )
            return False
        self.table.cluster = identity(found.metadata.uid, self.table.scheduler_name)
        return True
