#!/usr/bin/env python3
"""Random clusters and pods at the edges of the formats. usage: make_edge_cases.py SEED NODES EXISTING PODS > in.json

make_cases.py covers the usual values. These are the others: pod-level resources, sidecars in any order, sums of odd
quantities, nodes without a resource, labels that are not integers, malformed terms, tolerations of every operator.
"""

import json
import random
import sys
from typing import Any

seed, n_nodes, n_existing, n_pods = map(int, sys.argv[1:5])
R = random.Random(seed)
CPU = ["0", "1", "100m", "1500m", "0.25", "1e-1", "2E0", "3", "1001m"]
MEMORY = ["0", "1", "64Mi", "1Gi", "1.5Gi", "1500M", "1e9", "123456789", "1000k", "0.5Gi", "2097152Ki"]
GENERATIONS = ["-5", "0", "3", "+4", "007", "x", "", "9223372036854775807", "9223372036854775808", "1.5", "12"]


def maybe(p):
    return R.random() < p


def node(i):
    labels = {"kubernetes.io/hostname": f"n{i}", "zone": R.choice("abc")}
    if maybe(0.7):
        labels["gen"] = R.choice(GENERATIONS)
    if maybe(0.3):
        labels["example.com/disk"] = R.choice(["", "ssd", "hdd"])
    allocatable = {"pods": str(R.choice([2, 5, 110]))}
    for name, values, share in (
        ("cpu", ["2", "3500m", "7", "64"], 0.93), ("memory", ["4Gi", "7G", "6000Mi", "12345678901"], 0.93),
        ("ephemeral-storage", ["10Gi", "9e9"], 0.8), ("example.com/gpu", ["0", "1", "4"], 0.5),
        ("hugepages-2Mi", ["64Mi", "1Gi"], 0.5), ("attachable-volumes-x", ["3"], 0.3), ("odd", ["3"], 0.3),
        ("kubernetes.io/batch", ["2"], 0.3),
    ):  # fmt: skip
        if maybe(share):
            allocatable[name] = R.choice(values)
    keys = R.sample([(k, e) for k in ("a", "b", "level") for e in ("NoSchedule", "PreferNoSchedule", "NoExecute")], 9)
    keys = keys[: R.choice([0, 0, 1, 2, 3])]
    taints = [{"key": k, "value": R.choice(["", "v", "5", "10"]), "effect": e} for k, e in keys]
    spec = {"taints": taints, **({"unschedulable": True} if maybe(0.1) else {})}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i}", "labels": labels}, "spec": spec,
            "status": {"allocatable": allocatable}}  # fmt: skip


def amounts(share):
    found = {}
    for name, values, relative in (
        ("cpu", CPU, 1), ("memory", MEMORY, 1), ("ephemeral-storage", ["1Gi", "3G"], 0.2),
        ("example.com/gpu", ["0", "1", "2"], 0.2), ("hugepages-2Mi", ["2Mi", "64Mi"], 0.15),
        ("attachable-volumes-x", ["1"], 0.1), ("odd", ["1"], 0.1), ("kubernetes.io/batch", ["1"], 0.1),
    ):  # fmt: skip
        if maybe(share * relative):
            found[name] = R.choice(values)
    return found


def container(name, host_ports):
    resources = {}
    if maybe(0.7):
        resources["requests"] = amounts(0.7)
    if maybe(0.3):
        resources["limits"] = amounts(0.5)
    ports = []
    for _ in range(R.choice([0, 0, 0, 1, 2])):
        port: dict[str, Any] = {"containerPort": R.choice([80, 443])}
        if host_ports and maybe(0.7):
            port["hostPort"] = R.choice([80, 443])
        if maybe(0.5):
            port["protocol"] = R.choice(["TCP", "UDP", "SCTP"])
        if maybe(0.5):
            port["hostIP"] = R.choice(["", "0.0.0.0", "127.0.0.1", "10.0.0.1"])
        ports.append(port)
    return {"name": name, "image": "img", "resources": resources, "ports": ports}


