"""`fluence webhook` as a separate process, with the rights and the configuration of deploy/fluence.yaml.

This API server cannot reach Services, so the configuration has the process's URL; everything else is as shipped.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from fluence_plugins.env_injection.certificate_secret import material_of, new_secret, with_material
from fluence_plugins.env_injection.certificates import Material

from .asking import ask, scrape
from .forked import FluenceProgram
from .harness import ADMIN, DEPLOY, ControlPlane
from .processes import Program, free_ports

SECRETS = "/api/v1/namespaces/kube-system/secrets"
SECRET = f"{SECRETS}/fluence-webhook-tls"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
CONFIGURATION = f"{CONFIGURATIONS}/fluence-webhook"
NAME = "fluence-webhook.kube-system.svc"
PATIENCE = 30.0


def kubeconfig_of_the_account(plane: ControlPlane, folder: Path) -> Path:
    """Write a kubeconfig with a token of the webhook's ServiceAccount, as its pods have it."""
    path = "/api/v1/namespaces/kube-system/serviceaccounts/fluence-webhook/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    status, answer = plane.request("POST", path, body)
    assert status == HTTPStatus.CREATED, answer
    document = yaml.safe_load(plane.kubeconfig(ADMIN).read_text())
    document["users"][0]["user"] = {"token": answer["status"]["token"]}
    file = folder / "webhook.kubeconfig"
    file.write_text(yaml.safe_dump(document))
    return file


def configuration(port: int, handlers: Sequence[str] = ("fluxion",), file: str = "fluence.yaml") -> dict[str, Any]:
    """Return the configuration in a file of deploy/ for some handlers, with a URL of this machine."""
    manifests = yaml.safe_load_all((DEPLOY / file).read_text())
    found: dict[str, Any] = next(each for each in manifests if each["kind"] == "MutatingWebhookConfiguration")
    found["webhooks"] = [each for each in found["webhooks"] if each["name"].partition(".")[0] in handlers]
    for webhook in found["webhooks"]:
        path = webhook["clientConfig"].pop("service")["path"]
        webhook["clientConfig"]["url"] = f"https://127.0.0.1:{port}{path}"
    return found


class WebhookProcess:
    """One replica; it is killed at the end of its context."""

    def __init__(self, folder: Path, kubeconfig: Path, name: str = "webhook", resources: Path | None = None) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.tls_port, self.port = free_ports(2)
        self._kubeconfig = kubeconfig
        self._resources = resources
        self._program: Program | None = None

    def __enter__(self) -> WebhookProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._program is not None:
            self._program.kill()

    def start(self, *options: str) -> None:
        """Start it without waiting."""
        arguments: list[str | Path] = [
            "webhook", "--kubeconfig", self._kubeconfig,
            "--host", "127.0.0.1", "--tls-port", str(self.tls_port), "--port", str(self.port),
            "--dns-name", "127.0.0.1", "--check-interval", "0.2", *options,
        ]  # fmt: skip
        if self._resources is not None:
            arguments += ["--resources", self._resources]
        self._program = FluenceProgram(self.name, arguments, self.log)

    def wait_ready(self) -> None:
        """Wait until /readyz is OK. Raises StartError."""
        assert self._program is not None
        self._program.wait_until(self.is_ready, PATIENCE)

    def is_ready(self) -> bool:
        """Whether /readyz is OK now."""
        with suppress(OSError, http.client.HTTPException):
            return self.get("/readyz")[0] == HTTPStatus.OK
        return False

    def get(self, path: str) -> tuple[int, str]:
        """Request one of its endpoints; return status and text."""
        return ask("127.0.0.1", self.port, path)

    def metrics(self) -> dict[str, float]:
        """Return /metrics as {"name{label="value"}": number}."""
        return scrape("127.0.0.1", self.port)

    def certificate(self, bundle: bytes) -> bytes:
        """Return its certificate, verified with the bundle and the Service's name. Raises ssl.SSLError."""
        context = ssl.create_default_context(cadata=bundle.decode())
        with (
            socket.create_connection(("127.0.0.1", self.tls_port), timeout=5) as raw,
            context.wrap_socket(raw, server_hostname=NAME) as connection,
        ):
            found = connection.getpeercert(binary_form=True)
            assert found is not None
            return found

    def terminate(self) -> tuple[int, float]:
        """Send SIGTERM; return the exit status and the seconds until its end."""
        assert self._program is not None
        began = time.monotonic()
        self._program.terminate()
        until(lambda: self._program is not None and self._program.status is not None)
        assert self._program.status is not None
        return self._program.status, time.monotonic() - began

    def kill(self) -> None:
        """Send SIGKILL."""
        assert self._program is not None
        self._program.kill()


def until(true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


class Shared:
    """The webhook's objects in the API server: its Secret and its configuration."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def clear(self) -> None:
        """Delete both."""
        for path in (SECRET, CONFIGURATION):
            self.plane.request("DELETE", path)

    def configure(self, port: int, handlers: Sequence[str] = ("fluxion",), file: str = "fluence.yaml") -> None:
        """Apply the configuration again."""
        self.plane.create(configuration(port, handlers, file))

    def secret(self) -> dict[str, Any]:
        """Return the Secret."""
        status, found = self.plane.request("GET", SECRET)
        assert status == HTTPStatus.OK, found
        return dict(found)

    def material(self) -> Material:
        """Return its content."""
        found = material_of(self.secret())
        assert found is not None
        return found

    def put(self, material: Material) -> None:
        """Store material, as a replica would."""
        status, found = self.plane.request("GET", SECRET)
        if status == HTTPStatus.OK:
            status, found = self.plane.request("PUT", SECRET, with_material(found, material))
        else:
            status, found = self.plane.request(
                "POST", SECRETS, new_secret("fluence-webhook-tls", "kube-system", material)
            )
        assert status in (HTTPStatus.OK, HTTPStatus.CREATED), found

    def bundles(self) -> Sequence[bytes]:
        """Return the caBundle of each webhook in the configuration."""
        status, found = self.plane.request("GET", CONFIGURATION)
        assert status == HTTPStatus.OK, found
        return [base64.b64decode(each["clientConfig"].get("caBundle", "")) for each in found["webhooks"]]

    def patch_configuration(self, webhooks: list[dict[str, Any]]) -> None:
        """Replace the list of webhooks."""
        status, found = self.plane.request("PATCH", CONFIGURATION, {"webhooks": webhooks})
        assert status == HTTPStatus.OK, json.dumps(found)
