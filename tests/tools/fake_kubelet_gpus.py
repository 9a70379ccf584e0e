"""The GPUs of a cluster in memory as kubelets and device plugins give them: devices by pod, in an order of the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

from session_scheduler.cluster.port import Kube
from session_scheduler.model.gpu_reservations import RESERVATION, RESERVED_DEVICE
from session_scheduler.model.gpu_shares import GPU, GPU_DEVICE, GPU_FRACTION
from session_scheduler.model.objects import Node, Pod
from session_scheduler.testing.driving import finished
from session_scheduler.testing.fake_cluster import FakeCluster

NVIDIA = "nvidia.com/gpu"
SYSTEM = "kube-system"


def reserved(seconds: float = 1, unused_seconds: float = 15, **options: Any) -> FakeCluster:
    """A cluster whose nodes may have whole and shared GPUs at once."""
    cluster = FakeCluster(**options)
    reservations = {"seconds": seconds, "unusedSeconds": unused_seconds}
    cluster.use("GpuSharing", {"wholeGpus": "reserved", "reservations": reservations})
    return cluster


class Kubelets:
    """Gives devices to reservation pods and to pods with whole GPUs, and reports those of reservation pods."""

    def __init__(self, cluster: FakeCluster, order: Callable[[Sequence[str]], str] = min, *, reports: bool = True):
        """`order` chooses one of the free devices."""
        self.cluster, self.memory, self.order, self.reports = cluster, cluster.memory, order, reports
        self.given: dict[str, tuple[str, ...]] = {}
        """Devices by pod uid."""
        self.memory.simulated = False
        self._create, self._bind, self._delete = self.memory.create, self.memory.bind, self.memory.delete
        self.memory.create, self.memory.bind, self.memory.delete = self.create, self.bind, self.delete  # type: ignore[method-assign]

    async def create(self, obj: Kube) -> Kube:
        created = await self._create(obj)
        if isinstance(created, Pod) and RESERVATION in created.metadata.labels:
            self.give(created, 1)
            if self.reports:
                devices = {RESERVED_DEVICE: self.given[created.metadata.uid][0]}
                await self.memory.patch_metadata(created, annotations=devices)
        return created

    async def bind(
        self, namespace: str, name: str, *, node: str, annotations: Mapping[str, str], **options: str
    ) -> None:
        await self._bind(namespace, name, node=node, annotations=annotations, **options)
        pod = await self.memory.get(Pod, namespace, name)
        number = int(pod.spec.containers[0].resources.requests.get(NVIDIA, 0))
        if number:
            self.give(pod, number)

    async def delete(self, obj: Kube, **options: Any) -> None:
        if isinstance(obj, Pod) and RESERVATION in obj.metadata.labels:
            options["grace_seconds"] = 0
        await self._delete(obj, **options)

    def give(self, pod: Pod, number: int) -> None:
        """Give free devices to a pod. Raises AssertionError where a kubelet would reject the pod."""
        free = self.free(pod.spec.node_name)
        assert len(free) >= number, f"the kubelet rejects {pod.key}: {number} devices of {free}"
        chosen = []
        for _ in range(number):
            chosen.append(self.order(free))
            free.remove(chosen[-1])
        self.given[pod.metadata.uid] = tuple(chosen)

    def free(self, name: str) -> list[str]:
        """The devices of a node that no pod has."""
        pods = {one.metadata.uid: one for one in self.memory.objects(Pod) if not one.terminal}
        self.given = {uid: devices for uid, devices in self.given.items() if uid in pods}
        taken = {each for uid, devices in self.given.items() if pods[uid].spec.node_name == name for each in devices}
        (node,) = [one for one in self.memory.objects(Node) if one.metadata.name == name]
        return [device for index in range(int(node.status.allocatable[NVIDIA]))
                if (device := f"GPU-{name}-{index}") not in taken]  # fmt: skip

    def reservations(self) -> list[Pod]:
        """All reservation pods."""
        return [one for one in self.memory.objects(Pod) if RESERVATION in one.metadata.labels]

    def reconcile(self, *, at_once: bool = True) -> None:
        """Run the background task of the plugin once. With `at_once` it deletes unneeded pods without delay."""
        reconciler = self.cluster.plugin("GpuSharing")._reservations._reconciler
        with mock.patch.object(reconciler, "_unused_seconds", 0.0) if at_once else nullcontext():
            finished(reconciler.reconcile(self.memory))

    def check(self) -> None:
        """Assert that no device is given whole and in part, and that none is overcommitted."""
        pods = [one for one in self.memory.objects(Pod) if one.spec.node_name and not one.terminal]
        whole = {device for one in pods if RESERVATION not in one.metadata.labels
                 for device in self.given.get(one.metadata.uid, ())}  # fmt: skip
        used: Counter[str] = Counter()
        slots: dict[str, set[tuple[str, str]]] = {}
        for one in pods:
            annotations = one.metadata.annotations
            if GPU_FRACTION not in annotations:
                continue
            devices, gpus = annotations[GPU_DEVICE].split(","), annotations[GPU].split(",")
            for device, gpu in zip(devices, gpus, strict=True):
                assert device not in whole, f"{device} is given whole, and in part to {one.key}"
                used[device] += int(annotations[GPU_FRACTION][2:].ljust(3, "0"))
                slots.setdefault(device, set()).add((one.spec.node_name, gpu))
        assert all(amount <= 1000 for amount in used.values()), used
        assert all(len(found) == 1 for found in slots.values()), slots
