"""A partition: the part of a cluster that one of several schedulers lists and watches. See docs/adr/0052.

    partition = Partition(cluster, config.partition, config.scheduler_names, loop.deliver)
    mirror = Mirror(partition, KINDS, partition.deliver, clock=clock)
    await mirror.start()
    await partition.run(mirror)  # while `mirror.run()` runs

The API server selects nodes and queues by their labels. It cannot select pods by their node's labels, so all pods
arrive here. Pods of other schedulers that are not on the partition's nodes are dropped at once. When a node joins the
partition, its pods are listed before the scheduler learns of the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Final, TypeVar

import msgspec
import structlog

from session_scheduler.base.backoff import backoff
from session_scheduler.cluster.errors import ClusterError
from session_scheduler.cluster.mirror import Mirror
from session_scheduler.cluster.port import Change, Cluster, Kube, Listing, WatchEvent, has_labels
from session_scheduler.config.partition import PartitionConfig
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.model.devices import ResourceSlice
from session_scheduler.model.objects import KubeObject, Node, Pod, PortObject
from session_scheduler.model.queue_objects import Queue

_log = structlog.get_logger(__name__)
_Object = TypeVar("_Object", bound=PortObject)
SETTLE_SECONDS: Final = 2.0
"""How long a joining node is not used: the scheduler of its previous partition may have Bindings in flight."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
"""Seconds between two tries to list a node's pods."""


class _Joining(msgspec.Struct, eq=False):
    """A node whose pods are not known yet, as it was last reported."""

    node: Node


class Scope:
    """Which objects a scheduler of a partition keeps. `nodes` are the names of the partition's nodes."""

    def __init__(self, config: PartitionConfig, scheduler_names: Iterable[str], nodes: Iterable[str] = ()) -> None:
        self.labels = config.node_selector
        self.nodes = set(nodes)
        self._scheduler_names = frozenset(scheduler_names)
        self._pools = frozenset(config.device_pools)

    def keeps(self, obj: PortObject) -> bool:
        """Whether the object matters to the partition's scheduler."""
        if isinstance(obj, Pod):
            return obj.spec.node_name in self.nodes or obj.spec.scheduler_name in self._scheduler_names
        if isinstance(obj, Node | Queue):
            return has_labels(obj, self.labels)
        return not isinstance(obj, ResourceSlice) or self._may_allocate(obj)

    def _may_allocate(self, part: ResourceSlice) -> bool:
        """Whether the devices are on one node each, or the configuration names their pool."""
        spec = part.spec
        local = bool(spec.node_name) or (
            bool(spec.per_device_node_selection) and all(device.node_name for device in spec.devices)
        )
        return local or f"{spec.driver}/{spec.pool.name}" in self._pools


def partition_of(objects: Iterable[_Object], config: SchedulerConfig) -> list[_Object]:
    """The objects that matter to the scheduler with this configuration; without a partition, all."""
    objects = list(objects)
    if config.partition is None:
        return objects
    labels = config.partition.node_selector
    nodes = [obj.metadata.name for obj in objects if isinstance(obj, Node) and has_labels(obj, labels)]
    return list(filter(Scope(config.partition, config.scheduler_names, nodes).keeps, objects))


