"""Virtual devices in queues on a real API server: limits hold, and queues reclaim their deserved share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus

import pytest

from .awaiting import running, until
from .conftest import new_control_plane
from .harness import ControlPlane
from .invariants import Manifest, is_refused
from .queues_world import QUEUES, install_queues
from .scheduler_process import Settings

LABEL = "fluence.flux-framework.org/queue"
QPU = "fluxion.flux-framework.org/qpu"
RESOURCES = "resources: [{type: qpu, name: east, count: 2}, {type: qpu, name: west, sharing: 2}]\n"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_control_plane(tmp_path_factory.mktemp("device-queues")) as found:
        found.new_node("n1", cpu="32", **{QPU: "1000"})
        install_queues(found)
        with running(found, tmp_path_factory.mktemp("fluence"), Settings(resources=RESOURCES, reconcile_seconds=2.0)):
            yield found


class World:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.namespace = plane.new_namespace()

    def queue(self, name: str, **spec: object) -> None:
        self.plane.create({"apiVersion": QUEUES, "kind": "Queue", "metadata": {"name": name}, "spec": spec})

    def pods(self, queue: str, count: int) -> None:
        container = {"name": "c", "image": "example.com/none", "resources": {"limits": {QPU: "1"}}}
        for index in range(count):
            metadata = {"name": f"{queue}-{index}", "namespace": self.namespace, "labels": {LABEL: queue}}
            spec = {"schedulerName": "fluence", "terminationGracePeriodSeconds": 0, "containers": [container]}
            self.plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def found(self) -> list[Manifest]:
        pods: list[Manifest] = self.plane.request("GET", self._path)[1]["items"]
        return pods

    def on_nodes(self, queue: str) -> int:
        """Delete evicted pods, as their kubelets would."""
        for pod in self.found():
            if pod["metadata"].get("deletionTimestamp"):
                self.delete(pod["metadata"]["name"])
        return sum(
            bool(pod["spec"].get("nodeName")) for pod in self.found() if pod["metadata"]["labels"][LABEL] == queue
        )

    def refused(self, text: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.found() if is_refused(pod, text)]

    def delete(self, name: str) -> None:
        status = self.plane.request("DELETE", f"{self._path}/{name}?gracePeriodSeconds=0")[0]
        assert status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND)

    def clear(self) -> None:
        for pod in self.found():
            self.delete(pod["metadata"]["name"])


@pytest.fixture
def world(plane: ControlPlane) -> Iterator[World]:
    found = World(plane)
    yield found
    found.clear()


def stays(what: Callable[[], bool], looks: int = 5) -> bool:
    return all(what() for _ in range(looks))


def test_a_limit_of_devices_holds_and_the_next_one_comes_when_one_ends(world: World) -> None:
    world.queue("bounded", limit={QPU: 3})
    world.pods("bounded", 4)
    until("three", lambda: world.on_nodes("bounded") == 3)
    text = f"queue 'bounded' has reached its limit of {QPU}: limit 3, allocated 3, requested 1"
    until("the reason", lambda: len(world.refused(text)) == 1)
    (waiting,) = world.refused(text)
    assert stays(lambda: world.on_nodes("bounded") == 3)
    world.delete(next(pod["metadata"]["name"] for pod in world.found() if pod["metadata"]["name"] != waiting))
    until("the last", lambda: world.on_nodes("bounded") == 3 and not world.refused(text))


def test_what_is_deserved_of_devices_is_taken_back(world: World) -> None:
    world.queue("rich", deserved={QPU: 3})
    world.queue("poor", deserved={QPU: 1})
    world.pods("poor", 4)
    until("all four", lambda: world.on_nodes("poor") == 4)
    world.pods("rich", 3)
    until("three of the others", lambda: world.on_nodes("rich") == 3)
    assert world.on_nodes("poor") == 1
