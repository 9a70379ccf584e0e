"""Complete pods and nodes as JSON, for HTTP extenders: the model has only the fields that the scheduler reads.

Nodes are kept until their resourceVersion changes, since many questions are about the same nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from session_scheduler.base.gathering import all_of
from session_scheduler.cluster.dynamic_client import KubeApi
from session_scheduler.cluster.errors import NotFound
from session_scheduler.model.objects import Node, Pod

_FEW: Final = 16
"""Up to this many nodes are read one by one; more are listed."""
_AT_ONCE: Final = 32
"""Pods that are read at the same time."""


class FullObjects(Protocol):
    """A source of complete objects."""

    async def pod(self, pod: Pod) -> msgspec.Raw:
        """The pod. Raises ClusterError: NotFound if it is gone."""

    async def nodes(self, nodes: Mapping[str, Node]) -> dict[str, msgspec.Raw]:
        """These nodes by name, except those that are gone. Raises ClusterError."""

    async def close(self) -> None:
        """End requests in flight."""


class KnownObjects:
    """The objects as the scheduler knows them: for a cluster in memory."""

    async def pod(self, pod: Pod) -> msgspec.Raw:
        """See `FullObjects`."""
        return msgspec.Raw(msgspec.json.encode(pod))

    async def nodes(self, nodes: Mapping[str, Node]) -> dict[str, msgspec.Raw]:
        """See `FullObjects`."""
        return {name: msgspec.Raw(msgspec.json.encode(node)) for name, node in nodes.items()}

    async def close(self) -> None:
        """See `FullObjects`."""


class _Meta(msgspec.Struct):
    name: str
    uid: str
    resource_version: str = msgspec.field(name="resourceVersion")


class _Object(msgspec.Struct):
    metadata: _Meta


class ApiObjects:
    """The objects as the API server has them."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._nodes: dict[str, tuple[str, msgspec.Raw]] = {}
        """By name: resourceVersion and JSON."""
        self._reading: dict[str, asyncio.Future[None]] = {}
        """The requests in flight: by node, or "" for all nodes."""
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def close(self) -> None:
        """See `FullObjects`."""
        reading = list(self._reading.values())
        for one in reading:
            one.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    async def pod(self, pod: Pod) -> msgspec.Raw:
        """See `FullObjects`."""
        path = f"api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
        async with self._slots:
            text = await self._api.client.read(path, what=f"pod {pod.key}")
        if msgspec.json.decode(text, type=_Object).metadata.uid != pod.metadata.uid:
            raise NotFound(f"pod {pod.key} was recreated")
        return msgspec.Raw(text)

    async def nodes(self, nodes: Mapping[str, Node]) -> dict[str, msgspec.Raw]:
        """See `FullObjects`."""
        old = [name for name, node in nodes.items()
               if name not in self._nodes or self._nodes[name][0] != node.metadata.resource_version]  # fmt: skip
        if len(old) > _FEW:
            await self._read("")
        else:
            await all_of(map(self._read, old))
        return {name: self._nodes[name][1] for name in nodes if name in self._nodes}

    async def _read(self, name: str) -> None:
        """Read a node, or all nodes if `name` is "": once for all callers that wait for that."""
        if name not in self._reading:
            self._reading[name] = reading = asyncio.ensure_future(self._get(name) if name else self._list())
            reading.add_done_callback(lambda _: self._reading.pop(name))
        await asyncio.shield(self._reading[name])

    async def _get(self, name: str) -> None:
        """Read one node by a list, since the scheduler's account has no permission to get nodes."""
        found = await self._api.list("/api/v1/nodes", msgspec.Raw, fields=f"metadata.name={name}")
        if not found:
            self._nodes.pop(name, None)
        self._keep(found)

    async def _list(self) -> None:
        found = await self._api.list("/api/v1/nodes", msgspec.Raw)
        self._nodes.clear()
        self._keep(one.copy() for one in found)  # a part of a page would keep the whole page in memory

    def _keep(self, found: Iterable[msgspec.Raw]) -> None:
        for text in found:
            metadata = msgspec.json.decode(text, type=_Object).metadata
            self._nodes[metadata.name] = metadata.resource_version, text
