"""Creates, recovers and deletes reservation pods, so that the kubelet gives no shared GPU to another pod.

The kubelet chooses the devices of a pod that requests whole GPUs. A reservation pod requests one GPU, and the device
plugin of its node reports which one it got. `prebind` of the first pod on a GPU creates it, and waits for the report.
A background task deletes it after the last pod on the GPU.

Names of reservation pods are random, so a report can never be about an earlier pod. Before a pod uses an existing
reservation pod, `prebind` writes to it, and a deletion requires the resourceVersion that the decision read. The
background task deletes only pods whose resourceVersion has not changed for `UNUSED_SECONDS`. A replica that no longer
leads, and does not know it, has stopped writing by then. So no replica deletes a reservation pod that another one has
just created, or has just begun to use.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final
from uuid import uuid4

import structlog
from pydantic import Field

from session_scheduler.base.background import alongside
from session_scheduler.cluster.errors import AlreadyExists, ClusterError, Conflict, Forbidden, Invalid, NotFound
from session_scheduler.cluster.port import Cluster
from session_scheduler.config.settings import PluginArguments
from session_scheduler.errors import AttemptError
from session_scheduler.framework.bindings import Binding, Runtime
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.gpu_reservations import (
    MANAGED,
    NAME_PREFIX,
    devices_of,
    reported_device,
    reservation_pod,
    reserved_gpu,
)
from session_scheduler.model.gpu_shares import EVERY, GIVEN, Share, given_to, gpus_of
from session_scheduler.model.groups import NodeChange, Task
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.quantity import QuantityError, parse_quantity

_log = structlog.get_logger(__name__)
LAST_SHARER: Final = "fluence.flux-framework.org/last-sharer"
"""Annotation of a reservation pod: the uid of the pod that began to use it last. It changes the resourceVersion."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
"""Seconds between two reads of a reservation pod."""
_REPLACE_SECONDS: Final = 60.0
"""The minimum time between two replacements on a node, unless each got a device that no pod shares."""
CLOSED_SECONDS: Final = 60.0
"""How long the scheduler places no further pods that share GPUs on a node after it failed to reserve a GPU there.

The time doubles with each further failure, until a GPU of the node is reserved.
"""
_MOST_DOUBLINGS: Final = 4
UNUSED_SECONDS: Final = 15.0
"""How long a reservation pod is unneeded before the background task deletes it.

It is longer than the default of `renewSeconds`, for which a replica may write after it last renewed its lease.
"""
_CHECK_SECONDS: Final = 10.0
_AFTER_ERROR: Final = 2.0


class ReservationError(AttemptError):
    """A GPU could not be reserved."""


class NodeError(ReservationError):
    """A GPU of this node could not be reserved. Another node may help."""

    def __init__(self, problem: str, awaited: str = "") -> None:
        """`awaited` is the name of the reservation pod whose report would help."""
        super().__init__(problem)
        self.awaited = awaited


class ReservationArguments(PluginArguments):
    """The form of reservation pods."""

    namespace: Annotated[str, Field(min_length=1)] = "kube-system"
    """The scheduler's namespace: the scheduler has no permission to create pods elsewhere."""
    image: Annotated[str, Field(min_length=1)] = "registry.k8s.io/pause:3.10"
    priority_class_name: str = "system-node-critical"
    seconds: Annotated[float, Field(ge=1, le=600)] = 30.0
    """How long the binding of a pod waits for its reservation pods."""


@dataclass(eq=False, slots=True)
class _Node:
    """A node's reservation pods and pods that share GPUs, as of the last change."""

    name: str
    reservations: dict[str, Task] = field(default_factory=dict)
    """By name. Their pods are always current; only a pod that comes or goes changes the node."""
    sharers: tuple[Task, ...] = ()
    reports: tuple[str | None, ...] = ()
    """The devices of the reservation pods as of the last pass of the background task."""


