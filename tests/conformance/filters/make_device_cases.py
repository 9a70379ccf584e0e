#!/usr/bin/env python3
"""Random clusters whose pods claim devices of every kind. usage: make_device_cases.py SEED NODES CLAIMS PODS > in.json

Device names differ by slice, so that no two pools of a driver differ by chance. Pools of two drivers never have the
same name, because kube-scheduler would count their counters together.
"""

import json
import random
import sys
from typing import Any

seed, n_nodes, n_existing, n_pods = map(int, sys.argv[1:5])
R = random.Random(seed)
DRIVERS = ["gpu.example.com", "nic.example.com", "part.example.com"]
MODELS = ["a100", "h100", "l4"]
ZONES = ["z1", "z2"]
TAINTS = [{"key": "broken", "value": "yes", "effect": "NoSchedule"}, {"key": "old", "effect": "NoExecute"},
          {"key": "old", "value": "very", "effect": "None"}]  # fmt: skip


def maybe(p):
    return R.random() < p


def node(i):
    labels = {"kubernetes.io/hostname": f"n{i}", "zone": R.choice(ZONES)}
    allocatable = {"pods": "110", "cpu": "64", "memory": "64Gi"}
    if maybe(0.2):
        allocatable["example.com/gpu"] = str(R.randint(0, 2))
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i}", "labels": labels},
            "status": {"allocatable": allocatable}}  # fmt: skip


def attributes(driver, numa):
    found = {"model": {"string": R.choice(MODELS)}, "numa": {"int": numa},
             f"{driver}/healthy": {"bool": maybe(0.85)}}  # fmt: skip
    if maybe(0.7):
        found["version"] = {"version": R.choice(["1.2.3", "2.0.0", "2.0.0-rc.1", "10.1.0"])}
    if maybe(0.6):
        found["shared.example.org/rack"] = {"string": R.choice(["r1", "r2"])}
    return found


def quantity(low, high):
    return f"{R.randint(low, high)}Gi"


def capacity(shared):
    memory = {"value": quantity(10, 80)}
    if shared:
        policy = R.choice([
            None,
            {"default": "4Gi"},
            {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]},
            {"default": "2Gi", "validRange": {"min": "2Gi", "step": "2Gi"}},
            {"default": "2Gi", "validRange": {"min": "2Gi", "max": "12Gi"}},
        ])  # fmt: skip
        if policy is not None:
            memory["requestPolicy"] = policy
    found = {"memory": memory}
    if maybe(0.3):
        found["cores"] = {"value": str(R.randint(1, 16))}
    return found


def devices(driver, count, counters=None):
    found = []
    for number in range(count):
        shared = driver == "nic.example.com" and maybe(0.6)
        one = {"name": f"dev-{number}", "attributes": attributes(driver, number % 2), "capacity": capacity(shared)}
        if shared:
            one["allowMultipleAllocations"] = True
        if maybe(0.15):
            one["taints"] = R.sample(TAINTS, R.randint(1, 2))
        if counters:
            one["consumesCounters"] = [{"counterSet": counters, "counters": {
                "memory": {"value": quantity(10, 40)}, "slices": {"value": str(R.randint(1, 3))}}}]  # fmt: skip
        if maybe(0.08):
            one["bindingConditions"], one["bindingFailureConditions"] = ["attached"], ["failed"]
        if maybe(0.05):
            one["bindsToNode"] = True
        found.append(one)
    return found


slices = []


def slice_of(driver, pool, number, generation=1, count=1, **spec):
    name = f"{driver.split('.')[0]}-{pool}-{generation}-{number}"
    pool = {"name": pool, "generation": generation, "resourceSliceCount": count}
    slices.append({"metadata": {"name": name}, "spec": {"driver": driver, "pool": pool, **spec}})


def renamed(found, prefix):
    for one in found:
        one["name"] = f"{prefix}-{one['name']}"
    return found


def node_slices(i):
    here = {"nodeName": f"n{i}"}
    if maybe(0.85):
        count = R.choice([1, 1, 2])
        generation = R.choice([1, 1, 2])
        for number in range(count):
            if maybe(0.95):  # else the pool is incomplete
                slice_of(DRIVERS[0], f"gpus-{i}", number, generation, count, **here,
                         devices=renamed(devices(DRIVERS[0], R.randint(1, 4)), f"s{number}"))  # fmt: skip
        if generation == 2 and maybe(0.5):
            slice_of(DRIVERS[0], f"gpus-{i}", 9, 1, 1, **here, devices=devices(DRIVERS[0], 2))
    if maybe(0.6):
        slice_of(DRIVERS[1], f"nics-{i}", 0, **here, devices=devices(DRIVERS[1], R.randint(1, 3)))
    if maybe(0.5):
        counters = {"memory": {"value": quantity(40, 80)}, "slices": {"value": str(R.randint(2, 6))}}
        slice_of(DRIVERS[2], f"parts-{i}", 0, 1, 2, **here, sharedCounters=[{"name": "whole", "counters": counters}])
        known = "whole" if maybe(0.95) else "nothing"
        slice_of(DRIVERS[2], f"parts-{i}", 1, 1, 2, **here, devices=devices(DRIVERS[2], R.randint(2, 5), known))


