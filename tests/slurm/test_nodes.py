"""Nodes of a cluster in memory and of a real Slurm are kept in step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from fluence_plugins.slurm_bridge.names import (
    EXTERNAL_NODE_LABEL,
    MANAGED_TAINT,
    NODE_NAME_LABEL,
    PARTITIONS_ANNOTATION,
    SCHEDULER_NAME,
    TOPOLOGY_ANNOTATION,
)
from fluence_plugins.slurm_bridge.nodes.controller import NodeController, NodeSettings
from fluence_plugins.slurm_bridge.nodes.external_nodes import NodeRules, mark_of
from fluence_plugins.slurm_bridge.slurm.client import Connection, SlurmClient
from fluence_plugins.slurm_bridge.slurm.model import SlurmNode
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.framework.bindings import Runtime
from session_scheduler.model.objects import KubeObject, Node, Taint
from session_scheduler.testing import node

from .peer import PARTITION, SlurmPeer

NAME = "k8s-16"
OWN = Taint(key=MANAGED_TAINT, value=SCHEDULER_NAME, effect="NoExecute")
PATIENCE = 30.0


def kube(
    *,
    wanted: bool = True,
    cordoned: bool = False,
    cpu: str = "8",
    gpus: str = "2",
    called: str = NAME,
    said: Mapping[str, str] | None = None,
) -> Node:
    """The node as Kubernetes has it."""
    labels = {NODE_NAME_LABEL: called} | ({EXTERNAL_NODE_LABEL: ""} if wanted else {})
    made = node("worker", cpu=cpu, memory="32000Mi", labels=labels)
    allocatable = made.status.allocatable | {"nvidia.com/gpu": gpus}
    return replace(
        made,
        metadata=replace(made.metadata, annotations=dict(said or {})),
        spec=replace(made.spec, unschedulable=cordoned),
        status=replace(made.status, allocatable=allocatable),
    )


class World:
    """A cluster in memory, and what keeps its nodes in step with Slurm."""

    def __init__(self, peer: SlurmPeer, client: SlurmClient) -> None:
        self.peer = peer
        self.client = client
        self.cluster = MemoryCluster([kube()])
        self.reported: list[str] = []

    async def serve(self) -> None:
        runtime = Runtime(lambda *_: None, lambda: True, self.cluster, tell=self._report)  # codespell:ignore tell
        rules = NodeRules(partition=PARTITION, address="127.0.0.1")
        settings = NodeSettings(rules=rules, cluster="tests", period=0.1, again=0.1, rest=0.05)
        await NodeController(self.cluster, self.client, runtime, settings).run()

    def _report(self, about: KubeObject, reason: str, note: str) -> None:
        self.reported.append(note)

    def put(self, made: Node) -> None:
        """The node as Kubernetes has it from now on, with the taints that it has."""
        self.cluster.put(replace(made, spec=replace(made.spec, taints=self.taints)))

    @property
    def taints(self) -> tuple[Taint, ...]:
        (there,) = self.cluster.objects(Node)
        return there.spec.taints

    async def until(self, true: Callable[[dict[str, SlurmNode]], bool]) -> dict[str, SlurmNode]:
        """Slurm's nodes, once it is so."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found = {one.name: one for one in await self.client.nodes()}
                if true(found):
                    return found
                await asyncio.sleep(0.05)

    async def job(self, **fields: Any) -> int:
        """Somebody's job, once it runs on the node."""
        number = await asyncio.to_thread(lambda: self.peer.submit(**fields))
        await self.until(lambda found: found[NAME].allocated_cpus > 0)
        return number

    async def end(self, number: int) -> None:
        await asyncio.to_thread(self.peer.cancel, number)


@pytest.fixture
async def world(peer: SlurmPeer) -> AsyncIterator[World]:
    values = {"url": peer.url, "token_file": str(peer.token_file)}
    async with SlurmClient(Connection.model_validate(values)) as client:
        made = World(peer, client)
        task = asyncio.ensure_future(made.serve())
        yield made
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def made_and_ours(found: dict[str, SlurmNode]) -> bool:
    return NAME in found and found[NAME].comment == mark_of("tests") and not found[NAME].drained


