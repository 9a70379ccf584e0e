"""Whole and shared GPUs on one node, on a real API server: reservation pods, reports of devices, and policies.

The scheduler and the device plugin run with the permissions of deploy/. No kubelet runs: the test chooses the devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from copy import deepcopy
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence_plugins.device_advertisement.gpu_reports import ApiServer, ReportError
from session_scheduler.cluster.kube_bodies import object_body
from session_scheduler.model.gpu_reservations import reservation_pod
from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.objects import Node

from .awaiting import running, until
from .conftest import new_control_plane
from .harness import DEPLOY, SCHEDULER, ControlPlane
from .invariants import Manifest, annotation, condition, is_refused
from .scheduler_process import Settings

PREFIX = "fluence.flux-framework.org/"
NVIDIA = "nvidia.com/gpu"
SYSTEM = "/api/v1/namespaces/kube-system"
PODS = f"{SYSTEM}/pods"
RESERVED, REPORT = PREFIX + "gpu-reservation", PREFIX + "reserved-device"
PLUGIN = "fluence-device-plugin"
RESERVING = [
    {"name": "fluence", "enabled": False},
    {"name": "GpuSharing", "args": {"wholeGpus": "reserved", "reservations": {"seconds": 20}}},
]
SETTINGS = Settings(reconcile_seconds=2.0, more={"profiles": [{"schedulerName": "fluence", "plugins": RESERVING}]})


def sees(name: str) -> Manifest:
    """The variable that reads an annotation."""
    field = {"fieldRef": {"fieldPath": f"metadata.annotations['{PREFIX}{name}']"}}
    return {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": field}


class World:
    """The control plane with the option, and two nodes with two GPUs each."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        for manifest in yaml.safe_load_all((DEPLOY / "options/reserved-gpus.yaml").read_text()):
            plane.create(manifest)
        self.account = plane.create({"apiVersion": "v1", "kind": "ServiceAccount",
                                     "metadata": {"name": PLUGIN, "namespace": "kube-system"}})  # fmt: skip
        for name in ("default", PLUGIN):
            plane.wait_for(f"{SYSTEM}/serviceaccounts/{name}", lambda answer: answer["kind"] == "ServiceAccount")
        for node in ("n1", "n2"):
            plane.new_node(node, **{NVIDIA: "2"})
        self.namespace = plane.new_namespace()
        plane.wait_for(f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default",
                       lambda answer: answer["kind"] == "ServiceAccount")  # fmt: skip
        # The API server enforces policies with a delay, but none before those that were created earlier.
        until("the last policy", lambda: self.reading(sees("gpu")) == HTTPStatus.UNPROCESSABLE_ENTITY)

    def reading(self, variable: Manifest) -> int:
        """Create a pod that shares a GPU and has this variable, as a dry run; return the response's status."""
        main = {"name": "c", "image": "example.com/none", "env": [variable]}
        pod = {"apiVersion": "v1", "kind": "Pod",
               "metadata": {"name": "reads", "annotations": {PREFIX + "gpu-fraction": "0.5"}},
               "spec": {"containers": [main]}}  # fmt: skip
        return self.plane.request("POST", f"/api/v1/namespaces/{self.namespace}/pods?dryRun=All", pod)[0]

    def write(self, method: str, path: str, body: object, user: str = SCHEDULER) -> tuple[int, str]:
        status, answer = self.plane.request(method, path, body, user=user)
        return status, answer.get("message", "")

    def reservation(self, node: str = "n1") -> Manifest:
        """A reservation pod, as the scheduler writes it."""
        image, priority = "registry.k8s.io/pause:3.10", "system-node-critical"
        uid = self.plane.request("GET", f"/api/v1/nodes/{node}")[1]["metadata"]["uid"]
        owner = Node(metadata=ObjectMeta(name=node, uid=uid))
        pod = reservation_pod(
            "fluence-gpu-test", "kube-system", owner, 0, resource=NVIDIA, image=image, priority_class_name=priority
        )
        body: Manifest = yaml.safe_load(object_body(pod))
        return body

    def account_of(self, node: str) -> tuple[Path, dict[str, str]]:
        """The account of the device plugin's pod on a node, and the pod's environment."""
        name = f"plugin-{node}"
        main = {"name": "main", "image": "example.com/none"}
        if self.plane.request("GET", f"{PODS}/{name}")[0] != HTTPStatus.OK:
            spec = {"nodeName": node, "serviceAccountName": PLUGIN, "containers": [main]}
            metadata = {"name": name, "namespace": "kube-system"}
            self.plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        pod = self.plane.request("GET", f"{PODS}/{name}")[1]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod["metadata"]["uid"]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
        status, answer = self.plane.request("POST", f"{SYSTEM}/serviceaccounts/{PLUGIN}/token", body)
        assert status == HTTPStatus.CREATED, answer
        folder = self.folder / node
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(answer["status"]["token"])
        (folder / "namespace").write_text("kube-system")
        (folder / "ca.crt").write_text(self.plane.ca_file.read_text())
        host, _, port = self.plane.server.removeprefix("https://").rpartition(":")
        return folder, {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

    def report(self, node: str, name: str, annotations: dict[str, str]) -> bool:
        account = self.account_of(node)

        async def write() -> bool:
            server = ApiServer(*account)
            try:
                return await server.annotate(name, annotations)
            finally:
                await server.close()

        return asyncio.run(write())

    def reservations(self) -> list[Manifest]:
        found = self.plane.request("GET", f"{PODS}?labelSelector={RESERVED}")[1]
        return list(found["items"])

    def reserved(self, device: str) -> Manifest:
        """Wait for an unreported reservation pod, and report its device."""

        def unreported() -> Manifest | None:
            found = (one for one in self.reservations() if annotation(one, REPORT) is None)
            return next(found, None)

        pod = until("a reservation pod", unreported)
        assert self.report(pod["spec"]["nodeName"], pod["metadata"]["name"], {REPORT: device})
        return pod

    def pod(self, name: str, *, whole: int = 0, fraction: str = "") -> None:
        limits = {NVIDIA: str(whole)} if whole else {}
        main: Manifest = {"name": "c", "image": "example.com/none", "resources": {"limits": limits}}
        if fraction:
            main["env"] = [sees("gpu-device")]
        metadata = {"name": name, "namespace": self.namespace,
                    "annotations": {PREFIX + "gpu-fraction": fraction} if fraction else {}}  # fmt: skip
        spec = {"schedulerName": "fluence", "nodeSelector": {"kubernetes.io/hostname": "n1"}, "containers": [main]}
        self.plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def found(self, name: str) -> Manifest:
        pod: Manifest = self.plane.request("GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}")[1]
        return pod

    def bound(self, name: str) -> Manifest:
        def there() -> Manifest | None:
            pod = self.found(name)
            return pod if pod["spec"].get("nodeName") else None

        try:
            return until(f"the binding of {name}", there)
        except AssertionError as error:
            raise AssertionError(f"{error}: {condition(self.found(name), 'PodScheduled')}") from None

    def refused(self, name: str, text: str) -> None:
        until(f"the refusal of {name}: {text}", lambda: is_refused(self.found(name), text))

    def delete(self, path: str) -> None:
        assert self.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")[0] == HTTPStatus.OK


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with new_control_plane(tmp_path_factory.mktemp("reserved-plane"), controllers=True) as plane:
        label = {"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}}
        found = World(plane, tmp_path_factory.mktemp("accounts"))
        plane.request("PATCH", "/api/v1/nodes/n1", label)
        yield found


def test_reservation_pods_are_created_adopted_and_deleted(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running(world.plane, tmp_path_factory.mktemp("first"), SETTINGS):
        world.pod("a", fraction="0.5")
        held = world.reserved("GPU-x")
        assert held["spec"]["nodeName"] == "n1"
        assert held["spec"]["priority"] == 2_000_001_000
        assert not held["spec"].get("volumes")
        found = world.bound("a")
        assert (annotation(found, PREFIX + "gpu"), annotation(found, PREFIX + "gpu-device")) == ("0", "GPU-x")
        world.pod("b", fraction="0.5")
        assert annotation(world.bound("b"), PREFIX + "gpu-device") == "GPU-x"
        world.pod("whole", whole=1)
        world.bound("whole")
        world.pod("more", whole=1)
        world.refused("more", "node(s) had GPUs shared by other pods")
    world.delete(f"/api/v1/namespaces/{world.namespace}/pods/a")
    with running(world.plane, tmp_path_factory.mktemp("second"), SETTINGS):
        world.refused("more", "node(s) had GPUs shared by other pods")
        world.pod("c", fraction="0.25")
        assert annotation(world.bound("c"), PREFIX + "gpu-device") == "GPU-x", "it adopts the reservation pod"
        (same,) = world.reservations()
        assert same["metadata"]["uid"] == held["metadata"]["uid"]
        for name in ("b", "c"):
            world.delete(f"/api/v1/namespaces/{world.namespace}/pods/{name}")
        until("the deletion", lambda: all(one["metadata"].get("deletionTimestamp") for one in world.reservations()))
        assert not world.found("more")["spec"].get("nodeName"), "it waits until the kubelet has freed the GPU"
        for one in world.reservations():  # as the kubelet does
            world.delete(f"{PODS}/{one['metadata']['name']}")
        world.bound("more")
        for name in ("whole", "more"):
            world.delete(f"/api/v1/namespaces/{world.namespace}/pods/{name}")


def test_a_lost_reservation_pod_closes_the_node_until_a_new_one_has_its_device(world: World, tmp_path: Path) -> None:
    with running(world.plane, tmp_path, SETTINGS):
        world.pod("shares", fraction="0.5")
        held = world.reserved("GPU-y")
        world.bound("shares")
        world.delete(f"{PODS}/{held['metadata']['name']}")
        replaced = until("another reservation pod", lambda: world.reservations() or None)
        assert replaced[0]["metadata"]["uid"] != held["metadata"]["uid"]
        world.pod("waits", whole=1)
        world.refused("waits", "node(s) had shared GPUs without reservation pods")
        world.reserved("GPU-y")
        world.bound("waits")
        for name in ("shares", "waits"):
            world.delete(f"/api/v1/namespaces/{world.namespace}/pods/{name}")
        until("the deletion", lambda: all(one["metadata"].get("deletionTimestamp") for one in world.reservations()))
        for one in world.reservations():
            world.delete(f"{PODS}/{one['metadata']['name']}")


# ------------------------------------------------------------------ policies


def test_the_scheduler_may_create_this_form_only_in_its_namespace(world: World) -> None:
    assert world.write("POST", f"{PODS}?dryRun=All", world.reservation()) == (HTTPStatus.CREATED, "")
    elsewhere = world.reservation()
    elsewhere["metadata"]["namespace"] = world.namespace
    assert world.write("POST", f"/api/v1/namespaces/{world.namespace}/pods?dryRun=All", elsewhere)[0] == (
        HTTPStatus.FORBIDDEN
    )


WRONG: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "its name": (("metadata", "name"), "other"),
    "a label": (("metadata", "labels", "app"), "x"),
    "an annotation": (("metadata", "annotations"), {"a": "b"}),
    "an owner": (("metadata", "ownerReferences", 0, "kind"), "Pod"),
    "another node's owner": (("metadata", "ownerReferences", 0, "name"), "n2"),
    "a finalizer": (("metadata", "finalizers"), ["example.com/f"]),
    "the node's network": (("spec", "hostNetwork"), True),
    "the node's processes": (("spec", "hostPID"), True),
    "an account": (("spec", "serviceAccountName"), "fluence"),
    "a token": (("spec", "automountServiceAccountToken"), True),
    "root": (("spec", "securityContext", "runAsNonRoot"), False),
    "user 0": (("spec", "securityContext", "runAsUser"), 0),
    "user 0 of the container": (("spec", "containers", 0, "securityContext", "runAsUser"), 0),
    "root in the container": (("spec", "containers", 0, "securityContext", "runAsNonRoot"), False),
    "every system call": (("spec", "securityContext", "seccompProfile"), {"type": "Unconfined"}),
    "every system call of the container": (
        ("spec", "containers", 0, "securityContext", "seccompProfile"),
        {"type": "Unconfined"},
    ),
    "a port of the node": (("spec", "containers", 0, "ports"), [{"containerPort": 80, "hostPort": 80}]),
    "a volume": (("spec", "volumes"), [{"name": "v", "hostPath": {"path": "/"}}]),
    "an init container": (("spec", "initContainers"), [{"name": "i", "image": "registry.k8s.io/pause:3.10"}]),
    "an image": (("spec", "containers", 0, "image"), "example.com/other"),
    "a command": (("spec", "containers", 0, "command"), ["sh"]),
    "a variable": (("spec", "containers", 0, "env"), [{"name": "A", "value": "b"}]),
    "a privilege": (("spec", "containers", 0, "securityContext", "capabilities", "add"), ["SYS_ADMIN"]),
    "a probe": (("spec", "containers", 0, "livenessProbe"), {"exec": {"command": ["sh"]}}),
    "two GPUs": (("spec", "containers", 0, "resources", "limits", NVIDIA), "2"),
    "another resource": (("spec", "containers", 0, "resources"), {"limits": {"example.com/other": "1"}}),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_scheduler_may_not_create_another_pod(world: World, what: str) -> None:
    pod = deepcopy(world.reservation())
    (*path, last), value = WRONG[what]
    place: Any = pod
    for step in path:
        place = place[step]
    place[last] = value
    if what == "two GPUs":
        pod["spec"]["containers"][0]["resources"]["requests"][NVIDIA] = "2"
    status, message = world.write("POST", f"{PODS}?dryRun=All", pod)
    assert status == HTTPStatus.FORBIDDEN, message
    assert "fluence-creates-reservations" in message


def test_a_pod_without_a_node_is_no_reservation_pod(world: World) -> None:
    pod = world.reservation()
    del pod["spec"]["nodeName"]
    assert world.write("POST", f"{PODS}?dryRun=All", pod)[0] == HTTPStatus.FORBIDDEN


def test_a_device_plugin_reports_only_on_its_node_and_writes_nothing_else(world: World) -> None:
    assert world.write("POST", PODS, world.reservation())[0] == HTTPStatus.CREATED
    try:
        for node, name, annotations in (
            ("n2", "fluence-gpu-test", {REPORT: "GPU-0"}),
            ("n1", "fluence-gpu-test", {PREFIX + "held": "{}"}),
            ("n1", "plugin-n1", {REPORT: "GPU-0"}),
        ):
            world.account_of("n1")  # its pod exists
            with pytest.raises(ReportError, match=r"the API server rejected the report .*fluence-reports-devices"):
                world.report(node, name, annotations)
        assert world.report("n1", "fluence-gpu-test", {REPORT: "GPU-0"})
        assert not world.report("n1", "fluence-gpu-gone", {REPORT: "GPU-0"})
        forged = {"metadata": {"annotations": {REPORT: "GPU-1"}}}
        status, message = world.write("PATCH", f"{PODS}/fluence-gpu-test", forged, user="admin")
        assert (status, "only the device plugin writes this annotation" in message) == (HTTPStatus.FORBIDDEN, True)
        other = {"metadata": {"labels": {RESERVED: None}}}
        assert world.write("PATCH", f"{PODS}/fluence-gpu-test", other, user="admin")[0] == HTTPStatus.FORBIDDEN
        forged_pod = world.reservation("n2")
        forged_pod["metadata"]["name"] = "fluence-gpu-forged"
        assert world.write("POST", PODS, forged_pod, user="admin")[0] == HTTPStatus.FORBIDDEN
    finally:
        world.delete(f"{PODS}/fluence-gpu-test")


ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
OTHER = {**sees("gpu"), "name": "CUDA_VISIBLE_DEVICES"}


@pytest.mark.parametrize(
    ("variable", "status"), [(sees("gpu"), 422), (OTHER, 422), (ALL, 422), (sees("gpu-device"), 201)]
)
def test_pods_that_share_gpus_read_the_device(world: World, variable: Manifest, status: int) -> None:
    assert world.reading(variable) == status
