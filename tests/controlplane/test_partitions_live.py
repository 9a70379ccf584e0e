"""Two schedulers of two partitions on a real API server: their nodes, the pods on them, and what both must not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from .awaiting import pass_marker, until
from .conftest import new_control_plane
from .harness import DEPLOY, SCHEDULER, ControlPlane
from .invariants import Manifest, check
from .scheduler_process import SchedulerProcess, Settings

LABEL = "fluence.flux-framework.org/partition"
GROUPS = "scheduling.k8s.io/v1alpha2"
DEVICES = {
    pool: f"resources: [{{type: qpu, name: {pool}-qpu}}]\n" for pool in ("a", "b")
}  # fmt: skip
CPUS = 8


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With the rights of deploy/kustomize/partition, for the Leases of the tests."""
    with new_control_plane(tmp_path_factory.mktemp("partitions-plane")) as plane:
        for manifest in yaml.safe_load_all((DEPLOY / "kustomize" / "partition" / "rights.yaml").read_text()):
            for rule in manifest.get("rules", ()):
                if "resourceNames" in rule:
                    rule["resourceNames"] = ["fluence-a", "fluence-b", "fluence-c"]
            plane.create(manifest)
        for number in (1, 2, 3):
            for pool in ("a", "b"):
                plane.new_node(f"{pool}{number}", cpu=str(CPUS))
                label(plane, f"{pool}{number}", pool)
        yield plane


def label(plane: ControlPlane, node: str, pool: str | None) -> None:
    path = f"/api/v1/nodes/{node}"
    while True:
        found: Manifest = plane.request("GET", path)[1]
        found["metadata"].setdefault("labels", {})[LABEL] = pool
        if pool is None:
            del found["metadata"]["labels"][LABEL]
        if plane.request("PUT", path, found)[0] == HTTPStatus.OK:
            return


def settings(name: str, selector: dict[str, str | None], **more: Any) -> Settings:
    plugins = [{"name": "fluence", "args": more.pop("arguments", {})}]
    return Settings(
        resources=more.pop("resources", ""),
        reconcile_seconds=2.0,
        more={
            "profiles": [{"schedulerName": more.pop("scheduler", name), "plugins": plugins}],
            "leaderElection": {"name": name, "leaseSeconds": 5, "renewSeconds": 3, "retrySeconds": 0.5},
            "partition": {"nodeSelector": selector},
            **more,
        },
    )


def process(plane: ControlPlane, folder: Path, chosen: Settings, name: str) -> SchedulerProcess:
    if chosen.resources:
        path = folder / f"{name}-resources.yaml"
        chosen.more["profiles"][0]["plugins"][0]["args"]["resources"] = str(path)
    return SchedulerProcess(folder, plane.kubeconfig(SCHEDULER), chosen, name)


@contextmanager
def started(plane: ControlPlane, folder: Path, chosen: Settings, name: str) -> Iterator[SchedulerProcess]:
    with process(plane, folder, chosen, name) as scheduler:
        scheduler.start()
        scheduler.wait_ready()
        yield scheduler
        scheduler.terminate()


