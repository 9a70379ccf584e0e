"""A cluster whose API server calls the webhook for Jobs, Deployments and pods; the scheduler may open gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from .harness import DEPLOY, ControlPlane, _plural
from .invariants import Manifest, is_bound
from .scenarios_world import pod_spec
from .webhook_process import Shared, WebhookProcess, kubeconfig_of_the_account

PREFIX = "fluence.flux-framework.org/"
GATE = "quantum.braket/ready"
IMAGE = "registry.example/fluence-sidecar:1.2"
HANDLERS = ("quantum", "gang", "fluxion")
JOBS = "/apis/batch/v1/namespaces"


@contextmanager
def option(plane: ControlPlane) -> Iterator[None]:
    """Apply deploy/options/coordination.yaml, and remove it at the end."""
    paths = []
    try:
        for manifest in yaml.safe_load_all((DEPLOY / "options" / "coordination.yaml").read_text()):
            made = plane.create(manifest)
            paths.append(f"/apis/{made['apiVersion']}/{_plural(made['kind'].lower())}/{made['metadata']['name']}")
        yield
    finally:
        for path in paths:
            plane.request("DELETE", path)


@contextmanager
def webhook(plane: ControlPlane, folder: Path, resources: str, *options: str) -> Iterator[WebhookProcess]:
    """Run a webhook with all handlers that the API server trusts."""
    shared = Shared(plane)
    shared.clear()
    file = folder / "webhook-resources.yaml"
    file.write_text(resources)
    with ExitStack() as stack:
        stack.callback(shared.clear)
        replica = stack.enter_context(WebhookProcess(folder, kubeconfig_of_the_account(plane, folder), resources=file))
        shared.configure(replica.tls_port, HANDLERS)
        replica.start("--handlers", ",".join(HANDLERS), *(options or ("--sidecar-image", IMAGE)))
        replica.wait_ready()
        yield replica


def job(name: str, namespace: str, pods: int, **changes: Any) -> Manifest:
    """Create an Indexed Job of pods that share a device; `changes` are labels, annotations and fields of its spec."""
    annotations = {f"{PREFIX}coordination": "shared"} | changes.pop("annotations", {})
    template = {"metadata": {"labels": changes.pop("labels", {}), "annotations": annotations},
                "spec": pod_spec(device=True) | {"restartPolicy": "Never"}}  # fmt: skip
    spec = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "template": template} | changes
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


class Pods:
    """The pods of a namespace, by their role from the webhook."""

    def __init__(self, plane: ControlPlane, namespace: str, until: Callable[..., Any]) -> None:
        self.plane = plane
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self._until = until

    def all(self) -> list[Manifest]:
        found: list[Manifest] = self.plane.request("GET", self.path)[1]["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def names(self, count: int) -> list[str]:
        """Wait for so many pods; return their names."""

        def there() -> list[str] | None:
            found = [pod["metadata"]["name"] for pod in self.all()]
            return found if len(found) == count else None

        found: list[str] = self._until(f"{count} pods", there)
        return found

    def of_role(self, role: str, *, live: bool = True) -> list[Manifest]:
        return [
            pod for pod in self.all()
            if pod["metadata"].get("annotations", {}).get(f"{PREFIX}coordination-role") == role
            and (not live or pod["status"].get("phase") in ("Pending", "Running"))
        ]  # fmt: skip

    def roles(self, consumers: int) -> tuple[Manifest, list[Manifest]]:
        """Wait for so many pods; return the live producer and its consumers."""

        def there() -> tuple[Manifest, list[Manifest]] | None:
            producers, others = self.of_role("producer"), self.of_role("consumer")
            return (producers[0], others) if len(producers) == 1 and len(others) == consumers else None

        found: tuple[Manifest, list[Manifest]] = self._until(f"a producer and {consumers} consumers", there)
        return found

    def bound_producer(self) -> Manifest:
        """Wait until the live producer is bound; return it."""

        def there() -> Manifest | None:
            return next((pod for pod in self.of_role("producer") if is_bound(pod)), None)

        found: Manifest = self._until("a node for the producer", there)
        return found

    def gated(self) -> list[Manifest]:
        return [pod for pod in self.all() if {"name": GATE} in pod["spec"].get("schedulingGates", [])]

    def bound_consumers(self, count: int) -> list[Manifest]:
        """Wait until so many consumers are bound; return them."""

        def there() -> list[Manifest] | None:
            found = [pod for pod in self.of_role("consumer") if is_bound(pod)]
            return found if len(found) == count else None

        found: list[Manifest] = self._until(f"nodes for {count} consumers", there)
        return found

    def set_phase(self, pod: Manifest, phase: str) -> None:
        """Report a status, as a kubelet would."""
        path = f"{self.path}/{pod['metadata']['name']}/status"
        status, answer = self.plane.request("PATCH", path, {"status": {"phase": phase}})
        assert status == HTTPStatus.OK, answer

    def annotate(self, pod: Manifest, **texts: str) -> None:
        body = {"metadata": {"annotations": {PREFIX + key.replace("_", "-"): text for key, text in texts.items()}}}
        status, answer = self.plane.request("PATCH", f"{self.path}/{pod['metadata']['name']}", body)
        assert status == HTTPStatus.OK, answer
