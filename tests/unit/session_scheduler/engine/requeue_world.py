"""Cases of requeueing and their worlds: a refused pod, and the later events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.tools.observing import observe

from session_scheduler.builtin import BUILTIN, DEFAULT_PLUGINS
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.framework.observer import Observer
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.model.devices import ResourceClaim, ResourceSlice
from session_scheduler.model.objects import (
    Affinity,
    Container,
    ContainerPort,
    ContainerStatus,
    KubeObject,
    Node,
    Pod,
    ResourceRequirements,
    Taint,
    Toleration,
)
from session_scheduler.model.storage import CSIDriver, CSIStorageCapacity, VolumeAttachment
from session_scheduler.testing import FakeCluster, node, pod

from ....tools.volumes import storage_class, volume

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LABELS = {"free": "yes"}
DEDICATED = Taint(key="dedicated", value="x", effect="NoSchedule")
MINE = Taint(key="dedicated", value="mine", effect="NoSchedule")
OTHER_TAINT = Taint(key="other", effect="NoExecute")
Change = KubeObject | tuple[type[Any], str]
"""An object to add or change, or the kind and name of one to delete."""


class Tries(Observer):
    """Counts the attempts of each group."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def decided(self, outcome: PlacementResult) -> None:
        name = outcome.group.name
        self.of[name] = self.of.get(name, 0) + 1


def observed(cluster: FakeCluster) -> Tries:
    return observe(cluster.start(), Tries())


@dataclass
class Case:
    """Objects with a refused pod (or group) named "waits", and the later events.

    In a sequence of events, the last one helps, or none does.
    """

    there: Sequence[KubeObject]
    refused_by: set[str]
    helpful: dict[str, Sequence[Change]]
    unrelated: dict[str, Sequence[Change]] = field(default_factory=dict)
    waits: str = "waits"
    gated: bool = False
    """Whether the plugin gates the pod; otherwise the plugin refuses it."""
    config: SchedulerConfig | None = None


def running(name: str, on: str = "n1", **options: Any) -> Pod:
    return pod(name, bound_to=on, **options)


def resizing(one: Pod, **actual: Any) -> Pod:
    """The pod with the status of a kubelet that has not applied the spec yet: the container has these amounts."""
    (container,) = one.spec.containers
    requests = {**container.resources.requests, **actual}
    status = ContainerStatus(
        name=container.name, allocated_resources=requests, resources=ResourceRequirements(requests=requests)
    )
    return msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, container_statuses=(status,)))


def tainted(name: str, *taints: Taint, **options: Any) -> Node:
    return node(name, taints=taints, **options)


def features(name: str, *names: str) -> Node:
    plain = node(name)
    return msgspec.structs.replace(plain, status=msgspec.structs.replace(plain.status, declared_features=names))


def host_ports(name: str, port: int, on: str = "", protocol: str = "TCP", **options: Any) -> Pod:
    plain = pod(name, **options)
    (container,) = plain.spec.containers
    ports = (ContainerPort(container_port=port, host_port=port, host_ip=on, protocol=protocol),)
    return msgspec.structs.replace(
        plain, spec=msgspec.structs.replace(plain.spec, containers=(msgspec.structs.replace(container, ports=ports),))
    )


def ending(one: Pod) -> Pod:
    metadata = msgspec.structs.replace(one.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return msgspec.structs.replace(one, metadata=metadata)


def near(app: str, key: str = HOSTNAME, **more: Any) -> Affinity:
    return Affinity(pod_affinity={REQUIRED: [term(app, key, **more)]})


def away(app: str, key: str = HOSTNAME, **more: Any) -> Affinity:
    return Affinity(pod_anti_affinity={REQUIRED: [term(app, key, **more)]})


def term(app: str, key: str, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}


def devices(kind: type[Any], name: str, namespace: str = "", **spec: Any) -> Any:
    return msgspec.convert(
        {"kind": kind.__name__, "metadata": {"name": name, "namespace": namespace}, "spec": spec}, kind
    )


def gpu_claim(name: str) -> ResourceClaim:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]
    found: ResourceClaim = devices(ResourceClaim, name, "default", devices={"requests": requests})
    return found


def gpus(name: str) -> ResourceSlice:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    found: ResourceSlice = devices(ResourceSlice, name, driver="d", allNodes=True, pool=pool, devices=[{"name": "a"}])
    return found


