"""A namespace whose pods an API server sends to replicas of the webhook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fluence_plugins.env_injection.certificates import service_names

from .harness import ControlPlane
from .webhook_process import Shared, WebhookProcess, kubeconfig_of_the_account

RESOURCES = "resources: [{type: qpu, name: one, attributes: {region: here, num-qubits: 5}}]\n"
OURS = ["FLUXION_BACKEND", "FLUXION_NUM_QUBITS", "FLUXION_REGION"]
NAMES = service_names("fluence-webhook", "kube-system", ["127.0.0.1"])
Manifest = dict[str, Any]


@dataclass
class World:
    """A namespace, and what a test's replicas share."""

    plane: ControlPlane
    shared: Shared
    namespace: str
    folder: Path
    kubeconfig: Path

    def replica(self, name: str = "webhook", resources: str = RESOURCES) -> WebhookProcess:
        file = self.folder / f"{name}-resources.yaml"
        file.write_text(resources)
        return WebhookProcess(self.folder, self.kubeconfig, name, file)

    def create(self, pod: Manifest, query: str = "") -> Manifest:
        status, answer = self.plane.request("POST", f"/api/v1/namespaces/{self.namespace}/pods{query}", pod)
        assert status == HTTPStatus.CREATED, answer
        return dict(answer)

    def is_patched(self) -> bool:
        return env_names(self.create(pod())["spec"]["containers"][0]) == OURS


def new_world(plane: ControlPlane, folder: Path) -> World:
    """Create a new namespace, without Secret and configuration."""
    shared = Shared(plane)
    shared.clear()
    return World(plane, shared, plane.new_namespace(), folder, kubeconfig_of_the_account(plane, folder))


def pod(**spec: Any) -> Manifest:
    container = {"name": "main", "image": "example.com/none"}
    whole = {"schedulerName": "fluence", "automountServiceAccountToken": False, "containers": [container]} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "pod-"}, "spec": whole}


def env_names(container: Mapping[str, Any]) -> list[str]:
    return [each["name"] for each in container.get("env", [])]
