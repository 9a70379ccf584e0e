#!/usr/bin/env python3
"""Random clusters whose pods have volumes of every kind. usage: make_volume_cases.py SEED NODES EXISTING PODS > in.json

Sizes of volumes differ, so that the smallest volume never depends on the order of the list. No pod names a claim
twice, because kube-scheduler would bind it to two volumes. Every in-tree volume can be translated to CSI: for one that
cannot, kube-scheduler fails the pod, while here it does not count.
"""

import json
import random
import sys
from typing import Any

seed, n_nodes, n_existing, n_pods = map(int, sys.argv[1:5])
R = random.Random(seed)
ZONES = ["a-b-1", "a-b-2", "a-b-3"]
REGIONS = ["a-b", "c-d"]
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
IN_TREE = {
    "kubernetes.io/aws-ebs": "topology.ebs.csi.aws.com/zone",
    "kubernetes.io/gce-pd": "topology.gke.io/zone",
    "kubernetes.io/cinder": "topology.cinder.csi.openstack.org/zone",
    "kubernetes.io/azure-disk": "",
    "kubernetes.io/portworx-volume": "",
}
DRIVERS = ["csi.example.com", "ebs.csi.aws.com", "pd.csi.storage.gke.io", "cinder.csi.openstack.org",
           "disk.csi.azure.com", "pxd.portworx.com"]  # fmt: skip
SELECTED = "volume.kubernetes.io/selected-node"
BOUND = "pv.kubernetes.io/bind-completed"
sizes = iter(R.sample(range(1, 4000), 3999))


def maybe(p):
    return R.random() < p


def node(i):
    labels = {"kubernetes.io/hostname": f"n{i}"}
    zone = R.choice(ZONES)
    if maybe(0.7):
        labels[ZONE] = zone
    if maybe(0.3):
        labels[BETA_ZONE] = zone
    if maybe(0.4):
        labels[R.choice([REGION, BETA_REGION])] = R.choice(REGIONS)
    for key in IN_TREE.values():
        if key and maybe(0.6):
            labels[key] = zone
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i}", "labels": labels},
            "status": {"allocatable": {"pods": "110", "cpu": "64", "memory": "64Gi"}}}  # fmt: skip


def csi_node(i):
    drivers: list[dict[str, Any]] = []
    for name in DRIVERS:
        if maybe(0.7):
            drivers.append({"name": name, "nodeID": f"n{i}", "topologyKeys": []})
            if maybe(0.7):
                drivers[-1]["allocatable"] = {"count": R.randint(0, 3)}
    metadata: dict[str, Any] = {"name": f"n{i}"}
    if maybe(0.6):
        metadata["annotations"] = {"storage.alpha.kubernetes.io/migrated-plugins": ",".join(R.sample(list(IN_TREE), 3))}
    return {"metadata": metadata, "spec": {"drivers": drivers}}


def selector_term(key=None):
    key = key or R.choice(["kubernetes.io/hostname", ZONE, BETA_ZONE, "topology.gke.io/zone"])
    pool = [f"n{i}" for i in range(n_nodes)] if key == "kubernetes.io/hostname" else ZONES
    operator = R.choice(["In", "In", "In", "NotIn", "Exists"])
    expression: dict[str, Any] = {"key": key, "operator": operator}
    if operator != "Exists":
        expression["values"] = R.sample(pool, min(len(pool), R.randint(1, 3)))
    return {"matchExpressions": [expression]}


def source(i):
    kind = R.choice(["csi", "csi", "local", "aws", "gce", "cinder", "azure", "portworx", "hostPath"])
    return {
        "csi": {"csi": {"driver": R.choice(DRIVERS[:2]), "volumeHandle": f"h{i}"}},
        "local": {"local": {"path": "/x"}},
        "aws": {"awsElasticBlockStore": {"volumeID": R.choice([f"vol-{i}", f"aws://zone/vol-{i:08x}"])}},
        "gce": {"gcePersistentDisk": {"pdName": f"d{i}"}},
        "cinder": {"cinder": {"volumeID": f"c{i}"}},
        "azure": {"azureDisk": {"diskName": "d", "diskURI": f"/u{i}", **({"kind": "Managed"} if maybe(0.7) else {})}},
        "portworx": {"portworxVolume": {"volumeID": f"p{i}"}},
        "hostPath": {"hostPath": {"path": "/y"}},
    }[kind]


