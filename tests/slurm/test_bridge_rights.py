"""Each right that deploy/options/slurm-bridge.yaml adds, taken away: what fails then, who says so, and the recovery."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluence_plugins.slurm_bridge.names import MANAGED_TAINT

from ..controlplane.harness import ControlPlane
from ..controlplane.invariants import Manifest
from ..controlplane.rbac_world import Right, Roles, rights_of
from .bridge_world import BridgeWorld, with_arguments
from .test_bridge_workloads import JOB_SETS, LEADER_WORKER_SETS, LWS, bridged_spec, install, make, stateful

FILE = "options/slurm-bridge.yaml"
ADDED = sorted({*rights_of("fluence", FILE)} - {*rights_of("fluence")})


@pytest.fixture(scope="module")
def plane(plane: ControlPlane) -> ControlPlane:
    """The control plane, with what else makes pods; what an account may do there changes all the time."""
    for group, version, kind in (JOB_SETS, LEADER_WORKER_SETS):
        install(plane, group, version, kind)
    return plane


@pytest.fixture
def world(world: BridgeWorld) -> BridgeWorld:
    """The bridge, with a node."""
    world.add_hosts(1)
    return world


def make_job(world: BridgeWorld, owner: Manifest | None = None, **labels: str) -> str:
    template = {"metadata": {"labels": labels}, "spec": bridged_spec(restartPolicy="Never")}
    make(world, "batch/v1", "Job", "job", {"template": template}, owner, labels=labels)
    return world.pod_of("job")


def make_job_set(world: BridgeWorld) -> str:
    owner = make(world, "jobset.x-k8s.io/v1alpha2", "JobSet", "set", {})
    return make_job(world, owner, **{"jobset.sigs.k8s.io/jobset-name": "set"})


def make_deployment(world: BridgeWorld) -> str:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": bridged_spec()}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    make(world, "apps/v1", "Deployment", "web", spec)
    return str(world.until("a pod", lambda: next(iter(world.pods()), None))["metadata"]["name"])


def make_stateful_set(world: BridgeWorld, owner: Manifest | None = None, **labels: str) -> str:
    make(world, "apps/v1", "StatefulSet", "db", stateful("db", 1, labels), owner)
    world.until("a pod", lambda: "spec" in world.pod("db-0"))
    return "db-0"


def make_leader(world: BridgeWorld) -> str:
    owner = make(world, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "db", {"leaderWorkerTemplate": {"size": 1}})
    return make_stateful_set(world, owner, **{f"{LWS}name": "db", f"{LWS}group-index": "0", f"{LWS}worker-index": "0"})


def make_of_workload(world: BridgeWorld) -> str:
    """A pod of a group that was made from a Workload."""
    named = {"workload": {"workloadName": "work", "podGroupTemplateName": "all"}}
    gang = {"schedulingPolicy": {"gang": {"minCount": 1}}}
    make(world, "scheduling.k8s.io/v1alpha2", "Workload", "work", {"podGroupTemplates": [{"name": "all", **gang}]})
    make(world, "scheduling.k8s.io/v1alpha2", "PodGroup", "group", {"podGroupTemplateRef": named, **gang})
    world.bridged("member", "group")
    return "member"


OWNERS: dict[str, Callable[[BridgeWorld], str]] = {
    "get batch/jobs": make_job,
    "get apps/replicasets": make_deployment,
    "get apps/statefulsets": make_stateful_set,
    "get jobset.x-k8s.io/jobsets": make_job_set,
    "get leaderworkerset.x-k8s.io/leaderworkersets": make_leader,
    "get scheduling.k8s.io/workloads": make_of_workload,
}
"""By right: what makes a pod of an owner that is to be read."""
OTHERS = {"patch nodes", "get namespaces"}


def test_a_test_knows_each_right_that_is_added() -> None:
    assert {str(given) for given in ADDED} == {*OWNERS, *OTHERS}


@pytest.mark.parametrize("given", [one for one in ADDED if str(one) not in OTHERS], ids=str)
def test_a_pod_says_which_of_its_owners_must_not_be_read(world: BridgeWorld, plane: ControlPlane, given: Right) -> None:
    with Roles(plane, "fluence", FILE).without(given):
        world.run()
        pod = OWNERS[str(given)](world)
        right = f"{given.resource}.{given.group}"
        said = world.wait_refused(pod, "cannot read ")
        assert f"allow the scheduler's service account to {given.verb} {right}" in said
        assert given.refusal in said
        assert world.jobs() == []
    world.wait_bound(pod)


def test_without_a_name_for_the_cluster_nothing_is_asked_of_slurm(world: BridgeWorld, plane: ControlPlane) -> None:
    given = Right("", "namespaces", "get")
    settings = with_arguments(world.settings, cluster=None)
    with Roles(plane, "fluence", FILE).without(given):
        world.run(settings)
        world.bridged("one")
        assert given.refusal in world.wait_refused("one", "the cluster's identity in Slurm is unknown")
        assert world.jobs() == []
    world.wait_bound("one")


def _unescaped(log: Path) -> str:
    return log.read_text().replace('\\"', '"')


def test_a_node_that_cannot_be_tainted_is_told_and_tainted_later(world: BridgeWorld, plane: ControlPlane) -> None:
    given = Right("", "nodes", "patch")
    (name,) = world.nodes

    def taints() -> list[Any]:
        spec = plane.request("GET", f"/api/v1/nodes/{name}")[1]["spec"]
        return [taint for taint in spec.get("taints", ()) if taint["key"] == MANAGED_TAINT]

    with Roles(plane, "fluence", FILE).without(given):
        scheduler = world.run(with_arguments(world.settings, nodes=True))
        world.until("a word of it", lambda: given.refusal in _unescaped(scheduler.log))
        assert taints() == []
        world.bridged("one")
        world.wait_bound("one")
    world.until("the taint", lambda: taints() or None, 40)
