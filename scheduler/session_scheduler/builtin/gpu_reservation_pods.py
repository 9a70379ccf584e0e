"""The reservation pods of all nodes and the pods that share their GPUs, and the requests that change them.

The state is that of the last watch events, of the pods in flight, and of this replica's own requests, which the watch
may show later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated
from uuid import uuid4

from pydantic import Field

from session_scheduler.builtin.gpu_in_flight import InFlight
from session_scheduler.cluster.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from session_scheduler.cluster.port import Cluster
from session_scheduler.config.settings import PluginArguments
from session_scheduler.errors import AttemptError
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


class ReservationError(AttemptError):
    """A GPU could not be reserved."""


class ReservationArguments(PluginArguments):
    """The form of reservation pods."""

    namespace: Annotated[str, Field(min_length=1)] = "kube-system"
    """The scheduler's namespace: the scheduler has no permission to create pods elsewhere."""
    image: Annotated[str, Field(min_length=1)] = "registry.k8s.io/pause:3.10"
    priority_class_name: str = "system-node-critical"
    seconds: Annotated[float, Field(ge=1, le=600)] = 30.0
    """How long the binding of a pod waits for its reservation pods."""
    unused_seconds: Annotated[float, Field(ge=15, le=3600)] = 15.0
    """How long no pod has needed a reservation pod before the background task deletes it.

    Longer than `renewSeconds`, for which a replica may write after it last renewed its lease.
    """


@dataclass(eq=False, slots=True)
class _Node:
    """A node's reservation pods and pods that share GPUs, as of the last change."""

    reservations: dict[str, Task]
    """By name. Their pods are always current; only a pod that comes or goes changes the node."""
    sharers: tuple[Task, ...]
    reports: tuple[str | None, ...] = ()
    """The devices of the reservation pods as of the last pass of the background task."""


