"""The cluster in memory passes the port suite."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.cluster.port import Cluster
from session_scheduler.model.objects import KubeObject, Node, ObjectMeta
from session_scheduler.model.related import RELATED_KINDS
from session_scheduler.model.workload_objects import WORKLOAD_KINDS

from .port_suite import PortSuite


class MemoryHarness:
    """A cluster in memory with a single node."""

    def __init__(self) -> None:
        self.memory = MemoryCluster([Node(metadata=ObjectMeta(name="node"))])
        self.cluster: Cluster = self.memory
        self.namespace = "suite"

    async def too_old(self, kind: type[KubeObject]) -> str:
        version = (await self.cluster.list(kind)).resource_version
        self.memory.put(Node(metadata=ObjectMeta(name="other")))
        self.memory.put(kind(metadata=ObjectMeta(name="other", namespace=self.namespace)))
        self.memory.forget_history()
        return version

    async def make(self, manifest: dict[str, Any]) -> None:
        kinds: dict[str, Any] = {kind.__name__: kind for kind in (*WORKLOAD_KINDS, *RELATED_KINDS)}
        await self.cluster.create(msgspec.convert(manifest, kinds[manifest["kind"]]))


class TestMemoryPort(PortSuite):
    """Every test of the suite, in memory."""

    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()
