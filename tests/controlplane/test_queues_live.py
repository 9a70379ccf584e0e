"""Queue objects on a real API server: limits, statuses, a missing parent, a cycle; and a cluster without the CRD."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

from .awaiting import running, until
from .conftest import new_control_plane
from .harness import SCHEDULER, ControlPlane
from .invariants import Manifest, is_refused
from .processes import StartError
from .queues_world import QUEUES, install_queues
from .scheduler_process import SchedulerProcess, Settings

LABEL = "fluence.flux-framework.org/queue"
PLAIN = Settings(
    reconcile_seconds=2.0,
    more={"profiles": [{"schedulerName": "fluence", "plugins": [{"name": "fluence", "enabled": False}]}]},
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_control_plane(tmp_path_factory.mktemp("queues-plane")) as found:
        found.new_node("n1", cpu="8")
        yield found


@pytest.fixture(scope="module")
def scheduler(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerProcess]:
    with running(plane, tmp_path_factory.mktemp("fluence"), PLAIN) as process:
        yield process


class World:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.namespace = plane.new_namespace()

    def queue(self, name: str, **spec: Any) -> None:
        self.plane.create({"apiVersion": QUEUES, "kind": "Queue", "metadata": {"name": name}, "spec": spec})

    def pod(self, name: str, queue: str, cpu: str = "1") -> None:
        container = {"name": "c", "image": "example.com/none", "resources": {"requests": {"cpu": cpu}}}
        self.plane.create({"apiVersion": "v1", "kind": "Pod",
                           "metadata": {"name": name, "namespace": self.namespace, "labels": {LABEL: queue}},
                           "spec": {"schedulerName": "fluence", "containers": [container]}})  # fmt: skip

    def found(self, name: str) -> Manifest:
        pod: Manifest = self.plane.request("GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}")[1]
        return pod

    def bound(self, *names: str) -> bool:
        return all(self.found(name)["spec"].get("nodeName") for name in names)

    def refused(self, name: str, text: str) -> bool:
        return is_refused(self.found(name), text)

    def delete(self, name: str) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}?gracePeriodSeconds=0"
        assert self.plane.request("DELETE", path)[0] == HTTPStatus.OK

    def status(self, queue: str) -> Manifest:
        answer: Manifest = self.plane.request("GET", f"/apis/{QUEUES}/queues/{queue}")[1]
        return dict(answer.get("status", {}))

    def ready(self, queue: str) -> tuple[str, str] | None:
        found = next((one for one in self.status(queue).get("conditions", ()) if one["type"] == "Ready"), None)
        return None if found is None else (found["status"], found["reason"])


@pytest.fixture(scope="module")
def world(plane: ControlPlane, scheduler: SchedulerProcess) -> World:
    """Pods are placed before the CRD is installed, and after."""
    world = World(plane)
    world.pod("before", "default")
    until("a pod without the CRD", lambda: world.bound("before"))
    world.pod("waits", "late")
    until("the refusal", lambda: world.refused("waits", "queue 'late' does not exist"))
    install_queues(plane)
    world.queue("late")
    until("the queue that came", lambda: world.bound("waits"))
    return world


def test_a_limit_holds_and_what_ends_lets_the_next_in(world: World) -> None:
    world.queue("top", limit={"cpu": 2})
    world.queue("a", parent="top", deserved={"cpu": "1"})
    world.queue("b", parent="top", overQuotaWeight=2, priority=1)
    for name, queue in (("a1", "a"), ("b1", "b")):
        world.pod(name, queue)
    until("the first pods", lambda: world.bound("a1", "b1"))
    world.pod("b2", "b")
    why = "queue 'top' has reached its limit of cpu: limit 2, allocated 2, requested 1"
    until("the refusal", lambda: world.refused("b2", why))
    until("the statuses", lambda: world.status("b").get("pending") == {"cpu": "1", "pods": "1"})
    until("the amounts", lambda: world.status("top").get("allocated") == {"cpu": "2", "pods": "2"})
    assert world.status("top")["fairShare"]["cpu"] == "2"
    assert world.ready("a") == world.ready("top") == ("True", "Ready")
    world.delete("a1")
    until("the next pod", lambda: world.bound("b2"))
    until("the amounts of ended pods", lambda: not world.status("a").get("allocated"))


def test_the_command_shows_the_tree_of_the_live_cluster_and_metrics_say_the_same(
    world: World, scheduler: SchedulerProcess
) -> None:
    world.queue("shown", limit={"cpu": 1})
    world.pod("shown-1", "shown")
    until("its pod", lambda: world.bound("shown-1"))
    config = world.plane.kubeconfig(SCHEDULER)
    command = [sys.executable, "-m", "session_scheduler.cli", "queues", "--kubeconfig", str(config), "-o", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = {one["name"]: one for one in json.loads(answer.stdout)["queues"]}
    assert found["shown"]["allocated"] == {"cpu": "1", "pods": "1"}
    assert found["shown"]["limit"] == {"cpu": "1"}
    assert found["shown"]["ready"] is True
    name = 'fluence_queue_allocated{queue="shown",resource="cpu"}'
    until("the metric", lambda: scheduler.metrics().get(name) == 1)


def test_a_missing_parent_and_a_circle_are_told_and_take_no_pods(world: World) -> None:
    world.queue("orphan", parent="nowhere")
    world.queue("one", parent="two")
    world.queue("two", parent="one")
    world.queue("below", parent="two")
    until("the orphan's status", lambda: world.ready("orphan") == ("False", "ParentMissing"))
    until("the circle's status", lambda: world.ready("one") == world.ready("two") == ("False", "Circle"))
    until("the status below", lambda: world.ready("below") == ("False", "ParentNotReady"))
    world.pod("lost", "orphan")
    world.pod("round", "one")
    world.pod("fine", "default")
    missing = "queue 'orphan' is not ready: parent: queue 'nowhere' does not exist"
    until("the orphan's pod", lambda: world.refused("lost", missing))
    until("the circle's pod", lambda: world.refused("round", "the queues form a cycle (one -> two -> one)"))
    until("others' pods", lambda: world.bound("fine"))
    world.queue("nowhere")
    until("the fixed queue", lambda: world.ready("orphan") == ("True", "Ready"))
    until("its pod", lambda: world.bound("lost"))


@pytest.mark.parametrize("spec", [
    {"overQuotaWeight": -1}, {"priority": "high"}, {"limit": {"cpu": [1]}}, {"deserve": {}}, {"parent": "x" * 64},
])  # fmt: skip
def test_the_api_server_refuses_what_the_schema_does_not_allow(world: World, spec: dict[str, Any]) -> None:
    with pytest.raises(StartError):
        world.queue("wrong", **spec)


def test_a_name_that_no_label_can_have_is_refused(world: World) -> None:
    with pytest.raises(StartError, match="at most 63 characters"):
        world.queue("x" * 64)
