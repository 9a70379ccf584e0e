#!/usr/bin/env python3
"""Random clusters with pods that are being resized. usage: make_resize_cases.py SEED NODES EXISTING PODS > in.json

The status of a container lags behind its spec, is ahead of it, misses amounts, or is missing. Resizes of containers,
sidecars and pod-level resources are in progress, deferred or infeasible.
"""

import json
import random
import sys
from typing import Any

seed, n_nodes, n_existing, n_pods = map(int, sys.argv[1:5])
R = random.Random(seed)
CPU = ["0", "100m", "250m", "500m", "1", "1000m", "1500m", "2"]
MEMORY = ["0", "64Mi", "256Mi", "1Gi", "1024Mi", "1.5Gi", "2G"]
GPU = "example.com/gpu"


def maybe(p):
    return R.random() < p


def node(i):
    allocatable = {"cpu": R.choice(["2", "4", "8"]), "memory": R.choice(["3Gi", "6G", "9Gi"]), "pods": "110"}
    if maybe(0.4):
        allocatable[GPU] = "3"
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i}"}, "status": {"allocatable": allocatable}}


def amounts(share=0.8):
    found = {}
    if maybe(share):
        found["cpu"] = R.choice(CPU)
    if maybe(share):
        found["memory"] = R.choice(MEMORY)
    return found


def near(requests, share):
    """Amounts that the status may report: mostly those of the spec."""
    found = {name: amount if maybe(0.5) else amounts(1).get(name, amount) for name, amount in requests.items()}
    return {**(amounts(0.2) if maybe(share) else {}), **{name: one for name, one in found.items() if maybe(1 - share)}}


def state(requests, limits):
    """What a status reports: nothing, only what was allocated, or both."""
    found: dict[str, Any] = {}
    if maybe(0.85):
        found["allocatedResources"] = near({**limits, **requests}, 0.15)
    if maybe(0.85):
        found["resources"] = {"requests": near({**limits, **requests}, 0.15)}
    return found


def container(name):
    resources: dict[str, Any] = {"requests": amounts()}
    if maybe(0.2):
        resources["limits"] = amounts(0.5)
    if maybe(0.1):
        resources["requests"][GPU] = resources.setdefault("limits", {})[GPU] = "1"
    return {"name": name, "image": "img", "resources": resources}


def status(one):
    resources = one["resources"]
    return {"name": one["name"], **state(resources["requests"], resources.get("limits", {}))}


def pod(name, bound=None):
    main = [container(f"c{i}") for i in range(R.choice([1, 1, 2]))]
    init = [{**container(f"i{i}"), **({"restartPolicy": "Always"} if maybe(0.7) else {})}
            for i in range(R.choice([0, 0, 1, 2]))]  # fmt: skip
    spec: dict[str, Any] = {"containers": main, "initContainers": init}
    if maybe(0.15):
        spec["overhead"] = {"cpu": "100m"}
    elif maybe(0.3):  # not beside overhead: kube-scheduler 1.36.3 adds it to such a pod each time it counts it
        spec["resources"] = {"requests": amounts()}
        if maybe(0.3):  # the API server then defaults the requests from those of the containers
            spec["resources"] = {"requests": amounts(1), "limits": amounts()}
    found = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name},
             "spec": spec}  # fmt: skip
    if bound is None:
        return found
    reported = {"containerStatuses": [status(one) for one in main if maybe(0.9)],
                "initContainerStatuses": [status(one) for one in init if maybe(0.9)]}  # fmt: skip
    spec["nodeName"] = bound
    if "resources" in spec:
        reported |= state(spec["resources"]["requests"], {})
    if maybe(0.4):
        reason = R.choice(["Infeasible", "Infeasible", "Deferred"])
        reported["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    elif maybe(0.3):
        reported["conditions"] = [{"type": "PodResizeInProgress", "status": "True", "reason": ""}]
    return {**found, "status": reported}


json.dump({"nodes": [node(i) for i in range(n_nodes)],
           "existing": [pod(f"e{i}", f"n{R.randrange(n_nodes)}") for i in range(n_existing)],
           "pods": [pod(f"p{i}") for i in range(n_pods)]}, sys.stdout)  # fmt: skip
