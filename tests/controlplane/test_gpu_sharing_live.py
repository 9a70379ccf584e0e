"""Shared GPUs on a real API server: the Binding records their indices, and a restart reads them."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from .awaiting import running, until
from .conftest import new_control_plane
from .harness import ControlPlane
from .invariants import Manifest, annotation, is_refused
from .scheduler_process import Settings

PREFIX = "fluence.flux-framework.org/"
NVIDIA = "nvidia.com/gpu"
PLAIN = Settings(
    reconcile_seconds=2.0,
    more={"profiles": [{"schedulerName": "fluence", "plugins": [{"name": "fluence", "enabled": False}]}]},
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_control_plane(tmp_path_factory.mktemp("gpus-plane")) as found:
        yield found


class World:
    """Pods on nodes of their own, with two GPUs each."""

    def __init__(self, plane: ControlPlane, node: str) -> None:
        self.plane, self.node = plane, node
        self.namespace = plane.new_namespace()
        plane.new_node(node, **{NVIDIA: "2"})
        labels = {f"{NVIDIA}.memory": "1000", "own": node}
        plane.request("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})

    def pod(self, name: str, *, whole: int = 0, on: str = "", **asked: str) -> None:
        """`asked` are the annotations, for example gpu_fraction="0.5"."""
        container = {"name": "c", "image": "example.com/none",
                     "resources": {"limits": {NVIDIA: str(whole)} if whole else {}}}  # fmt: skip
        spec = {"schedulerName": "fluence", "nodeSelector": {"own": self.node}, "containers": [container]}
        annotations = {PREFIX + key.replace("_", "-"): text for key, text in asked.items()}
        metadata = {"name": name, "namespace": self.namespace, "annotations": annotations}
        self.plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
                           "spec": spec | ({"nodeName": on} if on else {})})  # fmt: skip

    def found(self, name: str) -> Manifest:
        pod: Manifest = self.plane.request("GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}")[1]
        return pod

    def given(self, name: str) -> str:
        """Wait until a pod is bound; return its GPUs."""
        pod = until(f"the binding of {name}", lambda: self._bound(name))
        return annotation(pod, PREFIX + "gpu") or ""

    def _bound(self, name: str) -> Manifest | None:
        pod = self.found(name)
        return pod if pod["spec"].get("nodeName") else None

    def refused(self, name: str, text: str) -> None:
        until(f"the refusal of {name}", lambda: is_refused(self.found(name), text))

    def delete(self, name: str) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}?gracePeriodSeconds=0"
        assert self.plane.request("DELETE", path)[0] == HTTPStatus.OK


def test_what_pods_are_given_is_written_with_the_binding_and_a_second_start_keeps_the_account(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(plane, "kept")
    with running(plane, tmp_path_factory.mktemp("first"), PLAIN):
        world.pod("a", gpu_fraction="0.6")
        assert world.given("a") == "0"
        world.pod("b", gpu_memory="700")
        assert world.given("b") == "1"
        world.pod("c", gpu_fraction="0.5")
        world.refused("c", "Insufficient shared GPU")
        world.pod("whole", whole=1)
        world.refused("whole", "node(s) had GPUs shared by other pods")
    world.pod("meanwhile", gpu_memory="100", on="kept")
    with running(plane, tmp_path_factory.mktemp("second"), PLAIN):
        world.pod("d", gpu_fraction="0.3")
        assert world.given("d") == "0", "0.6 and what counts on each GPU, 0.1, leave 0.3"
        world.pod("e", gpu_fraction="0.3")
        world.refused("e", "Insufficient shared GPU")
        world.refused("c", "Insufficient shared GPU")
        world.delete("e")  # it may be retried before c, and take the GPU
        world.delete("a")
        assert world.given("c") == "0"


def test_both_kinds_wait_for_each_other(plane: ControlPlane, tmp_path: Path) -> None:
    world = World(plane, "kinds")
    with running(plane, tmp_path, PLAIN):
        world.pod("whole", whole=1)
        assert world.given("whole") == ""
        world.pod("part", gpu_fraction="0.5", gpu_count="2")
        world.refused("part", "node(s) had whole GPUs allocated to other pods")
        world.delete("whole")
        assert world.given("part") == "0,1"
        world.pod("again", whole=2)
        world.refused("again", "node(s) had GPUs shared by other pods")
        world.delete("part")
        until("whole GPUs", lambda: world.found("again")["spec"].get("nodeName"))


def test_what_is_no_share_is_refused_with_the_remedy(plane: ControlPlane, tmp_path: Path) -> None:
    world = World(plane, "wrong")
    with running(plane, tmp_path, PLAIN):
        world.pod("half", gpu_fraction="half")
        world.refused(
            "half", "annotation fluence.flux-framework.org/gpu-fraction: 'half' is not a valid fraction of a GPU; write"
        )
        world.pod("both", whole=1, gpu_fraction="0.5")
        world.refused("both", "the pod also requests nvidia.com/gpu; remove one of the two")
