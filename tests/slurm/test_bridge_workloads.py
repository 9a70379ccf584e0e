"""Workloads of all kinds on a real API server, each as the jobs that a real Slurm is to have of it."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import pytest

from fluence_plugins.slurm_bridge.names import (
    CORES_ANNOTATION,
    GRES_ANNOTATION,
    SCHEDULER_NAME,
)

from ..controlplane.harness import ControlPlane
from ..controlplane.invariants import Manifest
from ..controlplane.scenarios_world import pod_spec
from .bridge_world import BridgeWorld
from .peer import GPUS

JOB_SETS = ("jobset.x-k8s.io", "v1alpha2", "JobSet")
LEADER_WORKER_SETS = ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet")
POD_GROUPS = ("scheduling.x-k8s.io", "v1alpha1", "PodGroup")
LWS = "leaderworkerset.sigs.k8s.io/"
CLASS = "gpu.nvidia.com"
RESOURCE = f"deviceclass.resource.kubernetes.io/{CLASS}"
DEVICES = "resource.k8s.io/v1"


@pytest.fixture(scope="module")
def plane(plane: ControlPlane) -> ControlPlane:
    """The control plane, with what else makes pods."""
    for group, version, kind in (JOB_SETS, LEADER_WORKER_SETS, POD_GROUPS):
        install(plane, group, version, kind)
    return plane


def install(plane: ControlPlane, group: str, version: str, kind: str) -> None:
    """An API as its project installs it, with whatever fields."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    singular = kind.lower()
    names = {"kind": kind, "plural": f"{singular}s", "singular": singular, "listKind": f"{kind}List"}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [served]}
    plane.create({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec,
                  "metadata": {"name": f"{singular}s.{group}"}})  # fmt: skip
    plane.wait_for(f"/apis/{group}/{version}/{singular}s", lambda answer: "items" in answer)


def make(
    world: BridgeWorld,
    api_version: str,
    kind: str,
    name: str,
    spec: Mapping[str, Any],
    owner: Manifest | None = None,
    **metadata: Any,
) -> Manifest:
    """An object, controlled by its owner."""
    owned = {"ownerReferences": [reference(owner)]} if owner else {}
    whole = {"name": name, "namespace": world.namespace, **owned, **metadata}
    return world.plane.create({"apiVersion": api_version, "kind": kind, "metadata": whole, "spec": dict(spec)})


def reference(owner: Manifest) -> Manifest:
    named = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True, **named}


def bridged_spec(**spec: Any) -> Manifest:
    return {**pod_spec(), "schedulerName": SCHEDULER_NAME, **spec}


def shown(job: Mapping[str, Any]) -> tuple[str, str, int]:
    return job["name"], job["nodes"], job["node_count"]["number"]


# ---------------------------------------------------------------------- sets of jobs


def test_each_job_of_a_job_set_is_one_of_slurms_and_waits_for_its_pods(world: BridgeWorld) -> None:
    world.add_hosts(4)
    other = world.occupy_hosts(4)
    world.run()
    marks = {"slurmjob.slinky.slurm.net/account": "physics"}
    owner = make(world, "jobset.x-k8s.io/v1alpha2", "JobSet", "sim", {}, annotations=marks)
    for part in ("a", "b"):
        name = f"sim-{part}-0"
        labels = {"jobset.sigs.k8s.io/jobset-name": "sim", "jobset.sigs.k8s.io/replicatedjob-name": part}
        template = {"metadata": {"labels": labels}, "spec": bridged_spec(restartPolicy="Never")}
        spec = {"parallelism": 2, "completions": 2, "template": template}
        make(world, "batch/v1", "Job", name, spec, owner, labels=labels)
    world.until("two jobs", lambda: len(world.jobs("PENDING")) == 2)
    waiting = world.jobs("PENDING")
    assert sorted((job["name"], job["account"], job["node_count"]["number"]) for job in waiting) == [
        ("sim-a-0", "physics", 2),
        ("sim-b-0", "physics", 2),
    ]
    world.peer.cancel(other)
    pods = [pod["metadata"]["name"] for pod in world.pods()]
    assert len(pods) == 4
    world.wait_bound(*pods)
    assert len({world.host_of(pod) for pod in pods}) == 4
    world.check_agrees()
    assert len(world.jobs()) == 2