class ReservationPods:
    """The reservation pods of all nodes. `in_flight`: the sharing pods that no event has shown as bound yet."""

    def __init__(self, arguments: ReservationArguments, resources: tuple[str, ...], in_flight: InFlight):
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
        self.given: dict[str, dict[int, str]] = {}
        """By uid: the devices of the pods in flight."""
        self.simulated: set[str] = set()
        """The uids of the pods that a simulation bound."""
        self._changed: dict[str, None] = {}
        """Nodes whose pods are to be counted again as reserved or unreserved."""

    # ------------------------------------------------------------------ changes

    def update(self, change: NodeChange) -> list[Pod] | None:
        """Update a node. Returns the reservation pods that it lost; None if it never had relevant pods."""
        name, before = change.name, self._nodes.get(change.name)
        pods = {task.name: task for task in change.tasks if self._gpu(task.pod) is not None}
        sharers = tuple(task for task in change.tasks if share_held(task.cls) is not None)
        if change.node is not None:
            self._objects[name] = change.node
        else:
            self._objects.pop(name, None)
        if pods or sharers:
            self._nodes[name] = _Node(pods, sharers)
        else:
            self._nodes.pop(name, None)
        if before is None and name not in self._nodes:
            return None
        self._changed[name] = None
        return [task.pod for task in before.reservations.values() if task.name not in pods] if before else []

    def bound(self, node: str) -> None:
        """A pod in flight is bound to the node."""
        self._changed[node] = None

    def see_reports(self) -> list[str]:
        """The nodes with a report that has changed since the last call: it does not change the node."""
        found = []
        for name, node in self._nodes.items():
            reports = tuple(reported_device(task.pod) for task in node.reservations.values())
            if reports != node.reports:
                node.reports = reports
                self._changed[name] = None
                found.append(name)
        return found

    def drop(self, node: str) -> None:
        """Free what this replica noted about a node that is not in use."""
        if not self.known(node):
            self._written.pop(node, None)

    def forget_bound(self) -> None:
        """Forget the devices of pods that are no longer in flight."""
        in_flight = {task.uid for task, _ in self._in_flight.all()} if self.given else ()
        self.given = {uid: devices for uid, devices in self.given.items() if uid in in_flight}

    def recount(self) -> Iterator[tuple[Task, bool]]:
        """For bound pods on the nodes that changed: whether the kubelet may give one of their GPUs to another pod."""
        names, self._changed = self._changed, {}
        for name in names:
            unreserved = self.unreserved(name)
            if unreserved:
                self._changed[name] = None  # a report does not change the node
            for task in self.sharers(name):
                if task.pod.spec.node_name:
                    yield task, task in unreserved

    # ------------------------------------------------------------------ one node

    def nodes(self) -> Iterable[str]:
        """The nodes with reservation pods, or with pods that share GPUs."""
        return self._nodes

    def node(self, name: str) -> Node | None:
        """The node of this name."""
        return self._objects.get(name)

    def in_use(self, node: str) -> bool:
        """Whether a node has reservation pods, or pods that share GPUs, also in flight."""
        return node in self._nodes or any(True for _ in self._in_flight.on(node))

    def known(self, node: str) -> dict[str, Pod]:
        """All reservation pods of a node by name, also those that only this replica's requests have shown."""
        found, written = self.watched(node), self._written.get(node, {})
        for name, (pod, watched) in list(written.items()):
            if found.get(name) is watched:
                found[name] = pod
            else:
                del written[name]
        return found

    def watched(self, node: str) -> dict[str, Pod]:
        """The reservation pods of a node that the watch has shown, by name."""
        seen = self._nodes.get(node)
        tasks = seen.reservations.items() if seen is not None else ()
        return {name: task.pod for name, task in tasks if task.node == node}  # an event takes it off the node

    def sharers(self, node: str) -> Iterator[Task]:
        """The pods that share GPUs of a node, also those in flight."""
        seen = self._nodes.get(node)
        watched = (task for task in (seen.sharers if seen is not None else ()) if task.node == node)
        return iter(dict.fromkeys((*watched, *self._in_flight.on(node))))

    def devices(self, task: Task) -> Mapping[int, str]:
        """The device of each GPU that a pod uses, as far as known."""
        if not task.pod.spec.node_name:
            return self.given.get(task.uid, {})
        gpus = _gpus(task)
        return {} if EVERY in gpus else devices_of(task.pod.metadata, gpus) or {}

    def preferred(self, node: str) -> dict[int, Pod]:
        """The usable reservation pod of each GPU: the one with the device in use, else the oldest with its label."""
        used = {device: gpu for task in self.sharers(node) for gpu, device in self.devices(task).items()}
        found: dict[int, Pod] = {}
        by_age = sorted(self.known(node).values(), key=_by_age)
        for pod in sorted(by_age, key=lambda pod: reported_device(pod) not in used):
            gpu = used.get(reported_device(pod) or "", self._gpu(pod))
            if gpu is not None and is_live(pod):
                found.setdefault(gpu, pod)
        return found

    def surplus(self, node: str) -> list[Pod]:
        """The reservation pods of a node that hold a GPU which no pod shares, or that are being deleted.

        While no reservation pod holds a shared GPU, those with other devices stay, so that the next one gets another
        device.
        """
        known = self.known(node)
        if not known:
            return []
        if self.lacking(node):
            return [pod for pod in known.values() if not is_live(pod)]
        needed = {gpu for task in self.sharers(node) for gpu in _gpus(task)}
        keep = [pod.metadata.name for gpu, pod in self.preferred(node).items() if not needed.isdisjoint((gpu, EVERY))]
        return [pod for name, pod in known.items() if name not in keep]

    def unreserved(self, name: str) -> set[Task]:
        """The bound pods on a node that use a GPU without a reservation pod, or one that is not theirs alone."""
        seen = self._nodes.get(name)
        if seen is None:
            return set()
        held = _devices(self.watched(name))
        bound = self._bound(name)
        pairs = {pair for task in bound for pair in self.devices(task).items()}
        devices, gpus = {device for _, device in pairs}, {gpu for gpu, _ in pairs}
        held_twice = len(pairs) > min(len(devices), len(gpus))
        return {task for task in bound
                if held_twice or not (own := self.devices(task)) or not held.issuperset(own.values())}  # fmt: skip

    def _bound(self, node: str) -> list[Task]:
        """The bound pods that share GPUs of a node, except those that a simulation bound."""
        return [task for task in self.sharers(node) if task.pod.spec.node_name and task.uid not in self.simulated]

    def lacking(self, node: str) -> list[int]:
        """The GPUs of bound pods with known devices that no reservation pod holds.

        A pod from the time of `separate` has indices in place of devices.
        """
        held = self.held(node)
        return sorted({gpu for task in self._bound(node) for gpu, device in self.devices(task).items()
                       if device not in held and not device.isdecimal()})  # fmt: skip

    def held(self, node: str) -> set[str | None]:
        """The devices that reservation pods of a node hold. None is one that is not reported yet."""
        return _devices(self.known(node))

    def _gpu(self, pod: Pod) -> int | None:
        return reserved_gpu(pod, self._arguments.namespace)

    def _resource(self, node: Node) -> str:
        for resource in self._resources:
            with suppress(QuantityError):
                if parse_quantity(node.status.allocatable.get(resource, 0)) > 0:
                    return resource
        return self._resources[0]

    # ------------------------------------------------------------------ requests

    async def create(self, cluster: Cluster, node: str, gpu: int) -> Pod:
        """Create a reservation pod. Raises ReservationError or ClusterError."""
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
        self.remember(created)
        return created

    async def read(self, cluster: Cluster, pod: Pod) -> Pod | None:
        """The current state of a reservation pod; None if it is gone."""
        try:
            fresh = await cluster.get(Pod, pod.metadata.namespace, pod.metadata.name)
        except NotFound:
            self.forget(pod)
            return None
        self.remember(fresh)
        return fresh

    async def delete(self, cluster: Cluster, pod: Pod) -> bool:
        """Delete a reservation pod unless it has changed since it was read. Returns whether it is being deleted."""
        if pod.metadata.deletion_timestamp is not None:
            return True
        try:
            await cluster.delete(pod, resource_version=pod.metadata.resource_version)
        except NotFound:
            self.forget(pod)
            return False
        except Conflict:
            await self.read(cluster, pod)
            return False
        return True

    async def end(self, cluster: Cluster, pod: Pod) -> None:
        """Delete a reservation pod that has ended. It holds nothing and does not start again, whatever its version."""
        if pod.terminal:
            with suppress(NotFound, Conflict):
                await cluster.delete(pod, grace_seconds=0)
            self.forget(pod)

    async def ended(self, cluster: Cluster) -> Sequence[Pod]:
        """The reservation pods of the API server that have ended, which the watch does not show."""
        found = await cluster.list(Pod, labels=MANAGED, namespace=self._arguments.namespace, keep=self._has_ended)
        return found.items

    def _has_ended(self, pod: Pod) -> bool:
        return pod.terminal and self._gpu(pod) is not None

    def remember(self, pod: Pod) -> None:
        """Note a state of a reservation pod that the watch may not show yet."""
        node, name = pod.spec.node_name, pod.metadata.name
        self._written.setdefault(node, {})[name] = pod, self.watched(node).get(name)

    def forget(self, pod: Pod) -> None:
        """Note that a reservation pod is gone, which the watch may not show yet."""
        name = pod.metadata.name
        self._written.get(pod.spec.node_name, {}).pop(name, None)
        if (seen := self._nodes.get(pod.spec.node_name)) is not None:
            seen.reservations.pop(name, None)


def share_held(cls: TaskClass) -> Share | None:
    """The share that a pod of the class counts as; None if it shares no GPU."""
    return next((key for key in cls.footprint if isinstance(key, Share)), None)


def is_live(pod: Pod) -> bool:
    """Whether a reservation pod holds its GPU, and continues to hold it."""
    return not pod.terminal and pod.metadata.deletion_timestamp is None


def _gpus(task: Task) -> tuple[int, ...]:
    """The GPUs of a pod on a node; EVERY if they are unknown."""
    if GIVEN in task.counts:
        return gpus_of(task.counts)
    share = share_held(task.cls)
    return (share is not None and given_to(task.pod.metadata, share)) or (EVERY,)


def _devices(pods: Mapping[str, Pod]) -> set[str | None]:
    return {reported_device(pod) for pod in pods.values() if is_live(pod)}


def _by_age(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.name
