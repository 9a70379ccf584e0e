"""Claims for devices on a real control plane: `fluence run` allocates and frees them, beside kube-scheduler.

No driver runs here: the tests publish the slices. The resourceclaim controller creates claims from templates, and
deallocates those whose pods are gone.
"""

from __future__ import annotations

import math
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any

import yaml

from .invariants import Manifest, condition
from .queues_world import QUEUES, install_queues
from .scenarios_world import EXAMPLES, Scenario, pod_spec

LABEL = "fluence.flux-framework.org/queue"
_API = "resource.k8s.io/v1"


def _driver(scenario: Scenario) -> str:
    return f"{scenario.namespace}.example.com"


def _publish(scenario: Scenario, node: str, devices: int, *, extended: str = "") -> None:
    """Create a node's pool of devices, and this driver's DeviceClass if it is missing."""
    driver = _driver(scenario)
    expression = f'device.driver == "{driver}" && device.attributes["{driver}"].healthy'
    spec: Manifest = {"selectors": [{"cel": {"expression": expression}}]}
    if extended:
        spec["extendedResourceName"] = extended
    path = f"/apis/{_API}/deviceclasses/{scenario.namespace}"
    if scenario.plane.request("GET", path)[0] != HTTPStatus.OK:
        scenario.plane.create({"apiVersion": _API, "kind": "DeviceClass", "metadata": {"name": scenario.namespace},
                               "spec": spec})  # fmt: skip
    listed: list[Manifest] = [
        {"name": f"dev-{number}", "attributes": {"healthy": {"bool": True}}} for number in range(devices)
    ]
    listed.append({"name": "broken", "attributes": {"healthy": {"bool": False}}})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    scenario.plane.create({"apiVersion": _API, "kind": "ResourceSlice", "metadata": {"name": f"{node}-devices"},
                           "spec": {"driver": driver, "nodeName": node, "pool": pool,
                                    "devices": listed}})  # fmt: skip


def _spec(scenario: Scenario, count: int = 1, **more: Any) -> Manifest:
    exactly = {"deviceClassName": scenario.namespace, "count": count, **more}
    return {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}


def _claim(scenario: Scenario, name: str, count: int = 1, **more: Any) -> list[Manifest]:
    """Create a claim; return the resourceClaims of a pod that uses it."""
    scenario.plane.create({"apiVersion": _API, "kind": "ResourceClaim", "spec": _spec(scenario, count, **more),
                           "metadata": {"name": name, "namespace": scenario.namespace}})  # fmt: skip
    return [{"name": "own", "resourceClaimName": name}]


def _template(scenario: Scenario) -> list[Manifest]:
    scenario.plane.create({"apiVersion": _API, "kind": "ResourceClaimTemplate", "spec": {"spec": _spec(scenario)},
                           "metadata": {"name": "template", "namespace": scenario.namespace}})  # fmt: skip
    return [{"name": "own", "resourceClaimTemplateName": "template"}]


def _path(scenario: Scenario, name: str = "") -> str:
    return f"/apis/{_API}/namespaces/{scenario.namespace}/resourceclaims/{name}".rstrip("/")


def _status(scenario: Scenario, name: str) -> Manifest:
    found: Manifest = scenario.plane.request("GET", _path(scenario, name))[1].get("status", {})
    return found


def _devices(status: Manifest) -> list[tuple[str, str]]:
    results = status.get("allocation", {}).get("devices", {}).get("results", [])
    return [(result["pool"], result["device"]) for result in results]


def _users(status: Manifest) -> list[str]:
    return [consumer["name"] for consumer in status.get("reservedFor", [])]


def _told(scenario: Scenario, pod: str, text: str) -> tuple[str, str] | None:
    """Wait for a pod's condition with that text; return reason and message."""
    said = condition(scenario.pod(pod), "PodScheduled") or {}
    return (said["reason"], said["message"]) if text in said.get("message", "") else None


def _bound(scenario: Scenario, pods: list[str]) -> str | None:
    """Return the first of these pods that is bound."""
    return next((pod for pod in pods if scenario.node_of(pod) is not None), None)


