"""Queues limit GPUs by model on a real API server: by the labels of nodes, and by the attributes of devices."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

from .awaiting import running, until
from .conftest import new_control_plane
from .harness import ControlPlane
from .invariants import Manifest, is_refused
from .queues_world import QUEUES, install_queues
from .scheduler_process import Settings

LABEL = "fluence.flux-framework.org/queue"
GPU = "nvidia.com/gpu"
MODEL = "nvidia.com/gpu.product"
DRIVER = "gpu.example.com"
A100 = "a100.fluence.flux-framework.org/devices"
MEMORY = "memory.fluence.flux-framework.org/capacity"
API = "resource.k8s.io/v1"
SETTINGS = Settings(
    reconcile_seconds=2.0,
    more={
        "profiles": [{"schedulerName": "fluence", "plugins": [{"name": "fluence", "enabled": False}]}],
        "deviceResources": [
            {"name": "a100", "resources": [GPU], "nodeSelector": {MODEL: "A100"},
             "deviceAttributes": {f"{DRIVER}/model": "A100"}},
            {"name": "memory", "capacity": f"{DRIVER}/memory"},
        ],
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_control_plane(tmp_path_factory.mktemp("model-limits"), controllers=True) as found:
        for name, model in (("big", "A100"), ("small", "T4")):
            found.new_node(name, cpu="32", **{GPU: "2"})
            found.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {MODEL: model}}})
        install_queues(found)
        found.create({"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": DRIVER},
                      "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}})  # fmt: skip
        devices = [{"name": f"d{number}", "attributes": {"model": {"string": model}},
                    "capacity": {"memory": {"value": "80Gi" if model == "A100" else "16Gi"}}}
                   for number, model in enumerate(["A100", "A100", "T4"])]  # fmt: skip
        pool = {"name": "small", "generation": 1, "resourceSliceCount": 1}
        found.create({"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": "small-gpus"},
                      "spec": {"driver": DRIVER, "nodeName": "small", "pool": pool, "devices": devices}})  # fmt: skip
        with running(found, tmp_path_factory.mktemp("fluence"), SETTINGS):
            yield found


class World:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.namespace = plane.new_namespace()
        account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"
        plane.wait_for(account, lambda answer: answer["kind"] == "ServiceAccount")  # a controller creates it

    def queue(self, name: str, **limit: str | int) -> None:
        self.plane.create({"apiVersion": QUEUES, "kind": "Queue", "metadata": {"name": name}, "spec": {"limit": limit}})

    def pods(self, queue: str, count: int, *, by_claim: bool = False) -> None:
        for index in range(count):
            name = f"{queue}-{index}"
            container: Manifest = {"name": "c", "image": "example.com/none"}
            spec: dict[str, Any] = {"schedulerName": "fluence", "containers": [container]}
            if by_claim:
                devices = {"requests": [{"name": "r", "exactly": {"deviceClassName": DRIVER}}]}
                self.plane.create({"apiVersion": API, "kind": "ResourceClaim", "spec": {"devices": devices},
                                   "metadata": {"name": name, "namespace": self.namespace}})  # fmt: skip
                spec["resourceClaims"] = [{"name": "own", "resourceClaimName": name}]
            else:
                container["resources"] = {"limits": {GPU: "1"}}
            metadata = {"name": name, "namespace": self.namespace, "labels": {LABEL: queue}}
            self.plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def found(self) -> list[Manifest]:
        pods: list[Manifest] = self.plane.request("GET", f"/api/v1/namespaces/{self.namespace}/pods")[1]["items"]
        return pods

    def nodes(self) -> list[str]:
        return sorted(pod["spec"]["nodeName"] for pod in self.found() if pod["spec"].get("nodeName"))

    def refused(self, text: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.found() if is_refused(pod, text)]

    def devices(self) -> list[str]:
        """The devices of all claims."""
        claims = self.plane.request("GET", f"/apis/{API}/namespaces/{self.namespace}/resourceclaims")[1]["items"]
        allocated = [claim.get("status", {}).get("allocation") for claim in claims]
        return sorted(result["device"] for one in allocated if one for result in one["devices"]["results"])

    def allocated(self, queue: str) -> Manifest:
        status = self.plane.request("GET", f"/apis/{QUEUES}/queues/{queue}")[1].get("status", {})
        found: Manifest = status.get("allocated", {})
        return found

    def delete(self, name: str) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}?gracePeriodSeconds=0"
        assert self.plane.request("DELETE", path)[0] in (HTTPStatus.OK, HTTPStatus.NOT_FOUND)

    def clear(self) -> None:
        for pod in self.found():
            self.delete(pod["metadata"]["name"])
        until("the devices are free", lambda: not self.devices())


@pytest.fixture
def world(plane: ControlPlane) -> Iterator[World]:
    found = World(plane)
    yield found
    found.clear()


def test_a_queue_at_the_limit_of_a_model_gets_nodes_of_others(world: World) -> None:
    world.queue("by-node", **{A100: 1})
    world.pods("by-node", 4)
    until("one A100 and both T4", lambda: world.nodes() == ["big", "small", "small"])
    text = f"queue 'by-node' has reached its limit of {A100}: limit 1, allocated 1, requested 1"
    until("the reason", lambda: len(world.refused(text)) == 1)
    until("the queue's status", lambda: world.allocated("by-node").get(A100) == "1")
    assert world.nodes() == ["big", "small", "small"]
    world.delete(next(pod["metadata"]["name"] for pod in world.found() if pod["spec"].get("nodeName") == "big"))
    until("the last pod", lambda: world.nodes() == ["big", "small", "small"] and not world.refused(text))


def test_a_queue_at_the_limit_of_a_model_gets_devices_of_others(world: World) -> None:
    world.queue("by-device", **{A100: 1})
    world.pods("by-device", 3, by_claim=True)
    until("one A100 and the T4", lambda: len(world.nodes()) == 2)
    text = f"queue 'by-device' has reached its limit of {A100}: limit 1, allocated 1"
    until("the reason", lambda: len(world.refused(text)) == 1)
    assert world.devices() in (["d0", "d2"], ["d1", "d2"])
    allocated = {A100: "1", MEMORY: "96Gi"}
    until("the queue's status", lambda: allocated.items() <= world.allocated("by-device").items())


def test_a_queue_stays_within_its_limit_of_device_memory(world: World) -> None:
    world.queue("by-memory", **{MEMORY: "100Gi"})
    world.pods("by-memory", 3, by_claim=True)
    text = f"queue 'by-memory' has reached its limit of {MEMORY}: limit 100Gi, allocated 96Gi"
    until("the reason", lambda: len(world.refused(text)) == 1)
    until("the other pods", lambda: len(world.nodes()) == 2)  # their claims are allocated after the refusal
    assert world.devices() in (["d0", "d2"], ["d1", "d2"])