CLASSES: list[dict[str, Any]] = [
    {"metadata": {"name": "static"}, "provisioner": "kubernetes.io/no-provisioner",
     "volumeBindingMode": "WaitForFirstConsumer"},
    {"metadata": {"name": "made"}, "provisioner": "csi.example.com", "volumeBindingMode": "WaitForFirstConsumer"},
    {"metadata": {"name": "topology"}, "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer",
     "allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": R.sample(ZONES, 2)}]}, {}]},
    {"metadata": {"name": "counted"}, "provisioner": "counted.example.com",
     "volumeBindingMode": "WaitForFirstConsumer"},
    {"metadata": {"name": "in-tree"}, "provisioner": R.choice(list(IN_TREE)),
     "volumeBindingMode": "WaitForFirstConsumer"},
    {"metadata": {"name": "at-once"}, "provisioner": "csi.example.com", "volumeBindingMode": "Immediate"},
]  # fmt: skip
for each in CLASSES:
    each["reclaimPolicy"] = "Delete"


def volume(i, claim=None):
    """A volume, bound to the claim if one is given."""
    labels = {"tier": R.choice(["gold", "tin"])}
    if maybe(0.3):
        labels[R.choice([ZONE, BETA_ZONE])] = R.choice([*ZONES, "__".join(ZONES[:2]), "__a-b-1"])
    if maybe(0.15):
        labels[R.choice([REGION, BETA_REGION])] = R.choice([*REGIONS, "a-b__c-d"])
    spec = {"capacity": {"storage": f"{next(sizes)}Mi"}, "accessModes": R.choice([["ReadWriteOnce"], ["ReadWriteMany"],
            ["ReadWriteOnce", "ReadOnlyMany"], ["ReadWriteOncePod", "ReadWriteOnce"]]),
            "storageClassName": R.choice(["static", "static", "static", "made", "counted", ""]),
            "volumeMode": "Block" if maybe(0.1) else "Filesystem", **source(i)}  # fmt: skip
    if maybe(0.6):
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [selector_term() for _ in range(R.randint(1, 2))]}}
    if "gcePersistentDisk" in spec:
        labels = {key: value for key, value in labels.items() if not value.startswith("__")}
    metadata = {"name": f"v{i}", "labels": labels, "uid": f"v{i}"}
    phase = "Available"
    if claim:
        spec["claimRef"] = {"namespace": "default", "name": claim, "uid": claim}
        phase = "Bound"
    elif maybe(0.1):
        spec["claimRef"] = {"namespace": "default", "name": f"c{R.randrange(30)}"}
    elif maybe(0.1):
        phase = R.choice(["Released", "Failed", "Pending"])
    if maybe(0.05):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        metadata["finalizers"] = ["kubernetes.io/pv-protection"]
    if maybe(0.1):
        spec["volumeAttributesClassName"] = "fast"
    if maybe(0.1):
        metadata["annotations"] = {"volume.beta.kubernetes.io/storage-class": "static"}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def claim(name, volumes, owner=None):
    metadata = {"name": name, "namespace": "default", "uid": name, "annotations": {}}
    alone = "ReadWriteOncePod" if maybe(0.2) else "ReadWriteOnce"
    spec = {"accessModes": [R.choice(["ReadWriteOnce", "ReadWriteMany", alone])],
            "resources": {"requests": {"storage": f"{R.randint(1, 2500)}Mi"}}, "volumeMode": "Filesystem"}  # fmt: skip
    status = {"phase": "Pending"}
    if maybe(0.95):
        spec["storageClassName"] = R.choice(["static", "static", "static", "made", "topology", "counted", "in-tree",
                                             "at-once" if maybe(0.3) else "static"])  # fmt: skip
    if maybe(0.4):
        spec["volumeName"] = f"v{len(volumes)}"
        if maybe(0.93):
            volumes.append(volume(len(volumes), name))
        else:
            spec["volumeName"] = "gone"
        metadata["annotations"][BOUND] = "yes"
        status["phase"] = "Bound" if maybe(0.95) else "Lost"
    elif maybe(0.2):
        metadata["annotations"][SELECTED] = f"n{R.randrange(n_nodes)}"
    if maybe(0.25):
        spec["selector"] = R.choice([{"matchLabels": {"tier": "gold"}}, {"matchExpressions": [
            {"key": "tier", "operator": R.choice(["In", "NotIn"]), "values": ["gold"]}]}, {}])  # fmt: skip
    if maybe(0.1):
        spec["volumeAttributesClassName"] = "fast"
    if maybe(0.04):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        metadata["finalizers"] = ["kubernetes.io/pvc-protection"]
    if owner:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner,
                                        "controller": maybe(0.8)}]  # fmt: skip
    return {"metadata": metadata, "spec": spec, "status": status}


