"""The workloads of `make bench-live`, with the same objects for every contender: scheduler_perf's and two others.

Sizes are scheduler_perf's, in proportion to the nodes: a node has 4 CPUs, 32 GiB and room for 110 pods; a pod requests
100 mCPU and 500 MiB. The measured pods have their own namespace. All other pods are in another one: those that run from
the start, those that must stay pending, and those that come and go during the run.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Final

from .bulk import Bulk, Manifest

NODE: Final = {"cpu": "4", "memory": "32Gi", "pods": "110"}
GROUPS: Final = "/apis/scheduling.k8s.io/v1alpha2/namespaces/{}/podgroups"
HIGH: Final[Manifest] = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 10,
               "metadata": {"name": "bench-high"}}  # fmt: skip
"""The priority of pods that come before the others."""
BOUND, PENDING = "bound", "pending"
"""Name prefixes of pods that run from the start, and of pods that must never run."""
FREED: Final = "freed"
"""The second measurement of a workload with `full`: one node is emptied."""
EMPTIED: Final = "node-0"
"""The node that is emptied."""
_MIXED_SHAPES: Final = 500
_FULL_SHAPES: Final = 300
_VARIANTS: Final = 20
"""Number of different CPU requests among shapes; they also differ in memory."""
_ZONE: Final = "topology.kubernetes.io/zone"
_HOST: Final = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Turn:
    """One contender's run of a workload."""

    scheduler: str
    """The pods' `schedulerName`."""
    namespace: str
    """The namespace of the measured pods."""
    aside: str
    """The namespace of all other pods."""
    nodes: int
    pods: int
    """Number of measured pods."""


Kind = Callable[[Turn, str, str], Manifest]
"""Returns a pod's manifest for its name and its namespace."""
Beside = Callable[[Bulk, Turn], Coroutine[None, None, None]]
"""Changes the cluster from the start of the contender until all pods are bound."""


# ---------------------------------------------------------------------- kinds of pods


# more than five parameters: with the amounts that a kind of pod requests
def _pod(turn: Turn, name: str, namespace: str, cpu: str = "100m", memory: str = "500Mi", **spec: object) -> Manifest:
    requests = {"cpu": cpu, "memory": memory}
    container = {"name": "c", "image": "none", "resources": {"requests": requests, "limits": requests}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
            "spec": {"schedulerName": turn.scheduler, "containers": [container], **spec}}  # fmt: skip


def _labelled(color: str, pod: Manifest) -> Manifest:
    pod["metadata"]["labels"] = {"color": color}
    return pod


def _plain(turn: Turn, name: str, namespace: str) -> Manifest:
    return _pod(turn, name, namespace)


