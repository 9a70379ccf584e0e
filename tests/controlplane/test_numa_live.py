"""NodeResourceTopologies on a real API server, with the permissions of deploy/: a pod waits for a zone, then starts."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

import pytest
import yaml

from .awaiting import running, until
from .conftest import new_control_plane
from .harness import DEPLOY, ControlPlane
from .invariants import Manifest, is_refused
from .scheduler_process import Settings

GROUP, PLURAL = "topology.node.k8s.io", "noderesourcetopologies"
TOPOLOGIES = f"/apis/{GROUP}/v1alpha2/{PLURAL}"
ALIGNS = Settings(
    reconcile_seconds=2.0,
    more={"profiles": [{"schedulerName": "fluence", "plugins": [
        {"name": "fluence", "enabled": False}, {"name": "NodeResourceTopologyMatch"}]}]},
)  # fmt: skip


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_control_plane(tmp_path_factory.mktemp("numa-plane")) as found:
        for manifest in yaml.safe_load_all((DEPLOY / "options/numa.yaml").read_text()):
            found.create(manifest)
        yield found


def install_topologies(plane: ControlPlane) -> None:
    """Create the CustomResourceDefinition with the fields that the scheduler reads, and wait until it is served."""
    texts = {"type": "string"}
    quantity = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    attributes = {"type": "array", "items": {"type": "object", "properties": {"name": texts, "value": texts}}}
    resource = {"name": texts, "capacity": quantity, "allocatable": quantity, "available": quantity}
    zone = {"name": texts, "type": texts,
            "resources": {"type": "array", "items": {"type": "object", "properties": resource}}}  # fmt: skip
    schema = {"type": "object", "required": ["zones"], "properties": {
        "attributes": attributes,
        "zones": {"type": "array", "items": {"type": "object", "properties": zone}}}}  # fmt: skip
    plane.create({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}",
                     "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"}},
        "spec": {"group": GROUP, "scope": "Cluster",
                 "names": {"kind": "NodeResourceTopology", "plural": PLURAL, "singular": "noderesourcetopology"},
                 "versions": [{"name": "v1alpha2", "served": True, "storage": True,
                               "schema": {"openAPIV3Schema": schema}}]},
    })  # fmt: skip
    plane.wait_for(TOPOLOGIES, lambda answer: "items" in answer)


def zones(*available: int) -> list[Manifest]:
    """Zones with four CPUs each, and so many of them free."""
    return [{"name": f"node-{number}", "type": "Node", "resources": [
             {"name": "cpu", "capacity": "4", "allocatable": "4", "available": str(free)}]}
            for number, free in enumerate(available)]  # fmt: skip


class World:
    def __init__(self, plane: ControlPlane, node: str) -> None:
        self.plane, self.node = plane, node
        self.namespace = plane.new_namespace()
        plane.new_node(node, cpu="8")

    def pod(self, name: str, cpu: int) -> None:
        limits = {"cpu": str(cpu), "memory": "1Mi"}
        container = {"name": "c", "image": "example.com/none", "resources": {"limits": limits}}
        self.plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.namespace},
                           "spec": {"schedulerName": "fluence", "containers": [container]}})  # fmt: skip

    def _found(self, name: str) -> Manifest:
        pod: Manifest = self.plane.request("GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}")[1]
        return pod

    def bound(self, name: str) -> None:
        until(f"the binding of {name}", lambda: self._found(name)["spec"].get("nodeName") == self.node)

    def refused(self, name: str, text: str) -> None:
        until(f"the refusal of {name}", lambda: is_refused(self._found(name), text))

    def report(self, *available: int) -> None:
        """Change the node's object, as its agent does."""
        status, answer = self.plane.request("PATCH", f"{TOPOLOGIES}/{self.node}", {"zones": zones(*available)})
        assert status == HTTPStatus.OK, answer


def test_a_pod_waits_for_a_numa_node_and_starts_when_the_object_changes(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(plane, "numa")
    with running(plane, tmp_path_factory.mktemp("without-kind"), ALIGNS):
        world.pod("before", 1)
        world.bound("before")
    install_topologies(plane)
    attributes = [{"name": "topologyManagerPolicy", "value": "single-numa-node"}]
    plane.create({"apiVersion": f"{GROUP}/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": "numa"},
                  "attributes": attributes, "zones": zones(1, 1)})  # fmt: skip
    with running(plane, tmp_path_factory.mktemp("with-kind"), ALIGNS):
        world.pod("waits", 2)
        world.refused("waits", "1 cannot align container.")
        world.report(2, 4)
        world.bound("waits")
        world.pod("next", 3)
        world.refused("next", "1 cannot align container while the NodeResourceTopology lacks new pods.")
        world.report(0, 4)
        world.bound("next")
