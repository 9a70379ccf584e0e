"""The whole as deploy/options/slurm-bridge.yaml sets it up: configuration, webhook and election; and the example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest
import yaml

from fluence_plugins.slurm_bridge.names import FINALIZER, MANAGED_TAINT, SCHEDULER_NAME

from ..controlplane.faults.world import LEASE
from ..controlplane.harness import ControlPlane
from ..controlplane.invariants import Manifest
from ..controlplane.scenarios_world import EXAMPLES
from ..controlplane.scheduler_process import Settings
from ..controlplane.webhook_process import until
from ..controlplane.webhook_world import new_world
from .bridge_world import DEPLOY, BridgeWorld, with_arguments
from .peer import OTHER_PARTITION, PARTITION, SlurmPeer

EXAMPLE = EXAMPLES / "12-slurm-bridge"
HANDLERS = ("slurm-bridge", "slurm-bridge-namespaces")
ACCOUNT = "system:serviceaccount:kube-system:fluence"
MANAGED = {"fluence.flux-framework.org/slurm-bridge": "managed"}
OWN = {"key": MANAGED_TAINT, "value": SCHEDULER_NAME, "effect": "NoExecute"}


@pytest.fixture(scope="module")
def plane(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane, whose pods a replica of the webhook looks at."""
    shared = new_world(plane, tmp_path_factory.mktemp("webhook"))
    with shared.replica() as webhook:
        shared.shared.configure(webhook.tls_port, HANDLERS, "options/slurm-bridge.yaml")
        webhook.start("--handlers", "slurm-bridge", "--scheduler-user", ACCOUNT)
        webhook.wait_ready()
        label(plane, shared.namespace, MANAGED)
        until(lambda: _is_bridged(plane, shared.namespace))
        yield plane


def _is_bridged(plane: ControlPlane, namespace: str) -> bool:
    """Whether the API server has heard of the webhook."""
    spec = {"automountServiceAccountToken": False, "containers": [{"name": "main", "image": "example.com/none"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asked"}, "spec": spec}
    status, pod = plane.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)
    return status == HTTPStatus.CREATED and pod["spec"]["schedulerName"] == SCHEDULER_NAME


@pytest.fixture
def world(world: BridgeWorld, plane: ControlPlane, peer: SlurmPeer) -> BridgeWorld:
    """The bridge as it is shipped."""
    plane.request("DELETE", LEASE)
    world.settings = shipped(peer)
    return world


def shipped(peer: SlurmPeer) -> Settings:
    """The configuration of the option, but for where Slurm is, its token and the port."""
    manifests = yaml.safe_load_all((DEPLOY / "options" / "slurm-bridge.yaml").read_text())
    maps = [one for one in manifests if one and one["kind"] == "ConfigMap" and "config.yaml" in one["data"]]
    (found,) = maps
    configuration: dict[str, Any] = yaml.safe_load(found["data"]["config.yaml"])
    fluence, bridge = configuration["profiles"]
    settings = Settings(more=configuration | {"profiles": [bridge], "serving": {"host": "127.0.0.1", "port": 0}})
    settings = with_arguments(settings, url=peer.url, tokenFile=str(peer.token_file))
    return replace(settings, more={**settings.more, "profiles": [fluence, *settings.more["profiles"]]})


def label(plane: ControlPlane, namespace: str, labels: dict[str, str]) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    assert plane.request("PATCH", path, {"metadata": {"labels": labels}})[0] == HTTPStatus.OK


def node(world: BridgeWorld, name: str) -> Manifest:
    found: Manifest = world.plane.request("GET", f"/api/v1/nodes/{name}")[1]
    return found


def taints(world: BridgeWorld, name: str) -> list[Manifest]:
    return list(node(world, name)["spec"].get("taints", []))


def slurm_node(world: BridgeWorld, name: str) -> Manifest:
    found: Manifest = world.peer.call("GET", f"node/{name}")[1]["nodes"][0]
    return found


def wait(world: BridgeWorld, what: str, true: Callable[[], bool]) -> None:
    world.until(what, true, 40)


# ---------------------------------------------------------------------- the example, and managed namespaces


def test_the_example_is_placed_by_slurm_done_and_gone(world: BridgeWorld) -> None:
    world.namespace = "slurm-bridge"  # as the example has it
    world.plane.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}})
    account = f"/api/v1/namespaces/{world.namespace}/serviceaccounts/default"
    world.plane.wait_for(account, lambda answer: answer.get("kind") == "ServiceAccount")
    nodes = world.add_hosts(4, partitions=(PARTITION, OTHER_PARTITION))
    world.run()
    world.apply(EXAMPLE / "job.yaml")
    pod = world.pod_of("job-sleep-single")
    world.wait_bound(pod)
    (job,) = world.jobs_of(pod)
    assert (job["name"], job["account"], job["partition"]) == ("job-sleep-single", "schedmd", OTHER_PARTITION)
    assert job["nodes"] == world.host_of(pod)
    world.wait_marks(pod, job["job_id"])
    wait(world, "the taint of all nodes", lambda: all(OWN in taints(world, name) for name in nodes))
    world.end(pod)
    world.wait_no_jobs()
    path = f"/apis/batch/v1/namespaces/{world.namespace}/jobs/job-sleep-single"
    world.until("the end of the Job", lambda: world.plane.request("GET", path)[1]["status"].get("succeeded") == 1)
    world.until("the finalizer's end", lambda: not world.marks(pod)[2])

    world.apply(EXAMPLE / "podgroup.yaml")
    members = [one["metadata"]["name"] for one in world.wait_members("training", 4)]
    placed = world.wait_bound(*members)
    assert sorted(placed.values()) == sorted(nodes)
    (job,) = world.jobs()
    assert (job["name"], job["partition"], job["time_limit"]["number"]) == ("training", PARTITION, 60)
    world.check_agrees()
    world.peer.cancel(job["job_id"])
    world.until("the deletion of all members", lambda: all(_goes(world, name) for name in members))