def _silence(pod: Manifest) -> float:
    """Return the seconds from a pod's creation to its condition, to the second; infinite without a condition."""
    said = condition(pod, "PodScheduled")
    if said is None:
        return math.inf
    created, reported = map(datetime.fromisoformat, (pod["metadata"]["creationTimestamp"], said["lastTransitionTime"]))
    return (reported - created).total_seconds()


def test_claims_are_allocated_on_their_pods_nodes_as_kube_scheduler_allocates_them(scenario: Scenario) -> None:
    nodes = [scenario.add_node(cpu=4, devices=0) for _ in range(2)]
    for node in nodes:
        _publish(scenario, node, 1)
    scenario.run()
    scenario.create_pod("ours", resourceClaims=_claim(scenario, "ours"))
    scenario.wait_bound("ours")  # two schedulers at the same time may choose the same devices
    scenario.create_pod("theirs", schedulerName="default-scheduler", resourceClaims=_claim(scenario, "theirs"))
    places = scenario.wait_bound("ours", "theirs")
    assert sorted(places.values()) == sorted(nodes)
    statuses = {name: _status(scenario, name) for name in places}
    for name, node in places.items():
        assert _devices(statuses[name]) == [(node, "dev-0")]
        assert _users(statuses[name]) == [name]
    alike = [{**status["allocation"], "allocationTimestamp": "", "nodeSelector": "", "devices": ""}
             for status in statuses.values()]  # fmt: skip
    assert alike[0] == alike[1]
    ours, theirs = (scenario.plane.request("GET", _path(scenario, name))[1]["metadata"] for name in ("ours", "theirs"))
    assert ours["finalizers"] == theirs["finalizers"]


def test_a_pod_waits_for_devices_until_the_pod_that_has_them_is_gone(scenario: Scenario) -> None:
    _publish(scenario, scenario.add_node(cpu=4, devices=0), 1)
    scenario.run()
    claims = _template(scenario)
    scenario.create_pod("first", resourceClaims=claims)
    scenario.wait_bound("first")
    scenario.create_pod("second", resourceClaims=claims)
    scenario.wait_refused("second", "cannot allocate all claims")
    scenario.delete_pod("first")
    scenario.wait_bound("second", seconds=60)
    names = [claim["metadata"]["name"] for claim in scenario.plane.request("GET", _path(scenario))[1]["items"]]
    used = {name: _users(_status(scenario, name)) for name in names}
    assert [users for name, users in used.items() if name.startswith("second")] == [["second"]]


def test_a_pod_whose_claim_does_not_exist_has_that_as_its_condition_and_no_event(scenario: Scenario) -> None:
    _publish(scenario, scenario.add_node(cpu=4, devices=0), 1)
    scenario.run()
    scenario.create_pod("early", resourceClaims=[{"name": "own", "resourceClaimName": "late"}])
    text = f'could not find ResourceClaim "{scenario.namespace}/late"'
    assert scenario.until("a condition", partial(_told, scenario, "early", text)) == ("Unschedulable", text)
    assert scenario.events("early", "FailedScheduling") == []
    _claim(scenario, "late")
    scenario.wait_bound("early")


def test_pods_share_a_claim_on_its_node_and_a_gang_does_too(scenario: Scenario) -> None:
    nodes = [scenario.add_node(cpu=8, devices=0) for _ in range(2)]
    _publish(scenario, nodes[1], 2)
    scenario.run()
    shared = _claim(scenario, "shared")
    for number in range(3):
        scenario.create_pod(f"pod-{number}", resourceClaims=shared)
    places = scenario.wait_bound(*(f"pod-{number}" for number in range(3)))
    assert set(places.values()) == {nodes[1]}
    assert sorted(_users(_status(scenario, "shared"))) == sorted(places)
    of_gang = _claim(scenario, "of-gang")
    scenario.create_group("gang", 2)
    for number in range(2):
        scenario.create_pod(f"gang-{number}", group="gang", resourceClaims=of_gang)
    scenario.wait_whole("gang", 2)
    assert set(scenario.places("gang").values()) == {nodes[1]}
    assert _devices(_status(scenario, "of-gang")) != _devices(_status(scenario, "shared"))


