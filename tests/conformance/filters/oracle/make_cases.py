#!/usr/bin/env python3
"""Random clusters and pods for filter conformance. usage: make_cases.py SEED NODES EXISTING PODS > in.json"""

import json
import random
import sys
from typing import Any

seed, n_nodes, n_existing, n_pods = map(int, sys.argv[1:5])
R = random.Random(seed)
ZONES, APPS, DISKS = ["z1", "z2", "z3"], ["web", "db", "cache", "ml"], ["ssd", "hdd"]


def maybe(p):
    return R.random() < p


def node(i):
    labels = {"kubernetes.io/hostname": f"n{i}", "topology.kubernetes.io/zone": R.choice(ZONES)}
    if maybe(0.7):
        labels["disk"] = R.choice(DISKS)
    if maybe(0.5):
        labels["gen"] = str(R.randint(1, 9))
    taints = []
    if maybe(0.2):
        taints.append(
            {
                "key": R.choice(["dedicated", "gpu"]),
                "value": R.choice(["a", "b"]),
                "effect": R.choice(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
            }
        )
    if maybe(0.1):
        taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
    spec: dict[str, Any] = {"taints": taints} if taints else {}
    if maybe(0.1):
        spec["unschedulable"] = True
    alloc = {
        "cpu": R.choice(["2", "4", "3500m"]),
        "memory": R.choice(["4Gi", "8Gi", "6000Mi"]),
        "pods": str(R.choice([3, 8, 110])),
        "ephemeral-storage": "10Gi",
    }
    if maybe(0.3):
        alloc["nvidia.com/gpu"] = str(R.randint(1, 4))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"n{i}", "labels": labels},
        "spec": spec,
        "status": {"allocatable": alloc, "capacity": alloc},
    }


def expr():
    k = R.choice(["disk", "gen", "topology.kubernetes.io/zone", "missing"])
    op = R.choice(["In", "NotIn", "Exists", "DoesNotExist"] + (["Gt", "Lt"] if k == "gen" else []))
    e: dict[str, Any] = {"key": k, "operator": op}
    vals = {
        "disk": DISKS,
        "gen": [str(x) for x in range(1, 10)],
        "topology.kubernetes.io/zone": ZONES,
        "missing": ["x"],
    }[k]
    if op in ("In", "NotIn"):
        e["values"] = R.sample(vals, min(len(vals), R.randint(1, 2)))
    if op in ("Gt", "Lt"):
        e["values"] = [str(R.randint(1, 9))]
    return e