def _goes(world: BridgeWorld, name: str) -> bool:
    """Whether a pod is gone, or is being deleted."""
    return "deletionTimestamp" in world.pod(name).get("metadata", {"deletionTimestamp": ""})


def test_in_a_managed_namespace_slurm_places_the_pods_of_the_default_scheduler(world: BridgeWorld) -> None:
    nodes = world.add_hosts(2)
    label(world.plane, world.namespace, MANAGED)
    world.run()
    world.create_pod("plain", schedulerName="default-scheduler")
    world.wait_bound("plain")
    (job,) = world.jobs_of("plain")
    assert (job["name"], job["nodes"]) == ("plain", world.host_of("plain"))
    assert world.node_of("plain") in nodes
    world.check_agrees()
    status, answer = world.plane.request("PATCH", f"/api/v1/namespaces/{world.namespace}/pods/plain",
                                         {"metadata": {"finalizers": None}})  # fmt: skip
    assert (status, "only slurm-bridge-scheduler may change these fields" in answer["message"]) == (403, True)
    world.end("plain")
    world.wait_no_jobs()


# ---------------------------------------------------------------------- replicas, nodes, and how pods end


def test_the_successor_of_a_leader_that_was_killed_binds_by_the_job_that_it_finds(world: BridgeWorld) -> None:
    world.add_hosts(2)
    other = world.occupy_hosts(2)
    short = {**world.settings.more["leaderElection"], "leaseSeconds": 10, "renewSeconds": 8, "retrySeconds": 0.5}
    settings = replace(world.settings, more={**world.settings.more, "leaderElection": short})
    leader, successor = world.run(settings), world.run(settings)
    world.create_bridged_gang("train", 2)
    world.wait_refused("train-0", "is pending")
    (before,) = world.jobs_of("train-0")
    assert successor.metrics().get('fluence_slurm_requests_total{request="submit",result="success"}', 0) == 0
    world.retire(leader)
    world.peer.cancel(other)
    world.wait_whole("train", 2)
    assert [job["job_id"] for job in world.jobs_ever("train-0")] == [before["job_id"]]
    world.check_agrees()


def test_a_cordon_drains_the_node_and_pods_wait_until_it_is_over(world: BridgeWorld) -> None:
    (name,) = world.add_hosts(1)
    world.run()
    wait(world, "the taint", lambda: OWN in taints(world, name))
    world.cordon(name)
    wait(world, "the drain", lambda: "DRAIN" in slurm_node(world, "k8s-0")["state"])
    assert slurm_node(world, "k8s-0")["reason"] == f"slurm-bridge: Kubernetes node {name} is unschedulable"
    world.bridged("one")
    world.wait_refused("one")
    assert world.jobs_of("one") == []
    world.cordon(name, False)
    world.wait_bound("one")
    assert "DRAIN" not in slurm_node(world, "k8s-0")["state"]
    world.check_agrees()


def test_a_node_that_slurms_side_drains_holds_a_pod_up_until_it_is_opened(world: BridgeWorld) -> None:
    world.add_hosts(1)
    world.run()
    drained = {"state": ["DRAIN"], "reason": "disk"}
    assert world.peer.call("POST", "node/k8s-0", drained)[0] == HTTPStatus.OK
    world.bridged("one")
    world.wait_refused("one", "is pending: ")
    assert world.peer.call("POST", "node/k8s-0", {"state": ["RESUME"]})[0] == HTTPStatus.OK
    world.wait_bound("one")


def test_a_running_pod_that_is_deleted_keeps_its_job_until_its_kubelet_has_ended_it(world: BridgeWorld) -> None:
    world.add_hosts(1)
    world.run()
    world.bridged("one", terminationGracePeriodSeconds=30)
    world.wait_bound("one")
    path = f"/api/v1/namespaces/{world.namespace}/pods/one"
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    assert world.plane.request("PATCH", f"{path}/status", {"status": running})[0] == HTTPStatus.OK
    world.until("the finalizer", lambda: world.marks("one")[2])
    (job,) = world.jobs_of("one")
    world.plane.request("DELETE", path)
    world.bridged("next")
    world.wait_refused("next")
    assert [found["job_id"] for found in world.jobs_of("one")] == [job["job_id"]], "it has its node still"
    assert FINALIZER in world.pod("one")["metadata"]["finalizers"]
    world.end("one")
    world.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")  # as kubelets do when all containers have ended
    world.wait_gone("one")
    world.until("the end of its job", lambda: not world.jobs_of("one"))
    assert [found["job_state"] for found in world.jobs_ever("one")] == [["CANCELLED"]]
    world.wait_bound("next")
