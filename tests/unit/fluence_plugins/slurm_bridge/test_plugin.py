"""The plugin in sessions of a real scheduler, and in its binds."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec import structs

from fluence_plugins.resources.ranges import ranges
from fluence_plugins.slurm_bridge.jobs.bridge import Facts
from fluence_plugins.slurm_bridge.jobs.job_table import PodJob
from fluence_plugins.slurm_bridge.jobs.node_cache import NodeCache
from fluence_plugins.slurm_bridge.jobs.submitter import JobRequest
from fluence_plugins.slurm_bridge.names import (
    CORES_ANNOTATION,
    GRES_ANNOTATION,
    NODE_ANNOTATION,
    NODE_NAME_LABEL,
)
from fluence_plugins.slurm_bridge.plugin import SlurmBridgePlugin, share_annotations
from fluence_plugins.slurm_bridge.slurm.errors import UnavailableError
from fluence_plugins.slurm_bridge.slurm.model import Gres, NodeShare
from session_scheduler.config.settings import DEFAULT_SCHEDULER_NAME
from session_scheduler.model.objects import Node, Pod
from session_scheduler.testing import FakeCluster, node, taint

from .sample_jobs import job


class World(FakeCluster):
    """A scheduler with the plugin. The test sets the state of the plugin's task."""

    def __init__(self, *, served: bool = True, names: dict[str, str] | None = None) -> None:
        super().__init__()
        said = {"url": "https://slurm", "tokenFile": "/token", "schedulerName": DEFAULT_SCHEDULER_NAME, "cluster": "c"}
        self.bridging = SlurmBridgePlugin(SlurmBridgePlugin.Arguments.model_validate(said))
        self.wants: list[JobRequest] = []
        self.known = Facts()
        bridge: Any = self.bridging._bridge
        bridge.request, bridge.facts = self.wants.append, lambda: self.known
        bridge._nodes = NodeCache(Mock(), bridge.metrics, 1.0, time.monotonic) if served else None
        self.use(self.bridging)
        for number in range(1, 5):
            called = {NODE_NAME_LABEL: names[f"n{number}"]} if names else {}
            self.add(node(f"n{number}", cpu="8", labels=called))

    def stand(self, job_id: int, nodes: tuple[str, ...] | None, *names: str, text: str = "") -> None:
        """Let Slurm have a job for these pods."""
        uids = tuple(self.find(Pod, name).metadata.uid for name in names)
        stand = PodJob(job_id, nodes, uids, text or f"Slurm job {job_id}")
        self.known = replace(self.known, pod_jobs={**self.known.pod_jobs, **dict.fromkeys(uids, stand)})
        bridge: Any = self.bridging._bridge
        if nodes is not None:
            bridge.table.jobs[job_id] = job(job_id, nodes=nodes)
            bridge._nodes._shares[job_id] = tuple(
                NodeShare(name, (0, 1, 2, 5), (Gres("gpu", "v100", 2, (0, 1)),), 100) for name in nodes
            )
            bridge._nodes.gres = dict.fromkeys(nodes, "")
            bridge._nodes._read_at = time.monotonic()

    def requeue(self, *groups: str) -> World:
        """Let the task report a change."""
        for group in groups:
            self.scheduler.queue.activate(group, self.clock.now())
        return self

    def on(self, *names: str) -> dict[str, str]:
        return {name: self.find(Pod, name).spec.node_name for name in names if self.find(Pod, name).spec.node_name}


def test_a_job_is_requested_with_the_nodes_that_its_pod_fits_on() -> None:
    world = World(names={"n1": "k1", "n2": "k2", "n3": "k3", "n4": "k4"})
    world.add(node("n5", taints=(taint("no"),)), node("n6", cpu="1"))
    world.pod("a", cpu="2").schedule()
    (want,) = world.wants
    assert want.candidates == ("k1", "k2", "k3", "k4")
    assert (want.group, want.needed) == ("Pod default/a", 1)
    assert want.uids == want.members == (world.find(Pod, "a").metadata.uid,)
    assert "a Slurm job is being submitted" in world.reasons("a")


def test_a_pod_reports_why_its_job_waits_or_is_missing() -> None:
    world = World()
    world.pods(2).schedule()
    world.stand(7, None, "p-0", text="Slurm job 7 is pending: Priority")
    world.known = replace(world.known, problems={"Pod default/p-1": "Slurm rejects the job: why"})
    world.requeue("Pod default/p-0", "Pod default/p-1").schedule()
    assert "Slurm job 7 is pending: Priority" in world.reasons("p-0")
    assert "Slurm rejects the job: why" in world.reasons("p-1")


def test_a_pod_goes_to_its_jobs_node_and_gets_its_share_as_annotations() -> None:
    world = World(names={"n1": "k1", "n2": "k2", "n3": "k3", "n4": "k4"})
    world.pod("a").schedule()
    world.stand(7, ("k3",), "a")
    world.requeue("Pod default/a").schedule()
    assert world.on("a") == {"a": "n3"}
    annotations = world.find(Pod, "a").metadata.annotations
    assert annotations[NODE_ANNOTATION] == "n3"
    assert annotations[CORES_ANNOTATION] == "0-2,5"
    assert annotations[GRES_ANNOTATION] == "gpu:v100(IDX:0-1)"


def test_a_gang_is_placed_in_the_order_of_its_jobs_pods() -> None:
    world = World()
    world.gang("g", 3).schedule()
    assert [len(want.uids) for want in world.wants] == [3]
    world.stand(7, ("n4", "n1", "n2"), "g-2", "g-0", "g-1")
    world.requeue("PodGroup default/g").schedule()
    assert world.on("g-0", "g-1", "g-2") == {"g-2": "n4", "g-0": "n1", "g-1": "n2"}


