"""A whole scheduler with the fluence plugin over a cluster in memory."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.tools.real_engine import engine as engine

from fluence_plugins.fluence.graph.accounting import CORE_MILLICORES, MOST_PARTS
from fluence_plugins.fluence.matching.jobspecs import compute_jobspec_text
from fluence_plugins.fluence.plugin import FluencePlugin
from fluxion_cy import Busy, Unsatisfiable
from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.objects import Node, Pod
from session_scheduler.offline.simulate import place_all
from session_scheduler.offline.state import open_state, read_state
from session_scheduler.registry.registry import Registry

RESOURCES = """
resources:
  - type: qdevice
    name: aurora
    attributes: {region: east, vendor: a}
    with: [{type: qpu, with: [{type: qubit, count: 4}]}]
  - type: qdevice
    name: borealis
    attributes: {region: west, vendor: b}
    with: [{type: qpu, count: 2}]
  - {type: licence, name: solver, count: 3, attributes: {vendor: b}}
"""


def node(name: str, cpu: str = "4", memory: str = "8Gi", **more: str) -> dict[str, Any]:
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110", **more}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}


def pod(
    name: str,
    requests: dict[str, str] | None = None,
    *,
    group: str | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    asked = {"cpu": "1"} | (requests or {})
    if group is not None:
        spec["schedulingGroup"] = {"podGroupName": group}
    container = {"name": "c", "resources": {"requests": asked, "limits": asked}, **spec.pop("container", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"schedulerName": "fluence", "containers": [container], **spec},
    }


def gang(name: str, min_count: int) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}},
    }


def device(kind: str, number: int = 1) -> dict[str, str]:
    return {f"fluxion.flux-framework.org/{kind}": str(number)}


class World:
    """A cluster that receives objects and returns their placements."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.arguments: dict[str, Any] = {}
        self.scheduler: Scheduler
        self.result: dict[str, Any] = {}

    def config(self) -> SchedulerConfig:
        path = self._folder / "resources.yaml"
        if not path.exists():
            path.write_text(RESOURCES)
        arguments = {"resources": str(path), **self.arguments}
        plugins = (PluginConfig(name="fluence", args={k: v for k, v in arguments.items() if v is not None}),)
        return SchedulerConfig(profiles=(Profile(plugins=plugins),))

    async def place(self, *objects: dict[str, Any]) -> dict[str, Any]:
        file = self._folder / "objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        self.scheduler = await open_state(await read_state([str(file)]), self.config())
        self.result = await place_all(self.scheduler)
        return self.result

    def advance(self, seconds: float) -> None:
        """Advance the scheduler's clock."""
        clock = self.scheduler.clock
        assert isinstance(clock, StoppedClock)
        clock.advance(seconds)

    async def restarted(self) -> Scheduler:
        """A new scheduler on the cluster's current objects: only the API server's state survives."""
        old = self.scheduler.cluster
        objects: Iterable[Any] = [*(await old.list(Node)).items, *(await old.list(Pod)).items]
        config = self.config()
        self.scheduler = Scheduler(MemoryCluster(objects), config, Registry(BUILTIN).load_calls(config), StoppedClock())
        await self.scheduler.start()
        return self.scheduler

    @property
    def plugin(self) -> FluencePlugin:
        found = self.scheduler.profiles["fluence"].instances["fluence"]
        assert isinstance(found, FluencePlugin)
        return found

    def pod(self, name: str) -> dict[str, Any]:
        return next(pod for pod in self.result["pods"] if pod["name"] == name)

    async def live_pod(self, name: str) -> Pod:
        return await self.scheduler.cluster.get(Pod, "default", name)

    def free_cores(self) -> int:
        """For how many pods of one core the graph has a match."""
        live = self.plugin.live
        shape = live.accounting.shape_of({"cpu": CORE_MILLICORES})

        def is_too_much(pods: int) -> bool:
            try:
                job = live.allocations.match(compute_jobspec_text(shape, pods))
            except (Busy, Unsatisfiable):
                return True
            live.allocations.retract([job.jobid], (), job.jobid)
            return False

        return bisect_left(range(1, 1 + MOST_PARTS), True, key=is_too_much)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