def evenly(**more: Any) -> tuple[dict[str, Any], ...]:
    return ({"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": "DoNotSchedule",
             "labelSelector": {"matchLabels": {"app": "web"}}, **more},)  # fmt: skip


WEB, DB = {"app": "web"}, {"app": "db"}
FREE = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": LABELS}}
OF_DB = {"labelSelector": {"matchLabels": DB}}
TOLERANT: dict[str, Any] = {"tolerations": (Toleration(key="dedicated", operator="Exists"),)}
TAINTED = evenly(nodeTaintsPolicy="Honor", minDomains=2) + evenly(**OF_DB)
OVER_ZONES = evenly(topologyKey=ZONE, minDomains=2) + evenly(**OF_DB)
RESTARTS = "RestartAllContainersOnContainerExits"
RESTARTING = msgspec.convert(
    {"name": "c", "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]}, Container)  # fmt: skip
ALONE: dict[str, Any] = {"accessModes": ["ReadWriteOncePod"]}
LOCAL, MADE = storage_class("local"), storage_class("made", "csi.example.com")
NOW = storage_class("now", waits=False)
ZONED = volume("v", labels={ZONE: "b"})


def handle(name: str) -> dict[str, Any]:
    return {"csi": {"driver": "d", "volumeHandle": name}}


def whole(**requests: Any) -> ResourceRequirements:
    """The requests of a pod as a whole."""
    return ResourceRequirements(requests=requests)


def restarting(name: str, **options: Any) -> Pod:
    plain = pod(name, **options)
    return msgspec.structs.replace(plain, spec=msgspec.structs.replace(plain.spec, containers=(RESTARTING,)))


def capacity(name: str, amount: str, of_one: str = "") -> CSIStorageCapacity:
    body = {"kind": "CSIStorageCapacity", "metadata": {"name": name, "namespace": "default"}, "capacity": amount,
            "storageClassName": "made", "nodeTopology": {}, "maximumVolumeSize": of_one or None}  # fmt: skip
    return msgspec.convert(body, CSIStorageCapacity)


def driver(*, asks: bool) -> CSIDriver:
    body = {"kind": "CSIDriver", "metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": asks}}
    return msgspec.convert(body, CSIDriver)


def attachment(name: str, by: str = "d") -> VolumeAttachment:
    body = {"kind": "VolumeAttachment", "metadata": {"name": name},
            "spec": {"attacher": by, "nodeName": "n1", "source": {"persistentVolumeName": "v1"}}}  # fmt: skip
    return msgspec.convert(body, VolumeAttachment)


ENDS = (Pod, "runs")


class World:
    """A case in its cluster; the pod was refused once, for the reasons of the case, or is gated."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.cluster = FakeCluster(checked=False, config=case.config)
        for name in case.refused_by & (BUILTIN.keys() - dict(DEFAULT_PLUGINS).keys()):
            self.cluster.use(name)
        self.cluster.add(*case.there)
        self.tries = observed(self.cluster)
        self.cluster.run()
        if case.gated:
            self._is_gated()
            return
        assert self.tries.of[case.waits] == 1
        key = next(key for key in self.cluster.scheduler.cache.groups if key.endswith(f"/{case.waits}"))
        assert self.cluster.scheduler.queue.is_unschedulable(key)
        groups = self.cluster.scheduler.queue._waiting[key].unschedulable
        assert groups
        assert {plugin for _, plugins in groups.wants for plugin in plugins} == case.refused_by

    def _is_gated(self) -> None:
        task = next(one for one in self.cluster.scheduler.cache.tasks.values() if one.name == self.case.waits)
        gate = self.cluster.scheduler.cache.gates.of(task)
        assert gate is not None
        assert {gate.plugin} == self.case.refused_by
        assert self._tries == 0

    @property
    def _tries(self) -> int:
        return self.tries.of.get(self.case.waits, 0)

    def tried_after(self, changes: Sequence[Change]) -> list[bool]:
        """For each change in order: whether the scheduler attempted the pod again."""
        return [self._tried_after(change) for change in changes]

    def _tried_after(self, change: Change) -> bool:
        before = self._tries
        if isinstance(change, tuple):
            self.cluster.delete(*change)
        else:
            self.cluster.add(change)
        self.cluster.run(cycles=2)
        return self._tries > before
