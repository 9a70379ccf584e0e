"""Creates, recovers and deletes reservation pods, so that the kubelet gives no shared GPU to another pod.

The kubelet chooses the devices of a pod that requests whole GPUs. A reservation pod requests one GPU, and the device
plugin of its node reports which one it got. `prebind` of the first pod on a GPU creates it, and waits for the report.
A background task deletes it after the last pod on the GPU.

Names of reservation pods are random, so a report can never be about an earlier pod. Before a pod uses an existing
reservation pod, `prebind` writes to it, and a deletion requires the resourceVersion that the decision read. The
background task deletes only pods whose resourceVersion has not changed for `unusedSeconds`. A replica that no longer
leads, and does not know it, has stopped writing by then. So no replica deletes a reservation pod that another one has
just created, or has just begun to use.

Here a binding waits for its reservations. `gpu_reservation_pods` has the state and the requests,
`gpu_reservation_reconciler` the background task, and `gpu_closed_nodes` the nodes where a reservation failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

from session_scheduler.builtin.gpu_closed_nodes import ClosedNodes, NodeError
from session_scheduler.builtin.gpu_in_flight import InFlight
from session_scheduler.builtin.gpu_reservation_pods import (
    ReservationArguments,
    ReservationError,
    ReservationPods,
    is_live,
)
from session_scheduler.builtin.gpu_reservation_reconciler import ReservationReconciler
from session_scheduler.cluster.errors import NotFound
from session_scheduler.cluster.port import Cluster
from session_scheduler.framework.bindings import Binding, Runtime
from session_scheduler.model.gpu_reservations import reported_device
from session_scheduler.model.groups import NodeChange, Task
from session_scheduler.model.objects import Pod

LAST_SHARER: Final = "fluence.flux-framework.org/last-sharer"
"""Annotation of a reservation pod: the uid of the pod that began to use it last. It changes the resourceVersion."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
"""Seconds between two reads of a reservation pod."""


