"""The background task that deletes reservation pods which no pod needs, and replaces those that disappear."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import structlog

from session_scheduler.base.background import alongside
from session_scheduler.builtin.gpu_closed_nodes import ClosedNodes
from session_scheduler.builtin.gpu_reservation_pods import ReservationError, ReservationPods, is_live
from session_scheduler.cluster.errors import ClusterError, NotFound
from session_scheduler.cluster.port import Cluster
from session_scheduler.framework.bindings import Runtime
from session_scheduler.model.gpu_reservations import reported_device
from session_scheduler.model.objects import Pod

_log = structlog.get_logger(__name__)
_REPLACE_SECONDS: Final = 60.0
"""The minimum time between two replacements on a node, unless each got a device that no pod shares."""
_CHECK_SECONDS: Final = 10.0
_CHECK_SOON_SECONDS: Final = 1.0
"""The time between two passes while a report or the time can change the result."""
_AFTER_ERROR: Final = 2.0


class ReservationReconciler:
    """Reconciles the reservation pods with the pods that share GPUs, on the nodes that have changed."""

    def __init__(self, pods: ReservationPods, closed: ClosedNodes, unused_seconds: float) -> None:
        """`unused_seconds`: how long no pod has needed a reservation pod before its deletion."""
        self._unused_seconds = unused_seconds
        self._pods = pods
        self._closed = closed
        self._disappeared: dict[str, Pod] = {}
        """By uid: reservation pods that are gone or have ended since this replica leads."""
        self._to_reconcile: dict[str, None] = {}
        """Nodes that have changed since they were reconciled."""
        self._unneeded: dict[str, dict[tuple[str, str], float]] = {}
        """By node: since when no pod needs a reservation pod, by its name and resourceVersion."""
        self._listed = False
        """Whether the reservation pods that ended while this replica did not lead are deleted."""
        self._replaced: dict[str, tuple[float, tuple[str, ...]]] = {}
        """By node: when lost reservation pods were replaced, and the names of the new ones."""
        self._due: asyncio.Event | None = None
        self._time = time.monotonic

    def changed(self, node: str, gone: Iterable[Pod]) -> None:
        """A node has changed, and has lost these reservation pods."""
        self._to_reconcile[node] = None
        if self._due is not None:
            self._disappeared.update((pod.metadata.uid, pod) for pod in gone)
            self._due.set()

    def forget(self, node: str) -> None:
        """Free what is known about a node without pods that use shared GPUs."""
        self._replaced.pop(node, None)
        self._unneeded.pop(node, None)

    @asynccontextmanager
    async def serve(self, runtime: Runtime, plugin: str) -> AsyncGenerator[None]:
        """Reconcile the reservation pods while this context is entered."""
        self._due = asyncio.Event()
        self._due.set()
        self._to_reconcile.update(dict.fromkeys(self._pods.nodes()))
        async with alongside(self._run(runtime, plugin, self._due)):
            yield

    async def _run(self, runtime: Runtime, plugin: str, due: asyncio.Event) -> None:
        reported: dict[str, str] = {}
        """By uid: the node of each pod that was reported as unreserved, and still is."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SOON_SECONDS if reported or self._closed else _CHECK_SECONDS):
                    await due.wait()
            due.clear()
            if not runtime.elected or runtime.cluster is None:
                self._listed = False
                continue
            self._to_reconcile.update(dict.fromkeys(reported.values()))
            self._to_reconcile.update(dict.fromkeys(self._pods.see_reports()))
            if self._closed.has_report():
                runtime.change(plugin, self._closed.reopen)
            names = list(self._to_reconcile)
            try:
                await self.reconcile(runtime.cluster)
            except (ClusterError, ReservationError) as error:
                _log.warning("failed to reconcile reservation pods", error=str(error))
                await asyncio.sleep(_AFTER_ERROR)
                due.set()
            unreserved = {task.uid: task for name in names for task in self._pods.unreserved(name)}
            for uid in unreserved.keys() - reported.keys():
                note = (
                    "no reservation pod holds the pod's GPU: the scheduler places no further pods with GPUs on the node"
                )
                runtime.tell(unreserved[uid].pod, "GpuUnreserved", note)  # codespell:ignore tell
            if reported.keys() - unreserved.keys():
                runtime.change(plugin, lambda: None)  # retries the pods that waited for this
            reported = {uid: task.node or "" for uid, task in unreserved.items()}
            if self._closed.is_due(self._time()):
                runtime.change(plugin, lambda: None)  # retries the pods that the node rejected

    async def reconcile(self, cluster: Cluster) -> None:
        """Delete the reservation pods that no pod needs, and replace those that disappeared while pods need them."""
        steps = [partial(self._end_unwatched, cluster)] if not self._listed else []
        steps += [partial(self._end_disappeared, cluster, pod) for pod in self._disappeared.values()]
        steps += [partial(self._reconcile, cluster, node) for node in self._to_reconcile]
        problems: list[ClusterError | ReservationError] = []
        for step in steps:
            try:
                await step()
            except (ClusterError, ReservationError) as error:
                problems.append(error)
        if problems:
            raise problems[0]

    async def _end_unwatched(self, cluster: Cluster) -> None:
        """Delete the reservation pods that ended while no replica led: the watch does not show them."""
        for pod in await self._pods.ended(cluster):
            await self._pods.end(cluster, pod)
        self._listed = True

    async def _end_disappeared(self, cluster: Cluster, pod: Pod) -> None:
        with suppress(NotFound):  # of a node that left the partition, it stays
            fresh = await cluster.get(Pod, pod.metadata.namespace, pod.metadata.name)
            if fresh.metadata.uid == pod.metadata.uid:
                await self._pods.end(cluster, fresh)
        self._disappeared.pop(pod.metadata.uid, None)

    async def _reconcile(self, cluster: Cluster, node: str) -> None:
        self._to_reconcile.pop(node, None)
        try:
            watched = self._pods.watched(node)
            for pod in list(self._pods.known(node).values()):
                if pod.metadata.name not in watched:  # no event has shown it: it may be gone, or have ended
                    fresh = await self._pods.read(cluster, pod)
                    if fresh is not None:
                        await self._pods.end(cluster, fresh)
            for pod in self._unused(node):
                await self._pods.delete(cluster, pod)
            await self._replace(cluster, node)
            if self._pods.lacking(node) or self._unneeded.get(node):
                self._to_reconcile[node] = None  # neither a report nor time changes the node
        except (ClusterError, ReservationError):
            self._to_reconcile[node] = None
            raise

    def _unused(self, node: str) -> list[Pod]:
        """The surplus of a node that no pod has needed, and no client has written to, for long enough."""
        now, before, surplus = self._time(), self._unneeded.pop(node, {}), self._pods.surplus(node)
        since = {version: before.get(version, now) for version in map(_version, surplus)}
        if since:
            self._unneeded[node] = since
        return [pod for pod in surplus if not is_live(pod) or now - since[_version(pod)] >= self._unused_seconds]

    async def _replace(self, cluster: Cluster, node: str) -> None:
        """Create reservation pods for the lost ones, again and again until they get the devices that pods share."""
        gpus, known, seen = self._pods.lacking(node), self._pods.known(node), self._pods.node(node)
        if not gpus or seen is None or seen.spec.unschedulable:  # a drain must end
            return
        if not all(is_live(pod) and reported_device(pod) for pod in known.values()):
            return
        now = self._time()
        last, names = self._replaced.get(node, (-_REPLACE_SECONDS, ()))
        if now - last < _REPLACE_SECONDS and not (names and known.keys() >= set(names)):
            return
        self._replaced[node] = now, ()
        _log.warning("replacing the reservation pods of shared GPUs", node=node, gpus=gpus)
        created = [await self._pods.create(cluster, node, gpu) for gpu in gpus]
        self._replaced[node] = now, tuple(pod.metadata.name for pod in created)


def _version(pod: Pod) -> tuple[str, str]:
    return pod.metadata.name, pod.metadata.resource_version