class Partition:
    """Reads a partition of a cluster; implements `port.Reader`. `deliver` gets the mirror's changes."""

    def __init__(
        self,
        cluster: Cluster,
        config: PartitionConfig,
        scheduler_names: Iterable[str],
        deliver: Callable[[Change, KubeObject], None],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._scope = Scope(config, scheduler_names)
        self._deliver = deliver
        self._sleep = sleep
        self._nodes_listed = asyncio.Event()
        self._listing = asyncio.Lock()
        """Held by each list of pods: no node joins during it, so at its end it covers all nodes of the partition."""
        self._joining: dict[str, _Joining] = {}
        self._joined: asyncio.Queue[_Joining] = asyncio.Queue()
        self._mirror: Mirror | None = None

    def serves(self, node: str) -> bool:
        """Whether the node (its name) is in the partition, as far as known."""
        return node in self._scope.nodes

    def forget_nodes(self) -> None:
        """Forget all nodes, because the start of the mirror was cancelled: nodes may have joined or left since."""
        self._scope.nodes.clear()
        self._nodes_listed.clear()

    # ------------------------------------------------------------------ the mirror's source

    async def list(self, kind: type[Kube]) -> Listing[Kube]:
        """See `port.Cluster`."""
        if kind is not Pod:
            listing = await self._cluster.list(kind, labels=self._labels_of(kind), keep=self._scope.keeps)
            if kind is Node and not self._nodes_listed.is_set():
                self._scope.nodes.update(obj.metadata.name for obj in listing.items)
                self._nodes_listed.set()
            return listing
        await self._nodes_listed.wait()
        async with self._listing:
            listing = await self._cluster.list(kind, keep=self._scope.keeps)
        # nodes may have left meanwhile
        return Listing(tuple(filter(self._scope.keeps, listing.items)), listing.resource_version)

    async def watch(self, kind: type[Kube], resource_version: str) -> AsyncGenerator[WatchEvent[Kube], None]:
        """See `port.Cluster`. Objects that are not kept become deletions, because they may have been kept before.

        Pods become bookmarks, because a pod that was kept stays relevant whatever changes. (`Mirror.add` counts
        deletions of pods.)
        """
        async with aclosing(self._cluster.watch(kind, resource_version, labels=self._labels_of(kind))) as events:
            async for event in events:
                if event.object is None or event.change is Change.DELETED or self._scope.keeps(event.object):
                    yield event
                elif kind is Pod:
                    yield WatchEvent(Change.BOOKMARK, None, event.resource_version)
                else:
                    yield WatchEvent(Change.DELETED, event.object, event.resource_version)

    def _labels_of(self, kind: type[Kube]) -> dict[str, str | None]:
        return dict(self._scope.labels) if kind in (Node, Queue) else {}

    # ------------------------------------------------------------------ nodes that join and leave

    def deliver(self, change: Change, obj: KubeObject) -> None:
        """Pass a change of the mirror on; a new node only when its pods are known."""
        if not isinstance(obj, Node):
            self._deliver(change, obj)
        elif change is Change.DELETED:
            self._leave(obj)
        elif change is Change.ADDED:
            self._scope.nodes.add(obj.metadata.name)
            joining = self._joining[obj.metadata.name] = _Joining(obj)
            self._joined.put_nowait(joining)
        elif obj.metadata.name in self._joining:
            self._joining[obj.metadata.name].node = obj
        else:
            self._deliver(change, obj)

    def _leave(self, node: Node) -> None:
        name = node.metadata.name
        self._scope.nodes.discard(name)
        if self._joining.pop(name, None) is None:
            self._deliver(Change.DELETED, node)  # before its pods: the node must not look empty
        if self._mirror is not None:
            self._mirror.drop(Pod, self._scope.keeps)

    async def run(self, mirror: Mirror) -> None:
        """Let nodes join, until cancelled. `mirror` reads from this partition. May be called again afterwards."""
        self._mirror = mirror
        mirror.drop(Pod, self._scope.keeps)  # of nodes that have left before
        self._joined = asyncio.Queue()  # `_joining` has all nodes that have not joined yet
        async with asyncio.TaskGroup() as group:
            for joining in list(self._joining.values()):
                group.create_task(self._let_join(joining, mirror))
            while True:
                group.create_task(self._let_join(await self._joined.get(), mirror))

    async def _let_join(self, joining: _Joining, mirror: Mirror) -> None:
        """List a node's pods, then deliver the node, unless it has left meanwhile."""
        name, failures = joining.node.metadata.name, 0
        await self._sleep(SETTLE_SECONDS)
        while self._is_joining(joining):
            try:
                async with self._listing:
                    await mirror.add(self._cluster.list(Pod, node=name, keep=self._scope.keeps), Pod)
            except ClusterError as error:
                _log.warning("cannot list the pods of a node that joins the partition", node=name, why=str(error))
                await self._sleep(backoff(_FIRST_PAUSE, failures, _LONGEST_PAUSE))
                failures += 1
            else:
                break
        if self._is_joining(joining):
            self._deliver(Change.ADDED, self._joining.pop(name).node)

    def _is_joining(self, joining: _Joining) -> bool:
        return self._joining.get(joining.node.metadata.name) is joining
