"""What administrators and users do with a cluster that deploy/ was applied to, in words for tests."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ..controlplane.asking import scrape
from ..controlplane.harness import DEPLOY
from ..controlplane.invariants import DEVICE_PREFIX, amount, condition
from .cluster import RealCluster, is_ready

EXAMPLES = DEPLOY.parent / "examples"
SYSTEM = "kube-system"
SCHEDULER, WEBHOOK, DEVICE_PLUGIN = "fluence", "fluence-webhook", "fluence-device-plugin"
_FILES = ("queues.yaml", "fluence-resources.yaml", "device-plugin.yaml", "fluence.yaml")
QPU = DEVICE_PREFIX + "qpu"
ALL = {"qdevice": 1000, "qpu": 1000, "qubit": 1000}
"""What the node offers of the types of deploy/fluence-resources.yaml."""
BACKEND = "fluence.flux-framework.org/backend"
TLS = "fluence-webhook-tls"
_HTTP = 8080
_LINES = 40
Object = dict[str, Any]


class Deployed:
    """The cluster with deploy/ in it."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster

    def apply_all(self) -> None:
        """Apply the files that the README names; returns once all that they make is ready."""
        self.cluster.until(lambda: self.cluster.get("serviceaccounts", "-A")["items"],
                           lambda found: any(each["metadata"]["name"] == "default" for each in found))  # fmt: skip
        for name in _FILES:
            self.cluster.kubectl("apply", "--server-side", "-f", str(DEPLOY / name))
        self.wait_ready()

    # ------------------------------------------------------------------ the servers

    def wait_ready(self, *names: str, seconds: float = 90.0) -> None:
        """Return once these servers (else all) have as many ready pods as they should, and no others."""
        for name in names or (SCHEDULER, WEBHOOK, DEVICE_PLUGIN):
            self.cluster.until(partial(self._counts, name), lambda found: len(set(found)) == 1, seconds)

    def _counts(self, name: str) -> list[int]:
        """How many pods should be there, are there, and are ready and made from the newest template."""
        kind = "daemonset" if name == DEVICE_PLUGIN else "deployment"
        found = self.cluster.get(kind, name, "-n", SYSTEM)
        status, pods = found["status"], self.servers(name)
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return [-1, len(pods)]
        if kind == "daemonset":
            return [status["desiredNumberScheduled"], len(pods), sum(map(is_ready, pods)),
                    status.get("updatedNumberScheduled", 0)]  # fmt: skip
        return [found["spec"]["replicas"], len(pods), sum(map(is_ready, pods)), status.get("updatedReplicas", 0)]

    def servers(self, name: str) -> list[Object]:
        """A server's pods."""
        found: list[Object] = self.cluster.get("pods", "-n", SYSTEM, "-l", f"app.kubernetes.io/name={name}")["items"]
        return found

    def scale(self, name: str, replicas: int) -> None:
        """Scale a Deployment; returns once it is so."""
        self.cluster.kubectl("scale", f"deployment/{name}", "-n", SYSTEM, f"--replicas={replicas}")
        self.wait_ready(name)

    def leader(self) -> Object:
        """The pod of the scheduler that leads; waits while no replica leads."""

        def leaders() -> list[Object]:
            holder = self.cluster.get("lease", SCHEDULER, "-n", SYSTEM)["spec"].get("holderIdentity", "")
            return [pod for pod in self.servers(SCHEDULER) if holder.startswith(pod["metadata"]["name"] + "_")]

        (found,) = self.cluster.until(leaders, bool)
        return dict(found)

    def metrics(self, pod: Object) -> Mapping[str, float]:
        """What Prometheus would get from a server: {"name{label="value"}": number}."""
        return scrape(pod["status"]["podIP"], _HTTP)

    def signal(self, pod: Object, number: signal.Signals) -> None:
        """Send the first process of a pod's container a signal from outside, as a crash or a paused machine."""
        uid = pod["metadata"]["uid"]
        sent = [process for process in Path("/proc").glob("[0-9]*") if _is_server(process, uid)]
        assert sent, f"pod {pod['metadata']['name']} has no process"
        for process in sent:
            os.kill(int(process.name), number)

    # ------------------------------------------------------------------ pods of users

    def apply(self, text: str) -> None:
        """Create what a manifest says, in the namespace default."""
        self.cluster.kubectl("create", "-f", "-", text=text)

    def create_pods(self, *names: str, devices: int = 1, command: Sequence[str] = ("sleep", "3600"),
                    kind: str = QPU) -> None:  # fmt: skip
        """Pods for our scheduler, each with as many devices; without any they are ordinary pods."""
        asked = {kind: str(devices)} if devices else {}
        self.apply(yaml.safe_dump_all(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
                "schedulerName": "fluence", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "busybox:1.36", "command": list(command),
                                "resources": {"requests": {"cpu": "100m", **asked}, "limits": asked}}],
            }} for name in names
        ))  # fmt: skip

    def pod(self, name: str) -> Object:
        """A user's pod."""
        found: Object = self.cluster.get("pod", name)
        return found

    def pods(self) -> list[Object]:
        """All pods of users."""
        found: list[Object] = self.cluster.get("pods")["items"]
        return found

    def wait_phase(self, phase: str, *names: str, seconds: float = 60.0) -> list[Object]:
        """The pods, once they are all in this phase."""

        def read() -> list[Object]:
            return [self.pod(name) for name in names]

        found: list[Object] = self.cluster.until(
            read, lambda pods: all(pod["status"]["phase"] == phase for pod in pods), seconds
        )
        return found

    def wait_refused(self, name: str, why: str, seconds: float = 60.0) -> str:
        """The scheduler's reason why a pod waits, once it has these words."""

        def read() -> str:
            return str((condition(self.pod(name), "PodScheduled") or {}).get("message", ""))

        found: str = self.cluster.until(read, lambda text: why in text, seconds)
        return found

    def wait_offered(self, amounts: Mapping[str, int], seconds: float = 60.0) -> None:
        """Return once the node offers as much of these types, and of others none: a kubelet remembers them as 0."""

        def offered() -> dict[str, int]:
            offers = {name: int(amount(text)) for name, text in self.cluster.allocatable().items() if text != "0"}
            return {name.removeprefix(DEVICE_PREFIX): count for name, count in offers.items()
                    if name.startswith(DEVICE_PREFIX)}  # fmt: skip

        self.cluster.until(offered, lambda found: found == amounts, seconds)

    def env(self, name: str) -> dict[str, str]:
        """The variables of the device contracts in a running container, as a process in there has them."""
        text = self.cluster.kubectl("exec", name, "--", "env")
        pairs = (line.partition("=") for line in text.splitlines())
        return {key: value for key, _, value in pairs if key.startswith(("FLUXION_", "FLUENCE_"))}

    def tidy(self) -> None:
        """Delete what users made in the namespace default."""
        self.cluster.kubectl("delete", "deployments,pods,podgroups.scheduling.k8s.io", "--all", "--wait=false")
        self.cluster.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
        groups = self.cluster.get("podgroups.scheduling.k8s.io")["items"]
        for group in groups:  # nothing else removes the finalizer where the group's pods are gone
            self.cluster.kubectl("patch", "podgroup.scheduling.k8s.io", group["metadata"]["name"], "--type=merge",
                                 "-p", '{"metadata":{"finalizers":null}}')  # fmt: skip
        self.cluster.until(self.pods, lambda found: not found)

    # ------------------------------------------------------------------ the webhook's keys

    def secret(self) -> dict[str, str]:
        """The Secret with the webhook's keys, decoded."""
        data = self.cluster.get("secret", TLS, "-n", SYSTEM)["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def ca_bundle(self) -> str:
        """The certificates by which the API server verifies the webhook."""
        found = self.cluster.get("mutatingwebhookconfiguration", WEBHOOK)
        *_, webhook = found["webhooks"]  # all are patched together
        return base64.b64decode(webhook["clientConfig"].get("caBundle", "")).decode()

    # ------------------------------------------------------------------ reports

    def report(self) -> str:
        """What the servers and the pods say, for people who look into why a test failed."""
        texts = [self.cluster.kubectl("get", "pods", "-A", "-o", "wide"), self.cluster.kubectl("get", "events", "-A")]
        for name in (SCHEDULER, WEBHOOK, DEVICE_PLUGIN):
            for pod in self.servers(name):
                known = pod["metadata"]["name"]
                texts.append(f"---- {known}")
                texts.append(self.cluster.kubectl("logs", "-n", SYSTEM, known, f"--tail={_LINES}"))
        return "\n".join(texts)


def backend_of(pod: Object) -> str:
    """The backend that a pod was given; empty without one."""
    return str(pod["metadata"].get("annotations", {}).get(BACKEND, ""))


def containers_of(pods: Sequence[Object]) -> list[tuple[str, str, int]]:
    """By pod: its uid, its container and how often that was started again."""
    return [
        (pod["metadata"]["uid"], status["containerID"], status["restartCount"])
        for pod in pods for status in pod["status"]["containerStatuses"]
    ]  # fmt: skip


def _is_server(process: Path, uid: str) -> bool:
    """Whether a process is of the pod, and runs our command."""
    try:
        in_pod = uid in (process / "cgroup").read_text()
        return in_pod and b"fluence" in (process / "cmdline").read_bytes()
    except OSError:  # it ended meanwhile
        return False
