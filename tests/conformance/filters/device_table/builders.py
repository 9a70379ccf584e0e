"""Builders for small clusters with devices, and for the requests of their pods."""

from typing import Any

CARD, LINK = "card.example.com", "link.example.com"
ZONES = {"here": "z1", "there": "z2"}


def expression(text):
    return [{"cel": {"expression": text}}]


def device_class(name, *texts, config=None):
    spec = {"selectors": [one for text in texts for one in expression(text)]}
    if config:
        spec["config"] = [{"opaque": {"driver": config, "parameters": {"of": name}}}]
    return {"metadata": {"name": name}, "spec": spec}


CLASSES = [
    device_class("card", f'device.driver == "{CARD}"'),
    device_class("link", f'device.driver == "{LINK}"'),
    device_class("any"),
    device_class("set-card", f'device.driver == "{CARD}"', config=CARD),
    device_class("set-link", f'device.driver == "{LINK}"', config=LINK),
    device_class("shared", f'device.driver == "{CARD}" && device.allowMultipleAllocations'),
    device_class("unshared", f'device.driver == "{CARD}" && !device.allowMultipleAllocations'),
    device_class("chosen", f'device.driver == "{CARD}" && device.attributes["{CARD}"].chosen'),
    device_class("misspelt", "devize.driver"),
]
CLASSES[0]["spec"]["extendedResourceName"] = "example.com/card"


# ---------------------------------------------------------------------- objects


def value(given):
    if isinstance(given, dict):
        return given
    kind = "bool" if isinstance(given, bool) else "int" if isinstance(given, int) else "string"
    if kind == "string" and given[:1].isdigit():
        kind = "version"
    return {kind: given}


def dev(name, memory=None, *, policy=None, uses=None, taints=(), waits=None, shared=False, more=None, **attributes):
    """A device; `memory`: its capacity, or all capacities by name; `uses`: counters by set; attributes by value."""
    capacities = memory if isinstance(memory, dict) else {"memory": memory} if memory else {}
    found = {"name": name, "attributes": {key: value(given) for key, given in attributes.items()}}
    found["capacity"] = {key: {"value": amount} for key, amount in capacities.items()}
    for key, one in (policy or {}).items():
        found["capacity"][key]["requestPolicy"] = one
    if uses:
        found["consumesCounters"] = [{"counterSet": key, "counters": amounts(one)} for key, one in uses.items()]
    if taints:
        found["taints"] = list(taints)
    if waits:
        found["bindingConditions"], found["bindingFailureConditions"] = [waits], [f"not-{waits}"]
    if shared:
        found["allowMultipleAllocations"] = True
    return {**found, **(more or {})}


def amounts(given):
    return {name: {"value": amount} for name, amount in given.items()}


def devs(count, prefix="c"):
    return [dev(f"{prefix}{number:02}") for number in range(count)]


def part(pool, devices=(), driver=CARD, *, generation=1, of=1, sets=None, **where):
    """A slice of a pool, by default on the node `here`; `sets`: its counters by set."""
    spec = {"driver": driver, "pool": {"name": pool, "generation": generation, "resourceSliceCount": of}}
    spec.update(where or {"nodeName": "here"})
    if sets is not None:
        spec["sharedCounters"] = [{"name": name, "counters": amounts(one)} for name, one in sets]
    if devices:
        spec["devices"] = list(devices)
    return {"spec": spec}


def counted(pool, sets, devices, **where):
    """A pool of two slices: the devices, and the counters that they consume."""
    return [part(pool, devices, of=2, **where), part(pool, of=2, sets=list(sets.items()), **where)]


def in_zone(zone):
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]
    return {"nodeSelector": {"nodeSelectorTerms": terms}}


def taint(effect, key="worn", given="much"):
    return {"key": key, "value": given, "effect": effect}


def tolerates(effect, key="worn", given=None):
    found = {"key": key, "operator": "Exists" if given is None else "Equal", "effect": effect}
    return found if given is None else {**found, "value": given}


# ---------------------------------------------------------------------- requests


def ask(of="card", count=1, where=None, *, needs=None, admin=False, **more):
    """The content of a request; `count` "all" for every device; `needs`: capacities."""
    found = {"deviceClassName": of, **more}
    if count == "all":
        found["allocationMode"] = "All"
    else:
        found.setdefault("allocationMode", "ExactCount")
        found["count"] = count
    if where:
        found["selectors"] = expression(where)
    if needs:
        found["capacity"] = {"requests": needs if isinstance(needs, dict) else {"memory": needs}}
    if admin:
        found["adminAccess"] = True
    return found