@pytest.fixture(scope="module")
def schedulers(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("fluence")
    with (
        started(plane, folder, settings("fluence-a", {LABEL: "a"}, resources=DEVICES["a"]), "a"),
        started(plane, folder, settings("fluence-b", {LABEL: "b"}, resources=DEVICES["b"]), "b"),
    ):
        yield


class World:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.namespace = plane.new_namespace()
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"

    def pod(self, name: str, scheduler: str, cpu: str = "1", **spec: Any) -> None:
        container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}
        self.plane.create({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"schedulerName": scheduler, "containers": [container], **spec},
        })  # fmt: skip

    def gang(self, name: str, scheduler: str, size: int, cpu: str = "1") -> None:
        self.plane.create({
            "apiVersion": GROUPS, "kind": "PodGroup", "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
        })  # fmt: skip
        for number in range(size):
            self.pod(f"{name}-{number}", scheduler, cpu, schedulingGroup={"podGroupName": name})

    def bind(self, name: str, node: str) -> None:
        """Bind as another scheduler does, without a look at the node."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        assert self.plane.request("POST", f"{self.pods}/{name}/binding", body)[0] == HTTPStatus.CREATED

    def places(self) -> dict[str, str]:
        """The nodes of all bound pods."""
        found = self.plane.request("GET", self.pods)[1]["items"]
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in found if pod["spec"].get("nodeName")}

    def clear(self) -> None:
        self.plane.request("DELETE", f"{self.pods}?gracePeriodSeconds=0")
        until("the end of all pods", lambda: not self.plane.request("GET", self.pods)[1]["items"])


@pytest.fixture
def world(plane: ControlPlane, schedulers: None) -> Iterator[World]:
    world = World(plane)
    yield world
    for pool in ("a", "b"):
        for number in (1, 2, 3):
            label(plane, f"{pool}{number}", pool)
    world.clear()


# ---------------------------------------------------------------------- beside each other


def test_each_scheduler_fills_its_nodes_around_the_pods_that_others_bound(world: World) -> None:
    for node in ("a1", "b1"):
        world.pod(f"other-{node}", "another-scheduler", "6")
        world.bind(f"other-{node}", node)
    world.pod("another-pending", "another-scheduler")
    for number in range(30):
        for pool in ("a", "b"):
            world.pod(f"{pool}-{number}", f"fluence-{pool}")
    free = 3 * CPUS - 6
    until("as many pods as fit", lambda: len(world.places()) == 2 + 2 * free)
    for pool in ("a", "b"):
        pass_marker(world.plane, world.namespace, f"fluence-{pool}", "0/3 nodes are available: 3 Insufficient cpu")
    places = world.places()
    assert len(places) == 2 + 2 * free
    assert all(node[0] == name.removeprefix("other-")[0] for name, node in places.items())
    check(world.plane)


def test_gangs_of_both_start_whole_and_keep_their_plans(world: World) -> None:
    for number in range(3):
        world.gang(f"a-gang-{number}", "fluence-a", 6)
        world.gang(f"b-gang-{number}", "fluence-b", 6)
    until("all gangs", lambda: len(world.places()) == 36)
    assert all(node[0] == name[0] for name, node in world.places().items())
    until("their conditions", lambda: _holds(world.plane))


def test_each_device_belongs_to_one(world: World) -> None:
    for node in ("a1", "b1"):
        path = f"/api/v1/nodes/{node}/status"
        found = world.plane.request("GET", path)[1]
        for amounts in (found["status"]["allocatable"], found["status"]["capacity"]):
            amounts["fluxion.flux-framework.org/qpu"] = "10"
        assert world.plane.request("PUT", path, found)[0] == HTTPStatus.OK
    qpu = {"requests": {"fluxion.flux-framework.org/qpu": "1"}, "limits": {"fluxion.flux-framework.org/qpu": "1"}}
    for number in range(2):
        for pool in ("a", "b"):
            container = {"name": "c", "image": "none", "resources": qpu}
            world.pod(f"{pool}-{number}", f"fluence-{pool}", containers=[container])
    until("one pod for each device", lambda: len(world.places()) == 2)
    for pool in ("a", "b"):
        pass_marker(world.plane, world.namespace, f"fluence-{pool}")
    assert sorted(world.places().values()) == ["a1", "b1"]
    check(world.plane)


def _holds(plane: ControlPlane) -> bool:
    try:
        check(plane)
    except AssertionError:
        return False
    return True


# ---------------------------------------------------------------------- nodes that move


def pass_lists(plane: ControlPlane, number: int) -> None:
    """Wait until the schedulers have listed pods this often: for comparisons, and for joining nodes."""

    def listed() -> float:
        lines = plane.request("GET", "/metrics")[1].splitlines()
        parts = 'resource="pods"', 'scope="cluster"', 'verb="LIST"'
        return sum(float(line.rpartition(" ")[2]) for line in lines
                   if line.startswith("apiserver_request_total{") and all(part in line for part in parts))  # fmt: skip

    wanted = listed() + number
    until("lists of pods", lambda: listed() >= wanted)


def test_a_node_that_moves_keeps_its_pods_and_is_filled_by_the_other_scheduler(world: World) -> None:
    world.gang("a-gang", "fluence-a", 3, "5")
    until("the gang", lambda: len(world.places()) == 3)
    label(world.plane, "a2", "b")
    for number in range(40):
        world.pod(f"b-{number}", "fluence-b")
    until("the rest of the node", lambda: list(world.places().values()).count("a2") == 1 + CPUS - 5)
    pass_marker(world.plane, world.namespace, "fluence-b", "0/4 nodes are available: 4 Insufficient cpu")
    places = world.places()
    assert {places[f"a-gang-{number}"] for number in range(3)} == {"a1", "a2", "a3"}
    pass_lists(world.plane, 8)  # the gang's scheduler still knows its member on a2
    assert world.places() == places
    check(world.plane)


def test_nodes_that_move_under_load_are_never_booked_twice(world: World) -> None:
    label(world.plane, "a3", None)
    for round_ in range(6):
        for number in range(12):
            for pool in ("a", "b"):
                world.pod(f"{pool}-{round_}-{number}", f"fluence-{pool}")
        for node in ("a2", "b2"):
            label(world.plane, node, "ab"[(round_ + (node == "b2")) % 2])
        pass_lists(world.plane, 2)
        check(world.plane, at_rest=False)
        if round_ == 2:
            label(world.plane, "a3", "b")
    until("full nodes", lambda: len(world.places()) == 6 * CPUS)
    for pool in ("a", "b"):
        pass_marker(world.plane, world.namespace, f"fluence-{pool}", "Insufficient cpu")
    check(world.plane)


# ---------------------------------------------------------------------- overlaps


@pytest.mark.parametrize(
    ("selector", "more", "problem"),
    [
        ({LABEL: "c"}, {"resources": DEVICES["a"]},
         "plugin fluence: resource 'a-qpu' also belongs to the scheduler with Lease kube-system/fluence-a; remove it "
         "from one configuration"),
        ({LABEL: "c"}, {"scheduler": "fluence-b"},
         "profiles[0].schedulerName: 'fluence-b' also belongs to the scheduler with Lease kube-system/fluence-b; "
         "remove it from one configuration"),
        ({"zone": "x"}, {},
         f"partition.nodeSelector: {{zone: x}} may select the same nodes as {{{LABEL}: b}} of the scheduler with Lease "
         "kube-system/fluence-b; use different values of one label"),
    ],
    ids=["device", "schedulerName", "nodes"],
)  # fmt: skip
def test_what_another_scheduler_serves_is_an_error_at_the_start(
    plane: ControlPlane, schedulers: None, tmp_path: Path, selector: dict[str, str | None], more: Any, problem: str
) -> None:
    with process(plane, tmp_path, settings("fluence-c", selector, **more), "c") as third:
        third.start()
        until("its end", lambda: third.status is not None)
        assert third.status == 2
        assert f"{tmp_path}/c.yaml: {problem}" in third.log.read_text()
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/fluence-c"
    assert plane.request("GET", leases)[0] == HTTPStatus.NOT_FOUND
