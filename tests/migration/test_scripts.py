"""The end-to-end scripts of the Go version, unchanged, on a cluster with deploy/ and the option `goCompatible`.

`FLUENCE_GO_CHECKOUT` names a checkout of the Go version; nothing of it is in this project. In the place of kind's
cluster there are the real node of tests/e2e and a second node, which kwok plays: together they have three free cores.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from ..controlplane import binaries
from ..controlplane.harness import ADMIN, DEPLOY
from ..controlplane.processes import Program
from ..e2e.cluster import RealCluster
from ..e2e.deployed import SYSTEM, WEBHOOK, Deployed
from ..e2e.images import busybox_image
from ..e2e.inside import SCRATCH
from ..e2e.node import NAME, missing_programs
from ..tools.deploying import IMAGE

VARIABLE = "FLUENCE_GO_CHECKOUT"
CHECKOUT = Path(os.environ.get(VARIABLE) or os.devnull)
_FOUND = sorted(CHECKOUT.rglob("[0-9][0-9]-*.sh")) if CHECKOUT.is_dir() else []
SCRIPTS = [path for path in _FOUND if not (path.parent / "lib.sh").exists()]
"""Those that the Go version's CI runs: in the folders of its suites. A script beside their library does not fit it."""
OTHER_NODE = "a-0"
"""The first node by name, which one of the scripts taints."""
KWOK = Path(__file__).parents[1] / "e2e" / "kwok.yaml"
PRESENT = {
    "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
    "metadata": {"name": "images-are-present"},
    "spec": {
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
        "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": (
            "Object{spec: Object.spec{containers: object.spec.containers.map(each, Object.spec.containers{"
            "name: each.name, imagePullPolicy: 'IfNotPresent'})}}")}}],
    },
}  # fmt: skip
"""No registry is there to ask whether an image without a tag has changed."""
BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
    "metadata": {"name": "images-are-present"}, "spec": {"policyName": "images-are-present"},
}  # fmt: skip
SECONDS = 600


class Migrated(Deployed):
    """The cluster with deploy/, and webhook and scheduler as the Go version's."""

    def apply_all(self) -> None:
        super().apply_all()
        for name in ("coordination", "go-compatible"):
            self.cluster.kubectl("apply", "--server-side", "-f", str(DEPLOY / "options" / f"{name}.yaml"))
        self.cluster.kubectl("create", "-f", "-", text=yaml.safe_dump_all([PRESENT, BINDING, *self._nodes()]))
        self._set_scheduler()
        self._set_webhook()
        self.wait_ready()

    def _nodes(self) -> Iterator[dict[str, object]]:
        """The second node, and what leaves two free cores on the real one."""
        amounts = {"cpu": "1", "memory": "16Gi", "pods": "110"}
        status = {"capacity": amounts, "allocatable": amounts}
        yield {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER_NODE}, "status": status}
        container = {"name": "main", "image": "busybox:1.36", "command": ["sleep", "36000"],
                     "resources": {"requests": {"cpu": "4300m"}}}  # fmt: skip
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other-work", "namespace": SYSTEM},
               "spec": {"nodeName": NAME, "containers": [container]}}  # fmt: skip

    def _set_scheduler(self) -> None:
        text = self.cluster.get("configmap", "fluence", "-n", SYSTEM)["data"]["config.yaml"]
        config = yaml.safe_load(text)
        config["profiles"][0]["plugins"][0].setdefault("args", {})["goCompatible"] = True
        patch = {"data": {"config.yaml": yaml.safe_dump(config)}}
        self.cluster.kubectl("patch", "configmap", "fluence", "-n", SYSTEM, "--type=merge", "-p", json.dumps(patch))
        self.cluster.kubectl("rollout", "restart", "deployment/fluence", "-n", SYSTEM)

    def _set_webhook(self) -> None:
        self.cluster.kubectl("set", "env", f"deployment/{WEBHOOK}", "-n", SYSTEM, f"FLUENCE_SIDECAR_IMAGE={IMAGE}")
        found = self.cluster.get("deployment", WEBHOOK, "-n", SYSTEM)
        command = [
            *found["spec"]["template"]["spec"]["containers"][0]["command"],
            "--go-compatible",
            "--sidecar-as-root",
        ]
        patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/command", "value": command}]
        self.cluster.kubectl("patch", "deployment", WEBHOOK, "-n", SYSTEM, "--type=json", "-p", json.dumps(patch))


@pytest.fixture(scope="module")
def migrated() -> Iterator[Migrated]:
    if not SCRIPTS:
        pytest.skip(f"{VARIABLE} names no checkout of the Go version: set it to one")
    if SCRATCH not in os.environ or missing_programs():
        pytest.fail("a kubelet runs in namespaces of its own: run `make e2e-migration`, as root")
    folder = Path(os.environ[SCRATCH])
    with RealCluster(folder) as cluster, ExitStack() as stack:
        cluster.node.load(busybox_image(folder / "latest.tar", "latest"))
        stages = folder / "kwok.yaml"
        stages.write_text(KWOK.read_text().replace("durationMilliseconds: 1000", "durationMilliseconds: 20000"))
        command: list[str | Path] = [
            binaries.find("kwok")["kwok"], "--kubeconfig", cluster.kubeconfig(ADMIN), "--config", stages,
            "--manage-single-node", OTHER_NODE, "--node-lease-duration-seconds=40",
        ]  # fmt: skip
        stack.callback(Program("kwok", command, folder / "kwok.log").stop)
        world = Migrated(cluster)
        world.apply_all()
        yield world


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_of_the_go_version_passes(script: Path, migrated: Migrated) -> None:
    folder = binaries.find("kubectl")["kubectl"].parent
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": os.environ[SCRATCH],
           "KUBECONFIG": str(migrated.cluster.kubeconfig(ADMIN))}  # fmt: skip
    done = subprocess.run(["bash", script], cwd=CHECKOUT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, timeout=SECONDS)  # fmt: skip
    report = "" if done.returncode == 0 else migrated.report()
    migrated.cluster.kubectl("delete", "jobs", "--all", "--wait=false")
    migrated.tidy()
    assert done.returncode == 0, f"{done.stdout}\n{report}"


def test_without_a_checkout_there_is_nothing_to_run(migrated: Migrated) -> None:
    """Skips with the reason where the variable is not set, and finds scripts where it is."""
    assert len(SCRIPTS) > 5
    assert migrated.cluster.get("priorityclass", "fluence-quantum-classical")["value"] == 1_000_000