def test_a_job_of_a_job_set_asks_for_nothing_before_all_of_its_pods_are_there(world: BridgeWorld) -> None:
    world.add_hosts(2)
    world.run()
    owner = make(world, "jobset.x-k8s.io/v1alpha2", "JobSet", "sim", {})
    labels = {"jobset.sigs.k8s.io/jobset-name": "sim"}
    template = {"metadata": {"labels": labels}, "spec": bridged_spec(restartPolicy="Never")}
    quota = {"hard": {"pods": "1"}}
    world.plane.create({"apiVersion": "v1", "kind": "ResourceQuota", "spec": quota,
                        "metadata": {"name": "few", "namespace": world.namespace}})  # fmt: skip
    path = f"/api/v1/namespaces/{world.namespace}/resourcequotas/few"
    world.until("a quota", lambda: "used" in world.plane.request("GET", path)[1].get("status", {}))
    make(world, "batch/v1", "Job", "sim-a-0", {"parallelism": 2, "completions": 2, "template": template}, owner,
         labels=labels)  # fmt: skip
    first = world.pod_of("sim-a-0")
    assert "JobSet" in world.wait_refused(first, "has 1 of the 2 pods that start together")
    assert world.jobs() == []
    world.plane.request("DELETE", path)
    pods = [pod["metadata"]["name"] for pod in world.until("both pods", lambda: _so_many(world.pods(), 2))]
    world.wait_bound(*pods)
    assert [shown(job) for job in world.jobs()] == [("sim-a-0", "k8s-[0-1]", 2)]
    world.check_agrees()


def _so_many(found: list[Manifest], count: int) -> list[Manifest] | None:
    return found if len(found) == count else None


# ---------------------------------------------------------------------- leaders and workers


def test_a_group_of_a_leader_worker_set_is_one_job_with_its_leader_on_the_first_node(world: BridgeWorld) -> None:
    world.add_hosts(3)
    other = world.occupy_hosts(3)
    world.run()
    make_leader_worker_set(world, "llm", size=3)
    world.until("the leader", lambda: "spec" in world.pod("llm-0"))
    assert "LeaderWorkerSet" in world.wait_refused("llm-0", "has 1 of the 3 pods that start together")
    assert [job["job_id"] for job in world.jobs()] == [other]
    make_workers(world, "llm", 3)
    job = world.until("a job", lambda: next(iter(world.jobs("PENDING")), None))
    assert (job["name"], job["node_count"]["number"], job["account"]) == ("llm-0", 3, "inference")
    world.peer.cancel(other)
    world.wait_bound("llm-0", "llm-0-1", "llm-0-2")
    assert [world.host_of(pod) for pod in ("llm-0", "llm-0-1", "llm-0-2")] == ["k8s-0", "k8s-1", "k8s-2"]
    assert len(world.jobs()) == 1
    world.check_agrees()


def make_leader_worker_set(world: BridgeWorld, name: str, *, size: int) -> None:
    """The set, and the StatefulSet of its leaders; that makes the leader itself."""
    said = {"slurmjob.slinky.slurm.net/account": "inference"}
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": size}, "startupPolicy": "LeaderCreated"}
    root = make(world, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, spec, annotations=said)
    labels = {f"{LWS}name": name, f"{LWS}worker-index": "0", f"{LWS}group-index": "0"}
    make(world, "apps/v1", "StatefulSet", name, stateful(name, 1, labels), root, labels={f"{LWS}name": name})


def make_workers(world: BridgeWorld, name: str, size: int) -> None:
    """The StatefulSet of the first group's workers, owned by the leader; it counts from 1.

    The set's webhook gives each worker its index as a label: without it, the label of StatefulSets says it.
    """
    labels = {f"{LWS}name": name, f"{LWS}group-index": "0"}
    spec = {**stateful(f"{name}-0", size - 1, labels), "ordinals": {"start": 1}}
    make(world, "apps/v1", "StatefulSet", f"{name}-0", spec, world.pod(f"{name}-0"), labels=labels)


def stateful(name: str, replicas: int, labels: Mapping[str, str]) -> Manifest:
    own = {**labels, "of": name}
    return {
        "replicas": replicas, "serviceName": name, "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": own}, "template": {"metadata": {"labels": own}, "spec": bridged_spec()},
    }  # fmt: skip


# ---------------------------------------------------------------------- groups, and pods of their own


