"""Valid objects of every mirrored kind, and odd ones made from them with invalid fields."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from session_scheduler.cluster.kube_kinds import Resource, resource_of
from session_scheduler.engine.scheduler import KINDS
from session_scheduler.model.objects import KubeObject

Tree = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
DRIVER = "odd.example.com"
_SELECTOR: Final = {
    "matchLabels": {"app": "odd"},
    "matchExpressions": [{"key": "app", "operator": "In", "values": ["odd"]}],
}
_NODES: Final = {"nodeSelectorTerms": [{
    "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}, {"key": "age", "operator": "Gt",
    "values": ["1"]}],
    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}  # fmt: skip
_TERM: Final = {
    "topologyKey": "zone",
    "labelSelector": _SELECTOR,
    "namespaces": ["default"],
    "namespaceSelector": _SELECTOR,
}
_TERMS: Final = {REQUIRED: [_TERM], PREFERRED: [{"weight": 5, "podAffinityTerm": _TERM}]}
_SPREAD: Final = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": _SELECTOR, "minDomains": 1,
    "matchLabelKeys": ["app"],
                  "nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Honor"}  # fmt: skip
_CONTAINER: Final = {
    "name": "c", "image": "image:1", "restartPolicy": "Always", "restartPolicyRules": [{"action": "Restart"}],
    "env": [{"name": "A"}],
    "resources": {"requests": {"cpu": "10m", "example.com/odd": "1"}, "limits": {"example.com/odd": "1"}},
    "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP", "hostIP": "10.0.0.1"}]}  # fmt: skip
_EXACT: Final = {
    "deviceClassName": "oddclass", "allocationMode": "ExactCount", "count": 1, "adminAccess": False,
    "selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].x == 1'}}],
    "tolerations": [{"key": "t", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 4}],
    "capacity": {"requests": {"memory": "1Gi"}}}  # fmt: skip
_ALLOCATION: Final = {
    "devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "odd", "device": "d",
    "bindingConditions": ["bound"],
                             "bindingFailureConditions": ["broken"], "shareID": "s",
                             "consumedCapacity": {"memory": "1"}}],
                "config": [{"source": "FromClaim", "requests": ["r"], "opaque": {"driver": DRIVER,
                "parameters": {"a": 1}}}]},
    "nodeSelector": _NODES, "allocationTimestamp": "2026-01-01T00:00:00Z"}  # fmt: skip
_DEVICE: Final = {
    "name": "d", "attributes": {"x": {"int": 1}, "b": {"bool": True}, "s": {"string": "s"}, "v": {"version": "1.2.3"}},
    "capacity": {"memory": {"value": "10Gi", "requestPolicy": {
        "default": "1Gi", "validValues": ["1Gi"], "validRange": {"min": "1Gi", "max": "5Gi", "step": "1Gi"}}}},
    "consumesCounters": [{"counterSet": "set", "counters": {"c": {"value": "1"}}}],
    "taints": [{"key": "t", "value": "v", "effect": "NoSchedule"}], "allowMultipleAllocations": True,
    "bindsToNode": True, "bindingConditions": ["bound"], "bindingFailureConditions": ["broken"]}  # fmt: skip

WHOLE: Final[dict[str, Tree]] = {
    "Pod": {
        "spec": {
            "schedulerName": "fluence", "containers": [_CONTAINER], "initContainers": [_CONTAINER],
            "overhead": {"cpu": "1m"},
            "resources": {"requests": {"cpu": "1"}}, "nodeSelector": {"zone": "a"}, "hostNetwork": True,
            "hostUsers": False,
            "affinity": {
                "nodeAffinity": {REQUIRED: _NODES, PREFERRED: [{"weight": 1,
                "preference": _NODES["nodeSelectorTerms"][0]}]},
                "podAffinity": _TERMS, "podAntiAffinity": _TERMS},
            "tolerations": [{"key": "t", "operator": "Exists", "value": "", "effect": "NoSchedule",
            "tolerationSeconds": 5}],
            "topologySpreadConstraints": [{**_SPREAD, "whenUnsatisfiable": "DoNotSchedule"},
                                          {**_SPREAD, "whenUnsatisfiable": "ScheduleAnyway"}],
            "schedulingGroup": {"podGroupName": "odd"}, "priority": 5, "priorityClassName": "odd",
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "odd"}}, {"name": "w", "ephemeral": {}},
                        {"name": "g", "gcePersistentDisk": {"pdName": "d"}}, {"name": "i",
                        "image": {"reference": "i"}}],
            "resourceClaims": [{"name": "e", "resourceClaimName": "odd"}, {"name": "f",
            "resourceClaimTemplateName": "t"}],
        },
        "status": {"phase": "Pending", "nominatedNodeName": "n1", "conditions": [{"type": "PodScheduled",
        "status": "False"}],
                   "resourceClaimStatuses": [{"name": "f", "resourceClaimName": "odd"}],
                   "startTime": "2026-01-01T00:00:00Z"},
    },
    "Node": {"spec": {"unschedulable": False, "taints": [{"key": "t", "value": "v", "effect": "NoSchedule"}]},
             "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}, "capacity": {"cpu": "4"},
                        "images": [{"names": ["image:1"], "sizeBytes": 100}], "declaredFeatures": ["f"],
                        "conditions": [{"type": "Ready", "status": "True"}]}},
    "PersistentVolumeClaim": {"spec": {
        "accessModes": ["ReadWriteOnce"], "selector": _SELECTOR, "resources": {"requests": {"storage": "1Gi"}},
        "volumeName": "odd", "storageClassName": "odd", "volumeMode": "Filesystem"}, "status": {"phase": "Bound"}},
    "PersistentVolume": {"spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "claimRef": {"namespace": "default",
        "name": "odd"},
        "storageClassName": "odd", "nodeAffinity": {"required": _NODES}, "csi": {"driver": DRIVER, "volumeHandle": "h"},
        "awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}, "azureDisk": {"diskURI": "u", "kind": "Managed"}}},
    "StorageClass": {"provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer",
                     "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]},
    "CSINode": {"spec": {"drivers": [{"name": DRIVER, "allocatable": {"count": 3}}]}},
    "CSIDriver": {"spec": {"storageCapacity": True}},
    "CSIStorageCapacity": {"storageClassName": "odd", "nodeTopology": _SELECTOR, "capacity": "9Gi",
    "maximumVolumeSize": "5Gi"},
    "VolumeAttachment": {"spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "odd"}}},
    "ResourceClaim": {
        "spec": {"devices": {"requests": [{"name": "r", "exactly": _EXACT}, {"name": "q",
        "firstAvailable": [{**_EXACT, "name": "s"}]}],
                             "constraints": [{"requests": ["r"], "matchAttribute": f"{DRIVER}/x"},
                                             {"requests": ["q"], "distinctAttribute": f"{DRIVER}/x"}]}},
        "status": {"allocation": _ALLOCATION, "reservedFor": [{"resource": "pods", "name": "odd", "uid": "u"}],
                   "devices": [{"driver": DRIVER, "pool": "odd", "device": "d", "conditions": [{"type": "bound",
                   "status": "True"}]}]},
    },
    "ResourceSlice": {"spec": {"driver": DRIVER, "pool": {"name": "odd", "generation": 1, "resourceSliceCount": 1},
    "nodeName": "n1",
                               "devices": [_DEVICE], "sharedCounters": [{"name": "set",
                               "counters": {"c": {"value": "2"}}}]}},
    "DeviceClass": {"spec": {"selectors": [{"cel": {"expression": "true"}}],
    "extendedResourceName": "example.com/odd"}},
    "PodDisruptionBudget": {"spec": {"selector": _SELECTOR}, "status": {"disruptionsAllowed": 0,
    "disruptedPods": {"odd": "now"}}},
    "Queue": {"spec": {"parent": "default", "deserved": {"cpu": "1"}, "limit": {"cpu": "2", "pods": 3},
                       "overQuotaWeight": 1, "priority": 1},
              "status": {"allocated": {"cpu": "1"}, "conditions": [{"type": "Ready", "status": "True"}]}},
    "NodeResourceTopology": {
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}], "topologyPolicies": ["None"],
        "zones": [{"name": "node-0", "type": "Node", "costs": [{"name": "node-0", "value": 10}], "resources": [
            {"name": "cpu", "capacity": "2", "allocatable": "2", "available": "1"}]}]},
    "PriorityClass": {"value": 100, "globalDefault": True, "preemptionPolicy": "Never"},
    "Namespace": {},
    "Service": {"spec": {"selector": {"app": "odd"}}},
    "ReplicationController": {"spec": {"selector": {"app": "odd"}}},
    "ReplicaSet": {"spec": {"selector": _SELECTOR}},
    "StatefulSet": {"spec": {"selector": _SELECTOR}},
    "PodGroup": {"spec": {"schedulingPolicy": {"gang": {"minCount": 1}},
    "schedulingConstraints": {"topology": [{"key": "zone"}]},
                          "disruptionMode": "PodGroup", "priority": 5, "priorityClassName": "odd", "minMember": 1},
                 "status": {"conditions": [{"type": "Scheduled", "status": "False"}]}},
}  # fmt: skip
"""By kind, without metadata: every field that the scheduler reads."""
_TEXTS: Final = (
    "", " ", "0", "-1", "1e400", "1e-400", "9223372036854775808", "NaN", "Infinity", "1Ei", "0.0000000001", "\x00",
    "é", "²",
    "a/b/c", "a/", "In", "Exists", "Gt", "Newer", "true", "{}", "[[[[", '{"pods":{}}', "1/0 == 1", "device.x",
    "9" * 5000, "n1",
    "odd", "default", "2026-13-01", "9999-12-31T23:59:60Z",
)  # fmt: skip
_NUMBERS: Final = (0, 1, -1, 33, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30, -(10**30))
_OTHERS: Final[tuple[Any, ...]] = (
    0.5,
    1e308,
    True,
    False,
    None,
    [],
    {},
    [None],
    [{}],
    {"": None},
    {"a": "b"},
    ["a", "a"],
    {"a": {"b": []}},
)
_KEYS: Final = ("", "x" * 300, "a/b", "\x00", "example.com/", "zone", "kubernetes.io/hostname")
_KINDS: Final[dict[str, type[KubeObject]]] = {kind.__name__: kind for kind in KINDS}


def metadata(name: str) -> Tree:
    """Metadata with an owner that owns itself, and the labels and annotations that Fluence reads."""
    notes = {"held", "plan", "attempt", "backend", "attr-x"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": f"uid-{name}", "controller": True}
    return {"name": name, "namespace": "default", "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "odd", "zone": "a"}, "ownerReferences": [owner], "finalizers": ["example.com/f"],
            "annotations": {f"fluence.flux-framework.org/{note}": "{}" for note in sorted(notes)}}  # fmt: skip


def odd(choose: random.Random, kind: str, name: str) -> tuple[Tree, list[str]]:
    """An object with one or two odd fields, often without some of the others; and the paths of the odd fields."""
    tree = copy.deepcopy({**WHOLE[kind], "metadata": metadata(name), "kind": kind})
    for part in ("spec", "status"):
        for field in list(tree.get(part, ())):
            if choose.random() < 0.4 and field not in ("schedulerName", "containers"):
                del tree[part][field]
    return tree, [_spoil(choose, tree) for _ in range(choose.choice((1, 1, 2)))]


def _spoil(choose: random.Random, tree: Tree) -> str:
    path = choose.choice(
        [path for path in _paths(tree) if path[:1] != ("kind",) and path[:2] not in _KEPT and len(path) > 1]
    )
    around: Any = tree
    for step in path[:-1]:
        around = around[step]
    last = path[-1]
    value = around[last]
    way = choose.random()
    if way < 0.15:
        del around[last]
    elif way < 0.3 and isinstance(value, list):
        around[last] = value * choose.choice((2, 40))
    elif way < 0.4 and isinstance(value, dict):
        value[choose.choice(_KEYS)] = choose.choice((*_TEXTS, *_OTHERS))
    elif way < 0.9 and isinstance(value, str):
        around[last] = choose.choice(_TEXTS)
    elif way < 0.9 and isinstance(value, int) and not isinstance(value, bool):
        around[last] = choose.choice(_NUMBERS)
    else:
        around[last] = choose.choice((*_TEXTS, *_NUMBERS, *_OTHERS))
    return f"{'.'.join(map(str, path))}: {around.get(last, '-') if isinstance(around, dict) else around!r}"[:200]


_KEPT: Final = {("metadata",), *(("metadata", field) for field in ("name", "namespace", "uid"))}
"""The fields that identify an object."""


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _paths(inner, (*path, key))


def read(tree: Tree) -> KubeObject | None:
    """The object as a watch delivers it; None if it is left out."""
    resource: Resource[Any] = resource_of(_KINDS[tree["kind"]])
    if not resource.namespaced:
        kept = {key: value for key, value in tree["metadata"].items() if key != "namespace"}
        tree = {**tree, "metadata": kept}
    line = resource.line(msgspec.json.encode({"type": "ADDED", "object": tree}))
    return line.object if line is not None else None  # type: ignore[return-value]  # it is not a Status