def disk(i):
    read_only = {"readOnly": True} if maybe(0.5) else {}
    k = R.randrange(3)
    return R.choice([
        {"gcePersistentDisk": {"pdName": f"inline{k}", **read_only}},
        {"awsElasticBlockStore": {"volumeID": f"vol-inline{k}"}},
        {"iscsi": {"targetPortal": f"1.1.1.{i % 5}", "iqn": f"iqn{k}", "lun": 0, **read_only}},
        {"rbd": {"monitors": R.sample(["m1", "m2", "m3"], 2), "image": f"i{k}", **read_only}},
        {"azureDisk": {"diskName": "d", "diskURI": f"/inline{k}", "kind": "Managed"}},
        {"cinder": {"volumeID": f"inline{k}"}},
        {"emptyDir": {}},
    ])  # fmt: skip


def pod(name, claims, volumes, names, bound=None):
    used = R.sample(names, R.choice([0, 1, 1, 1, 2, 2, 3]))
    found = [{"name": f"c{i}", "persistentVolumeClaim": {"claimName": used_name}} for i, used_name in enumerate(used)]
    if maybe(0.2):
        found.append({"name": "disk", **disk(len(found))})
    if maybe(0.1):
        found.append({"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}})
        if maybe(0.9):
            claims.append(claim(f"{name}-own", volumes, name))
    spec = {"containers": [{"name": "c", "image": "img"}], "volumes": found, "schedulerName": "fluence"}
    if bound:
        spec["nodeName"] = bound
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": spec}  # fmt: skip


def main():
    volumes = [volume(i) for i in range(n_nodes * 3)]
    claims = [claim(f"c{i}", volumes) for i in range(30)]
    names = [c["metadata"]["name"] for c in claims] + ["missing"]
    owned = [pod(f"e{i}", [], volumes, names[:-1], f"n{R.randrange(n_nodes)}") for i in range(n_existing)]
    for existing in owned:  # kube-scheduler fails all pods if a running pod lacks the claim of its ephemeral volume
        existing["spec"]["volumes"] = [v for v in existing["spec"]["volumes"] if "ephemeral" not in v]
    pods = [pod(f"p{i}", claims, volumes, names) for i in range(n_pods)]
    attachments = []
    for i in range(n_nodes):
        other = R.choice(volumes)["metadata"]["name"]
        attachments.append({"metadata": {"name": f"a{i}"}, "spec": {
            "attacher": R.choice(DRIVERS[:2]), "nodeName": f"n{R.randrange(n_nodes)}",
            "source": {"persistentVolumeName": other}}})  # fmt: skip
    capacities = []
    for i in range(6):
        topology = R.choice([None, {}, {"matchLabels": {ZONE: R.choice(ZONES)}}, {"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [f"n{R.randrange(n_nodes)}"]}]}])  # fmt: skip
        one = {"metadata": {"name": f"s{i}", "namespace": "default"},
               "storageClassName": R.choice(["counted", "counted", "made"])}  # fmt: skip
        if topology is not None:
            one["nodeTopology"] = topology
        if maybe(0.9):
            one["capacity"] = f"{R.randint(100, 3000)}Mi"
        if maybe(0.3):
            one["maximumVolumeSize"] = f"{R.randint(100, 3000)}Mi"
        capacities.append(one)
    drivers = [{"metadata": {"name": "counted.example.com"}, "spec": {"storageCapacity": True}},
               {"metadata": {"name": "csi.example.com"}, "spec": {}}]  # fmt: skip
    json.dump({"nodes": [node(i) for i in range(n_nodes)], "existing": owned, "pods": pods, "claims": claims,
               "volumes": volumes, "storageClasses": CLASSES, "csiNodes": [csi_node(i) for i in range(n_nodes)
               if maybe(0.8)], "csiDrivers": drivers, "csiStorageCapacities": capacities,
               "volumeAttachments": attachments}, sys.stdout)  # fmt: skip


main()
