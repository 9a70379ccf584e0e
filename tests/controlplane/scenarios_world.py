"""A `World` beside the real controllers: other programs also create and bind its pods.

Comparisons with lists are so rare here that they find no missed event.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from . import invariants
from .faults.world import DEVICE, World, resources_of
from .invariants import Manifest, condition, is_bound
from .proxy import Answer, Fault, Proxy, Write
from .scheduler_process import SchedulerProcess, Settings, kubeconfig_for

EXAMPLES = Path(__file__).parents[2] / "examples"
NEVER = 3600.0
_PATIENCE = 30.0
_REFUSALS = 200
"""A practically infinite interval in seconds."""


class SelectiveProxy(Proxy):
    """A proxy that can hide events of watches."""

    hides: Callable[[bytes], bool] | None = None
    """Decides for each event of a watch (a line of JSON) whether to hide it."""
    hidden = 0

    @asynccontextmanager
    async def _asked(self, request: web.BaseRequest, body: bytes) -> AsyncIterator[Answer]:
        async with super()._asked(request, body) as answer:
            yield _Sieved(answer, self) if "watch" in request.query else answer  # type: ignore[misc]


class _Sieved:
    """Filter the hidden lines from a watch's response."""

    def __init__(self, answer: Answer, proxy: SelectiveProxy) -> None:
        self.status, self.headers = answer.status, answer.headers
        self._lines = answer
        self._proxy = proxy

    async def chunks(self) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._lines.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            kept = [line for line in lines if not self._hides(line)]
            if kept:
                yield b"\n".join(kept) + b"\n"
        if rest:
            yield rest

    def _hides(self, line: bytes) -> bool:
        hides = self._proxy.hides
        if hides is None or not hides(line):
            return False
        self._proxy.hidden += 1
        return True