class Reservations:
    """Reserves shared GPUs. `in_flight`: the sharing pods that no event has shown as bound yet."""

    def __init__(self, arguments: ReservationArguments, resources: tuple[str, ...], in_flight: InFlight):
        self._seconds = arguments.seconds
        self._pods = ReservationPods(arguments, resources, in_flight)
        self._closed = ClosedNodes(self._pods)
        self._reconciler = ReservationReconciler(self._pods, self._closed, arguments.unused_seconds)
        self._locks: dict[str, dict[int, asyncio.Lock]] = {}
        """By node and GPU."""
        self._time = time.monotonic

    # ------------------------------------------------------------------ events and sessions

    def changed(self, change: NodeChange) -> None:
        """Update the view of a node."""
        gone = self._pods.update(change)
        if change.node is None:
            self._closed.succeeded(change.name)
        if not self._pods.in_use(change.name):
            self._pods.drop(change.name)
            self._locks.pop(change.name, None)
            self._reconciler.forget(change.name)
        if gone is not None:
            self._reconciler.changed(change.name, gone)

    def bound(self, node: str) -> None:
        """A pod in flight is bound to the node."""
        self._pods.bound(node)

    def unreserved(self) -> Iterator[tuple[Task, bool]]:
        """For bound pods on the nodes that changed: whether the kubelet may give one of their GPUs to another pod."""
        return self._pods.recount()

    def open_session(self, now: float) -> Collection[str]:
        """Return the nodes that are closed to pods that share GPUs in a session."""
        self._pods.forget_bound()
        return self._closed.open_session(now)

    # ------------------------------------------------------------------ before a pod is bound

    def concerns(self, node: str) -> bool:
        """Whether the binding of a pod with whole GPUs depends on reservation pods of the node."""
        return bool(self._pods.known(node)) or any(True for _ in self._pods.sharers(node))

    async def make_way(self, binding: Binding) -> None:
        """Delete the reservation pods that no pod needs, and wait until they are gone. Raises ReservationError."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._make_way(binding.cluster, binding.node)
        except TimeoutError:
            names = ", ".join(pod.key for pod in self._pods.surplus(binding.node))
            raise ReservationError(f"GPUs of node {binding.node} are not free yet: reservation pods that are no "
                                   f"longer needed have not terminated: {names}") from None  # fmt: skip
        if (reason := self._exposed(binding.node)) is not None:
            raise ReservationError(reason)
        binding.checks.append(partial(self._exposed, binding.node))

    def _exposed(self, node: str) -> str | None:
        """Why the kubelet may give a shared GPU of the node to another pod."""
        return f"node {node} has shared GPUs without reservation pods" if self._pods.unreserved(node) else None

    async def _make_way(self, cluster: Cluster, node: str) -> None:
        for pod in self._pods.surplus(node):
            current: Pod | None = pod
            while current is not None and not await self._pods.delete(cluster, current):
                current = self._pods.known(node).get(pod.metadata.name)
                if current is not None and _last_sharer(current) != _last_sharer(pod):
                    raise ReservationError(f"another pod has begun to use reservation pod {pod.key}")
            pause = _FIRST_PAUSE
            while await self._pods.read(cluster, pod) is not None:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def reserve(self, binding: Binding, gpus: tuple[int, ...]) -> tuple[str, ...]:
        """The devices of these GPUs of the node, each held by a reservation pod. Empty in a simulation.

        Raises ReservationError or ClusterError.
        """
        if binding.cluster.simulated:
            self._pods.simulated.add(binding.task.uid)
            return ()
        decided, started = self._closed.now, self._time()
        try:
            devices = await self._reserve(binding, gpus)
        except NodeError as error:
            self._closed.close(binding, error, decided + (self._time() - started) // 1)
            raise
        self._closed.succeeded(binding.node)
        self._pods.given[binding.task.uid] = devices
        binding.checks.append(partial(self._lost, binding.node, devices.values()))
        return tuple(devices.values())

    def _lost(self, node: str, devices: Collection[str]) -> str | None:
        """Why the kubelet may give one of these devices to another pod."""
        held = self._pods.held(node)
        lost = ", ".join(device for device in devices if device not in held)
        return f"the reservation pod of device {lost} of node {node} is gone" if lost else None

    async def _reserve(self, binding: Binding, gpus: tuple[int, ...]) -> dict[int, str]:
        waits_for, awaited = "", ""
        try:
            async with asyncio.timeout(self._seconds):
                pods = []
                for gpu in gpus:
                    waits_for = "other reservation pods have not terminated"
                    locks = self._locks.setdefault(binding.node, {})
                    async with locks.setdefault(gpu, asyncio.Lock()):
                        pods.append(await self._held(binding, gpu))
                devices: dict[int, str] = {}
                for gpu, pod in zip(gpus, pods, strict=True):
                    waits_for = (f"no device plugin has reported the device of reservation pod {pod.key}; run "
                                 "`fluence device-plugin --report-gpus` on the node")  # fmt: skip
                    awaited = pod.metadata.name
                    device = await self._reported(binding.cluster, pod)
                    if device in devices.values():
                        raise NodeError(f"node {binding.node} reported device {device} for two reservation pods")
                    self._check(binding, gpu, device)
                    devices[gpu] = device
        except TimeoutError:
            raise NodeError(f"GPU {','.join(map(str, gpus))} of node {binding.node} is not reserved after "
                            f"{self._seconds:g} s: {waits_for}", awaited) from None  # fmt: skip
        return devices

    async def _held(self, binding: Binding, gpu: int) -> Pod:
        """The reservation pod of a GPU: an existing one, which is now in use, or a new one."""
        while (pod := self._pods.preferred(binding.node).get(gpu)) is not None:
            try:
                fresh = await binding.cluster.patch_metadata(pod, annotations={LAST_SHARER: binding.task.uid})
            except NotFound:
                self._pods.forget(pod)
                continue
            self._pods.remember(fresh)
            if is_live(fresh):
                return fresh
            await self._pods.end(binding.cluster, fresh)
        await self._make_way(binding.cluster, binding.node)
        return await self._pods.create(binding.cluster, binding.node, gpu)

    async def _reported(self, cluster: Cluster, pod: Pod) -> str:
        """Wait until the device plugin has reported the device of a reservation pod."""
        pause, found = _FIRST_PAUSE, pod
        while (device := reported_device(found)) is None or not is_live(found):
            if not is_live(found):
                await self._pods.end(cluster, found)
                raise NodeError(f"the kubelet of node {pod.spec.node_name} rejected or terminated reservation pod "
                                f"{pod.key}: the node has no free GPU, or no capacity for the pod")  # fmt: skip
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            fresh = await self._pods.read(cluster, pod)
            if fresh is None:
                raise ReservationError(f"reservation pod {pod.key} was deleted")
            found = fresh
        return device

    def _check(self, binding: Binding, gpu: int, device: str) -> None:
        """Raise NodeError if other pods use the GPU as another device, or the device as another GPU."""
        for task in self._pods.sharers(binding.node):
            for other, used in self._pods.devices(task).items() if task is not binding.task else ():
                if (other == gpu) is not (used == device):
                    raise NodeError(f"GPU {gpu} of node {binding.node} is device {device}, but pod {task.key} "
                                    f"uses device {used} as GPU {other}")  # fmt: skip

    # ------------------------------------------------------------------ in the background

    def serve(self, runtime: Runtime, plugin: str) -> AbstractAsyncContextManager[None]:
        """Reconcile the reservation pods while this context is entered."""
        return self._reconciler.serve(runtime, plugin)


def _last_sharer(pod: Pod) -> str | None:
    return pod.metadata.annotations.get(LAST_SHARER)