def shared_slices():
    if maybe(0.6):
        slice_of(DRIVERS[1], "fabric", 0, allNodes=True, devices=devices(DRIVERS[1], R.randint(1, 3)))
    if maybe(0.6):
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [R.choice(ZONES)]}]}
        slice_of(DRIVERS[0], "in-zone", 0, nodeSelector={"nodeSelectorTerms": [term]},
                 devices=devices(DRIVERS[0], R.randint(1, 3)))  # fmt: skip
    if maybe(0.5):
        own = devices(DRIVERS[2], 4)
        for one in own:
            term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [R.choice(ZONES)]}]}
            one.update(R.choice([{"allNodes": True}, {"nodeName": f"n{R.randrange(n_nodes)}"},
                                 {"nodeSelector": {"nodeSelectorTerms": [term]}}]))  # fmt: skip
        slice_of(DRIVERS[2], "by-device", 0, perDeviceNodeSelection=True, devices=own)
    if maybe(0.2):  # duplicate names
        for number in range(2):
            slice_of(DRIVERS[1], "twice", number, 1, 2, allNodes=True, devices=devices(DRIVERS[1], 1))
    if maybe(0.2):
        slice_of(DRIVERS[0], "missing", 0, 1, 2, allNodes=True, devices=devices(DRIVERS[0], 1))


EXPRESSIONS = [
    'device.driver == "gpu.example.com"',
    'device.attributes["gpu.example.com"].model == "h100"',
    'device.attributes["gpu.example.com"].?model.orValue("") in ["a100", "l4"]',
    'has(device.attributes["shared.example.org"].rack) && device.attributes["shared.example.org"].rack == "r1"',
    'device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0',
    'device.capacity[device.driver].memory.isGreaterThan(quantity("20Gi"))',
    'cel.bind(own, device.attributes[device.driver], own.healthy && own.numa == 0)',
    '"version" in device.attributes[device.driver] && '
    'device.attributes[device.driver].version.isGreaterThan(semver("1.9.0"))',
    'device.attributes[device.driver].model.matches("^[a-z]100$")',
    'device.allowMultipleAllocations',
    '!device.attributes[device.driver].healthy || device.attributes[device.driver].numa < 1',
    '["a100", "h100"].exists(m, m == device.attributes[device.driver].model)',
    'device.attributes[device.driver].model.startsWith("h") ? device.attributes[device.driver].numa == 1 : true',
]  # fmt: skip
RISKY = ['device.attributes["shared.example.org"].rack == "r2"', "device.attributes[device.driver].version.major() > 1"]


def classes():
    found: list[dict[str, Any]] = [{"metadata": {"name": driver.split(".")[0]}, "spec": {"selectors": [
        {"cel": {"expression": f'device.driver == "{driver}"'}}]}} for driver in DRIVERS]  # fmt: skip
    found.append({"metadata": {"name": "any"}, "spec": {"config": [{"opaque": {
        "driver": DRIVERS[0], "parameters": {"mode": "x"}}}]}})  # fmt: skip
    found[0]["spec"]["extendedResourceName"] = "example.com/gpu"
    found[1]["spec"]["config"] = [{"opaque": {"driver": DRIVERS[1], "parameters": {"mtu": 9000}}}]
    return found


def selectors():
    found = [{"cel": {"expression": R.choice(EXPRESSIONS)}} for _ in range(R.choice([0, 0, 1, 1, 2]))]
    if maybe(0.04):
        found.append({"cel": {"expression": R.choice(RISKY)}})
    return found


def ask(subrequest=False):
    found = {"deviceClassName": R.choice(["gpu", "gpu", "nic", "part", "any"]), "selectors": selectors()}
    if maybe(0.12):
        found["allocationMode"] = "All"
    else:
        found.update(allocationMode="ExactCount", count=R.choice([1, 1, 1, 2, 2, 3]))
    if maybe(0.2):
        found["tolerations"] = [R.choice([
            {"operator": "Exists"}, {"key": "broken", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
            {"key": "old", "operator": "Exists", "effect": "NoExecute"}])]  # fmt: skip
    if maybe(0.15):
        found["capacity"] = {"requests": {"memory": quantity(1, 30)}}
        if maybe(0.2):
            found["capacity"]["requests"]["cores"] = str(R.randint(1, 8))
    if not subrequest and maybe(0.06):
        found["adminAccess"] = True
    return found


def request(name):
    if maybe(0.3):
        return {"name": name, "firstAvailable": [{"name": f"s{k}", **ask(True)} for k in range(R.randint(1, 3))]}
    return {"name": name, "exactly": ask()}


def claim_spec():
    names = [f"r{k}" for k in range(R.choice([1, 1, 1, 2, 2, 3]))]
    found = {"requests": [request(name) for name in names]}
    constraints = []
    for _ in range(R.choice([0, 0, 0, 1, 1, 2])):
        attribute = R.choice(["gpu.example.com/numa", "shared.example.org/rack", "gpu.example.com/model"])
        one: dict[str, Any] = {R.choice(["matchAttribute", "matchAttribute", "distinctAttribute"]): attribute}
        if maybe(0.4):
            one["requests"] = R.sample(names, R.randint(1, len(names)))
        constraints.append(one)
    if constraints:
        found["constraints"] = constraints
    if maybe(0.3):
        config: dict[str, Any] = {"opaque": {"driver": DRIVERS[0], "parameters": {"n": R.randint(1, 9)}}}
        if maybe(0.6):
            config["requests"] = R.sample(names, R.randint(1, len(names)))
        found["config"] = [config]
    return {"devices": found}


claims = []


def claim(name, owner=None, **more):
    metadata = {"name": name, "namespace": "default", "uid": f"claim-{name}"}
    if owner:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": f"uid-{owner}",
                                        "controller": True}]  # fmt: skip
    claims.append({"metadata": metadata, "spec": claim_spec(), **more})
    return claims[-1]


