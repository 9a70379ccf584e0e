"""The rights of an account from deploy/, and a world in which each of them can be removed for a while.

    roles = Roles(plane, "fluence")
    with roles.without(Right("", "nodes", "list")):
        ...                                            # now all parts of the API server reject that

It replaces a role by one with a rule for each remaining right.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import yaml

from .faults.world import LEASE, resources_of
from .harness import DEPLOY, ControlPlane
from .invariants import GROUPS, Manifest, is_refused
from .proxy import Fault
from .scenarios_world import NEVER, Scenario, pod_spec
from .scheduler_process import SchedulerProcess, Settings

PATIENCE = 30.0
_CONFLICTS = 200
"""More than a scheduler's attempts within PATIENCE."""
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource of one API group."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.group}{'/' if self.group else ''}{self.resource}"

    @property
    def refusal(self) -> str:
        """Return the API server's message for an account without this right."""
        return f'cannot {self.verb} resource "{self.resource}" in API group "{self.group}"'


def _manifests(file: str) -> list[Manifest]:
    return [manifest for manifest in yaml.safe_load_all((DEPLOY / file).read_text()) if manifest]


def roles_of(account: str, file: str = "fluence.yaml") -> list[Manifest]:
    """Return the Roles and ClusterRoles that a file of deploy/ binds to an account of kube-system."""
    manifests = _manifests(file)
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}
    bound = [(one["roleRef"]["kind"], one["roleRef"]["name"], one["metadata"].get("namespace"))
             for one in manifests if subject in one.get("subjects", ())]  # fmt: skip
    roles = {(one["kind"], one["metadata"]["name"], one["metadata"].get("namespace")): one for one in manifests}
    return [roles[key] for key in bound]


def _single(role: Manifest) -> Iterator[tuple[Right, Manifest]]:
    """Return a role's rights, each with a rule that gives only this right."""
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield Right(group, resource, verb), rule | {
                        "apiGroups": [group], "resources": [resource], "verbs": [verb]}  # fmt: skip


def rights_of(account: str, file: str = "fluence.yaml") -> list[Right]:
    """Return all rights that a file of deploy/ gives to an account."""
    return sorted({found for role in roles_of(account, file) for found, _ in _single(role)})


class Roles:
    """The roles of one account of kube-system on a control plane."""

    def __init__(self, plane: ControlPlane, account: str, file: str = "fluence.yaml") -> None:
        self._plane = plane
        self._roles = roles_of(account, file)
        self._user = f"system:serviceaccount:kube-system:{account}"
        self._taken: Right | None = None

    @contextmanager
    def without(self, taken: Right) -> Iterator[None]:
        """In this context the account lacks this right, unless `give_back` is called earlier."""
        self._write(taken)
        self._taken = taken
        self._wait(taken, allowed=False)
        try:
            yield
        finally:
            self.give_back()

    def give_back(self) -> None:
        """Give the account all of its rights again."""
        if self._taken is not None:
            self._write(None)
            self._wait(self._taken, allowed=True)
            self._taken = None

    def _write(self, taken: Right | None) -> None:
        for role in self._roles:
            metadata = role["metadata"]
            place = f"/namespaces/{metadata['namespace']}" if metadata.get("namespace") else ""
            path = f"{_RBAC}{place}/{role['kind'].lower()}s/{metadata['name']}"
            rules = [rule for found, rule in _single(role) if found != taken]
            status, answer = self._plane.request("PATCH", path, {"rules": rules})
            assert status == HTTPStatus.OK, answer

    def _wait(self, taken: Right, *, allowed: bool) -> None:
        """Wait until the API server knows the change."""
        rules = [rule for role in self._roles for found, rule in _single(role) if found == taken]
        deadline = time.monotonic() + PATIENCE
        while self._may(taken, rules[0].get("resourceNames", [""])[0]) is not allowed:
            assert time.monotonic() < deadline, f"{taken}: the API server does not hear of its being taken or given"
            time.sleep(0.02)

    def _may(self, wanted: Right, name: str) -> bool:
        resource, _, part = wanted.resource.partition("/")
        asked = {"group": wanted.group, "resource": resource, "subresource": part, "verb": wanted.verb, "name": name,
                 "namespace": "kube-system"}  # fmt: skip
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {"user": self._user, "resourceAttributes": asked}}  # fmt: skip
        status, answer = self._plane.request("POST", _REVIEWS, body)
        assert status == HTTPStatus.CREATED, answer
        return bool(answer["status"]["allowed"])


