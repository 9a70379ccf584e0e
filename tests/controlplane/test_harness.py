"""The tests' control plane: versions, rights, and crashes."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

import pytest

from . import binaries
from .binaries import MissingBinaries
from .conftest import new_control_plane
from .harness import SCHEDULER, ControlPlane

GROUPS = "/apis/scheduling.k8s.io/v1alpha2"


def test_the_api_server_has_the_version_that_the_module_names(control_plane: ControlPlane) -> None:
    assert control_plane.request("GET", "/version")[1]["gitVersion"] == binaries.versions()["kubernetes"]


def test_native_pod_groups_are_served(control_plane: ControlPlane) -> None:
    names = {resource["name"] for resource in control_plane.request("GET", GROUPS)[1]["resources"]}
    assert {"podgroups", "podgroups/status"} <= names


def test_who_has_no_token_and_who_has_no_role_are_refused(control_plane: ControlPlane) -> None:
    assert control_plane.request("GET", "/api/v1/pods", user="outsider")[0] == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/v1/pods", True),
        ("GET", "/api/v1/nodes", True),
        ("GET", f"{GROUPS}/podgroups", True),
        ("GET", "/api/v1/secrets", False),
        ("POST", "/api/v1/namespaces/default/bindings", False),  # it ignores uid and resourceVersion
        ("POST", "/api/v1/namespaces/default/pods", False),
        ("PATCH", "/api/v1/namespaces/default/pods/any", False),
    ],
)
def test_the_scheduler_may_do_what_its_role_says(
    control_plane: ControlPlane, method: str, path: str, allowed: bool
) -> None:
    status, _ = control_plane.request(method, path, None if method == "GET" else {}, user=SCHEDULER)
    assert (status != HTTPStatus.FORBIDDEN) is allowed


def test_a_new_node_is_ready_and_untainted(control_plane: ControlPlane) -> None:
    control_plane.new_node("ready")
    node = control_plane.request("GET", "/api/v1/nodes/ready")[1]
    assert "taints" not in node["spec"]
    assert node["status"]["allocatable"]["cpu"] == "8"


def test_missing_programs_are_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "/nonexistent")
    with pytest.raises(MissingBinaries, match=r"etcd.*run `make controlplane`"):
        binaries.find("etcd")


def test_controllers_and_kube_scheduler_run_beside_it_and_the_api_server_survives_a_crash(tmp_path: Path) -> None:
    with new_control_plane(tmp_path, controllers=True, kube_scheduler=True) as plane:
        plane.new_node("node")
        namespace = plane.new_namespace()
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        spec = {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}
        plane.create({"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec,
                      "metadata": {"name": "two", "namespace": namespace}})  # fmt: skip
        pods = f"/api/v1/namespaces/{namespace}/pods"
        plane.wait_for(pods, lambda found: [pod["spec"].get("nodeName") for pod in found["items"]] == ["node"] * 2)
        plane.kill("kube-apiserver")
        plane.start_api_server()
        plane.compact()
        assert len(plane.request("GET", pods)[1]["items"]) == 2
