"""Pods that are resized in place: each scheduler counts what the kubelet has not freed yet. The test is the kubelet."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from .invariants import is_bound
from .scenarios_world import Scenario
from .test_amounts_live import drift


class ResizedPods:
    """On each node a pod with 3 of 4 cores; one node is for Fluence's pods, the other for kube-scheduler's."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.nodes = {name: scenario.add_node(cpu=4, devices=0) for name in ("fluence", "default-scheduler")}
        self.scheduler = scenario.run()
        for scheduler, node in self.nodes.items():
            self.create(f"runs-{scheduler}", scheduler)
            assert scenario.wait_bound(f"runs-{scheduler}") == {f"runs-{scheduler}": node}

    def create(self, name: str, scheduler: str, cpu: str = "3") -> None:
        on_node = {"key": "metadata.name", "operator": "In", "values": [self.nodes[scheduler]]}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [on_node]}]}}  # fmt: skip
        self.scenario.create_pod(name, cpu=cpu, schedulerName=scheduler, affinity={"nodeAffinity": affinity})

    def patch(self, name: str, part: str, body: object) -> None:
        path = f"/api/v1/namespaces/{self.scenario.namespace}/pods/{name}/{part}"
        status, answer = self.scenario.plane.request("PATCH", path, body)
        assert status == HTTPStatus.OK, answer

    def resize(self, cpu: str) -> None:
        """A client changes the spec of both running pods."""
        for scheduler in self.nodes:
            container = self.scenario.pod(f"runs-{scheduler}")["spec"]["containers"][0]
            container["resources"]["requests"]["cpu"] = cpu
            self.patch(f"runs-{scheduler}", "resize", {"spec": {"containers": [container]}})

    def report(self, allocated: str, actual: str, reason: str = "") -> None:
        """The kubelet reports the amounts of both running pods, and with `reason` a pending resize."""
        conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
        memory = {"memory": "64Mi"}
        status = {
            "name": "main", "image": "example.com/none", "imageID": "", "ready": True, "restartCount": 0,
            "allocatedResources": {"cpu": allocated, **memory}, "resources": {"requests": {"cpu": actual, **memory}},
        }  # fmt: skip
        reported = {"phase": "Running", "containerStatuses": [status], "conditions": conditions}
        for scheduler in self.nodes:
            self.patch(f"runs-{scheduler}", "status", {"status": reported})

    def names(self, prefix: str) -> list[str]:
        return [f"{prefix}-{scheduler}" for scheduler in self.nodes]

    def wait_refused(self, prefix: str) -> None:
        for name in self.names(prefix):
            self.scenario.wait_refused(name, "Insufficient cpu")


@pytest.fixture
def resized(scenario: Scenario) -> ResizedPods:
    return ResizedPods(scenario)


def test_what_a_pod_shrinks_by_is_free_once_its_status_says_so(resized: ResizedPods) -> None:
    scenario = resized.scenario
    resized.report("3", "3")
    for scheduler in resized.nodes:
        resized.create(f"late-{scheduler}", scheduler)
    resized.wait_refused("late")
    resized.resize("1")
    resized.report("1", "3")
    for scheduler in resized.nodes:
        resized.create(f"later-{scheduler}", scheduler, cpu="2")
    resized.wait_refused("later")
    for name in resized.names("later"):
        scenario.delete_pod(name)
    assert not any(is_bound(scenario.pod(name)) for name in resized.names("late"))
    resized.report("1", "1")
    scenario.wait_bound(*resized.names("late"))
    resized.scheduler.kill()
    resized.scheduler.start()
    resized.scheduler.wait_ready()
    resized.create("last-fluence", "fluence", cpu="1")
    scenario.wait_refused("last-fluence", "Insufficient cpu")
    assert drift(resized.scheduler) == 0
    scenario.delete_pod("runs-fluence")
    scenario.wait_bound("last-fluence")


def test_a_resize_counts_at_once_unless_the_kubelet_reports_it_as_infeasible(resized: ResizedPods) -> None:
    resized.report("3", "3")
    resized.resize("4")
    for scheduler in resized.nodes:
        resized.create(f"late-{scheduler}", scheduler, cpu="1")
    resized.wait_refused("late")
    resized.report("3", "3", "Deferred")
    resized.wait_refused("late")
    resized.report("3", "3", "Infeasible")
    resized.scenario.wait_bound(*resized.names("late"))