def _with_node_affinity(turn: Turn, name: str, namespace: str) -> Manifest:
    zones = {"key": _ZONE, "operator": "In", "values": ["zone-1", "zone-2"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [zones]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return _pod(turn, name, namespace, affinity=affinity)


def _term(turn: Turn, color: str, key: str) -> Manifest:
    selected = {"labelSelector": {"matchLabels": {"color": color}}, "namespaces": [turn.aside, turn.namespace]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [{**selected, "topologyKey": key}]}


def _with_pod_affinity(turn: Turn, name: str, namespace: str) -> Manifest:
    affinity = {"podAffinity": _term(turn, "blue", _ZONE)}
    return _labelled("blue", _pod(turn, name, namespace, affinity=affinity))


def _with_pod_anti_affinity(turn: Turn, name: str, namespace: str) -> Manifest:
    affinity = {"podAntiAffinity": _term(turn, "green", _HOST)}
    return _labelled("green", _pod(turn, name, namespace, affinity=affinity))


def _spread(turn: Turn, name: str, namespace: str) -> Manifest:
    constraint = {"maxSkew": 5, "topologyKey": _ZONE, "whenUnsatisfiable": "DoNotSchedule",
                  "labelSelector": {"matchLabels": {"color": "blue"}}}  # fmt: skip
    return _labelled("blue", _pod(turn, name, namespace, topologySpreadConstraints=[constraint]))


def _victim(turn: Turn, name: str, namespace: str) -> Manifest:
    """Four of them fill a node. They have no grace period, because there is no kubelet."""
    return _pod(turn, name, namespace, cpu="900m", terminationGracePeriodSeconds=0)


def _preemptor(turn: Turn, name: str, namespace: str) -> Manifest:
    return _pod(turn, name, namespace, cpu="3", priorityClassName=HIGH["metadata"]["name"])


def _shape(name: str, shapes: int) -> int:
    """Return the shape of the pod with this name: its number, modulo the number of shapes."""
    return int(name.rpartition("-")[2]) % shapes


def _mixed(turn: Turn, name: str, namespace: str) -> Manifest:
    """Each shape has its own requests; every fourth has its own toleration, and every fourth excludes a node."""
    shape = _shape(name, _MIXED_SHAPES)
    cpu, memory = f"{50 + shape % _VARIANTS}m", f"{200 + shape // _VARIANTS}Mi"
    spec: Manifest = {}
    if shape % 4 == 1:
        spec["tolerations"] = [{"key": f"example.com/shape-{shape}", "operator": "Exists"}]
    if shape % 4 == 3:
        elsewhere = {"key": _HOST, "operator": "NotIn", "values": [f"node-{shape}"]}
        required = {"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return _pod(turn, name, namespace, cpu, memory, **spec)


def _small(turn: Turn, name: str, namespace: str) -> Manifest:
    """Each shape has its own requests. As many as a node may have fit on an empty node, and none on a full one."""
    shape = _shape(name, _FULL_SHAPES)
    return _pod(turn, name, namespace, f"{10 + shape % _VARIANTS}m", f"{100 + shape // _VARIANTS}Mi")


def _core(turn: Turn, name: str, namespace: str) -> Manifest:
    """Four of them fill a node."""
    return _pod(turn, name, namespace, cpu="1")


def _gated(turn: Turn, name: str, namespace: str) -> Manifest:
    return _pod(turn, name, namespace, schedulingGates=[{"name": "example.com/hold"}])


def _too_large(turn: Turn, name: str, namespace: str) -> Manifest:
    """It fits on no node; its priority puts it before all others."""
    return _pod(turn, name, namespace, cpu="9", priorityClassName=HIGH["metadata"]["name"])


# ---------------------------------------------------------------------- concurrent changes


def pods_of(namespace: str) -> str:
    """Return the path of a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


async def _unschedulable_come(api: Bulk, turn: Turn) -> None:
    """Create another pod that fits on no node, five times a second."""
    for number in itertools.count():
        await api.create(pods_of(turn.aside), [_too_large(turn, f"{PENDING}-late-{number}", turn.aside)])
        await asyncio.sleep(0.2)


async def _running_end(api: Bulk, turn: Turn) -> None:
    """Delete the pods that run from the start, 50 a second."""
    for number in range(turn.nodes):
        await api.delete([f"{pods_of(turn.aside)}/{BOUND}-{number}"])
        await asyncio.sleep(0.02)


async def _churn(api: Bulk, turn: Turn) -> None:
    """Every second replace a full node, a pod that fits on no node, and a service."""
    services = f"/api/v1/namespaces/{turn.aside}/services"
    for number in itertools.count():
        name = f"{PENDING}-churn-{number}"
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                   "spec": {"selector": {"app": "none"}, "ports": [{"port": 8080}]}}  # fmt: skip
        await api.create_nodes([node(name, room={"cpu": "0", "memory": "0", "pods": "0"})])
        await api.create(pods_of(turn.aside), [_too_large(turn, name, turn.aside)])
        await api.create(services, [service])
        try:
            await asyncio.sleep(1)
        finally:
            await api.delete(f"{path}/{name}" for path in ("/api/v1/nodes", pods_of(turn.aside), services))


# ---------------------------------------------------------------------- the workloads


@dataclass(frozen=True, slots=True)
class Workload:
    """The initial objects and the measured pods."""

    name: str
    pod: Kind = _plain
    """The measured pods."""
    goal: float = 1.0
    """The required pods per second, as a multiple of kube-scheduler's."""
    zones: tuple[str, ...] = ("zone-1",)
    """The zones of the nodes, in turn."""
    bound: Kind = _plain
    """The pods that run from the start."""
    bound_a_node: float = 0.0
    most_a_node: float = 2.0
    """Maximum number of measured pods per node; fluence gives each pod of a group a whole core."""
    pending: Kind = _too_large
    """The pods that must stay pending."""
    pending_a_pod: float = 0.0
    """Their number per measured pod."""
    gang: int = 1
    """The number of pods in a group; 1 for no groups."""
    preempts: bool = False
    beside: Beside | None = None
    bare: bool = False
    """Whether it measures the binding rate with trivial decisions, compared with sending bindings alone."""
    times: float = 1
    """Factor for the number of measured pods."""
    full: bool = False
    """Whether the nodes are full: it measures the reports about the measured pods, and then FREED."""
    memory: float = 2.0
    """The allowed memory, as a multiple of kube-scheduler's."""

    def size(self, nodes: int, pods: int) -> int:
        """Return the number of measured pods for `pods`: complete groups, and no more than fit."""
        most = min(int(self.times * pods), int(self.most_a_node * nodes))
        return most - most % self.gang

    def measured(self, turn: Turn, first: str = "") -> Iterator[Manifest]:
        """Return the measured pods, group by group; `first` is the prefix of the names of pods and groups."""
        for number in range(turn.pods):
            pod = self.pod(turn, f"{first}pod-{number}", turn.namespace)
            if self.gang > 1:
                pod["spec"]["schedulingGroup"] = {"podGroupName": f"{first}gang-{number // self.gang}"}
            yield pod

    def groups(self, turn: Turn, first: str = "") -> Iterator[Manifest]:
        """Return the groups of these pods."""
        for number in range(turn.pods // self.gang if self.gang > 1 else 0):
            yield {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
                   "metadata": {"name": f"{first}gang-{number}", "namespace": turn.namespace},
                   "spec": {"schedulingPolicy": {"gang": {"minCount": self.gang}}}}  # fmt: skip

    def others(self, turn: Turn) -> Iterator[Manifest]:
        """Return all other initial pods."""
        for number in range(int(self.bound_a_node * turn.nodes)):
            pod = self.bound(turn, f"{BOUND}-{number}", turn.aside)
            pod["spec"]["nodeName"] = f"node-{number % turn.nodes}"
            yield pod
        for number in range(int(self.pending_a_pod * turn.pods)):
            yield self.pending(turn, f"{PENDING}-{number}", turn.aside)


WORKLOADS: Final = (
    Workload("basic", goal=2.0, bound_a_node=0.2),
    Workload("node-affinity", _with_node_affinity, goal=2.0, bound=_with_node_affinity, bound_a_node=1),
    Workload("pod-anti-affinity", _with_pod_anti_affinity, bound=_with_pod_anti_affinity, bound_a_node=0.2,
             most_a_node=0.8),
    Workload("pod-affinity", _with_pod_affinity, bound=_with_pod_affinity, bound_a_node=1),
    Workload("spreading", _spread, zones=("zone-1", "zone-2", "zone-3"), bound_a_node=1),
    Workload("preemption", _preemptor, bound=_victim, bound_a_node=4, most_a_node=1, preempts=True),
    Workload("churn", beside=_churn),
    Workload("gated", bound_a_node=1, pending=_gated, pending_a_pod=0.5, beside=_running_end),
    Workload("unschedulable", bound_a_node=0.02, pending_a_pod=0.1, beside=_unschedulable_come),
    Workload("gangs", goal=2.0, gang=3),
    Workload("gangs-of-20", goal=2.0, gang=20),
    # Long turns: the API server collects its garbage every few seconds, which costs it as much as a thousand bindings.
    Workload("bindings", most_a_node=36, bare=True, times=5),
    Workload("mixed", _mixed, most_a_node=5, times=2.5),
    Workload("full", _small, goal=10.0, bound=_core, bound_a_node=4, most_a_node=3, times=1.5, full=True, memory=1.5),
)  # fmt: skip


def node(name: str, zone: str = "", room: Manifest = NODE) -> Manifest:
    """Return a ready node, as its kubelet would create it."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    labels = {_HOST: name} | ({_ZONE: zone} if zone else {})
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"capacity": room, "allocatable": room, "conditions": [ready]}}  # fmt: skip