def test_pods_of_a_group_without_a_minimum_share_a_job_and_each_has_its_node() -> None:
    world = World()
    labels = {"leaderworkerset.sigs.k8s.io/name": "llm", "leaderworkerset.sigs.k8s.io/group-index": "0"}
    for name, cpu in (("a", "2"), ("b", "1"), ("leader", "1")):
        world.pod(name, cpu=cpu, labels=labels)
    world.schedule()
    uids = {world.find(Pod, name).metadata.uid for name in ("a", "b", "leader")}
    want = world.wants[-1]
    assert (set(want.uids), set(want.members), want.group) == (uids, uids, "LeaderWorkerSet default/llm-0")
    world.stand(7, ("n1", "n2", "n3"), "leader", "a", "b")
    world.requeue(want.group).schedule()
    assert world.on("leader", "a", "b") == {"leader": "n1", "a": "n2", "b": "n3"}


def test_a_gang_with_a_pod_without_a_node_is_not_bound_and_a_job_for_that_pod_is_requested() -> None:
    world = World()
    world.gang("g", 3).schedule()
    world.wants.clear()
    world.stand(7, ("n1", "n2"), "g-0", "g-1")
    world.requeue("PodGroup default/g").schedule()
    assert world.on("g-0", "g-1", "g-2") == {}
    (want,) = world.wants
    assert want.uids == (world.find(Pod, "g-2").metadata.uid,)
    assert len(want.members) == 3
    world.stand(8, ("n3",), "g-2")
    world.requeue("PodGroup default/g").schedule()
    assert world.on("g-0", "g-1", "g-2") == {"g-0": "n1", "g-1": "n2", "g-2": "n3"}


@pytest.mark.parametrize(
    ("nodes", "why"), [(("n1",), "but the pod fits on none of them now"), (("k9",), "this cluster has no node k9")]
)
def test_nodes_of_the_job_that_the_pod_does_not_fit_on_are_reported(nodes: tuple[str, ...], why: str) -> None:
    world = World()
    world.pod("a").schedule()
    found = world.find(Node, "n1")
    world.add(structs.replace(found, spec=structs.replace(found.spec, unschedulable=True)))
    world.stand(7, nodes, "a")
    world.requeue("Pod default/a").schedule()
    assert world.on("a") == {}
    assert why in world.reasons("a")


def test_pods_without_a_slurm_node_preempt_nothing_and_trials_request_nothing() -> None:
    world = World()
    world.pods(4, prefix="low", cpu="8", priority=1)
    world.schedule()
    for number in range(4):
        world.stand(number + 1, (f"n{number + 1}",), f"low-{number}")
    world.requeue(*(f"Pod default/low-{number}" for number in range(4))).schedule()
    assert len(world.on(*(f"low-{number}" for number in range(4)))) == 4
    world.wants.clear()
    world.pod("high", cpu="8", priority=1000).schedule()
    assert world.wants == [], "no node has room; a trial adds no node that it fits on"
    assert all(world.find(Pod, f"low-{number}").metadata.deletion_timestamp is None for number in range(4))


def test_a_simulation_reports_that_it_does_not_ask_slurm() -> None:
    world = World(served=False)
    world.pod("a").schedule()
    assert "a simulation has no connection to Slurm" in world.reasons("a")


def test_sessions_request_a_job_only_after_a_change() -> None:
    world = World()
    world.pods(3).schedule()
    asked = len(world.wants)
    for _ in range(10):
        world.advance(20).schedule()
    assert len(world.wants) == asked
    world.add(node("n9", cpu="8")).advance(20).schedule()
    assert {want.candidates for want in world.wants[asked:]} == {("n1", "n2", "n3", "n4", "n9")}


def test_a_bind_waits_for_slurm_and_fails_for_an_ended_job() -> None:
    world = World()
    world.pod("a").schedule()
    world.stand(7, ("n2",), "a")
    bridge: Any = world.bridging._bridge
    shares = bridge._nodes._shares.pop(7)

    async def away(*_: Any) -> None:
        raise UnavailableError("GET resources/7", "no connection", sent=False)

    share_of, bridge.share_of = bridge.share_of, away
    world.requeue("Pod default/a").schedule()
    assert world.on("a") == {}
    bridge.share_of = share_of
    bridge._nodes._shares[7] = shares
    ended = bridge.table.jobs.pop(7)
    world.advance(60).schedule()
    assert world.on("a") == {}
    bridge.table.jobs[7] = ended
    world.advance(60).schedule()
    assert world.on("a") == {"a": "n2"}


def test_the_slurm_name_of_a_deleted_node_can_be_reused() -> None:
    world = World(names={"n1": "k1", "n2": "k2", "n3": "k3", "n4": "k4"})
    world.pod("a").schedule()
    world.remove_node("n1")
    world.add(node("n8", cpu="8", labels={NODE_NAME_LABEL: "k1"}))
    world.stand(7, ("k1",), "a")
    world.requeue("Pod default/a").schedule()
    assert world.on("a") == {"a": "n8"}


def test_a_pods_annotations_have_its_share() -> None:
    assert ranges([]) == ""
    assert ranges([3, 1, 2, 7, 7]) == "1-3,7"
    bare = NodeShare("n1", (4,), (), 0)
    assert share_annotations(bare) == {CORES_ANNOTATION: "4"}
