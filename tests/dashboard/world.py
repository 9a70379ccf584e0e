"""A cluster to look at: an API server, `fluence run`, nodes that kwok plays, and `fluence dashboard` as a process."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from ..controlplane import binaries
from ..controlplane.asking import ask
from ..controlplane.bulk import Bulk
from ..controlplane.forked import FluenceProgram
from ..controlplane.harness import ADMIN, DEPLOY, ControlPlane
from ..controlplane.invariants import GROUPS
from ..controlplane.processes import Program
from ..controlplane.queues_world import QUEUES, install_queues
from ..controlplane.scheduler_process import SchedulerProcess, Settings, kubeconfig_for

KWOK = Path(__file__).parents[1] / "e2e" / "kwok.yaml"
TEAMS = ("science", "finance")
RACKS = 4
NODES_OF_RACK = 6
GPU = "nvidia.com/gpu"
DEVICE = "fluxion.flux-framework.org/qpu"
_SERVING = re.compile(r"serving http://(\S+?):(\d+): ")
_SCHEDULER = re.compile(r'"event": "serving /metrics[^}]*"port": (\d+)')
PATIENCE = 60.0
RUNNING = 3 * 4 + 12 + 5 + 3
"""How many pods fit, of those that `fill` creates."""
Manifest = dict[str, Any]
_T = TypeVar("_T")

RESOURCES = yaml.safe_dump(
    {
        "resources": [
            {"type": "qdevice", "name": "garnet", "attributes": {"region": "eu-north-1"}, "with": [{"type": "qpu"}]},
            {"type": "qdevice", "name": "marrakesh", "attributes": {"region": "us-east-1"}, "with": [{"type": "qpu"}]},
        ]
    }
)


def node(rack: int, place: int) -> Manifest:
    """A node of a rack; those of the last one have GPUs."""
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110", DEVICE: "100"}
    labels = {"topology.kubernetes.io/zone": f"zone-{rack % 2}", "topology.kubernetes.io/rack": f"rack-{rack}"}
    if rack == RACKS - 1:
        amounts[GPU] = "8"
        labels["nvidia.com/gpu.product"] = "NVIDIA-A100-SXM4-80GB"
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"r{rack}-n{place}", "labels": labels},
            "status": {"capacity": amounts, "allocatable": amounts}}  # fmt: skip


class Dashboard:
    """`fluence dashboard` as a process, where users sign in with tokens of the cluster."""

    def __init__(self, log: Path, kubeconfig: Path, config: Path, *options: str) -> None:
        """Start it; returns once it serves. Raises StartError."""
        self.log = log
        log.touch()
        self.program = FluenceProgram(
            log.stem,
            ["dashboard", "--kubeconfig", kubeconfig, "--config", config, "--bind", "127.0.0.1:0",
             "--sign-in", "cluster", *options],
            log,
        )  # fmt: skip
        self.program.wait_until(lambda: _SERVING.search(log.read_text()) is not None, PATIENCE)
        found = _SERVING.search(log.read_text())
        assert found is not None
        self.host, self.port = found[1], int(found[2])
        self.address = f"http://{self.host}:{self.port}"

    def get(self, path: str, token: str = "", **headers: str) -> tuple[int, str]:
        """Request a path; return status and text."""
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return ask(self.host, self.port, path, headers=headers)


class World:
    """The cluster; `dashboard` is what the tests look at."""

    def __init__(self, folder: Path) -> None:
        """Raises MissingBinaries."""
        self.folder = folder
        self._kwok = binaries.find("kwok")["kwok"]
        (folder / "control-plane").mkdir()
        self.plane = ControlPlane(folder / "control-plane")
        self._stack = ExitStack()
        self.scheduler = SchedulerProcess(folder, Path(), Settings(resources=RESOURCES))
        self.address = ""
        self.log = folder / "dashboard.log"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.plane)
            install_queues(self.plane)
            self._authorize_dashboard()
            command: list[str | Path] = [
                self._kwok, "--kubeconfig", self.plane.kubeconfig(ADMIN), "--config", KWOK, "--manage-all-nodes",
            ]  # fmt: skip
            stack.callback(Program("kwok", command, self.folder / "kwok.log").stop)
            asyncio.run(self._create_nodes())
            for team in TEAMS:
                self.plane.new_namespace(team)
                self._create_queue(team)
            kubeconfig = kubeconfig_for(self.plane, self.folder)
            self.scheduler = SchedulerProcess(self.folder, kubeconfig, Settings(resources=RESOURCES))
            stack.enter_context(self.scheduler)
            self.scheduler.start()
            self.scheduler.wait_ready()
            self.fill()
            self._start_dashboard(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # ------------------------------------------------------------------ the dashboard

    def _start_dashboard(self, stack: ExitStack) -> None:
        said = _SCHEDULER.search(self.scheduler.log.read_text())
        assert said is not None
        scheduler = f"http://127.0.0.1:{said[1]}/metrics"
        self.dashboard = Dashboard(
            self.log, self.account_kubeconfig("fluence-dashboard", "kube-system"), self.folder / "scheduler.yaml",
            "--scheduler-metrics", scheduler,
        )  # fmt: skip
        stack.callback(self.dashboard.program.stop)
        self.host, self.port, self.address = self.dashboard.host, self.dashboard.port, self.dashboard.address
        self.until("metrics", lambda: self.get("/api/plugin-timings", self.plane.token())[0] == HTTPStatus.OK)

    def get(self, path: str, token: str = "", **headers: str) -> tuple[int, str]:
        """Request a path of the dashboard; return status and text."""
        return self.dashboard.get(path, token, **headers)

    def _authorize_dashboard(self) -> None:
        """Create the account and permissions of deploy/."""
        for manifest in yaml.safe_load_all((DEPLOY / "options" / "dashboard.yaml").read_text()):
            if manifest["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
                self.plane.create(manifest)

    def account_kubeconfig(self, account: str, namespace: str) -> Path:
        """Write a kubeconfig of a service account."""
        document = yaml.safe_load(self.plane.kubeconfig(ADMIN).read_text())
        document["users"][0]["user"] = {"token": self.token_of(account, namespace)}
        path = self.folder / f"{account}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    # ------------------------------------------------------------------ users

    def token_of(self, account: str, namespace: str) -> str:
        """A token of a service account, as `kubectl create token` makes it."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        status, answer = self.plane.request("POST", path, body)
        assert status == 201, answer
        return str(answer["status"]["token"])

    def new_user(self, name: str, namespace: str, *, reads: bool = True, reader: bool = True) -> str:
        """A user's token: a service account of the namespace that may list its pods, and may read the dashboard.

        The API server grants permissions some time after they are written, and the dashboard reuses a refusal.
        """
        metadata = {"name": name, "namespace": namespace}
        self.plane.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        subjects = [{"kind": "ServiceAccount", **metadata}]
        rbac = "rbac.authorization.k8s.io"
        if reads:
            rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
            self.plane.create({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules})
            role = {"apiGroup": rbac, "kind": "Role", "name": name}
            self.plane.create({"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": metadata,
                               "roleRef": role, "subjects": subjects})  # fmt: skip
        if reader:
            role = {"apiGroup": rbac, "kind": "ClusterRole", "name": "fluence-reader"}
            self.plane.create({"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
                               "roleRef": role, "subjects": subjects})  # fmt: skip
        user = f"system:serviceaccount:{namespace}:{name}"
        pods, page = {"resource": "pods", "verb": "list", "namespace": namespace}, {"path": "/dashboard", "verb": "get"}
        self.until(f"permissions of {user}", lambda: (not reads or self._may(user, resourceAttributes=pods))
                   and (not reader or self._may(user, nonResourceAttributes=page)))  # fmt: skip
        return self.token_of(name, namespace)

    def _may(self, user: str, **attributes: Manifest) -> bool:
        """Whether the API server grants this to a user."""
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {"user": user, **attributes}}  # fmt: skip
        status, answer = self.plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        assert status == HTTPStatus.CREATED, answer
        return bool(answer["status"]["allowed"])

    def revoke(self, name: str, namespace: str) -> None:
        """Remove the user's permission to list pods."""
        self.plane.request("DELETE", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/{name}")

    # ------------------------------------------------------------------ workloads

    async def _create_nodes(self) -> None:
        nodes = [node(rack, place) for rack in range(RACKS) for place in range(NODES_OF_RACK)]
        async with Bulk(self.plane) as bulk:
            await bulk.create("/api/v1/nodes", nodes)
        self.until("ready nodes", lambda: self.ready_nodes() == len(nodes))

    def ready_nodes(self) -> int:
        """How many nodes are ready; removes the taint that admission sets."""
        items = self.plane.request("GET", "/api/v1/nodes")[1]["items"]
        for each in items:
            if each["spec"].get("taints"):
                self.plane.request("PATCH", f"/api/v1/nodes/{each['metadata']['name']}", {"spec": {"taints": None}})
        ready = [condition for each in items if not each["spec"].get("taints")
                 for condition in each["status"].get("conditions", ()) if condition["type"] == "Ready"]  # fmt: skip
        return sum(condition["status"] == "True" for condition in ready)

    def _create_queue(self, name: str) -> None:
        deserved = {"cpu": "100"}
        self.plane.create({"apiVersion": QUEUES, "kind": "Queue", "metadata": {"name": name},
                           "spec": {"deserved": deserved}})  # fmt: skip

    def fill(self) -> None:
        """Running pods and gangs of both teams, and pods that fit nowhere."""
        for number in range(3):
            self.create_gang("science", f"training-{number}", 4, cpu="4", gpus=2)
        for number in range(12):
            self.create_pod("science", f"analysis-{number}", cpu="4", memory="8Gi")
        for number in range(5):
            self.create_pod("finance", f"report-{number}", cpu="2")
        self.create_gang("finance", "risk", 3, cpu="4")
        self.create_gang("science", "too-large", 40, cpu="16")
        for number in range(3):
            self.create_pod("science", f"huge-{number}", cpu="64")
        self.create_pod("finance", "secret-merger", cpu="64")
        self.until("bound pods", lambda: self.bound() == RUNNING)

    def create_gang(self, namespace: str, name: str, size: int, **needs: Any) -> None:
        """A gang: a PodGroup, and as many pods as it needs."""
        policy = {"gang": {"minCount": size}}
        self.plane.create({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
                           "metadata": {"name": name, "namespace": namespace},
                           "spec": {"schedulingPolicy": policy}})  # fmt: skip
        for number in range(size):
            self.create_pod(namespace, f"{name}-{number}", group=name, **needs)

    def create_pod(
        self, namespace: str, name: str, *, group: str = "", cpu: str = "1", memory: str = "1Gi", gpus: int = 0
    ) -> None:
        """A pod for fluence in the queue of its team."""
        requests = {"cpu": cpu, "memory": memory} | ({GPU: str(gpus)} if gpus else {})
        resources = {"requests": requests} | ({"limits": {GPU: str(gpus)}} if gpus else {})
        spec: Manifest = {"schedulerName": "fluence", "automountServiceAccountToken": False,
                          "containers": [{"name": "main", "image": "pause", "resources": resources}]}  # fmt: skip
        if group:
            spec["schedulingGroup"] = {"podGroupName": group}
        labels = {"fluence.flux-framework.org/queue": namespace}
        self.plane.create({"apiVersion": "v1", "kind": "Pod", "spec": spec,
                           "metadata": {"name": name, "namespace": namespace, "labels": labels}})  # fmt: skip

    def pods(self, namespace: str = "") -> list[Manifest]:
        """The pods, of one namespace or of all."""
        path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
        items: list[Manifest] = self.plane.request("GET", path)[1]["items"]
        return items

    def bound(self) -> int:
        """How many pods have a node."""
        return sum("nodeName" in pod["spec"] for pod in self.pods())

    def delete(self, namespace: str, name: str) -> None:
        """Delete a pod."""
        self.plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})

    def delete_gang(self, namespace: str, name: str, size: int) -> None:
        """Delete a gang and its pods."""
        for number in range(size):
            self.delete(namespace, f"{name}-{number}")
        path = f"{GROUPS}/namespaces/{namespace}/podgroups/{name}"
        self.plane.request("PATCH", path, {"metadata": {"finalizers": None}})  # no controller removes it here
        self.plane.request("DELETE", path)

    def evict(self, namespace: str, name: str) -> None:
        """Evict a pod, as `kubectl drain` does."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace},
                "deleteOptions": {"gracePeriodSeconds": 0}}  # fmt: skip
        status, answer = self.plane.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
        assert status == HTTPStatus.CREATED, answer

    def until(self, what: str, found: Callable[[], _T | None], seconds: float = PATIENCE) -> _T:
        """What `found` returns, once that is something. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not (answer := found()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {seconds:g} s: no {what}\n{self.report()}")
            time.sleep(0.05)
        return answer

    def report(self) -> str:
        """The ends of the logs."""
        dashboard = self.log.read_text().splitlines()[-30:] if self.log.exists() else []
        return "\n".join(["scheduler:", self.scheduler.tail(20), "dashboard:", *dashboard])


__all__ = ["GPU", "GROUPS", "TEAMS", "World"]