def first(*asks):
    """Alternatives s0, s1 and so on: the allocator takes the first available one."""
    return [{"name": f"s{number}", **one} for number, one in enumerate(asks)]


def claim(*asks, rules=(), config=()):
    """Requests r0, r1 and so on."""
    requests = []
    for number, one in enumerate(asks):
        requests.append({"name": f"r{number}", "firstAvailable" if isinstance(one, list) else "exactly": one})
    devices = {"requests": requests}
    if rules:
        devices["constraints"] = list(rules)
    if config:
        devices["config"] = list(config)
    return {"devices": devices}


def same(attribute, *requests, kind="matchAttribute"):
    found = {kind: f"{CARD}/{attribute}"}
    return {**found, "requests": list(requests)} if requests else found


def differ(attribute, *requests):
    return same(attribute, *requests, kind="distinctAttribute")


def configured(driver, number, *requests):
    found = {"opaque": {"driver": driver, "parameters": {"n": number}}}
    return {**found, "requests": list(requests)} if requests else found


def mine(name):
    """An attribute of the device by its driver's name for it, in an expression."""
    return f'device.attributes["{CARD}"].{name}'


def at_least(amount, name="memory"):
    return f'device.capacity["{CARD}"]["{name}"].compareTo(quantity("{amount}")) >= 0'


# ---------------------------------------------------------------------- clusters


def held(pool, device, consumed=None, driver=CARD):
    """A device, or a share of it, that another claim holds."""
    found = {"request": "r0", "driver": driver, "pool": pool, "device": device}
    if consumed is not None:
        found["shareID"], found["consumedCapacity"] = "00000000-0000-4000-8000-000000000001", consumed
    return found


def node(name):
    labels = {"kubernetes.io/hostname": name, "zone": ZONES[name]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"allocatable": {"pods": "110", "cpu": "8", "memory": "8Gi"}}}  # fmt: skip


CLUSTERS = {}


def wanting(*cards, first=()):
    """Containers, each with a number of cards as an extended resource; those in `first` start before; "2+" stays."""

    def one(name, amount):
        wanted = str(amount).removesuffix("+")
        found = {"name": name, "image": "i", "resources": {"requests": {"example.com/card": wanted}}}
        return {**found, "restartPolicy": "Always"} if str(amount).endswith("+") else found

    found = {"containers": [one(f"c{number}", amount) for number, amount in enumerate(cards)]}
    if first:
        found["initContainers"] = [one(f"i{number}", amount) for number, amount in enumerate(first)]
    return found


class Cluster:
    """A cluster in which each pod is evaluated alone; `taken` are the results of an allocated claim."""

    def __init__(self, name, *parts, taken=(), nodes=("here",)):
        slices = []
        for number, one in enumerate(parts):
            spec = one["spec"]
            named = f"{number:02}-{spec['driver'].partition('.')[0]}-{spec['pool']['name']}"
            slices.append({"metadata": {"name": named}, **one})
        self.content: dict[str, Any] = {
            "nodes": [node(one) for one in nodes], "existing": [], "pods": [], "deviceClasses": CLASSES,
            "resourceSlices": slices, "resourceClaims": [], "covers": {},
        }  # fmt: skip
        if taken:
            self._claim("taken", claim(ask()), status={"allocation": {"devices": {"results": list(taken)}}})
        assert name not in CLUSTERS, name
        CLUSTERS[name] = self.content

    def claim(self, name, spec, results, metadata=None, **allocation):
        """An allocated claim for pods to use."""
        status = {"allocation": {"devices": {"results": list(results)}, **allocation}}
        self._claim(name, spec, status=status)
        self.content["resourceClaims"][-1]["metadata"].update(metadata or {})
        return self

    def pod(self, name, *claims, uses=(), containers=None, covers=""):
        """A pod; `uses`: existing claims; `covers`: the kube-scheduler cases with the same requests."""
        assert name not in self.content["covers"], name
        names = [f"{name}-{number}" for number in range(len(claims))]
        for named, spec in zip(names, claims, strict=True):
            self._claim(named, spec)
        names += uses
        spec = containers or {"containers": [{"name": "c", "image": "i"}]}
        if names:
            spec["resourceClaims"] = [{"name": f"e{k}", "resourceClaimName": one} for k, one in enumerate(names)]
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        self.content["pods"].append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        self.content["covers"][name] = covers.split()
        return self

    def _claim(self, name, spec, **more):
        metadata = {"name": name, "namespace": "default", "uid": f"uid-claim-{name}"}
        self.content["resourceClaims"].append({"metadata": metadata, "spec": spec, **more})
