"""The world of one run of a fault scenario: a namespace, nodes, proxies and schedulers, and how tests observe them.

`until` polls for a bounded time, and meanwhile restarts killed schedulers, as a Deployment would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from .. import invariants
from ..harness import ControlPlane
from ..invariants import GROUPS, HELD, Manifest, State, is_bound, plan_of, read_state
from ..proxy import Proxy
from ..scheduler_process import SchedulerProcess, Settings, kubeconfig_for

DEVICE = invariants.DEVICE_PREFIX + "qpu"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/fluence"
SIZE = 8
"""Number of a gang's pods."""
_PAUSE = 0.05
_PATIENCE = 60.0
_OWNERS_PATIENCE = 20.0
_T = TypeVar("_T")


def resources_of(devices: int) -> str:
    """Return a resources file with so many devices, each with its own backend."""
    return f"resources:\n  - {{type: qpu, name: qpu, count: {devices}, attributes: {{region: here}}}}\n"


@dataclass
class World:
    """The world of one run, a context manager. It deletes all of its objects, and prints logs on failure."""

    plane: ControlPlane
    folder: Path
    settings: Settings = field(default_factory=lambda: Settings(resources=resources_of(SIZE)))
    lost_nodes: set[str] = field(default_factory=set)
    may_exit: bool = False
    """Whether schedulers may end on their own, as after losing the Lease."""
    name: str = ""
    """Its namespace; empty for a new one."""

    def __enter__(self) -> World:
        self.namespace = self.plane.new_namespace(self.name)
        self.nodes: list[str] = []
        self.schedulers: list[SchedulerProcess] = []
        self.proxies: list[Proxy] = []
        self._kept_alive = True
        self._retired: list[SchedulerProcess] = []
        self._reactions: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self._stack = ExitStack()
        self._folder = self.folder / self.namespace
        self._folder.mkdir(parents=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            error.add_note(self.report())
        try:
            self._stack.close()
        finally:
            self.clear()

    def report(self) -> str:
        """Return the logs of the schedulers and of the proxies."""
        writes = [f"---- writes of {scheduler.name}\n{proxy.report()}"
                  for scheduler, proxy in zip(self.schedulers, self.proxies, strict=True)]  # fmt: skip
        logs = [f"---- log of {scheduler.name}\n{scheduler.tail()}" for scheduler in self.schedulers]
        return "\n".join([*logs, *writes])

    # ------------------------------------------------------------------ schedulers

    def new_scheduler(self, settings: Settings | None = None) -> SchedulerProcess:
        """Add a replica behind its own proxy, not yet started."""
        proxy = self._stack.enter_context(Proxy(self.plane.server, self.plane.ca_file))
        kubeconfig = kubeconfig_for(self.plane, self._folder, proxy.url)
        name = f"scheduler-{len(self.schedulers)}"
        scheduler = SchedulerProcess(self._folder, kubeconfig, settings or self.settings, name)
        self._stack.callback(scheduler.kill)
        self.schedulers.append(scheduler)
        self.proxies.append(proxy)
        return scheduler

    def tend(self) -> None:
        """Run pending reactions; restart killed schedulers.

        Raises AssertionError if a scheduler ended on its own without permission.
        """
        for reaction in [reaction for reaction in self._reactions if reaction[0]()]:
            self._reactions.remove(reaction)
            reaction[1]()
        for scheduler in self.schedulers:
            status = scheduler.status
            if status is None or not self._kept_alive or scheduler in self._retired:
                continue
            if status != -9 and not self.may_exit:
                raise AssertionError(f"{scheduler.name} ended with status {status}")
            scheduler.start()

    def once(self, happened: Callable[[], bool], do: Callable[[], None]) -> None:
        """Run an action once a fault has struck, while the test waits for something else."""
        self._reactions.append((happened, do))

    def keep_alive(self, wanted: bool) -> None:
        """Set whether killed schedulers are restarted; initially they are."""
        self._kept_alive = wanted

    def retire(self, scheduler: SchedulerProcess) -> None:
        """Kill a scheduler for good, so that its successor is alone."""
        self._retired.append(scheduler)
        scheduler.kill()

    # ------------------------------------------------------------------ the cluster

    def add_node(self, cpu: int = 2, devices: int = 2, labels: dict[str, str] | None = None) -> str:
        """Add a ready node with `cpu` cores."""
        name = f"{self.namespace}-node-{len(self.nodes)}"
        self.nodes.append(name)
        self.plane.new_node(name, cpu=str(cpu), **({DEVICE: str(devices)} if devices else {}))
        if labels:
            self.plane.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})
        return name

    def add_room(self) -> None:
        """Add four nodes that fit exactly one gang."""
        for _ in range(SIZE // 2):
            self.add_node()

    def delete_node(self, name: str) -> None:
        """Remove a node."""
        self.lost_nodes.add(name)
        self.plane.request("DELETE", f"/api/v1/nodes/{name}")

    def create_gang(self, name: str, size: int = SIZE, *, device: bool = True, **spec: Any) -> None:
        """Create a PodGroup and its pods, `name`-0 and on."""
        self.create_group(name, size)
        for number in range(size):
            self.create_pod(f"{name}-{number}", group=name, device=device, **spec)

    def create_group(self, name: str, size: int) -> None:
        """Create a PodGroup without pods."""
        policy = {"schedulingPolicy": {"gang": {"minCount": size}}}
        self.plane.create({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "spec": policy,
                           "metadata": {"name": name, "namespace": self.namespace}})  # fmt: skip

    def create_pod(
        self, name: str, group: str | None = None, *, device: bool = True, cpu: str = "1", **spec: Any
    ) -> Manifest:
        """Create a pod, by default with one core and, with `device`, one device."""
        requests = {"cpu": cpu, "memory": "64Mi"} | ({DEVICE: "1"} if device else {})
        limits = {DEVICE: "1"} if device else {}
        container = {"name": "main", "image": "example.com/none", "resources": {"requests": requests, "limits": limits}}
        grouped = {"schedulingGroup": {"podGroupName": group}} if group else {}
        body = {"schedulerName": "fluence", "terminationGracePeriodSeconds": 0, "containers": [container],
                **grouped, **spec}  # fmt: skip
        return self.plane.create({"apiVersion": "v1", "kind": "Pod", "spec": body,
                                  "metadata": {"name": name, "namespace": self.namespace}})  # fmt: skip

    def pod(self, name: str) -> Manifest:
        """Return a pod."""
        found: Manifest = self.plane.request("GET", f"{self._pods}/{name}")[1]
        return found

    def group(self, name: str) -> Manifest:
        """Return a PodGroup."""
        found: Manifest = self.plane.request("GET", f"{self._groups}/{name}")[1]
        return found

    def members(self, name: str) -> list[Manifest]:
        """Return a gang's pods."""
        items = self.plane.request("GET", self._pods)[1]["items"]
        return [pod for pod in items if invariants.group_name(pod) == name]

    def places(self, name: str) -> dict[str, str]:
        """Return the nodes of a gang's bound pods, by pod name."""
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in self.members(name) if is_bound(pod)}

    def finish(self, pods: Iterable[Manifest]) -> None:
        """Let pods succeed, as their kubelet would report."""
        for pod in pods:
            path = f"{self._pods}/{pod['metadata']['name']}/status"
            status, answer = self.plane.request("PATCH", path, {"status": {"phase": "Succeeded"}})
            assert status == HTTPStatus.OK, answer

    def delete_pod(self, name: str) -> Manifest:
        """Delete a pod at once; return its last state."""
        gone: Manifest = self.plane.request("DELETE", f"{self._pods}/{name}?gracePeriodSeconds=0")[1]
        return gone

    def delete_gang(self, name: str) -> None:
        """Delete a gang's pods and its PodGroup, with the finalizer that no controller removes here."""
        for pod in self.members(name):
            self.delete_pod(pod["metadata"]["name"])
        self.plane.request("PATCH", f"{self._groups}/{name}", {"metadata": {"finalizers": None}})
        self.plane.request("DELETE", f"{self._groups}/{name}")

    def clear(self) -> None:
        """Delete all objects of this run."""
        for kind in (self._pods, self._groups):
            for obj in self.plane.request("GET", kind)[1].get("items", []):
                path = f"{kind}/{obj['metadata']['name']}"
                self.plane.request("PATCH", path, {"metadata": {"finalizers": None}})
                self.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
        for name in self.nodes:
            self.plane.request("DELETE", f"/api/v1/nodes/{name}")
        self.plane.request("DELETE", LEASE)

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def _groups(self) -> str:
        return f"{GROUPS}/namespaces/{self.namespace}/podgroups"

    # ------------------------------------------------------------------ waiting and checking

    def until(self, what: str, found: Callable[[], _T | None], seconds: float = _PATIENCE) -> _T:
        """Wait until `found` returns something; return that. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while True:
            self.tend()
            with suppress(OSError):  # the API server may be away
                answer = found()
                if answer is not None and answer is not False:
                    return answer
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {seconds:g} s: {what} did not come")
            time.sleep(_PAUSE)

    def wait_whole(self, name: str, size: int = SIZE, seconds: float = _PATIENCE) -> None:
        """Wait until the gang is completely bound and its PodGroup's condition says so."""

        def whole() -> bool:
            if len(self.places(name)) < size:
                return False
            scheduled = invariants.condition(self.group(name), "PodGroupScheduled")
            return scheduled is not None and scheduled["status"] == "True"

        try:
            self.until(f"gang {name}, whole,", whole, seconds)
        except TimeoutError as error:
            self._explain(error, name)
            raise

    def _explain(self, error: TimeoutError, name: str) -> None:
        group = self.group(name)
        error.add_note(f"bound: {self.places(name)}\nconditions: {group.get('status')}\n"
                       f"plan: {plan_of(group)}\nattempts: {[invariants.attempt_of(pod) for pod in self.members(name)]}"
                       )  # fmt: skip

    def wait_without_plan(self, name: str) -> None:
        """Wait until the gang has no plan."""
        self.until(f"gang {name} without a plan", lambda: plan_of(self.group(name)) is None)

    def check(self, *of_one_plan: str) -> State:
        """Raise InvariantError unless all invariants hold at rest, and each of these gangs has a single plan."""
        state = invariants.check(self.plane, self.lost_nodes)
        by_name = {group["metadata"]["name"]: group for group in state.groups
                   if group["metadata"]["namespace"] == self.namespace}  # fmt: skip
        mixed = [line for name in of_one_plan for line in invariants.of_one_plan(state, by_name[name])]
        if mixed:
            raise invariants.InvariantError("\n".join(mixed))
        self._wait_for_owners()
        return state

    def _wait_for_owners(self) -> None:
        """Wait until a running scheduler reports as many pods with allocations as there are, and that its graph matches
        the cluster. Raises TimeoutError.
        """
        if len(self.schedulers) != 1 or not self.schedulers[0].running:
            return
        said: list[float | None] = []

        def equal() -> bool:
            metrics = self.schedulers[0].metrics()
            drift = [count for name, count in metrics.items() if name.startswith("fluence_graph_drift_pods")]
            said[:] = [metrics.get("fluence_held_pods"), *drift]
            holders = sum(bool(invariants.annotation(pod, HELD)) for pod in read_state(self.plane).live)
            return said == [holders, *[0] * len(drift)]

        try:
            self.until("as many holders as live owners, and no drift", equal, _OWNERS_PATIENCE)
        except TimeoutError as error:
            error.add_note(f"fluence_held_pods and fluence_graph_drift_pods are {said}")
            raise

    def check_now(self) -> State:
        """Raise InvariantError unless the invariants that always hold are met."""
        state = read_state(self.plane, self.lost_nodes)
        found = invariants.violations(state)
        if found:
            raise invariants.InvariantError("\n".join(found))
        return state

    def with_election(self) -> Settings:
        """Return this run's settings for several replicas with leader election."""
        return replace(self.settings, election=True)