def term(kind):
    t = {
        "labelSelector": R.choice(
            [
                {"matchLabels": {"app": R.choice(APPS)}},
                {
                    "matchExpressions": [
                        {"key": "app", "operator": R.choice(["In", "NotIn"]), "values": R.sample(APPS, 2)}
                    ]
                },
                {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
            ]
        ),
        "topologyKey": R.choice(["kubernetes.io/hostname", "topology.kubernetes.io/zone"]),
    }
    if maybe(0.15):
        t["namespaces"] = ["other"]
    if maybe(0.1):
        t["namespaceSelector"] = {}
    return t


def pod(name, bound=None):
    res: dict[str, Any] = {"requests": {}}
    if maybe(0.9):
        res["requests"]["cpu"] = R.choice(["100m", "250m", "1", "1500m"])
    if maybe(0.8):
        res["requests"]["memory"] = R.choice(["64Mi", "1Gi", "1500M", "2Gi"])
    if maybe(0.12):
        res["requests"]["nvidia.com/gpu"] = res.setdefault("limits", {})["nvidia.com/gpu"] = str(R.randint(1, 2))
    if maybe(0.1):
        res["requests"]["ephemeral-storage"] = R.choice(["1Gi", "8Gi"])
    c: dict[str, Any] = {"name": "c", "image": "img", "resources": res}
    if maybe(0.35):
        c["ports"] = [
            {
                "containerPort": 80,
                "hostPort": R.choice([80, 8080, 9090]),
                "protocol": R.choice(["TCP", "UDP"]),
                **({"hostIP": R.choice(["127.0.0.1", "0.0.0.0"])} if maybe(0.4) else {}),
            }
        ]
    spec: dict[str, Any] = {"containers": [c], "schedulerName": "fluence"}
    if maybe(0.2):
        ic: dict[str, Any] = {
            "name": "i",
            "image": "img",
            "resources": {"requests": {"cpu": R.choice(["500m", "3"]), "memory": "512Mi"}},
        }
        if maybe(0.4):
            ic["restartPolicy"] = "Always"
        spec["initContainers"] = [ic]
    if maybe(0.1):
        spec["overhead"] = {"cpu": "250m", "memory": "100Mi"}
    if maybe(0.25):
        spec["nodeSelector"] = (
            {"disk": R.choice(DISKS)} if maybe(0.7) else {"topology.kubernetes.io/zone": R.choice(ZONES)}
        )
    aff: dict[str, Any] = {}
    if maybe(0.3):
        na: dict[str, Any] = {}
        if maybe(0.7):
            na["requiredDuringSchedulingIgnoredDuringExecution"] = {
                "nodeSelectorTerms": [
                    {"matchExpressions": [expr() for _ in range(R.randint(1, 2))]}
                    if maybe(0.85)
                    else {
                        "matchFields": [
                            {
                                "key": "metadata.name",
                                "operator": R.choice(["In", "NotIn"]),
                                "values": [f"n{R.randrange(n_nodes)}"],
                            }
                        ]
                    }
                    for _ in range(R.randint(1, 2))
                ]
            }
        if maybe(0.5):
            na["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": R.randint(1, 100), "preference": {"matchExpressions": [expr()]}}
            ]
        if na:
            aff["nodeAffinity"] = na
    for k, p in (("podAffinity", 0.04 if bound else 0.2), ("podAntiAffinity", 0.04 if bound else 0.2)):
        if maybe(p):
            a: dict[str, Any] = {}
            if maybe(0.7):
                a["requiredDuringSchedulingIgnoredDuringExecution"] = [term(k) for _ in range(R.randint(1, 2))]
            if maybe(0.5):
                a["preferredDuringSchedulingIgnoredDuringExecution"] = [
                    {"weight": R.randint(1, 100), "podAffinityTerm": term(k)}
                ]
            if a:
                aff[k] = a
    if aff:
        spec["affinity"] = aff
    if maybe(0.35):
        tol: list[dict[str, str]] = []
        for _ in range(R.randint(1, 2)):
            t = {
                "key": R.choice(
                    ["dedicated", "gpu", "node.kubernetes.io/not-ready", "node.kubernetes.io/unschedulable"]
                ),
                "operator": R.choice(["Equal", "Exists"]),
            }
            if t["operator"] == "Equal":
                t["value"] = R.choice(["a", "b", ""])
            if maybe(0.6):
                t["effect"] = R.choice(["NoSchedule", "NoExecute", "PreferNoSchedule"])
            tol.append(t)
        if maybe(0.15):
            tol = [{"operator": "Exists"}]
        spec["tolerations"] = tol
    if maybe(0.4):
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": R.randint(1, 2),
                "topologyKey": R.choice(["topology.kubernetes.io/zone", "kubernetes.io/hostname"]),
                "whenUnsatisfiable": R.choice(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]),
                "labelSelector": {"matchLabels": {"app": R.choice(APPS)}},
                **({"minDomains": 3} if False else {}),
                **({"nodeTaintsPolicy": R.choice(["Honor", "Ignore"])} if maybe(0.4) else {}),
                **({"nodeAffinityPolicy": R.choice(["Honor", "Ignore"])} if maybe(0.4) else {}),
            }
        ]
        if spec["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "DoNotSchedule" and maybe(0.3):
            spec["topologySpreadConstraints"][0]["minDomains"] = R.randint(1, 4)
    if maybe(0.05) and not bound:
        spec["nodeName"] = ""
    if bound:
        spec["nodeName"] = bound
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "other" if maybe(0.15) else "default",
            "uid": name,
            "labels": {"app": R.choice(APPS)},
        },
        "spec": spec,
        "status": {"phase": "Running"} if bound else {},
    }


json.dump(
    {
        "nodes": [node(i) for i in range(n_nodes)],
        "existing": [pod(f"e{i}", f"n{R.randrange(n_nodes)}") for i in range(n_existing)],
        "pods": [pod(f"p{i}") for i in range(n_pods)],
    },
    sys.stdout,
)
