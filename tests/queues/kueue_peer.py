"""Kueue's own controller as a process beside a control plane, with its webhooks.

    with Kueue(folder, plane):
        ...                                      # Jobs are admitted, v1beta1 is understood

Its metrics' certificate it reads from a fixed folder below /etc: it runs in a mount namespace with an /etc of its own.
"""

from __future__ import annotations

import base64
import http.client
import os
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import yaml

from ..controlplane.asking import ask
from ..controlplane.binaries import MissingBinaries
from ..controlplane.processes import Program, Served, free_ports
from .certificates import write_certificate
from .plane import FLAVORS, KUEUE, QueuesPlane
from .programs import kueue, kueue_webhooks

NAMESPACE = "kueue-system"
UNDECLARED_IGNORED: Final = {"quotaCheckStrategy": "IgnoreUndeclared"}
"""The document's Job asks for cpu and memory, its queue covers pods only: what is not covered is not checked."""
_START = 90.0
_ADDRESS = "127.0.0.1"
_HOOKED = frozenset({"clusterqueues", "cohorts", "resourceflavors", "workloads", "workloads/status", "jobs"})
"""What the webhooks are asked about: the integrations that are on have them."""
_OWN_ETC = 'mount --bind "$0" /etc && exec "$@"'


class Kueue(Served):
    """The controller; it admits batch/v1 Jobs. `resources`: that part of its configuration."""

    def __init__(self, folder: Path, plane: QueuesPlane, *, resources: Mapping[str, Any] = UNDECLARED_IGNORED) -> None:
        self._program_file = kueue()
        if os.geteuid() != 0:
            raise MissingBinaries("Kueue runs in a mount namespace: run the tests as root")
        self.log = folder / "kueue.log"
        self._folder = folder
        self._plane = plane
        self._resources = resources
        self._webhooks, self._health, self._metrics = free_ports(3)
        self._program: Program | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start it, with what the API server has to know of it; returns once it is ready."""
        self._folder.mkdir(parents=True, exist_ok=True)
        certificate = write_certificate(self._folder / "serving")
        write_certificate(self._folder / "etc" / "kueue" / "metrics" / "certs")
        bundle = base64.b64encode(certificate.read_bytes()).decode()
        if self._plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}")[0] == HTTPStatus.NOT_FOUND:
            self._plane.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        self._plane.convert_by(f"https://{_ADDRESS}:{self._webhooks}/convert", bundle)
        self._run()
        self._register(bundle)

    def restart(self, resources: Mapping[str, Any]) -> None:
        """End it and start it with another part of its configuration; the API server need not hear of it."""
        self.stop()
        self._resources = resources
        self._run()

    def _run(self) -> None:
        configuration = self._folder / "kueue.yaml"
        configuration.write_text(yaml.safe_dump(self._configuration()))
        command: list[str | Path] = [
            "unshare", "--mount", "sh", "-c", _OWN_ETC, self._folder / "etc",
            self._program_file, f"--config={configuration}", f"--kubeconfig={self._plane.kubeconfig(KUEUE)}",
        ]  # fmt: skip
        self._program = Program("kueue", command, self.log)
        self._program.wait_until(self._is_ready, _START)

    def stop(self) -> None:
        """End it. What the API server asked it is refused from now on: writing its objects is, too."""
        program, self._program = self._program, None
        if program is not None:
            program.stop()

    def _configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"{_ADDRESS}:{self._health}"},
            "metrics": {"bindAddress": f"{_ADDRESS}:{self._metrics}"},
            "webhook": {"host": _ADDRESS, "port": self._webhooks, "certDir": str(self._folder / "serving")},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": 300, "burst": 500},
            "integrations": {"frameworks": ["batch/job"]},
            "featureGates": {"VisibilityOnDemand": False},
            "resources": dict(self._resources),
        }

    def _is_ready(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            return ask(_ADDRESS, self._health, "/readyz")[0] == HTTPStatus.OK
        return False

    def _register(self, bundle: str) -> None:
        """Its webhook configurations, as it brings them, with its address instead of a Service's."""
        for manifest in yaml.safe_load_all(kueue_webhooks().read_text()):
            hooks = [hook for hook in manifest["webhooks"] if _hooked(hook)]
            for hook in hooks:
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {"url": f"https://{_ADDRESS}:{self._webhooks}{path}", "caBundle": bundle}
            kind = f"{manifest['kind'].lower()}s"
            name = f"/apis/admissionregistration.k8s.io/v1/{kind}/{manifest['metadata']['name']}"
            if self._plane.request("GET", name)[0] == HTTPStatus.OK:
                self._plane.request("DELETE", name)
            self._plane.create({**manifest, "webhooks": hooks})
        assert self._program is not None
        self._program.wait_until(self._is_asked, _START)

    def _is_asked(self) -> bool:
        """Whether the API server has heard of the webhooks: by one of them a flavor gets its finalizer."""
        tried = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "tried"}}
        status, answer = self._plane.request("POST", f"{FLAVORS}?dryRun=All", tried)
        return status == HTTPStatus.CREATED and "finalizers" in answer["metadata"]


def _hooked(hook: dict[str, Any]) -> bool:
    return all(_HOOKED.issuperset(rule["resources"]) for rule in hook["rules"])