async def test_a_labelled_node_is_made_with_what_it_has_and_taken_away_with_its_label(world: World) -> None:
    there = (await world.until(made_and_ours))[NAME]
    assert (there.cpus, there.memory_mib, there.gres, there.external) == (8, 32000, "gpu:2", True)
    assert (there.features, there.partitions, there.address) == ((PARTITION,), (PARTITION,), "127.0.0.1")
    await world.until(lambda _: world.taints == (OWN,))
    number = await world.job(tres_per_node="gres/gpu=2")
    world.put(kube(wanted=False))
    busy = await world.until(lambda found: found[NAME].drained)
    assert busy[NAME].reason == f"slurm-bridge: removing external node {NAME}"
    assert world.taints == (OWN,)
    await world.end(number)
    await world.until(lambda found: NAME not in found)
    await world.until(lambda _: world.taints == ())
    assert world.reported == []


async def test_a_node_with_another_size_is_made_again_once_its_jobs_have_ended(world: World) -> None:
    await world.until(made_and_ours)
    number = await world.job()
    world.put(kube(cpu="16", gpus="4"))
    draining = await world.until(lambda found: found[NAME].drained)
    assert "CPUs 8 → 16, GRES gpu:2 → gpu:4" in draining[NAME].reason
    assert draining[NAME].cpus == 8
    await world.end(number)
    changed = await world.until(lambda found: made_and_ours(found) and found[NAME].cpus == 16)
    assert changed[NAME].gres == "gpu:4"
    assert await world.job(tres_per_node="gres/gpu=4")
    assert world.reported == []


async def test_a_cordon_drains_and_a_drain_of_somebody_else_stays(world: World) -> None:
    await world.until(made_and_ours)
    world.put(kube(cordoned=True))
    drained = await world.until(lambda found: found[NAME].drained)
    assert drained[NAME].reason == "slurm-bridge: Kubernetes node worker is unschedulable"
    world.put(kube())
    await world.until(made_and_ours)
    await world.client.update_node(NAME, state="DRAIN", reason="disk broken")
    world.put(kube(cordoned=True, said={TOPOLOGY_ANNOTATION: "default:s1"}))
    await world.until(lambda found: found[NAME].topology == "default:s1")
    world.put(kube(said={TOPOLOGY_ANNOTATION: "default:s2"}))
    left = await world.until(lambda found: found[NAME].topology == "default:s2")
    assert (left[NAME].drained, left[NAME].reason) == (True, "disk broken")
    world.put(kube())
    await world.until(lambda found: found[NAME].topology == "")


async def test_what_slurm_does_not_know_is_told_and_holds_the_node_up_until_it_is_mended(world: World) -> None:
    await world.until(made_and_ours)
    world.put(kube(called="k8s-17", said={PARTITIONS_ANNOTATION: "nope"}))
    await world.until(lambda found: NAME not in found and bool(world.reported))
    assert "Slurm has no partition nope" in world.reported[-1]
    world.put(kube(called="k8s-17", said={TOPOLOGY_ANNOTATION: "nope:s1"}))
    await world.until(lambda _: len(world.reported) > 1)
    assert "Requested topology configuration is not available" in world.reported[-1]
    world.put(kube(called="k8s-17"))
    found = await world.until(lambda found: "k8s-17" in found)
    assert found.keys() == {"k8s-17"}
    assert len(world.reported) == 2


async def test_slurm_knows_after_a_restart_which_nodes_are_ours(world: World) -> None:
    await world.until(made_and_ours)
    await asyncio.to_thread(world.peer.restart_controller)
    await world.until(made_and_ours)
    world.put(kube(wanted=False))
    await world.until(lambda found: NAME not in found)
    assert world.reported == []