def every_device():
    return [(part["spec"], one) for part in slices for one in part["spec"].get("devices", ())]


def allocated(taken):
    """A claim with one or two allocated devices."""
    results = []
    for spec, one in R.sample(every_device(), min(R.randint(1, 2), len(every_device()))):
        id_ = (spec["driver"], spec["pool"]["name"], one["name"])
        result = {"request": "r0", "driver": id_[0], "pool": id_[1], "device": id_[2]}
        if one.get("allowMultipleAllocations"):
            result["shareID"] = f"00000000-0000-4000-8000-{len(claims):012d}"
            result["consumedCapacity"] = {name: "2Gi" if name == "memory" else "1" for name in one["capacity"]}
        elif id_ in taken:
            continue
        elif maybe(0.1):
            result["adminAccess"] = True
        taken.add(id_)
        results.append(result)
    found = {"devices": {"results": results}}
    if maybe(0.7):
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [f"n{R.randrange(n_nodes)}"]}]}
        if maybe(0.3):
            term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [R.choice(ZONES)]}]}
        found["nodeSelector"] = {"nodeSelectorTerms": [term]}
    return found


def container(name="c", **requests):
    return {"name": name, "image": "i", "resources": {"requests": {"cpu": "10m", **requests}}}


def pod(i, shared):
    name = f"p{i}"
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    spec: dict[str, Any] = {"containers": [container()], "resourceClaims": []}
    status = {}
    for number in range(R.choice([0, 1, 1, 1, 1, 2])):
        entry = {"name": f"e{number}"}
        if maybe(0.25) and shared:
            entry["resourceClaimName"] = shared.pop()["metadata"]["name"]
        elif maybe(0.5):
            entry["resourceClaimName"] = f"c{i}-{number}"
            claim(entry["resourceClaimName"])
        else:
            entry["resourceClaimTemplateName"] = "template"
            made = claim(f"t{i}-{number}", owner=name if maybe(0.95) else "somebody")  # codespell:ignore somebody
            given = {"name": entry["name"], "resourceClaimName": made["metadata"]["name"]}
            if maybe(0.95):
                status.setdefault("resourceClaimStatuses", []).append(given if maybe(0.95) else {"name": entry["name"]})
        spec["resourceClaims"].append(entry)
        if maybe(0.03):
            entry["resourceClaimName"] = "nothing"
            entry.pop("resourceClaimTemplateName", None)
    if maybe(0.15):
        amount = str(R.randint(1, 2))
        spec["containers"] = [container("c", **{"example.com/gpu": amount}), container("d")]
        if maybe(0.3):
            spec["initContainers"] = [container("i", **{"example.com/gpu": "1"})]
    if maybe(0.1):
        spec["containers"].append(container("e", **{"deviceclass.resource.kubernetes.io/nic": "1"}))
    if not spec["resourceClaims"]:
        del spec["resourceClaims"]
    if maybe(0.2):
        spec["nodeSelector"] = {"zone": R.choice(ZONES)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


nodes = [node(i) for i in range(n_nodes)]
for i in range(n_nodes):
    node_slices(i)
shared_slices()
taken = set()
in_use = []
for i in range(n_existing):
    one = claim(f"held-{i}")
    one["status"] = {"allocation": allocated(taken)}
    if maybe(0.6):
        one["status"]["reservedFor"] = [{"resource": "pods", "name": f"x{i}", "uid": f"uid-x{i}"}]
    if maybe(0.05):
        one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        one["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    in_use.append(one)
R.shuffle(in_use)
pods = [pod(i, in_use) for i in range(n_pods)]
for one in claims:
    for ask_ in one["spec"]["devices"]["requests"]:
        if maybe(0.01) and "exactly" in ask_:
            ask_["exactly"]["deviceClassName"] = "unknown"
json.dump({"nodes": nodes, "existing": [], "pods": pods, "deviceClasses": classes(), "resourceSlices": slices,
           "resourceClaims": claims}, sys.stdout)  # fmt: skip
