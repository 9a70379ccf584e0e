#!/usr/bin/env python3
"""Random clusters full of constraints between pods. usage: make_near_cases.py SEED NODES EXISTING PODS > in.json

Affinity and anti-affinity with namespaces and namespace selectors, spread with every policy, default spread by
services and controllers, and images. Every third seed gives the plugins arguments.
"""

import json
import random
import sys
from typing import Any

seed, n_nodes, n_existing, n_pods = map(int, sys.argv[1:5])
R = random.Random(seed)
HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
KEYS = [HOSTNAME, ZONE, ZONE, "rack", "missing"]
NAMESPACES = {"default": {}, "shop": {"team": "a"}, "bank": {"team": "b", "tier": "gold"}, "unknown": None}
APPS, HASHES = ["web", "db", "cache"], ["h1", "h2"]
IMAGES = ["img", "img:v1", "registry:5000/a/b", "registry:5000/a/b:latest", "x@sha256:0123", "huge:1"]
MIB = 1024 * 1024


def maybe(p):
    return R.random() < p


def node(i):
    labels = {HOSTNAME: f"n{i}"} if maybe(0.95) else {}
    if maybe(0.9):
        labels[ZONE] = R.choice(["z1", "z2", "z3"] if maybe(0.95) else [""])
    if maybe(0.8):
        labels["rack"] = R.choice(["r1", "r2", "r3", "r4"])
    if maybe(0.6):
        labels["disk"] = R.choice(["ssd", "hdd"])
    effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
    spec: dict[str, Any] = (
        {"taints": [{"key": "dedicated", "value": "a", "effect": R.choice(effects)}]} if maybe(0.2) else {}
    )
    if maybe(0.05):
        spec["unschedulable"] = True
    images = [
        {"names": [name if ":" in name.rpartition("/")[2] else f"{name}:latest", f"{name}@sha256:{i}"],
         "sizeBytes": R.choice([5, 30, 200, 900, 2500]) * MIB}
        for name in R.sample(IMAGES, R.randint(0, 4))
    ]  # fmt: skip
    allocatable = {"cpu": R.choice(["4", "8"]), "memory": "16Gi", "pods": str(R.choice([5, 110]))}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i}", "labels": labels}, "spec": spec,
            "status": {"allocatable": allocatable, "capacity": allocatable, "images": images}}  # fmt: skip


def expression(key, values):
    operator = R.choice(["In", "In", "NotIn", "Exists", "DoesNotExist"])
    found: dict[str, Any] = {"key": key, "operator": operator}
    if operator in ("In", "NotIn"):
        found["values"] = R.sample(values, R.randint(1, min(2, len(values))))
    return found


def selector():
    kind = R.random()
    if kind < 0.06:
        return None
    if kind < 0.14:
        return {}
    found: dict[str, Any] = {}
    if maybe(0.6):
        found["matchLabels"] = {"app": R.choice(APPS)}
    if not found or maybe(0.3):
        key, values = R.choice([("app", APPS), ("hash", HASHES), ("other", ["x"])])
        found["matchExpressions"] = [expression(key, values)]
    return found


def term():
    found: dict[str, Any] = {"topologyKey": R.choice(KEYS[:4] if maybe(0.93) else KEYS)}
    if (labels := selector()) is not None:
        found["labelSelector"] = labels
    if maybe(0.25):
        found["namespaces"] = R.sample(["default", "shop", "bank", "unknown", "nowhere"], R.randint(1, 2))
    if maybe(0.25):
        found["namespaceSelector"] = R.choice(
            [{}, {"matchLabels": {"team": "a"}}, {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
             {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, {"matchLabels": {"tier": "gold"}}]
        )  # fmt: skip
    return found


def affinity(share):
    found = {}
    for kind, weight in (("podAffinity", 1.0), ("podAntiAffinity", 1.2)):
        lists = {}
        if maybe(share * weight * 0.6):
            lists["requiredDuringSchedulingIgnoredDuringExecution"] = [term() for _ in range(R.choice([1, 1, 2]))]
        if maybe(share * weight):
            terms = [term() for _ in range(R.choice([1, 2, 3]))]
            if maybe(0.2):
                terms.append(terms[0])
            lists["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": R.choice([1, 10, 37, 100]), "podAffinityTerm": one} for one in terms
            ]
        if lists:
            found[kind] = lists
    return found


def spread():
    found = {
        "maxSkew": R.choice([1, 1, 2, 3, 5]),
        "topologyKey": R.choice(KEYS[:4] if maybe(0.9) else KEYS),
        "whenUnsatisfiable": R.choice(["DoNotSchedule", "ScheduleAnyway", "ScheduleAnyway"]),
    }
    if (labels := selector()) is not None:
        found["labelSelector"] = labels
    for field, values, share in (
        ("nodeTaintsPolicy", ["Honor", "Ignore"], 0.4), ("nodeAffinityPolicy", ["Honor", "Ignore"], 0.4),
    ):  # fmt: skip
        if maybe(share):
            found[field] = R.choice(values)
    if found["whenUnsatisfiable"] == "DoNotSchedule" and maybe(0.4):
        found["minDomains"] = R.randint(1, 5)
    if "labelSelector" in found and maybe(0.3):
        found["matchLabelKeys"] = R.sample(["hash", "app", "none"], R.randint(1, 2))
    return found


def owner(namespace):
    kind, version = R.choice([("ReplicaSet", "apps/v1"), ("StatefulSet", "apps/v1"), ("ReplicationController", "v1"),
                              ("Job", "batch/v1"), ("ReplicaSet", "apps/v9")])  # fmt: skip
    name = f"{namespace}-{R.choice(APPS)}"
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"{kind}-{name}", "controller": maybe(0.9)}