class Reservations:
    """The reservation pods of all nodes. `in_flight`: the sharing pods that no event has shown as bound yet."""

    def __init__(self, arguments: ReservationArguments, resources: tuple[str, ...], in_flight: Collection[Task]):
        self._arguments = arguments
        self._resources = resources
        self._in_flight = in_flight
        self._nodes: dict[str, _Node] = {}
        self._objects: dict[str, Node] = {}
        """All nodes, as of their last change."""
        self._written: dict[str, dict[str, tuple[Pod, Pod | None]]] = {}
        """By node and name: reservation pods that this replica has created or read, each with its last watched state.

        They hold until the watch shows another state.
        """
        self._given: dict[str, dict[int, str]] = {}
        """By uid: the devices of the pods in flight."""
        self._simulated: set[str] = set()
        self._locks: dict[str, dict[int, asyncio.Lock]] = {}
        """By node and GPU."""
        self._changed: dict[str, None] = {}
        """Nodes whose pods are to be counted again as reserved or unreserved."""
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
        self._now = 0.0
        """The time of the last session."""
        self._closed: dict[str, tuple[float, str]] = {}
        """Nodes closed to pods that share GPUs: until when, and the reservation pod whose report opens the node."""
        self._failures: dict[str, int] = {}
        """How many times each node was closed since one of its GPUs was reserved."""
        self._due: asyncio.Event | None = None
        self._time = time.monotonic

    # ------------------------------------------------------------------ the view of the cluster

    def changed(self, change: NodeChange) -> None:
        """Update the view of a node."""
        before = self._nodes.get(change.name)
        pods = {task.name: task for task in change.tasks if self._gpu(task.pod) is not None}
        sharers = tuple(task for task in change.tasks if share_held(task.cls) is not None)
        for task in before.reservations.values() if before is not None and self._due is not None else ():
            if task.name not in pods:
                self._disappeared[task.uid] = task.pod
        if change.node is not None:
            self._objects[change.name] = change.node
        else:
            self._objects.pop(change.name, None)
            self._failures.pop(change.name, None)
        if pods or sharers:
            self._nodes[change.name] = _Node(change.name, pods, sharers)
        else:
            self._nodes.pop(change.name, None)
            if not any(task.node == change.name for task in self._in_flight):
                self._drop(change.name)
        if before is not None or pods or sharers:
            self._changed[change.name] = self._to_reconcile[change.name] = None
            if self._due is not None:
                self._due.set()

    def _drop(self, node: str) -> None:
        """Free what is known about a node without pods that use shared GPUs."""
        self._locks.pop(node, None)
        self._replaced.pop(node, None)
        self._unneeded.pop(node, None)
        if not self._known(node):
            self._written.pop(node, None)

    def _resource(self, node: Node) -> str:
        for resource in self._resources:
            with suppress(QuantityError):
                if parse_quantity(node.status.allocatable.get(resource, 0)) > 0:
                    return resource
        return self._resources[0]

    def _gpu(self, pod: Pod) -> int | None:
        return reserved_gpu(pod, self._arguments.namespace)

    def _known(self, node: str) -> dict[str, Pod]:
        """All reservation pods of a node by name."""
        found, written = self._watched(node), self._written.get(node, {})
        for name, (pod, watched) in list(written.items()):
            if found.get(name) is watched:
                found[name] = pod
            else:
                del written[name]
        return found

    def _watched(self, node: str) -> dict[str, Pod]:
        seen = self._nodes.get(node)
        tasks = seen.reservations.items() if seen is not None else ()
        return {name: task.pod for name, task in tasks if task.node == node}  # an event takes it off the node

    def _remember(self, pod: Pod) -> None:
        node, name = pod.spec.node_name, pod.metadata.name
        self._written.setdefault(node, {})[name] = pod, self._watched(node).get(name)

    def _forget(self, pod: Pod) -> None:
        name = pod.metadata.name
        self._written.get(pod.spec.node_name, {}).pop(name, None)
        if (seen := self._nodes.get(pod.spec.node_name)) is not None:
            seen.reservations.pop(name, None)

    def _sharers(self, node: str) -> Iterator[Task]:
        """The pods that share GPUs of a node, also those in flight."""
        seen = self._nodes.get(node)
        tasks = dict.fromkeys((*(seen.sharers if seen is not None else ()), *self._in_flight))
        return (task for task in tasks if task.node == node)

    def _devices(self, task: Task) -> Mapping[int, str]:
        """The device of each GPU that a pod uses, as far as known."""
        if not task.pod.spec.node_name:
            return self._given.get(task.uid, {})
        gpus = _gpus(task)
        return {} if EVERY in gpus else devices_of(task.pod.metadata, gpus) or {}

    def _preferred(self, node: str) -> dict[int, Pod]:
        """The usable reservation pod of each GPU: the one with the device in use, else the oldest with its label."""
        used = {device: gpu for task in self._sharers(node) for gpu, device in self._devices(task).items()}
        found: dict[int, Pod] = {}
        by_age = sorted(self._known(node).values(), key=_by_age)
        for pod in sorted(by_age, key=lambda pod: reported_device(pod) not in used):
            gpu = used.get(reported_device(pod) or "", self._gpu(pod))
            if gpu is not None and _is_live(pod):
                found.setdefault(gpu, pod)
        return found

    def _surplus(self, node: str) -> list[Pod]:
        """The reservation pods of a node that hold a GPU which no pod shares, or that are being deleted.

        While a shared GPU is not held, those with other devices stay: so the next one gets another device.
        """
        known = self._known(node)
        if not known:
            return []
        if self._lacking(node):
            return [pod for pod in known.values() if not _is_live(pod)]
        needed = {gpu for task in self._sharers(node) for gpu in _gpus(task)}
        keep = [pod.metadata.name for gpu, pod in self._preferred(node).items() if not needed.isdisjoint((gpu, EVERY))]
        return [pod for name, pod in known.items() if name not in keep]

    def _unused(self, node: str) -> list[Pod]:
        """The surplus of a node that no pod has needed, and no client has written to, for UNUSED_SECONDS."""
        now, before, surplus = self._time(), self._unneeded.pop(node, {}), self._surplus(node)
        since = {version: before.get(version, now) for version in map(_version, surplus)}
        if since:
            self._unneeded[node] = since
        return [pod for pod in surplus if not _is_live(pod) or now - since[_version(pod)] >= UNUSED_SECONDS]

    def _see_reports(self) -> None:
        """Note the nodes with a report that has changed since the last call: it does not change the node."""
        for name, node in self._nodes.items():
            reports = tuple(reported_device(task.pod) for task in node.reservations.values())
            if reports != node.reports:
                node.reports = reports
                self._changed[name] = self._to_reconcile[name] = None

    def bound(self, node: str) -> None:
        """A pod in flight is bound to the node."""
        self._changed[node] = None

    def unreserved(self) -> Iterator[tuple[Task, bool]]:
        """For bound pods on the nodes that changed: whether the kubelet may give one of their GPUs to another pod."""
        names, self._changed = self._changed, {}
        for name in names:
            unreserved = self._unreserved(name)
            if unreserved:
                self._changed[name] = None  # a report does not change the node
            for task in self._sharers(name):
                if task.pod.spec.node_name:
                    yield task, task in unreserved

    def _unreserved(self, name: str) -> set[Task]:
        """The bound pods on a node that use a GPU without a reservation pod, or one that is not theirs alone."""
        seen = self._nodes.get(name)
        if seen is None:
            return set()
        held = {reported_device(pod) for pod in self._watched(name).values() if _is_live(pod)}
        bound = self._bound(name)
        pairs = {pair for task in bound for pair in self._devices(task).items()}
        devices, gpus = {device for _, device in pairs}, {gpu for gpu, _ in pairs}
        held_twice = len(pairs) > min(len(devices), len(gpus))
        return {task for task in bound
                if held_twice or not (own := self._devices(task)) or not held.issuperset(own.values())}  # fmt: skip

    def _bound(self, node: str) -> list[Task]:
        """The bound pods that share GPUs of a node, except those that a simulation bound."""
        return [task for task in self._sharers(node) if task.pod.spec.node_name and task.uid not in self._simulated]

    def open_session(self, now: float) -> list[str]:
        """Return the nodes that are closed to pods that share GPUs in a session."""
        self._now = now
        in_flight = {task.uid for task in self._in_flight} if self._given else ()
        self._given = {uid: devices for uid, devices in self._given.items() if uid in in_flight}
        self._reopen()
        return list(self._closed)

    def _reopen(self) -> None:
        """Open the closed nodes whose time is over, or whose report has arrived."""
        self._closed = {node: (until, awaited) for node, (until, awaited) in self._closed.items()
                        if until > self._now and not self._is_reported(node, awaited)}  # fmt: skip

    def _is_reported(self, node: str, name: str) -> bool:
        pod = self._known(node).get(name)
        return pod is not None and reported_device(pod) is not None

    def _close(self, binding: Binding, error: NodeError, now: float) -> None:
        node = binding.node
        if node not in self._closed or self._closed[node][0] <= now:
            failures = self._failures.get(node, 0)
            seconds = CLOSED_SECONDS * 2 ** min(failures, _MOST_DOUBLINGS)
            self._failures[node] = failures + 1
            note = f"for {seconds:g} s, the scheduler places no further pods that share GPUs on node {node}: {error}"
            binding.tell("GpuNotReserved", note)  # codespell:ignore tell
            self._closed[node] = now + seconds, error.awaited

    # ------------------------------------------------------------------ before a pod is bound

    def concerns(self, node: str) -> bool:
        """Whether the binding of a pod with whole GPUs depends on reservation pods of the node."""
        return bool(self._known(node)) or any(True for _ in self._sharers(node))

    async def make_way(self, binding: Binding) -> None:
        """Delete the reservation pods that no pod needs, and wait until they are gone. Raises ReservationError."""
        try:
            async with asyncio.timeout(self._arguments.seconds):
                await self._make_way(binding.cluster, binding.node)
        except TimeoutError:
            names = ", ".join(pod.key for pod in self._surplus(binding.node))
            raise ReservationError(f"GPUs of node {binding.node} are not free yet: reservation pods that no pod needs "
                                   f"have not terminated: {names}") from None  # fmt: skip
        if (reason := self._exposed(binding.node)) is not None:
            raise ReservationError(reason)
        binding.checks.append(partial(self._exposed, binding.node))

    def _exposed(self, node: str) -> str | None:
        """Why the kubelet may give a shared GPU of the node to another pod."""
        return f"node {node} has shared GPUs without reservation pods" if self._unreserved(node) else None

    async def _make_way(self, cluster: Cluster, node: str) -> None:
        for pod in self._surplus(node):
            current: Pod | None = pod
            while current is not None and not await self._delete(cluster, current):
                current = self._known(node).get(pod.metadata.name)
                if current is not None and _last_sharer(current) != _last_sharer(pod):
                    raise ReservationError(f"another pod has begun to use reservation pod {pod.key}")
            pause = _FIRST_PAUSE
            while await self._read(cluster, pod) is not None:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def reserve(self, binding: Binding, gpus: tuple[int, ...]) -> tuple[str, ...]:
        """The devices of these GPUs of the node, each held by a reservation pod. Empty in a simulation.

        Raises ReservationError, ClusterError.
        """
        if binding.cluster.simulated:
            self._simulated.add(binding.task.uid)
            return ()
        decided, started = self._now, self._time()
        try:
            devices = await self._reserve(binding, gpus)
        except NodeError as error:
            self._close(binding, error, decided + (self._time() - started) // 1)
            raise
        self._failures.pop(binding.node, None)
        self._given[binding.task.uid] = devices
        binding.checks.append(partial(self._lost, binding.node, devices.values()))
        return tuple(devices.values())

    def _lost(self, node: str, devices: Collection[str]) -> str | None:
        """Why the kubelet may give one of these devices to another pod."""
        held = {reported_device(pod) for pod in self._known(node).values() if _is_live(pod)}
        lost = ", ".join(device for device in devices if device not in held)
        return f"the reservation pod of device {lost} of node {node} is gone" if lost else None

    async def _reserve(self, binding: Binding, gpus: tuple[int, ...]) -> dict[int, str]:
        waits_for, awaited = "", ""
        try:
            async with asyncio.timeout(self._arguments.seconds):
                pods = []
                for gpu in gpus:
                    waits_for = "other reservation pods have not terminated"
                    locks = self._locks.setdefault(binding.node, {})
                    async with locks.setdefault(gpu, asyncio.Lock()):
                        pods.append(await self._held(binding, gpu))
                devices: dict[int, str] = {}
                for gpu, pod in zip(gpus, pods, strict=True):
                    waits_for = (f"no device plugin has reported the device of reservation pod {pod.key}: run "
                                 "`fluence device-plugin --report-gpus` on the node")  # fmt: skip
                    awaited = pod.metadata.name
                    device = await self._reported(binding.cluster, pod)
                    if device in devices.values():
                        raise NodeError(f"node {binding.node} reported device {device} for two reservation pods")
                    self._check(binding, gpu, device)
                    devices[gpu] = device
        except TimeoutError:
            raise NodeError(f"GPU {','.join(map(str, gpus))} of node {binding.node} is not reserved after "
                            f"{self._arguments.seconds:g} s: {waits_for}", awaited) from None  # fmt: skip
        return devices

    async def _held(self, binding: Binding, gpu: int) -> Pod:
        """The reservation pod of a GPU: an existing one, which is now in use, or a new one."""
        while (pod := self._preferred(binding.node).get(gpu)) is not None:
            try:
                fresh = await binding.cluster.patch_metadata(pod, annotations={LAST_SHARER: binding.task.uid})
            except NotFound:
                self._forget(pod)
                continue
            self._remember(fresh)
            if _is_live(fresh):
                return fresh
            await self._end(binding.cluster, fresh)
        await self._make_way(binding.cluster, binding.node)
        return await self._create(binding.cluster, binding.node, gpu)

    async def _create(self, cluster: Cluster, node: str, gpu: int) -> Pod:
        arguments, known = self._arguments, self._objects.get(node)
        if known is None:
            raise ReservationError(f"node {node} was deleted")
        pod = reservation_pod(
            f"{NAME_PREFIX}{uuid4().hex[:20]}", arguments.namespace, known, gpu,
            resource=self._resource(known), image=arguments.image,
            priority_class_name=arguments.priority_class_name,
        )  # fmt: skip
        try:
            created = await cluster.create(pod)
        except (Forbidden, Invalid, NotFound, AlreadyExists) as error:
            raise ReservationError(f"cannot create a reservation pod for GPU {gpu} of node {node}: {error}") from None
        self._remember(created)
        return created

    async def _reported(self, cluster: Cluster, pod: Pod) -> str:
        """Wait until the device plugin has reported the device of a reservation pod."""
        pause, found = _FIRST_PAUSE, pod
        while (device := reported_device(found)) is None or not _is_live(found):
            if not _is_live(found):
                await self._end(cluster, found)
                raise NodeError(f"the kubelet of node {pod.spec.node_name} rejected or ended reservation pod "
                                f"{pod.key}: it has no free GPU, or no capacity for the pod")  # fmt: skip
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            fresh = await self._read(cluster, pod)
            if fresh is None:
                raise ReservationError(f"reservation pod {pod.key} was deleted")
            found = fresh
        return device

    def _check(self, binding: Binding, gpu: int, device: str) -> None:
        """Raise NodeError if other pods use the GPU as another device, or the device as another GPU."""
        for task in self._sharers(binding.node):
            for other, used in self._devices(task).items() if task is not binding.task else ():
                if (other == gpu) is not (used == device):
                    raise NodeError(f"GPU {gpu} of node {binding.node} is device {device}, but pod {task.key} "
                                    f"uses device {used} as GPU {other}")  # fmt: skip

    # ------------------------------------------------------------------ requests

    async def _read(self, cluster: Cluster, pod: Pod) -> Pod | None:
        """The current state of a reservation pod; None if it is gone."""
        try:
            fresh = await cluster.get(Pod, pod.metadata.namespace, pod.metadata.name)
        except NotFound:
            self._forget(pod)
            return None
        self._remember(fresh)
        return fresh

    async def _delete(self, cluster: Cluster, pod: Pod) -> bool:
        """Delete a reservation pod unless it has changed since it was read. Returns whether it is being deleted."""
        if pod.metadata.deletion_timestamp is not None:
            return True
        try:
            await cluster.delete(pod, resource_version=pod.metadata.resource_version)
        except NotFound:
            self._forget(pod)
            return False
        except Conflict:
            await self._read(cluster, pod)
            return False
        return True

    async def _end(self, cluster: Cluster, pod: Pod) -> None:
        """Delete a reservation pod that has ended. It holds nothing and does not start again, whatever its version."""
        if pod.terminal:
            with suppress(NotFound, Conflict):
                await cluster.delete(pod, grace_seconds=0)
            self._forget(pod)

    # ------------------------------------------------------------------ in the background

    @asynccontextmanager
    async def serve(self, runtime: Runtime, plugin: str) -> AsyncGenerator[None]:
        """Reconcile the reservation pods while this context is entered."""
        self._due = asyncio.Event()
        self._due.set()
        self._to_reconcile.update(dict.fromkeys(self._nodes))
        async with alongside(self._run(runtime, plugin, self._due)):
            yield

    async def _run(self, runtime: Runtime, plugin: str, due: asyncio.Event) -> None:
        reported: dict[str, str] = {}
        """By uid: the node of each pod that was reported as unreserved, and still is."""
        opens: dict[tuple[str, float], float] = {}
        """When each closed node opens, in the time of this loop. Then the scheduler retries the rejected pods."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_PAUSE if reported or self._closed else _CHECK_SECONDS):
                    await due.wait()
            due.clear()
            if not runtime.elected or runtime.cluster is None:
                self._listed = False
                continue
            self._to_reconcile.update(dict.fromkeys(reported.values()))
            self._see_reports()
            if any(self._is_reported(node, awaited) for node, (_, awaited) in self._closed.items()):
                runtime.change(plugin, self._reopen)
            names = list(self._to_reconcile)
            try:
                await self.reconcile(runtime.cluster)
            except (ClusterError, ReservationError) as error:
                _log.warning("failed to reconcile reservation pods", error=str(error))
                await asyncio.sleep(_AFTER_ERROR)
                due.set()
            unreserved = {task.uid: task for name in names for task in self._unreserved(name)}
            for uid in unreserved.keys() - reported.keys():
                note = "no reservation pod holds its GPU: the scheduler places no further pods with GPUs on the node"
                runtime.tell(unreserved[uid].pod, "GpuUnreserved", note)  # codespell:ignore tell
            if reported.keys() - unreserved.keys():
                runtime.change(plugin, lambda: None)  # retries the pods that waited for this
            reported = {uid: task.node or "" for uid, task in unreserved.items()}
            now = self._time()
            closed = [(node, until) for node, (until, _) in self._closed.items()]
            opens = {one: opens.get(one, now + one[1] - self._now) for one in closed}
            if any(time <= now for time in opens.values()):
                runtime.change(plugin, lambda: None)

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
        namespace = self._arguments.namespace
        ended = await cluster.list(Pod, labels=MANAGED, namespace=namespace, keep=self._has_ended)
        for pod in ended.items:
            await self._end(cluster, pod)
        self._listed = True

    def _has_ended(self, pod: Pod) -> bool:
        return pod.terminal and self._gpu(pod) is not None

    async def _end_disappeared(self, cluster: Cluster, pod: Pod) -> None:
        with suppress(NotFound):  # of a node that left the partition, it stays
            fresh = await cluster.get(Pod, pod.metadata.namespace, pod.metadata.name)
            if fresh.metadata.uid == pod.metadata.uid:
                await self._end(cluster, fresh)
        self._disappeared.pop(pod.metadata.uid, None)

    async def _reconcile(self, cluster: Cluster, node: str) -> None:
        self._to_reconcile.pop(node, None)
        try:
            watched = self._watched(node)
            for pod in list(self._known(node).values()):
                if pod.metadata.name not in watched:  # no event has shown it: it may be gone, or have ended
                    fresh = await self._read(cluster, pod)
                    if fresh is not None:
                        await self._end(cluster, fresh)
            for pod in self._unused(node):
                await self._delete(cluster, pod)
            await self._replace(cluster, node)
            if self._lacking(node) or self._unneeded.get(node):
                self._to_reconcile[node] = None  # neither a report nor time changes the node
        except (ClusterError, ReservationError):
            self._to_reconcile[node] = None
            raise

    async def _replace(self, cluster: Cluster, node: str) -> None:
        """Create reservation pods for the lost ones, again and again until they get the devices that pods share."""
        gpus, known, seen = self._lacking(node), self._known(node), self._objects.get(node)
        if not gpus or seen is None or seen.spec.unschedulable:  # a drain must end
            return
        if not all(_is_live(pod) and reported_device(pod) for pod in known.values()):
            return
        now = self._time()
        last, names = self._replaced.get(node, (-_REPLACE_SECONDS, ()))
        if now - last < _REPLACE_SECONDS and not (names and known.keys() >= set(names)):
            return
        self._replaced[node] = now, ()
        _log.warning("replacing the reservation pods of shared GPUs", node=node, gpus=gpus)
        created = [await self._create(cluster, node, gpu) for gpu in gpus]
        self._replaced[node] = now, tuple(pod.metadata.name for pod in created)

    def _lacking(self, node: str) -> list[int]:
        """The GPUs of bound pods with known devices that no reservation pod holds.

        A pod from the time of `separate` has indices in place of devices.
        """
        held = {reported_device(pod) for pod in self._known(node).values() if _is_live(pod)}
        return sorted({gpu for task in self._bound(node) for gpu, device in self._devices(task).items()
                       if device not in held and not device.isdecimal()})  # fmt: skip


def share_held(cls: TaskClass) -> Share | None:
    """The share that a pod of the class counts as; None if it shares no GPU."""
    return next((key for key in cls.footprint if isinstance(key, Share)), None)


def _gpus(task: Task) -> tuple[int, ...]:
    """The GPUs of a pod on a node; EVERY if they are unknown."""
    if GIVEN in task.counts:
        return gpus_of(task.counts)
    share = share_held(task.cls)
    return (share is not None and given_to(task.pod.metadata, share)) or (EVERY,)


def _is_live(pod: Pod) -> bool:
    return not pod.terminal and pod.metadata.deletion_timestamp is None


def _version(pod: Pod) -> tuple[str, str]:
    return pod.metadata.name, pod.metadata.resource_version


def _last_sharer(pod: Pod) -> str | None:
    return pod.metadata.annotations.get(LAST_SHARER)


def _by_age(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.name