def test_the_second_pod_of_a_claim_waits_for_the_claims_node_as_with_kube_scheduler(scenario: Scenario) -> None:
    for _ in range(2):
        _publish(scenario, scenario.add_node(cpu=1, devices=0), 2)
    scenario.run()
    reasons = {}
    for name, scheduler in (("ours", "fluence"), ("theirs", "default-scheduler")):
        shared = _claim(scenario, name)
        pods = [f"{name}-{number}" for number in range(2)]
        for pod in pods:
            scenario.create_pod(pod, schedulerName=scheduler, resourceClaims=shared)
        first = scenario.until("one pod bound", partial(_bound, scenario, pods))
        (waits,) = [pod for pod in pods if pod != first]
        text = "1 resourceclaim not available on the node"
        _, reasons[name] = scenario.until("the reason", partial(_told, scenario, waits, text))
        assert len(_devices(_status(scenario, name))) == 1
        assert _users(_status(scenario, name)) == [first]
        for pod in pods:
            scenario.delete_pod(pod)
        scenario.until("no pods", lambda: not scenario.pods())
    ours, theirs = (reason.partition(".")[0] for reason in reasons.values())  # without what preemption adds
    assert ours == theirs


def test_a_wrong_selector_fails_its_own_pod_with_kube_schedulers_reason(scenario: Scenario) -> None:
    _publish(scenario, scenario.add_node(cpu=4, devices=0), 2)
    scenario.run()
    expression = f'device.attributes["{_driver(scenario)}"].nothing == 1'
    wrong = _claim(scenario, "wrong", selectors=[{"cel": {"expression": expression}}])
    scenario.create_pod("ours", resourceClaims=wrong)
    scenario.create_pod("theirs", schedulerName="default-scheduler", resourceClaims=wrong)
    scenario.create_pod("right", resourceClaims=_claim(scenario, "right"))
    scenario.wait_bound("right")
    reason = f"claim {scenario.namespace}/wrong: selector #0: CEL runtime error: no such key: nothing"
    ours, theirs = (scenario.until(f"what is said of {name}", partial(_told, scenario, name, reason))
                    for name in ("ours", "theirs"))  # fmt: skip
    assert ours == theirs


def test_of_a_pod_whose_claim_is_made_later_nothing_is_said_until_then(scenario: Scenario) -> None:
    _publish(scenario, scenario.add_node(cpu=4, devices=0), 2)
    scenario.run()
    names = ("ours", "theirs")
    for name, scheduler in zip(names, ("fluence", "default-scheduler"), strict=True):
        late = [{"name": "own", "resourceClaimName": f"late-{name}"}]
        scenario.create_pod(name, schedulerName=scheduler, resourceClaims=late)
        scenario.create_pod(f"after-{name}", schedulerName=scheduler)
    scenario.wait_bound("after-ours", "after-theirs")
    assert _silence(scenario.pod("ours")) >= 1  # a slow test may see what fluence reports after a second
    assert _silence(scenario.pod("theirs")) == math.inf
    for name in names:
        _claim(scenario, f"late-{name}")
        scenario.wait_bound(name)
    assert [scenario.events(name, "FailedScheduling") for name in names] == [[], []]


def test_extended_resources_are_had_as_devices_where_nodes_offer_none(scenario: Scenario) -> None:
    resource = f"{scenario.namespace}.example.com/thing"
    node = scenario.add_node(cpu=4, devices=0)
    _publish(scenario, node, 2, extended=resource)
    scenario.run()
    amounts = {"cpu": "100m", resource: "1"}
    containers = [{"name": "main", "image": "example.com/none",
                   "resources": {"requests": amounts, "limits": amounts}}]  # fmt: skip
    for name, scheduler in (("ours", "fluence"), ("theirs", "default-scheduler")):
        scenario.create_pod(name, schedulerName=scheduler, containers=containers)
        scenario.wait_bound(name)
    named = {pod: scenario.pod(pod)["status"]["extendedResourceClaimStatus"] for pod in ("ours", "theirs")}
    assert named["ours"]["requestMappings"] == named["theirs"]["requestMappings"]
    statuses = [_status(scenario, status["resourceClaimName"]) for status in named.values()]
    assert sorted(device for status in statuses for device in _devices(status)) == [(node, "dev-0"), (node, "dev-1")]
    assert [_users(status) for status in statuses] == [["ours"], ["theirs"]]