def pod(name, bound=None):
    namespace = R.choice(["default", "default", "shop", "bank", "unknown"])
    requests = {"cpu": R.choice(["100m", "500m", "1"]), "memory": R.choice(["64Mi", "1Gi"])} if maybe(0.8) else {}
    containers = [
        {"name": f"c{i}", "image": R.choice(IMAGES), "resources": {"requests": requests}}
        for i in range(R.choice([1, 1, 2]))
    ]
    spec: dict[str, Any] = {"containers": containers}
    if maybe(0.2):
        spec["initContainers"] = [{"name": "i", "image": R.choice(IMAGES)}]
    if maybe(0.1):
        spec["volumes"] = [{"name": "v", "image": {"reference": R.choice(IMAGES)}}]
    if maybe(0.2):
        spec["nodeSelector"] = {"disk": R.choice(["ssd", "hdd"])}
    if maybe(0.3):
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    if found := affinity(0.12 if bound else 0.3):
        spec["affinity"] = found
    if maybe(0.4):
        constraints = {(one["topologyKey"], one["whenUnsatisfiable"]): one for one in (spread() for _ in range(3))}
        spec["topologySpreadConstraints"] = list(constraints.values())[: R.choice([1, 2, 3])]
    labels = {"app": R.choice(APPS)} if maybe(0.9) else {}
    if maybe(0.5):
        labels["hash"] = R.choice(HASHES)
    metadata = {"name": name, "namespace": namespace, "uid": name, "labels": labels}
    if maybe(0.6):
        metadata["ownerReferences"] = [owner(namespace)]
    if bound:
        spec["nodeName"] = bound
        if maybe(0.1):
            metadata |= {"deletionTimestamp": "2030-01-01T00:00:00Z", "finalizers": ["example.com/kept"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec,
            "status": {"phase": "Running"} if bound else {}}  # fmt: skip


def named(kind, version, namespace, name, spec):
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def related():
    known = {name: labels for name, labels in NAMESPACES.items() if labels is not None}
    namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": n, "labels": v}}
                  for n, v in known.items()]  # fmt: skip
    services, owners = [], {"ReplicaSet": [], "StatefulSet": [], "ReplicationController": []}
    for namespace in NAMESPACES:
        for app in APPS:
            if maybe(0.3):
                chosen = R.choice([{"app": app}, {"app": app}, {"hash": "h1"}, {"app": app, "hash": "h2"}, None])
                services.append(named("Service", "v1", namespace, app, {"selector": chosen} if chosen else {}))
            for kind, found in owners.items():
                if maybe(0.5):
                    labels = {"app": app} if kind == "ReplicationController" else R.choice(
                        [{"matchLabels": {"app": app}}, {"matchLabels": {"app": app, "hash": "h1"}},
                         {"matchExpressions": [{"key": "app", "operator": "In", "values": APPS[:2]}]}]
                    )  # fmt: skip
                    version = "v1" if kind == "ReplicationController" else "apps/v1"
                    found.append(named(kind, version, namespace, f"{namespace}-{app}", {"selector": labels}))
    return {
        "namespaces": namespaces,
        "services": services,
        "replicaSets": owners["ReplicaSet"],
        "statefulSets": owners["StatefulSet"],
        "replicationControllers": owners["ReplicationController"],
    }


def arguments():
    if seed % 3:
        return {}
    action = R.choice(["DoNotSchedule", "ScheduleAnyway"])
    constraints = [
        {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": action},
        {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"},
    ]
    spreading = {"defaultingType": "List", "defaultConstraints": constraints[: R.choice([0, 1, 2])]}
    near = {"hardPodAffinityWeight": R.choice([0, 1, 20]), "ignorePreferredTermsOfExistingPods": maybe(0.5)}
    return {"args": {"PodTopologySpread": spreading, "InterPodAffinity": near}}


json.dump({"nodes": [node(i) for i in range(n_nodes)],
           "existing": [pod(f"e{i}", f"n{R.randrange(n_nodes)}") for i in range(n_existing)],
           "pods": [pod(f"p{i}") for i in range(n_pods)], **related(), **arguments()}, sys.stdout)  # fmt: skip
