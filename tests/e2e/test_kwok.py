"""The examples, as they are, in a cluster of 500 nodes that kwok plays; all else is real, as is `fluence run`.

Each node offers the devices that its device plugin would advertise. The webhook is there for the gangs that it makes:
tests with real containers check what their environment holds.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from ..controlplane import binaries
from ..controlplane.bulk import Bulk
from ..controlplane.harness import ADMIN, DEPLOY, ControlPlane
from ..controlplane.invariants import DEVICE_PREFIX, GROUPS, PREFIX, annotation, condition, is_bound
from ..controlplane.processes import Program
from ..controlplane.quantum_world import option, webhook
from ..controlplane.scheduler_process import SchedulerProcess, Settings, kubeconfig_for

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
NODES = 500
DEVICE = DEVICE_PREFIX + "qpu"
BACKENDS = {"garnet": "eu-north-1", "marrakesh": "us-east-1"}
"""Each with one qpu, and its region."""
SOON = 15.0
"""Seconds within which what is asked of an idle cluster of this size has happened, on a slow machine that is shared."""
PATIENCE = 90.0
Manifest = dict[str, Any]
_T = TypeVar("_T")


def node(number: int) -> Manifest:
    """A node as its kubelet registers it."""
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "110", DEVICE: "1000"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}"},
            "status": {"capacity": amounts, "allocatable": amounts}}  # fmt: skip


def backend_of(pod: Manifest) -> str:
    """The backend that a pod was given."""
    return str(annotation(pod, PREFIX + "backend"))


def resources() -> str:
    """The resources file."""
    trees = [{"type": "qdevice", "name": name, "attributes": {"region": region}, "with": [{"type": "qpu"}]}
             for name, region in BACKENDS.items()]  # fmt: skip
    return yaml.safe_dump({"resources": trees})


class Deployed(Settings):
    """The configuration that deploy/ has, but for where this process reads its files and answers."""

    def configuration(self, port: int, resources: Path | None) -> dict[str, Any]:
        manifests = yaml.safe_load_all((DEPLOY / "fluence.yaml").read_text())
        (text,) = [manifest["data"]["config.yaml"] for manifest in manifests
                   if manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"] == "fluence"]  # fmt: skip
        configuration: dict[str, Any] = yaml.safe_load(text)
        for profile in configuration["profiles"]:
            for plugin in profile["plugins"]:
                arguments = plugin.setdefault("args", {})
                arguments["resources"] = str(resources)
                arguments.pop("requireInjectedEnv", None)  # nothing here injects it
        return {**configuration, "serving": {"host": "127.0.0.1", "port": port} | self._unlimited()}


class WatchedPlane(ControlPlane):
    """With all controllers: kwok renews the nodes' leases, so that those which watch them have nothing to evict."""

    CONTROLLERS = "--controllers=*"


@dataclass
class Cluster:
    """A running cluster with its scheduler; `folder` is for kubectl's cache."""

    plane: ControlPlane
    scheduler: SchedulerProcess
    folder: Path

    def kubectl(self, *arguments: str | Path, text: str = "") -> str:
        """What kubectl prints, as administrator. Raises CalledProcessError."""
        command = [binaries.find("kubectl")["kubectl"], "--kubeconfig", self.plane.kubeconfig(ADMIN),
                   "--cache-dir", self.folder / "kubectl", "--request-timeout=30s", *arguments]  # fmt: skip
        return subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout

    def pods(self, begin: str) -> list[Manifest]:
        """The pods whose names begin so."""
        items = self.plane.request("GET", "/api/v1/namespaces/default/pods")[1]["items"]
        return [pod for pod in items if pod["metadata"]["name"].startswith(begin)]

    def until(self, what: str, found: Callable[[], _T | None], seconds: float = PATIENCE) -> _T:
        """What `found` returns, once that is something. Raises TimeoutError, with the scheduler's log."""
        deadline = time.monotonic() + seconds
        while not (answer := found()):
            assert self.scheduler.running, self.scheduler.tail()
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {seconds:g} s: no {what}\n{self.scheduler.tail()}")
            time.sleep(0.05)
        return answer

    def in_phase(self, phase: str, begin: str, count: int = 1) -> list[Manifest] | None:
        """The pods whose names begin so, where there are so many, all in this phase."""
        found = self.pods(begin)
        return found if len(found) == count and all(pod["status"]["phase"] == phase for pod in found) else None

    def group_condition(self, name: str) -> tuple[str, str] | None:
        """Status and reason of a PodGroup's condition PodGroupScheduled."""
        group = self.plane.request("GET", f"{GROUPS}/namespaces/default/podgroups/{name}")[1]
        said = condition(group, "PodGroupScheduled")
        return (said["status"], said["reason"]) if said is not None else None

    def held(self) -> tuple[float, float]:
        """How many pods hold something in the graph, by how many allocations."""
        metrics = self.scheduler.metrics()
        return metrics["fluence_held_pods"], metrics["fluence_held_jobs"]

    def ready_nodes(self) -> int:
        """How many nodes are ready, and untainted."""
        items = self.plane.request("GET", "/api/v1/nodes")[1]["items"]
        return sum((condition(one, "Ready") or {}).get("status") == "True" and not one["spec"].get("taints")
                   for one in items)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("kwok")
    (folder / "control-plane").mkdir()
    try:
        kwok = binaries.find("kwok", "kubectl")["kwok"]
        plane = WatchedPlane(folder / "control-plane", controllers=True)
    except binaries.MissingBinaries as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    with ExitStack() as stack:
        stack.enter_context(plane)
        command: list[str | Path] = [
            kwok, "--kubeconfig", plane.kubeconfig(ADMIN), "--config", HERE / "kwok.yaml", "--manage-all-nodes",
            "--node-lease-duration-seconds=40",
        ]  # fmt: skip
        stack.callback(Program("kwok", command, folder / "kwok.log").stop)
        scheduler = SchedulerProcess(folder, kubeconfig_for(plane, folder), Deployed(resources=resources()))
        cluster = Cluster(plane, scheduler, folder)
        asyncio.run(_create_nodes(plane))
        stack.enter_context(scheduler)
        scheduler.start()
        scheduler.wait_ready()
        cluster.until(f"{NODES} ready nodes", lambda: cluster.ready_nodes() == NODES)
        vertices = 'fluence_graph_vertices{type="node"}'
        hosts = NODES + 2 * len(BACKENDS)
        cluster.until("graph of all nodes and devices", lambda: scheduler.metrics().get(vertices) == hosts)
        yield cluster


