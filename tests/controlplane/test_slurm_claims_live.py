"""Claims for devices that Slurm allocated, on a real control plane with the scheduler's own rights.

The tests create the shares; slices, classes, admission of claims and their deallocation are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pytest

from fluence_plugins.slurm_bridge.devices.resource_claims import claim
from fluence_plugins.slurm_bridge.slurm.model import Gres, NodeShare
from session_scheduler.cluster.kubernetes import KubernetesCluster, connect
from session_scheduler.errors import AttemptError
from session_scheduler.framework.bindings import Binding
from session_scheduler.model.devices import CLASS_PREFIX, DEVICE_KINDS, ResourceClaim
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod

from .harness import SCHEDULER
from .invariants import Manifest
from .scenarios_world import Scenario

_API = "resource.k8s.io/v1"
NVIDIA = "gpu.nvidia.com"
CPU = "dra.cpu"


def indexed(type_: str, indices: tuple[int, ...]) -> Gres:
    return Gres(name="gpu", type=type_, count=len(indices), indices=indices)


def gave(gres: tuple[Gres, ...] = (), cores: tuple[int, ...] = ()) -> NodeShare:
    return NodeShare(node="slurm-1", cores=cores, gres=gres, memory_mib=0)


class Claimer:
    """Creates claims as `prebind` does; it lists the cluster before each claim."""

    def __init__(self, scenario: Scenario, cluster: KubernetesCluster) -> None:
        self._scenario = scenario
        self._cluster = cluster
        self._seen: dict[type[Any], dict[str, Any]] = {}

    async def look(self) -> None:
        """Read the current devices, classes and claims."""
        for kind in DEVICE_KINDS:
            self._seen[kind] = {one.key: one for one in (await self._cluster.list(kind)).items}

    async def claim(self, name: str, node: str, share: NodeShare, *, look: bool = True) -> None:
        """Give a pod the devices that Slurm allocated on the node."""
        if look:
            await self.look()
        pod = await self._cluster.get(Pod, self._scenario.namespace, name)
        task = Task(pod, None, None)  # type: ignore[arg-type]
        await claim(Binding(task, node, {}, self._cluster, lambda kind: self._seen[kind]), share)

    async def bind(self, name: str, node: str) -> None:
        """Bind it, as the scheduler does afterwards."""
        pod = await self._cluster.get(Pod, self._scenario.namespace, name)
        await self._cluster.bind(self._scenario.namespace, name, node=node, uid=pod.metadata.uid, annotations={},
                                 resource_version=pod.metadata.resource_version)  # fmt: skip

    async def claims(self) -> list[ResourceClaim]:
        """Return the scenario's current claims."""
        found = (await self._cluster.list(ResourceClaim)).items
        return [one for one in found if one.metadata.namespace == self._scenario.namespace]


@pytest.fixture
async def claimer(scenario: Scenario) -> AsyncIterator[Claimer]:
    async with await connect(str(scenario.plane.kubeconfig(SCHEDULER))) as cluster:
        yield Claimer(scenario, cluster)


def publish(scenario: Scenario, driver: str, *devices: Manifest) -> str:
    """Create a node with a slice of the driver's devices, and the driver's class; return the node."""
    node = scenario.add_node(cpu=64, devices=0)
    path = f"/apis/{_API}/deviceclasses/{driver}"
    if scenario.plane.request("GET", path)[0] != HTTPStatus.OK:
        expression = f'device.driver == "{driver}"'
        scenario.plane.create({"apiVersion": _API, "kind": "DeviceClass", "metadata": {"name": driver},
                               "spec": {"selectors": [{"cel": {"expression": expression}}]}})  # fmt: skip
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    scenario.plane.create({"apiVersion": _API, "kind": "ResourceSlice", "metadata": {"name": f"{node}-{driver}"},
                           "spec": {"driver": driver, "nodeName": node, "pool": pool,
                                    "devices": list(devices)}})  # fmt: skip
    return node


def gpus(*indices: int) -> list[Manifest]:
    return [{"name": f"gpu-{index}"} for index in indices]


def create(scenario: Scenario, name: str, **amounts: int) -> None:
    """Create a pod that requests devices of classes, and that only the test binds."""
    asked = {CLASS_PREFIX + key.replace("_", "."): str(amount) for key, amount in amounts.items()}
    containers = [{"name": "main", "image": "example.com/none", "resources": {"requests": asked, "limits": asked}}]
    scenario.create_pod(name, schedulerName="slurm-bridge-scheduler", containers=containers)


def devices_of(found: ResourceClaim) -> list[tuple[str, str]]:
    allocation = found.status.allocation
    return [(one.pool, one.device) for one in allocation.devices.results] if allocation is not None else []