def test_a_pod_group_of_coscheduling_is_one_job(world: BridgeWorld) -> None:
    world.add_hosts(3)
    world.run()
    said = {"slurmjob.slinky.slurm.net/job-name": "mpi"}
    make(world, "scheduling.x-k8s.io/v1alpha1", "PodGroup", "ranks", {"minMember": 3}, annotations=said)
    names = [f"rank-{number}" for number in range(3)]
    for name in names[:2]:
        make_rank(world, name)
    world.wait_refused(names[0])
    assert world.jobs() == []
    make_rank(world, names[2])
    world.wait_bound(*names)
    assert [shown(job) for job in world.jobs()] == [("mpi", "k8s-[0-2]", 3)]
    assert [world.host_of(name) for name in names] == ["k8s-0", "k8s-1", "k8s-2"]
    world.check_agrees()


def make_rank(world: BridgeWorld, name: str) -> None:
    make(world, "v1", "Pod", name, bridged_spec(), labels={"scheduling.x-k8s.io/pod-group": "ranks"})


def test_pods_of_a_deployment_are_each_a_job_of_their_own(world: BridgeWorld) -> None:
    world.add_hosts(2)
    world.run()
    labels = {"app": "web"}
    said = {"slurmjob.slinky.slurm.net/account": "web"}
    template = {"metadata": {"labels": labels, "annotations": said}, "spec": bridged_spec()}
    make(world, "apps/v1", "Deployment", "web", {"replicas": 2, "selector": {"matchLabels": labels},
                                                  "template": template})  # fmt: skip
    pods = [pod["metadata"]["name"] for pod in world.until("two pods", lambda: _so_many(world.pods(), 2))]
    world.wait_bound(*pods)
    assert sorted((job["name"], job["account"]) for job in world.jobs()) == sorted((pod, "web") for pod in pods)
    world.check_agrees()
    world.delete_pod(pods[0])
    world.wait_gone(pods[0])
    world.until("the end of its job", lambda: not world.jobs_of(pods[0]))
    world.until("its successor", lambda: len([pod for pod in world.pods() if pod["spec"].get("nodeName")]) == 2)
    world.check_agrees()


# ---------------------------------------------------------------------- devices


def publish(world: BridgeWorld, nodes: list[str]) -> None:
    """What the driver of GPUs publishes, and the class of its administrator."""
    expression = f'device.driver == "{CLASS}"'
    if world.plane.request("GET", f"/apis/{DEVICES}/deviceclasses/{CLASS}")[0] != HTTPStatus.OK:
        world.plane.create({"apiVersion": DEVICES, "kind": "DeviceClass", "metadata": {"name": CLASS},
                            "spec": {"selectors": [{"cel": {"expression": expression}}]}})  # fmt: skip
    for node in nodes:
        devices = [{"name": f"gpu-{index}"} for index in range(GPUS)]
        spec = {"driver": CLASS, "nodeName": node, "devices": devices,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}  # fmt: skip
        world.plane.create({"apiVersion": DEVICES, "kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec})


def test_a_pod_has_a_claim_for_the_devices_that_slurm_chose(world: BridgeWorld) -> None:
    nodes = world.add_hosts(1, gpu_type=CLASS)
    publish(world, nodes)
    world.run()
    for name in ("first", "second"):
        create_gpu_pod(world, name)
    world.wait_bound("first", "second")
    given = [device_of(world, name) for name in ("first", "second")]
    assert sorted(given) == ["gpu-0", "gpu-1"]
    for name, device in zip(("first", "second"), given, strict=True):
        said = world.pod(name)["metadata"]["annotations"]
        assert said[GRES_ANNOTATION] == f"gpu:{CLASS}(IDX:{device.removeprefix('gpu-')})"
        assert said[CORES_ANNOTATION]
    create_gpu_pod(world, "third")
    world.wait_refused("third")
    world.delete_pod("first")
    world.wait_bound("third")
    assert device_of(world, "third") == given[0]
    world.check_agrees()


def create_gpu_pod(world: BridgeWorld, name: str) -> None:
    amounts = {"cpu": "1", "memory": "64Mi", RESOURCE: "1"}
    resources = {"requests": amounts, "limits": {RESOURCE: "1"}}
    containers = [{"name": "main", "image": "example.com/none", "resources": resources}]
    said = {"slurmjob.slinky.slurm.net/exclusive": "false"}
    make(world, "v1", "Pod", name, bridged_spec(containers=containers), annotations=said)


def device_of(world: BridgeWorld, pod: str) -> str:
    """The device that a pod's claim has."""
    named = world.pod(pod)["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    claim = world.plane.request("GET", f"/apis/{DEVICES}/namespaces/{world.namespace}/resourceclaims/{named}")[1]
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"]) == (CLASS, world.node_of(pod))
    assert [one["name"] for one in claim["status"]["reservedFor"]] == [pod]
    return str(result["device"])
