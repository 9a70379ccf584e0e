#!/usr/bin/env python3
"""Random clusters for RequestedToCapacityRatio. usage: make_ratio_cases.py SEED NODES EXISTING PODS > in.json

Each seed has its own shape, resources and weights. Nodes lack resources or are overcommitted.
"""

import json
import random
import sys

seed, n_nodes, n_existing, n_pods = map(int, sys.argv[1:5])
R = random.Random(seed)
RESOURCES = {
    "cpu": (["2", "3500m", "8"], ["100m", "333m", "1", "2"]),
    "memory": (["3Gi", "7G", "12345678901"], ["64Mi", "1Gi", "1500M"]),
    "ephemeral-storage": (["10Gi"], ["1Gi", "3G"]),
    "example.com/gpu": (["1", "3", "8"], ["1", "2"]),
}


def maybe(p):
    return R.random() < p


def node(i):
    allocatable = {name: R.choice(offers) for name, (offers, _) in RESOURCES.items() if maybe(0.85)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i}"},
            "status": {"allocatable": {**allocatable, "pods": "110"}}}  # fmt: skip


def pod(name, bound=None):
    requests = {one: R.choice(amounts) for one, (_, amounts) in RESOURCES.items() if maybe(0.6)}
    limits = {one: amount for one, amount in requests.items() if "/" in one}
    spec = {"containers": [{"name": "c", "image": "img", "resources": {"requests": requests, "limits": limits}}],
            **({"nodeName": bound} if bound else {})}  # fmt: skip
    metadata = {"name": name, "namespace": "default", "uid": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def strategy():
    points = sorted(R.sample(range(101), R.choice([1, 2, 3, 5])))
    counted = R.sample(sorted(RESOURCES), R.randint(1, 4))
    return {
        "type": "RequestedToCapacityRatio",
        "resources": [{"name": name, "weight": R.choice([1, 1, 3, 10, 100])} for name in counted],
        "requestedToCapacityRatio": {"shape": [{"utilization": one, "score": R.randint(0, 10)} for one in points]},
    }


json.dump({"nodes": [node(i) for i in range(n_nodes)],
           "existing": [pod(f"e{i}", f"n{R.randrange(n_nodes)}") for i in range(n_existing)],
           "pods": [pod(f"p{i}") for i in range(n_pods)],
           "args": {"NodeResourcesFit": {"scoringStrategy": strategy()}}}, sys.stdout)  # fmt: skip