def expression():
    operator = R.choice(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd", "In", "Gt", "Lt"])
    key = R.choice(["gen", "zone", "example.com/disk", "missing", "-bad-"])
    pool = {"zone": ["a", "b", "z"], "example.com/disk": ["", "ssd", "bad value"]}.get(key, GENERATIONS)
    count = {"Exists": 0, "DoesNotExist": 0}.get(operator, 1) if maybe(0.85) else R.randint(0, 2)
    if operator in ("In", "NotIn") and maybe(0.4):
        count = 2
    return {"key": key, "operator": operator, "values": R.sample(pool, count)}


def field():
    values = [f"n{R.randrange(n_nodes + 1)}" for _ in range(R.choice([1, 1, 1, 2]))]
    key = "metadata.name" if maybe(0.85) else "metadata.other"
    operator = R.choice(["In", "In", "NotIn", "Gt"])
    return {"key": key, "operator": operator, "values": values if maybe(0.9) else [""]}


def term():
    if maybe(0.05):
        return {}
    found = {}
    if maybe(0.8):
        found["matchExpressions"] = [expression() for _ in range(R.choice([1, 1, 2]))]
    if maybe(0.25):
        found["matchFields"] = [field() for _ in range(R.choice([1, 1, 2]))]
    return found


def well_formed(t):
    """Whether a preference is well formed. kube-scheduler fails a pod for a malformed one, which is ignored here."""
    integers = {"-5", "0", "3", "+4", "007", "9223372036854775807", "12"}
    for e in t.get("matchExpressions", []):
        n, op = len(e["values"]), e["operator"]
        if e["key"] == "-bad-" or op == "Odd" or any(" " in v for v in e["values"]):
            return False
        if (op in ("In", "NotIn") and not n) or (op in ("Exists", "DoesNotExist") and n):
            return False
        if any(v.startswith(("+", "-")) for v in e["values"]):
            return False
        if op in ("Gt", "Lt") and (n != 1 or e["values"][0] not in integers):
            return False
    return all(f["operator"] in ("In", "NotIn") and len(f["values"]) == 1 for f in t.get("matchFields", []))


def toleration():
    t = {"operator": R.choice(["Equal", "Exists", "Lt", "Gt", ""])}
    if maybe(0.8):
        t["key"] = R.choice(["a", "b", "level", "node.kubernetes.io/unschedulable"])
    if t["operator"] != "Exists" and maybe(0.8):
        t["value"] = R.choice(["", "v", "5", "7"])
    if maybe(0.5):
        t["effect"] = R.choice(["NoSchedule", "PreferNoSchedule", "NoExecute"])
    return {k: v for k, v in t.items() if v}


def pod(name, bound=None):
    spec: dict[str, Any] = {"containers": [container(f"c{i}", True) for i in range(R.choice([1, 1, 2, 3]))]}
    spec["initContainers"] = [
        {**container(f"i{i}", maybe(0.3)), **({"restartPolicy": "Always"} if maybe(0.5) else {})}
        for i in range(R.choice([0, 0, 1, 2, 3]))
    ]
    if maybe(0.2):
        spec["overhead"] = {"cpu": "10m", **({"memory": "1.5Mi"} if maybe(0.5) else {})}
    elif maybe(0.4):  # not beside overhead: kube-scheduler 1.36.3 adds it to such a pod each time it counts it
        kind = R.choice([("requests",), ("limits",), ("requests", "limits")])
        allowed = ("cpu", "memory", "hugepages-2Mi")
        spec["resources"] = {k: {n: v for n, v in amounts(0.6).items() if n in allowed} for k in kind}
    if maybe(0.3):
        spec["nodeSelector"] = R.choice([{}, {"zone": "a"}, {"zone": "z"}, {"gen": "3"}, {"example.com/disk": ""}])
    affinity: dict[str, Any] = {}
    if maybe(0.4):
        terms = [term() for _ in range(R.randint(1, 3))]
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if maybe(0.4):
        preferences = [{"weight": R.choice([1, 7, 100]), "preference": t} for t in (term(), term()) if well_formed(t)]
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = preferences
    if affinity:
        spec["affinity"] = {"nodeAffinity": affinity}
    spec["tolerations"] = [toleration() for _ in range(R.choice([0, 1, 2, 4]))]
    if bound:
        spec["nodeName"] = bound
    metadata = {"name": name, "namespace": "default", "uid": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


json.dump({"nodes": [node(i) for i in range(n_nodes)],
           "existing": [pod(f"e{i}", f"n{R.randrange(n_nodes)}") for i in range(n_existing)],
           "pods": [pod(f"p{i}") for i in range(n_pods)]}, sys.stdout)  # fmt: skip