@dataclass
class Scenario(World):
    """A run with the real controllers, beside kube-scheduler."""

    settings: Settings = field(default_factory=lambda: Settings(resources=resources_of(8), reconcile_seconds=NEVER))

    def __enter__(self) -> Scenario:
        super().__enter__()
        self.selective: list[SelectiveProxy] = []
        account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"
        self.plane.wait_for(account, lambda answer: answer.get("kind") == "ServiceAccount")
        return self

    # ------------------------------------------------------------------ schedulers

    def hide(self, change: str, name: str) -> None:
        """Hide such changes of objects with this name prefix from the first replica's watches."""
        kind, begin = f'"type":"{change}"'.encode(), f'"name":"{name}'.encode()
        self.selective[0].hides = lambda line: kind in line and begin in line

    @property
    def hidden(self) -> int:
        """Return how many changes the first replica's watches missed."""
        return self.selective[0].hidden

    def new_scheduler(self, settings: Settings | None = None) -> SchedulerProcess:
        """Add a replica behind its own proxy, not yet started."""
        proxy = SelectiveProxy(self.plane.server, self.plane.ca_file)
        self._stack.enter_context(proxy)
        kubeconfig = kubeconfig_for(self.plane, self._folder, proxy.url)
        name = f"scheduler-{len(self.schedulers)}"
        scheduler = SchedulerProcess(self._folder, kubeconfig, settings or self.settings, name)
        self._stack.callback(scheduler.kill)
        self.schedulers.append(scheduler)
        self.proxies.append(proxy)
        self.selective.append(proxy)
        return scheduler

    def run(self, settings: Settings | None = None) -> SchedulerProcess:
        """Add a replica, and wait until it is ready."""
        scheduler = self.new_scheduler(settings)
        scheduler.start()
        scheduler.wait_ready()
        return scheduler

    def refuse_binds_of(self, pod: str, times: int = _REFUSALS, status: int = HTTPStatus.FORBIDDEN) -> None:
        """Reject the first replica's bindings of one pod."""
        end = f"/pods/{pod}/binding"
        for number in range(1, times + 1):
            self.proxies[0].at(number, Fault.ERROR, status=status, where=lambda _, path: path.endswith(end))

    def writes(self, method: str, end: str) -> list[Write]:
        """Return the first replica's writes to paths with this end."""
        return [write for write in self.proxies[0].writes if write.method == method and write.path.endswith(end)]

    # ------------------------------------------------------------------ the cluster

    def apply(self, path: Path) -> None:
        """Create a file's objects in the run's namespace, unchanged."""
        for manifest in yaml.safe_load_all(path.read_text()):
            manifest["metadata"]["namespace"] = self.namespace
            self.plane.create(manifest)

    def create_group(self, name: str, minimum: int) -> None:
        """Create a PodGroup without pods."""
        self.create_gang(name, 0, minimum=minimum)

    def create_gang(self, name: str, size: int = 2, *, device: bool = False, minimum: int = 0, **spec: Any) -> None:
        """Create a PodGroup and its pods, `name`-0 and on."""
        policy = {"schedulingPolicy": {"gang": {"minCount": minimum or size}}}
        self.plane.create({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "spec": policy,
                           "metadata": {"name": name, "namespace": self.namespace}})  # fmt: skip
        for number in range(size):
            self.create_pod(f"{name}-{number}", group=name, device=device, **spec)

    def create_pod(self, name: str, group: str | None = None, *, device: bool = False, cpu: str = "1",
                   annotations: dict[str, str] | None = None, **spec: Any) -> Manifest:  # fmt: skip
        """Create a pod, by default with one core, and with `device` one device."""
        spec = pod_spec(group, device=device, cpu=cpu) | spec
        metadata = {"name": name, "namespace": self.namespace, "annotations": annotations or {}}
        return self.plane.create({"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": metadata})

    def deploy(self, name: str, replicas: int) -> None:
        """Create a Deployment of pods with one core, which belong to the gang of its name."""
        labels = {"app": name}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod_spec(name)}}  # fmt: skip
        self.plane.create({"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec,
                           "metadata": {"name": name, "namespace": self.namespace}})  # fmt: skip

    def wait_members(self, name: str, size: int) -> list[Manifest]:
        """Wait until a gang has so many pods; return them."""
        return self.until(f"{size} pods of {name}", lambda: ((found := self.members(name)) and len(found) == size
                          and found) or None, _PATIENCE)  # fmt: skip

    def bind_as_admin(self, pod: str, node: str, annotations: dict[str, str] | None = None) -> None:
        """Bind a pod with a plain Binding, as any client with the right can."""
        binding = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": node},
                   "metadata": {"name": pod, "annotations": annotations or {}}}  # fmt: skip
        status, answer = self.plane.request("POST", f"{self._pods}/{pod}/binding", binding)
        assert status == HTTPStatus.CREATED, answer

    def occupy(self, name: str, node: str, cpu: str = "1") -> None:
        """Create a pod on a node, without a scheduler."""
        self.create_pod(name, cpu=cpu, schedulerName="none")
        self.bind_as_admin(name, node)

    def end(self, pod: str, phase: str = "Succeeded") -> None:
        """Let a pod end, as its kubelet would report."""
        status, answer = self.plane.request("PATCH", f"{self._pods}/{pod}/status", {"status": {"phase": phase}})
        assert status == HTTPStatus.OK, answer

    def resize(self, node: str, cpu: int) -> None:
        """Change the number of a node's cores."""
        amounts = {"cpu": str(cpu)}
        status, answer = self.plane.request("PATCH", f"/api/v1/nodes/{node}/status",
                                            {"status": {"capacity": amounts, "allocatable": amounts}})  # fmt: skip
        assert status == HTTPStatus.OK, answer

    def cordon(self, node: str, wanted: bool = True) -> None:
        """Cordon or uncordon a node."""
        self.plane.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": wanted or None}})

    def clear(self) -> None:
        """Delete all objects of this run; controllers cannot create new ones in a terminating namespace."""
        self.keep_alive(False)
        self.plane.request("DELETE", f"/api/v1/namespaces/{self.namespace}")
        super().clear()
        self.until("the end of all pods", lambda: super(Scenario, self).clear() or not self.pods(), _PATIENCE)

    # ------------------------------------------------------------------ what users see

    def pods(self) -> list[Manifest]:
        """Return all pods of the run."""
        items: list[Manifest] = self.plane.request("GET", self._pods)[1]["items"]
        return items

    def node_of(self, pod: str) -> str | None:
        """Return the node that a pod is bound to."""
        node: str | None = self.pod(pod)["spec"].get("nodeName")
        return node

    def events(self, name: str, reason: str) -> list[Manifest]:
        """Return the events about an object."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        items: list[Manifest] = self.plane.request("GET", path)[1]["items"]
        return [event for event in items if event["regarding"]["name"] == name and event["reason"] == reason]

    def wait_event(self, name: str, reason: str) -> Manifest:
        """Wait for the first event about an object; return it."""
        return self.until(f"an event {reason} about {name}", lambda: next(iter(self.events(name, reason)), None),
                          _PATIENCE)  # fmt: skip

    def wait_bound(self, *pods: str, seconds: float = _PATIENCE) -> dict[str, str]:
        """Wait until all pods are bound; return their nodes."""

        def bound() -> dict[str, str] | None:
            nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in self.pods() if is_bound(pod)}
            return {pod: nodes[pod] for pod in pods} if set(pods) <= set(nodes) else None

        return self.until(f"a node for each of {', '.join(pods)}", bound, seconds)

    def wait_refused(self, pod: str, text: str = "") -> str:
        """Wait for a pod's condition with this text; return the message. Raises AssertionError if the pod is bound."""

        def refused() -> str | None:
            found = self.pod(pod)
            assert not is_bound(found), f"{pod} is bound to {found['spec']['nodeName']}"
            said = condition(found, "PodScheduled")
            reported = said is not None and said["status"] == "False" and said["reason"] == "Unschedulable"
            return said["message"] if said and reported and text in said["message"] else None

        try:
            return self.until(f"a refusal of {pod}", refused, _PATIENCE)
        except TimeoutError as error:
            error.add_note(f"its status is {json.dumps(self.pod(pod)['status'])}")
            raise

    def tries(self) -> float:
        """Return the first replica's count of failed attempts."""
        return self.schedulers[0].metrics().get('fluence_groups_total{result="unschedulable"}', 0.0)

    def wait_tries(self, more: int) -> None:
        """Wait for so many further failed attempts."""
        before = self.tries()
        self.until(f"{more} attempts", lambda: self.tries() >= before + more, _PATIENCE)

    def wait_refused_by(self, scheduler: SchedulerProcess, pod: str) -> str:
        """Like `wait_refused`, after the replica has counted an attempt."""
        unschedulable = 'fluence_pods_total{result="unschedulable"}'
        self.until("an attempt", lambda: scheduler.metrics().get(unschedulable, 0) > 0, _PATIENCE)
        return self.wait_refused(pod)

    def check_places(self) -> None:
        """Check only the invariants, if another client has written a record that the scheduler ignores."""
        invariants.check(self.plane, self.lost_nodes)


def pod_spec(group: str | None = None, *, device: bool = False, cpu: str = "1") -> Manifest:
    """Return a pod's spec without a grace period, because there is no kubelet."""
    requests = {"cpu": cpu, "memory": "64Mi"} | ({DEVICE: "1"} if device else {})
    limits = {DEVICE: "1"} if device else {}
    container = {"name": "main", "image": "example.com/none", "resources": {"requests": requests, "limits": limits}}
    grouped = {"schedulingGroup": {"podGroupName": group}} if group else {}
    return {"schedulerName": "fluence", "terminationGracePeriodSeconds": 0, "containers": [container], **grouped}