async def test_a_pod_has_the_devices_that_slurm_gave_and_they_are_free_once_it_is_gone(
    scenario: Scenario, claimer: Claimer
) -> None:
    node = publish(scenario, NVIDIA, *gpus(0, 1, 2, 3))
    create(scenario, "p", gpu_nvidia_com=2)
    await claimer.claim("p", node, gave((indexed(NVIDIA, (1, 3)),)))
    await claimer.bind("p", node)
    (found,) = await claimer.claims()
    assert devices_of(found) == [(node, "gpu-1"), (node, "gpu-3")]
    assert [one.name for one in found.status.reserved_for] == ["p"]
    named = scenario.pod("p")["status"]["extendedResourceClaimStatus"]
    (request,) = found.spec.devices.requests
    assert named == {"resourceClaimName": found.metadata.name, "requestMappings": [
        {"containerName": "main", "resourceName": CLASS_PREFIX + NVIDIA, "requestName": request.name}]}  # fmt: skip
    scenario.delete_pod("p")
    async with asyncio.timeout(60):
        while await claimer.claims():  # noqa: ASYNC110 (the garbage collector sends no event)
            await asyncio.sleep(0.1)


async def test_another_try_meets_the_claim_whatever_it_has_seen_of_it(scenario: Scenario, claimer: Claimer) -> None:
    node = publish(scenario, NVIDIA, *gpus(0, 1))
    create(scenario, "p", gpu_nvidia_com=1)
    share = gave((indexed(NVIDIA, (1,)),))
    await claimer.claim("p", node, share)
    (before,) = await claimer.claims()
    await claimer.claim("p", node, share)
    (after,) = await claimer.claims()
    assert (after.metadata.uid, after.status) == (before.metadata.uid, before.status)


async def test_tries_that_see_nothing_of_each_other_make_one_claim(scenario: Scenario, claimer: Claimer) -> None:
    node = publish(scenario, NVIDIA, *gpus(0, 1))
    create(scenario, "p", gpu_nvidia_com=1)
    share = gave((indexed(NVIDIA, (1,)),))
    await claimer.look()
    tries = [asyncio.create_task(claimer.claim("p", node, share, look=False)) for _ in range(3)]
    while not all(one.done() for one in tries):
        await claimer.look()
        await asyncio.sleep(0.01)
    assert [one.exception() for one in tries] == [None, None, None]
    (found,) = await claimer.claims()
    assert devices_of(found) == [(node, "gpu-1")]


async def test_where_slurm_gives_another_node_the_claim_moves_there(scenario: Scenario, claimer: Claimer) -> None:
    nodes = [publish(scenario, NVIDIA, *gpus(0, 1)) for _ in range(2)]
    create(scenario, "p", gpu_nvidia_com=1)
    await claimer.claim("p", nodes[0], gave((indexed(NVIDIA, (0,)),)))
    await claimer.claim("p", nodes[1], gave((indexed(NVIDIA, (1,)),)))
    await claimer.bind("p", nodes[1])
    (found,) = await claimer.claims()
    assert devices_of(found) == [(nodes[1], "gpu-1")]
    create(scenario, "q", gpu_nvidia_com=1)
    with pytest.raises(AttemptError, match=f"gpu-1 is still allocated to ResourceClaim {found.key}"):
        await claimer.claim("q", nodes[1], gave((indexed(NVIDIA, (1,)),)))
    await claimer.claim("q", nodes[0], gave((indexed(NVIDIA, (0,)),)))


async def test_cpus_are_those_of_slurms_cores(scenario: Scenario, claimer: Claimer) -> None:
    every = [
        {"name": f"cpu-{n}", "attributes": {"dra.cpu/cpuID": {"int": n}, "dra.cpu/coreID": {"int": n % 4},
                                            "dra.cpu/socketID": {"int": 0}}}
        for n in range(8)
    ]  # fmt: skip
    node = publish(scenario, CPU, *every)
    create(scenario, "p", dra_cpu=4)
    await claimer.claim("p", node, gave(cores=(1, 2)))
    (found,) = await claimer.claims()
    assert devices_of(found) == [(node, f"cpu-{n}") for n in (1, 2, 5, 6)]
    create(scenario, "many", dra_cpu=5)
    why = f"only 4 of 5 devices of class {CPU} that Slurm allocated on node {node} are available"
    with pytest.raises(AttemptError, match=why):
        await claimer.claim("many", node, gave(cores=(1, 2)))


async def test_a_whole_nodes_share_with_classes_beside_each_other(scenario: Scenario, claimer: Claimer) -> None:
    node = publish(scenario, NVIDIA, *gpus(*range(4)))
    devices = [{"name": f"x-{n}", "attributes": {"index": {"int": 1 - n}}} for n in range(2)]
    other = f"{scenario.namespace}.example.com"
    spare = publish(scenario, other, *devices)
    create(scenario, "p", gpu_nvidia_com=1)
    create(scenario, "x", **{other.replace(".", "_"): 1})
    whole = gave((indexed(NVIDIA, (0, 1, 2, 3)), indexed(other, (0, 1))), cores=tuple(range(64)))
    await claimer.claim("p", node, whole)
    await claimer.claim("x", spare, whole)
    had = {one.status.reserved_for[0].name: devices_of(one) for one in await claimer.claims()}
    assert had == {"p": [(node, "gpu-0")], "x": [(spare, "x-1")]}
