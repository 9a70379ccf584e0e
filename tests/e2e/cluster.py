"""A whole cluster inside `inside.py`'s namespaces: control plane, one real node, and what deploy/ puts there.

with RealCluster(folder) as cluster:
    cluster.apply(yaml.safe_load_all(text))
    cluster.kubectl("get", "pods")
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ..controlplane import binaries
from ..controlplane.harness import ADMIN, ControlPlane
from . import images, node
from .image_build import built_image
from .inside import NODE_ADDRESS, SCRATCH, SERVICE_ADDRESS

_KUBELET = f"system:node:{node.NAME}"


class RealCluster(ControlPlane):
    """Everything that a cluster of one node has, kube-proxy and DNS excepted: nothing here needs them."""

    ADDRESS = SERVICE_ADDRESS
    PORT = 443
    USERS: ClassVar[dict[str, str]] = {_KUBELET: "system:nodes"}
    CONTROLLERS = "--controllers=*"

    def __init__(self, folder: Path) -> None:
        self._logs = Path(os.environ[SCRATCH]) / "logs"
        super().__init__(folder, controllers=True, kube_scheduler=True)
        keys = folder / "keys"
        self.node = node.RealNode(folder, self._at(folder, _KUBELET), keys, self._logs)

    def _at(self, folder: Path, user: str) -> Path:
        return folder / f"{user.rpartition(':')[2]}.kubeconfig"

    def start(self) -> None:
        """Start it, its node among it; returns once that is ready."""
        super().start()
        self.kubeconfig(_KUBELET)
        self.node.start_containerd()
        for image in self._images():
            self.node.load(image)
        self.node.start_kubelet()
        self.wait_for(f"/api/v1/nodes/{node.NAME}", lambda found: found["kind"] == "Node" and is_ready(found), 90)

    def _images(self) -> Iterable[Path]:
        folder = self._folder
        yield images.pause_image(folder / "pause.tar", node.pause_program(folder))
        yield images.busybox_image(folder / "busybox.tar")
        yield built_image()

    def _prepare(self) -> None:
        """Nothing: deploy/ is applied by the tests, as administrators do."""

    def _reached(self) -> list[str]:
        return [
            "--bind-address=0.0.0.0", f"--advertise-address={NODE_ADDRESS}", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-aggregator-routing=true",  # Services are reached by their endpoints, as there is no kube-proxy
        ]  # fmt: skip

    def stop(self) -> None:
        """End every program."""
        self.node.stop()
        super().stop()

    # ------------------------------------------------------------------ what administrators do

    def kubectl(self, *words: str, text: str | None = None) -> str:
        """What kubectl answers, as administrator. Raises AssertionError with what it complained of."""
        command: list[str | Path] = [binaries.find("kubectl")["kubectl"], f"--kubeconfig={self.kubeconfig(ADMIN)}",
                   f"--cache-dir={self._folder / 'kubectl'}", *words]  # fmt: skip
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=90, input=text)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def get(self, *words: str) -> Any:
        """An object, or a list of them, as kubectl gets it."""
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def until(self, read: Callable[[], Any], accepted: Callable[[Any], object], seconds: float = 60.0) -> Any:
        """What `read` gives once it is accepted. Raises TimeoutError with the last one."""
        deadline = time.monotonic() + seconds
        while not accepted(found := read()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {seconds:g} s: {json.dumps(found, indent=1) if found else found!r}")
            time.sleep(0.1)
        return found

    def allocatable(self) -> Mapping[str, str]:
        """What the node offers."""
        found: Mapping[str, str] = self.get("node", node.NAME)["status"].get("allocatable", {})
        return found


def is_ready(thing: Mapping[str, Any]) -> bool:
    """Whether a node or a pod is Ready."""
    conditions = thing.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


if __name__ == "__main__":  # python -m tests.e2e.inside python -m tests.e2e.cluster sh: a cluster to look around in
    with RealCluster(Path(os.environ[SCRATCH])) as looked_at:
        found = f"{binaries.find('kubectl')['kubectl'].parent}:{os.environ['PATH']}"
        shell = {**os.environ, "KUBECONFIG": str(looked_at.kubeconfig(ADMIN)), "PATH": found}
        sys.exit(subprocess.run(sys.argv[1:], env=shell, check=False).returncode)
