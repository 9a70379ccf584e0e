"""`kubectl fluence dashboard` with the real kubectl and API server: the page through a port-forward, and its end."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser

from ..controlplane import binaries
from ..controlplane.harness import ADMIN, DEPLOY
from ..controlplane.processes import Program, free_ports
from .browsing import Visitor
from .world import KWOK, Manifest, World

NODE = "portforward"
POD = "fluence-dashboard-0"
SERVICE = "/api/v1/namespaces/kube-system/services/fluence-dashboard"
_OPEN = re.compile(
    r"^fluence dashboard: open (http://127\.0\.0\.1:(\d+)) and sign in with a token for the cluster "
    r"\(Service kube-system/fluence-dashboard\)$",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def deployed(the_world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The Service of deploy/, and its pod on a node whose kubelet, which kwok plays, forwards to the dashboard."""
    world, folder = the_world, tmp_path_factory.mktemp("portforward")
    (port,) = free_ports(1)
    with ExitStack() as stack:
        kubelet = Program("kubelet", _kubelet(world, folder, port), folder / "kubelet.log")
        stack.callback(kubelet.stop)
        kubelet.wait_until(lambda: listens(port), 60)
        for plural, manifest in _manifests(port):
            world.plane.create(manifest)
            metadata = manifest["metadata"]
            namespace = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
            path = f"/api/v1{namespace}/{plural}/{metadata['name']}"
            stack.callback(world.plane.request, "DELETE", path, {"gracePeriodSeconds": 0})
        world.until("running pod", lambda: any(
            pod["metadata"]["name"] == POD and pod["status"]["phase"] == "Running" for pod in world.pods("kube-system")
        ))  # fmt: skip
        yield world


def _kubelet(world: World, folder: Path, port: int) -> list[str | Path]:
    """The command of a kubelet that only forwards ports."""
    config = folder / "kubelet.yaml"
    target = {"address": world.host, "port": world.port}
    config.write_text(yaml.safe_dump({
        "apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "ClusterPortForward", "metadata": {"name": "dashboard"},
        "spec": {"forwards": [{"ports": [8090], "target": target}]},
    }))  # fmt: skip
    keys = world.plane.ca_file
    return [
        binaries.find("kwok")["kwok"], "--kubeconfig", world.plane.kubeconfig(ADMIN), f"--config={KWOK},{config}",
        f"--manage-single-node={NODE}", f"--server-address=127.0.0.1:{port}",
        "--tls-cert-file", keys, "--tls-private-key-file", keys.with_suffix(".key"),
    ]  # fmt: skip


def _manifests(port: int) -> Iterator[tuple[str, Manifest]]:
    yield "nodes", {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    }  # fmt: skip
    for manifest in yaml.safe_load_all((DEPLOY / "options" / "dashboard.yaml").read_text()):
        if manifest["kind"] == "Service":
            yield "services", manifest
        if manifest["kind"] == "Deployment":
            template = manifest["spec"]["template"]
            metadata = {"name": POD, "namespace": "kube-system", "labels": template["metadata"]["labels"]}
            yield "pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
                           "spec": template["spec"] | {"nodeName": NODE, "nodeSelector": None}}  # fmt: skip


class Plugin(Program):
    """`kubectl fluence dashboard`, as a user runs it."""

    def __init__(self, world: World, folder: Path, *, token: str = "") -> None:
        kubectl = binaries.find("kubectl")["kubectl"]
        kubeconfig = folder / "kubeconfig"
        document = yaml.safe_load(world.plane.kubeconfig(ADMIN).read_text())
        if token:
            document["users"][0]["user"] = {"token": token}
        kubeconfig.write_text(yaml.safe_dump(document))
        installed = Path(sys.executable).parent  # with kubectl-fluence
        path = f"PATH={kubectl.parent}:{installed}:{os.environ['PATH']}"
        words: list[str | Path] = ["fluence", "dashboard", "--kubeconfig", kubeconfig, "--bind", "127.0.0.1:0"]
        command: list[str | Path] = ["env", path, f"HOME={folder}", kubectl, *words]
        super().__init__("kubectl fluence dashboard", command, folder / "kubectl.log")

    def opened(self) -> tuple[str, int]:
        """The address that it prints, and its port."""
        self.wait_until(lambda: _OPEN.search(self.log.read_text()) is not None, 60)
        found = _OPEN.search(self.log.read_text())
        assert found is not None
        return found[1], int(found[2])

    def ended(self) -> tuple[int, str]:
        """Its exit status and what it printed, once it has ended."""
        status = self._handle.wait(30)
        return int(status), self.log.read_text()

    @property
    def children(self) -> list[int]:
        """The processes that it started."""
        return [int(word) for word in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]


def listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_answers_through_a_port_forward_that_ends_with_the_command(
    deployed: World, browser: Browser, tmp_path: Path, number: signal.Signals
) -> None:
    plugin = Plugin(deployed, tmp_path)
    try:
        address, port = plugin.opened()
        with Visitor(browser, address) as visitor:
            visitor.sign_in(deployed.plane.token())
            visitor.open("overview")
            assert "pods are pending" in visitor.summary
        (kubectl,) = plugin.children
        assert b"port-forward" in Path(f"/proc/{kubectl}/cmdline").read_bytes()
        plugin.signal(number)
        assert plugin.ended()[0] == 0
        assert not Path(f"/proc/{kubectl}").exists()
        assert not listens(port)
    finally:
        plugin.stop()


def test_the_end_of_the_port_forward_ends_the_command(deployed: World, tmp_path: Path) -> None:
    plugin = Plugin(deployed, tmp_path)
    try:
        plugin.opened()
        (kubectl,) = plugin.children
        os.kill(kubectl, signal.SIGKILL)
        assert plugin.ended()[0] != 0
    finally:
        plugin.stop()


def test_what_the_api_server_refuses_is_said_in_one_line(deployed: World, tmp_path: Path) -> None:
    token = deployed.new_user("no-services", "science")
    status, text = Plugin(deployed, tmp_path, token=token).ended()
    assert status == 2
    assert text == (
        "fluence: kubectl cannot list Services: Error from server (Forbidden): services is forbidden: User "
        '"system:serviceaccount:science:no-services" cannot list resource "services" in API group "" at the cluster '
        "scope\n"
    )


def test_without_the_service_the_command_names_the_manifest(the_world: World, tmp_path: Path) -> None:
    """The last test: the fixture's Service is deleted."""
    the_world.plane.request("DELETE", SERVICE)
    status, text = Plugin(the_world, tmp_path).ended()
    assert status == 2
    assert text == (
        "fluence: no dashboard runs in this cluster; apply deploy/options/dashboard.yaml, or run `fluence dashboard`\n"
    )