async def _create_nodes(plane: ControlPlane) -> None:
    async with Bulk(plane) as bulk:
        await bulk.create("/api/v1/nodes", map(node, range(NODES)))


def test_the_gang_of_the_example_runs_and_its_podgroup_says_so(cluster: Cluster) -> None:
    before = cluster.held()
    cluster.kubectl("apply", "-f", EXAMPLES / "podgroup.yaml")
    pods = cluster.until("running gang", lambda: cluster.in_phase("Running", "training", 2), SOON)
    assert all(is_bound(pod) for pod in pods)
    cluster.until(
        "condition of the PodGroup", lambda: cluster.group_condition("training") == ("True", "Scheduled"), SOON
    )
    assert cluster.held()[0] == before[0] + 2
    cluster.kubectl("delete", "--wait=false", "-f", EXAMPLES / "podgroup.yaml")
    cluster.until("release of the gang's devices", lambda: cluster.held() == before, SOON)
    cluster.until("end of the gang", lambda: not cluster.pods("training"), SOON)


def test_the_quantum_pod_gets_a_backend_runs_and_gives_it_back_by_its_end(cluster: Cluster) -> None:
    before = cluster.held()
    cluster.kubectl("apply", "-f", EXAMPLES / "quantum-pod.yaml")
    cluster.until("place for the sampler", lambda: any(map(is_bound, cluster.pods("sampler"))), SOON)
    (sampler,) = cluster.until("end of the sampler", lambda: cluster.in_phase("Succeeded", "sampler"), SOON)
    assert BACKENDS[backend_of(sampler)] == annotation(sampler, PREFIX + "attr-region")
    cluster.until("release of the sampler's devices", lambda: cluster.held() == before, SOON)
    # The backend is free again: two that do not end get one each.
    example = yaml.safe_load((EXAMPLES / "quantum-pod.yaml").read_text())
    for number in range(len(BACKENDS)):
        example["metadata"]["name"], example["spec"]["restartPolicy"] = f"lasting-{number}", "Always"
        cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(example))
    both = cluster.until("run of two more", lambda: cluster.in_phase("Running", "lasting", len(BACKENDS)), SOON)
    assert {backend_of(pod) for pod in both} == set(BACKENDS)
    cluster.kubectl("delete", "pods", "--wait=false", *(pod["metadata"]["name"] for pod in both))
    cluster.until("release of the devices of the two", lambda: cluster.held() == before, SOON)


def test_the_quantum_gang_of_the_example_lives_from_its_producers_start_to_the_jobs_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    """No part is simulated: the Job controller makes pods, kwok runs them, fluence opens the gates."""
    before, file = cluster.held(), EXAMPLES / "09-quantum-gang" / "apply" / "workloads.yaml"
    jobs = "/apis/batch/v1/namespaces/default/jobs"

    def complete(job: str) -> bool:
        return condition(cluster.plane.request("GET", f"{jobs}/{job}")[1], "Complete") is not None

    with webhook(cluster.plane, tmp_path, resources()), option(cluster.plane):
        cluster.kubectl("apply", "-f", file)
        cluster.until("end of both Jobs", lambda: complete("vqe") and complete("samplers"))
        vqe = cluster.pods("vqe")
        cluster.until("running Deployment", lambda: cluster.in_phase("Running", "post-processing", 2), SOON)
        assert sorted(str(annotation(pod, PREFIX + "coordination-role")) for pod in vqe) == ["consumer"] * 3 + [
            "producer"
        ]
        assert {(backend_of(pod), annotation(pod, PREFIX + "attr-region")) for pod in vqe} == {
            ("marrakesh", "us-east-1")
        }
        assert {backend_of(pod) for pod in cluster.pods("samplers")} == set(BACKENDS)
        cluster.kubectl("delete", "--wait=false", "-f", file)
        cluster.until("end of all pods", lambda: not any(map(cluster.pods, ("vqe", "samplers", "post-processing"))))
        cluster.until("release of their devices", lambda: cluster.held() == before, SOON)