@dataclass
class RbacWorld(Scenario):
    """One scheduler, with the election on, and workloads that need each of its rights."""

    settings: Settings = field(
        default_factory=lambda: Settings(
            resources=resources_of(4), election=True, gang_bind_timeout_seconds=2.0, reconcile_seconds=NEVER
        )
    )

    def __enter__(self) -> RbacWorld:
        super().__enter__()
        self.add_node(cpu=64, devices=4)
        self.keep_alive(False)
        self._names = 0
        self._mark = 0
        self.new_scheduler()
        return self

    @property
    def scheduler(self) -> SchedulerProcess:
        """The running scheduler."""
        return self.schedulers[0]

    def restart(self) -> None:
        """Kill the scheduler, release its lease, and start it again."""
        self.scheduler.kill()
        self.plane.request("DELETE", LEASE)
        self.mark()
        self.scheduler.start()

    def begin(self) -> None:
        """Make sure that it runs; set the mark for its log."""
        if not self.scheduler.running:
            self.restart()
        self.scheduler.wait_ready()
        self.mark()

    def mark(self) -> None:
        """Set the mark: earlier log lines no longer count."""
        self._mark = self.scheduler.log.stat().st_size if self.scheduler.log.exists() else 0

    # ------------------------------------------------------------------ logs and metrics

    @property
    def said(self) -> list[str]:
        """Return the log lines since the mark."""
        with self.scheduler.log.open("rb") as log:
            log.seek(self._mark)
            return log.read().decode(errors="replace").splitlines()

    def wait_said(self, text: str) -> str:
        """Wait for a log line since the mark with this text; return it."""
        forms = (text, json.dumps(text)[1:-1])

        def found() -> str | None:
            return next((line for line in self.said if any(form in line for form in forms)), None)

        return self.until(f"a log line with {text}", found, PATIENCE)

    def wait_told(self, pod: str, text: str) -> None:
        """Wait until a pod's condition contains this text."""
        self.until(f"a condition of {pod} with {text}", lambda: is_refused(self.pod(pod), text), PATIENCE)

    def metric(self, name: str) -> float:
        """Return one of its metrics; 0 if it is missing."""
        return self.scheduler.metrics().get(name, 0.0)

    def wait_metric(self, name: str, above: float = 0.0) -> None:
        """Wait until that metric is above a value."""
        self.until(f"{name} above {above:g}", lambda: self.metric(name) > above, PATIENCE)

    # ------------------------------------------------------------------ workloads

    def new_name(self, what: str) -> str:
        """Return a unique name."""
        self._names += 1
        return f"{what}-{self._names}"

    def exists(self, pod: str) -> bool:
        """Whether the pod exists."""
        return bool(self.plane.request("GET", self.pod_path(pod))[0] == HTTPStatus.OK)

    def run_pod(self, pod: str) -> None:
        """Let a bound pod run, as its kubelet would report: only then disruption budgets apply to it."""
        ready = {"type": "Ready", "status": "True"}
        status, answer = self.plane.request("PATCH", f"{self.pod_path(pod)}/status",
                                            {"status": {"phase": "Running", "conditions": [ready]}})  # fmt: skip
        assert status == HTTPStatus.OK, answer

    def plan_map(self, gang: str) -> str | None:
        """Return the name of the ConfigMap with a gang's plan, if there is one."""
        items = self.plane.request("GET", "/api/v1/namespaces/kube-system/configmaps")[1]["items"]
        plans = {item.get("data", {}).get("podGroup"): item["metadata"]["name"] for item in items}
        name: str | None = plans.get(f"{self.namespace}/{gang}")
        return name

    def new_pod(self, **spec: Any) -> str:
        """Create a pod, by default with one core; return its name."""
        name = self.new_name("pod")
        self.create_pod(name, **spec)
        return name

    def new_claim(self, *, made: bool = False) -> str:
        """Create a claim with WaitForFirstConsumer, and a volume or a class for it; return its name."""
        name = self.new_name("claim")
        provisioner = "csi.example.com" if made else "kubernetes.io/no-provisioner"
        capacity = {"storage": "1Gi"}
        self.plane.create({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
                           "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"})  # fmt: skip
        if not made:
            self.plane.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
                "capacity": capacity, "accessModes": ["ReadWriteOnce"], "storageClassName": name,
                "hostPath": {"path": "/none"}}})  # fmt: skip
            status, answer = self.plane.request("PATCH", f"/api/v1/persistentvolumes/{name}/status",
                                                {"status": {"phase": "Available"}})  # fmt: skip
            assert status == HTTPStatus.OK, answer
        self.plane.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                           "metadata": {"name": name, "namespace": self.namespace}, "spec": {
                               "accessModes": ["ReadWriteOnce"], "resources": {"requests": capacity},
                               "storageClassName": name}})  # fmt: skip
        return name

    def new_device_pod(self, *, extended: bool = False) -> str:
        """Create a pod with a device claim, or with an extended resource from a DeviceClass; return its name."""
        name, api = self.new_name("device"), "resource.k8s.io/v1"
        driver = f"{name}.example.com"
        spec: Manifest = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}],
                          "extendedResourceName": f"{driver}/thing"}  # fmt: skip
        self.plane.create({"apiVersion": api, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec})
        self.plane.create({"apiVersion": api, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": {
            "driver": driver, "allNodes": True, "devices": [{"name": "one"}],
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}})  # fmt: skip
        if extended:
            amounts = {"cpu": "100m", f"{driver}/thing": "1"}
            resources = {"requests": amounts, "limits": amounts}
            return self.new_pod(containers=[{"name": "main", "image": "example.com/none", "resources": resources}])
        requests = [{"name": "r", "exactly": {"deviceClassName": name}}]
        self.plane.create({"apiVersion": api, "kind": "ResourceClaim", "spec": {"devices": {"requests": requests}},
                           "metadata": {"name": name, "namespace": self.namespace}})  # fmt: skip
        return self.new_pod(resourceClaims=[{"name": "own", "resourceClaimName": name}])

    def decided(self, claim: str, *, made: bool) -> bool:
        """Whether a volume is reserved for the claim, or its node is selected."""
        if not made:
            return "claimRef" in self.plane.request("GET", f"/api/v1/persistentvolumes/{claim}")[1]["spec"]
        path = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/{claim}"
        found = self.plane.request("GET", path)[1]["metadata"].get("annotations", {})
        return "volume.kubernetes.io/selected-node" in found

    def new_gang(self, name: str = "", *, coscheduling: bool = False, filler: int = 0) -> str:
        """Create a gang of two; return its name. `filler` bytes on its PodGroup reduce the space for a plan."""
        name = name or self.new_name("gang")
        annotations = {"example.com/filler": "x" * filler} if filler else {}
        metadata = {"name": name, "namespace": self.namespace, "annotations": annotations}
        if coscheduling:
            self.plane.create({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": metadata,
                               "spec": {"minMember": 2}})  # fmt: skip
        else:
            self.plane.create({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": metadata,
                               "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})  # fmt: skip
        labels = {"scheduling.x-k8s.io/pod-group": name, "gang": name} if coscheduling else {"gang": name}
        for pod in pods_of(name):
            self.plane.create({"apiVersion": "v1", "kind": "Pod", "spec": pod_spec(None if coscheduling else name),
                               "metadata": {"name": pod, "namespace": self.namespace, "labels": labels}})  # fmt: skip
        return name

    def hold(self, method: str, end: str) -> Callable[[Callable[[], None]], None]:
        """Hold the first write to such a path until the returned function is called with an action to run before it."""
        rule = self.proxies[0].at(1, Fault.HOLD, where=lambda asked, path: asked == method and path.endswith(end))

        def go_on(between: Callable[[], None]) -> None:
            self.until(f"a {method} of {end}", rule.struck.is_set, PATIENCE)
            between()
            self.proxies[0].release(rule)

        return go_on

    def contest(self, method: str, end: str) -> None:
        """Reject the second and each later write to such a path, as if another client had written before."""
        for number in range(2, _CONFLICTS):
            self.proxies[0].at(number, Fault.ERROR, status=HTTPStatus.CONFLICT,
                               where=lambda asked, path: asked == method and path.endswith(end))  # fmt: skip

    def label(self, path: str) -> None:
        """Change an object's labels."""
        labels = {"example.com/changed": self.new_name("at")}
        status, answer = self.plane.request("PATCH", path, {"metadata": {"labels": labels}})
        assert status == HTTPStatus.OK, answer

    def pod_path(self, pod: str) -> str:
        """Return the path of a pod."""
        return f"{self._pods}/{pod}"

    def group_path(self, gang: str, *, coscheduling: bool = False) -> str:
        """Return the path of a PodGroup."""
        api = "/apis/scheduling.x-k8s.io/v1alpha1" if coscheduling else GROUPS
        return f"{api}/namespaces/{self.namespace}/podgroups/{gang}"

    def tidy(self) -> None:
        """Delete all pods and PodGroups; keep the scheduler and the node."""
        self.proxies[0].forget()
        for kind in (self._pods, self.group_path(""), self.group_path("", coscheduling=True)):
            kind = kind.rstrip("/")
            for one in self.plane.request("GET", kind)[1].get("items", []):
                path = f"{kind}/{one['metadata']['name']}"
                self.plane.request("PATCH", path, {"metadata": {"finalizers": None}})
                self.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")


def refusals(plane: ControlPlane) -> float:
    """Return how many requests the API server has rejected for missing rights, of all users."""
    lines = plane.request("GET", "/metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines
               if line.startswith("apiserver_request_total{") and 'code="403"' in line)  # fmt: skip


def pods_of(gang: str) -> list[str]:
    """Return the names of a gang's pods."""
    return [f"{gang}-{number}" for number in range(2)]