def test_a_taint_rule_keeps_both_schedulers_from_a_drivers_devices_until_it_is_gone(scenario: Scenario) -> None:
    nodes = {name: scenario.add_node(cpu=4, devices=0) for name in ("fluence", "default-scheduler")}
    for node in nodes.values():
        _publish(scenario, node, 1)

    def create(scheduler: str, name: str, **more: Any) -> None:
        on_node = {"key": "metadata.name", "operator": "In", "values": [nodes[scheduler]]}
        required = {"nodeSelectorTerms": [{"matchFields": [on_node]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        claims = _claim(scenario, name, **more)
        scenario.create_pod(name, schedulerName=scheduler, affinity=affinity, resourceClaims=claims)

    taint = {"key": "example.com/broken", "effect": "NoSchedule"}
    rule = {"deviceSelector": {"driver": _driver(scenario)}, "taint": taint}
    scenario.plane.create({"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "spec": rule,
                           "metadata": {"name": scenario.namespace}})  # fmt: skip
    scenario.run()
    for scheduler in nodes:
        create(scheduler, f"waits-{scheduler}")
    for scheduler in nodes:
        scenario.until("a refusal", partial(_told, scenario, f"waits-{scheduler}", "cannot allocate all claims"))
    tolerations = [{"key": taint["key"], "operator": "Exists"}]
    for scheduler in nodes:
        create(scheduler, f"tolerates-{scheduler}", tolerations=tolerations)
    scenario.wait_bound(*(f"tolerates-{scheduler}" for scheduler in nodes))
    for scheduler in nodes:
        scenario.delete_pod(f"tolerates-{scheduler}")
    scenario.plane.request("DELETE", f"/apis/resource.k8s.io/v1beta2/devicetaintrules/{scenario.namespace}")
    scenario.wait_bound(*(f"waits-{scheduler}" for scheduler in nodes))


def test_the_pods_of_a_group_share_its_claim_as_those_of_kube_scheduler_do(scenario: Scenario) -> None:
    node = scenario.add_node(cpu=8, devices=0)
    _publish(scenario, node, 2)
    entries = _template(scenario)
    scenario.run()
    found, devices = {}, set()
    for scheduler, name in (("fluence", "ours"), ("default-scheduler", "theirs")):  # one after the other: they may race
        spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": entries}
        group = scenario.plane.create({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "spec": spec,
                                       "metadata": {"name": name, "namespace": scenario.namespace}})  # fmt: skip
        members = [f"{name}-{number}" for number in range(2)]
        for member in members:
            scenario.create_pod(member, group=name, schedulerName=scheduler, resourceClaims=entries)
        assert set(scenario.wait_bound(*members).values()) == {node}
        (claim,) = {one["resourceClaimName"] for member in members
                    for one in scenario.pod(member)["status"]["resourceClaimStatuses"]}  # fmt: skip
        (consumer,) = _status(scenario, claim)["reservedFor"]
        assert consumer.pop("uid") == group["metadata"]["uid"]
        found[name] = consumer
        devices |= set(_devices(_status(scenario, claim)))
    assert found == {name: {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": name} for name in found}
    assert len(devices) == 2


def _publish_partitions(scenario: Scenario, node: str) -> None:
    """Publish the GPUs of the example on a node, with this driver and classes of its own."""
    text = (EXAMPLES / "15-gpu-partitions/cluster.yaml").read_text().replace("gpu.example.com", _driver(scenario))
    for manifest in yaml.safe_load(text)["items"]:
        if manifest["kind"] == "ResourceSlice":
            manifest["spec"] |= {"nodeName": node, "pool": {**manifest["spec"]["pool"], "name": node}}
        if manifest["kind"] != "Node":
            manifest["metadata"]["name"] = f"{scenario.namespace}-{manifest['metadata']['name']}"
            scenario.plane.create(manifest)


def test_a_gang_gets_whole_gpus_partitions_and_shares_and_kube_scheduler_what_is_left(scenario: Scenario) -> None:
    node = scenario.add_node(cpu=8, devices=0)
    _publish_partitions(scenario, node)

    def claim(name: str, use: str, **more: Any) -> list[Manifest]:
        return _claim(scenario, name, deviceClassName=f"{scenario.namespace}-{use}", **more)

    scenario.run()
    memory = {"requests": {"memory": "30Gi"}}
    claims = [claim("gang-0", "gpu"), claim("gang-1", "mig"),
              *(claim(f"gang-{number}", "shared-gpu", capacity=memory) for number in (2, 3))]  # fmt: skip
    scenario.create_group("gang", 4)
    for number, entries in enumerate(claims):
        scenario.create_pod(f"gang-{number}", group="gang", resourceClaims=entries)
    scenario.wait_whole("gang", 4)
    results = [_status(scenario, f"gang-{number}")["allocation"]["devices"]["results"][0] for number in range(4)]
    whole, part, *shares = (result["device"] for result in results)
    assert len(set(shares)) == 1
    assert {whole, part.partition("-mig-")[0], shares[0].removesuffix("-shared")} == {"gpu-0", "gpu-1", "gpu-2"}
    assert [result.get("consumedCapacity") for result in results] == [None, None, *[{"memory": "30Gi"}] * 2]
    assert len({result.get("shareID") for result in results}) == 3
    theirs = {"partition": claim("partition", "mig"), "share": claim("share", "shared-gpu", capacity=memory),
              "whole": claim("whole", "gpu")}  # fmt: skip
    for name, entries in theirs.items():
        scenario.create_pod(name, schedulerName="default-scheduler", resourceClaims=entries)
    scenario.wait_bound("partition")
    ((_, other),) = _devices(_status(scenario, "partition"))
    assert (other != part, other.partition("-mig-")[0]) == (True, part.partition("-mig-")[0])
    for name in ("share", "whole"):
        scenario.wait_refused(name, "cannot allocate all claims")


def _queue(scenario: Scenario, name: str, **spec: Any) -> str:
    """Create a queue with a name of this run; return the name."""
    name = f"{scenario.namespace}-{name}"
    scenario.plane.create({"apiVersion": QUEUES, "kind": "Queue", "metadata": {"name": name}, "spec": spec})
    return name


def _pods(scenario: Scenario, queue: str, count: int, claims: list[Manifest]) -> list[str]:
    """Create pods of a queue; return their names."""
    names = [f"{queue}-{number}" for number in range(count)]
    for name in names:
        metadata = {"name": name, "namespace": scenario.namespace, "labels": {LABEL: queue}}
        spec = pod_spec(None) | {"resourceClaims": claims, "terminationGracePeriodSeconds": 0}
        scenario.plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return names


def test_queues_limit_and_reclaim_the_devices_of_claims(scenario: Scenario) -> None:
    if scenario.plane.request("GET", f"/apis/{QUEUES}/queues")[0] != HTTPStatus.OK:
        install_queues(scenario.plane)
    _publish(scenario, scenario.add_node(cpu=8, devices=0), 3)
    amount = f"{scenario.namespace}.deviceclass.resource.k8s.io/devices"
    limited = _queue(scenario, "limited", limit={amount: 2}, deserved={amount: 1})
    rich = _queue(scenario, "rich", deserved={amount: 2})
    scenario.run()
    claims = _template(scenario)
    names = _pods(scenario, limited, 3, claims)
    text = f"queue '{limited}' has reached its limit of {amount}: limit 2, allocated 2, requested 1"

    def message(name: str) -> str:
        return str((condition(scenario.pod(name), "PodScheduled") or {}).get("message", ""))

    def waiting() -> list[str]:
        return [name for name in names if text in message(name)]

    assert len(scenario.until("the pod beyond the limit", lambda: waiting() or None)) == 1

    def status() -> tuple[Any, Any]:
        found = scenario.plane.request("GET", f"/apis/{QUEUES}/queues/{limited}")[1].get("status", {})
        return found.get("allocated", {}).get(amount), found.get("pending", {}).get(amount)

    scenario.until("the queue's status", lambda: status() == ("2", "1") or None)
    scenario.wait_bound(*_pods(scenario, rich, 2, claims), seconds=90)
    scenario.until("the status after an eviction", lambda: status()[0] == "1" or None)
