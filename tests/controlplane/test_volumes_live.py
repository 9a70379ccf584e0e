"""Claims on a real control plane: the volume controller binds what `fluence run` decides, beside kube-scheduler."""

from __future__ import annotations

from http import HTTPStatus

from .invariants import Manifest
from .scenarios_world import Scenario

_STORAGE = {"storage": "1Gi"}
_LABEL = "tests/volume-node"


def _storage(
    scenario: Scenario, *volumes: tuple[str, str], waits: bool = True, provisioner: str = "kubernetes.io/no-provisioner"
) -> str:
    """Create a StorageClass for the scenario with volumes, each (name, node); return its name."""
    name = scenario.namespace
    mode = "WaitForFirstConsumer" if waits else "Immediate"
    scenario.plane.create({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
                           "provisioner": provisioner, "volumeBindingMode": mode})  # fmt: skip
    for volume, node in volumes:
        scenario.plane.request("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": {_LABEL: node}}})
        expression = {"key": _LABEL, "operator": "In", "values": [node]}
        scenario.plane.create({"apiVersion": "v1", "kind": "PersistentVolume",
                               "metadata": {"name": f"{name}-{volume}"}, "spec": {
                                   "capacity": _STORAGE, "accessModes": ["ReadWriteOnce"], "storageClassName": name,
                                   "local": {"path": "/none"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
                                       {"matchExpressions": [expression]}]}}}})  # fmt: skip
        path = f"/api/v1/persistentvolumes/{name}-{volume}"
        scenario.until(f"{volume} to be available", lambda path=path: _phase(scenario, path) == "Available")  # type: ignore[misc]
    return name


def _phase(scenario: Scenario, path: str) -> str:
    return str(scenario.plane.request("GET", path)[1]["status"].get("phase"))


def _claim(scenario: Scenario, name: str, storage_class: str) -> list[Manifest]:
    """Create a claim; return the volumes of a pod that uses it."""
    scenario.plane.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                           "metadata": {"name": name, "namespace": scenario.namespace}, "spec": {
                               "accessModes": ["ReadWriteOnce"], "resources": {"requests": _STORAGE},
                               "storageClassName": storage_class}})  # fmt: skip
    return [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]


def _volume_of(scenario: Scenario, claim: str) -> str | None:
    path = f"/api/v1/namespaces/{scenario.namespace}/persistentvolumeclaims/{claim}"
    found = scenario.plane.request("GET", path)[1]
    return str(found["spec"].get("volumeName")) if found["status"].get("phase") == "Bound" else None


def _wait_volume(scenario: Scenario, claim: str) -> str:
    """Wait until a claim is bound. Its phase follows the annotation for which schedulers wait. Return its volume."""
    return scenario.until(f"the claim {claim} to be bound", lambda: _volume_of(scenario, claim))


def test_pods_get_local_volumes_on_their_nodes_as_kube_scheduler_gives_them(scenario: Scenario) -> None:
    nodes = [scenario.add_node(cpu=4, devices=0) for _ in range(2)]
    scenario.run()
    storage_class = _storage(scenario, *[(f"v{number}", nodes[number % 2]) for number in range(2)])
    scenario.create_pod("ours", volumes=_claim(scenario, "ours", storage_class))
    scenario.create_pod("theirs", schedulerName="default-scheduler", volumes=_claim(scenario, "theirs", storage_class))
    places = scenario.wait_bound("ours", "theirs", seconds=30)
    found = {name: _wait_volume(scenario, name) for name in places}
    assert set(found.values()) == {f"{storage_class}-v{n}" for n in range(2)}
    for name, node in places.items():
        assert found[name] == f"{storage_class}-v{nodes.index(node)}"


def test_a_gang_gets_a_volume_for_each_of_its_members(scenario: Scenario) -> None:
    nodes = [scenario.add_node(cpu=4, devices=0) for _ in range(3)]
    scenario.run()
    storage_class = _storage(scenario, *[(f"v{number}", node) for number, node in enumerate(nodes)])
    scenario.create_group("gang", 3)
    for number in range(3):
        volumes = _claim(scenario, f"claim-{number}", storage_class)
        scenario.create_pod(f"gang-{number}", group="gang", volumes=volumes)
    scenario.wait_whole("gang", 3)
    assert len({_wait_volume(scenario, f"claim-{number}") for number in range(3)}) == 3
    assert sorted(scenario.places("gang").values()) == sorted(nodes)


def test_a_pod_follows_its_bound_volume_and_one_whose_claim_names_nothing_waits_with_an_event(
    scenario: Scenario,
) -> None:
    nodes = [scenario.add_node(cpu=4, devices=0) for _ in range(3)]
    scenario.run()
    storage_class = _storage(scenario, ("only", nodes[1]), waits=False)
    volumes = _claim(scenario, "bound", storage_class)
    _wait_volume(scenario, "bound")
    scenario.create_pod("follows", volumes=volumes)
    scenario.create_pod("lost", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "nothing"}}])
    scenario.create_pod("plain")
    assert scenario.wait_bound("follows", "plain")["follows"] == nodes[1]
    scenario.wait_refused("lost", 'persistentvolumeclaim "nothing" not found')
    assert 'persistentvolumeclaim "nothing" not found' in scenario.wait_event("lost", "FailedScheduling")["note"]
    scenario.create_pod("theirs", schedulerName="default-scheduler", volumes=volumes)
    assert scenario.wait_bound("theirs")["theirs"] == nodes[1]


def _said(scenario: Scenario, pod: str) -> str:
    """Return the nominated node of a pod that is not bound."""
    found = scenario.pod(pod)
    return "" if found["spec"].get("nodeName") else str(found["status"].get("nominatedNodeName", ""))


def _times_named(scenario: Scenario, pod: str) -> int:
    """Return how often our scheduler wrote a pod's nominated node; writes with a conflict do not count."""
    done = (write for write in scenario.writes("PATCH", f"/pods/{pod}/status") if write.outcome == "200")
    return sum("nominatedNodeName" in write.body for write in done)


def _make_volume(scenario: Scenario, claim: str, storage_class: str) -> None:
    """Return the volume that the provisioner would create for a claim."""
    path = f"/api/v1/namespaces/{scenario.namespace}/persistentvolumeclaims/{claim}"
    uid = scenario.plane.request("GET", path)[1]["metadata"]["uid"]
    ref = {"kind": "PersistentVolumeClaim", "namespace": scenario.namespace, "name": claim, "uid": uid}
    scenario.plane.create({"apiVersion": "v1", "kind": "PersistentVolume",
                           "metadata": {"name": f"{storage_class}-{claim}"}, "spec": {
                               "capacity": _STORAGE, "accessModes": ["ReadWriteOnce"], "claimRef": ref,
                               "storageClassName": storage_class,
                               "csi": {"driver": "none.example.com", "volumeHandle": claim}}})  # fmt: skip


def test_a_pod_whose_volume_is_still_made_names_its_node_until_it_is_bound_as_with_kube_scheduler(
    scenario: Scenario,
) -> None:
    node = scenario.add_node(cpu=8, devices=0)
    scenario.run()
    storage_class = _storage(scenario, provisioner="none.example.com")
    sides = {"ours": "fluence", "theirs": "default-scheduler"}
    for name, scheduler in sides.items():
        scenario.create_pod(name, schedulerName=scheduler, volumes=_claim(scenario, name, storage_class))
    for name in sides:
        assert scenario.until(f"the node of {name}", lambda name=name: _said(scenario, name) or None) == node  # type: ignore[misc]
    for name in sides:
        _make_volume(scenario, name, storage_class)
    assert scenario.wait_bound(*sides, seconds=30) == dict.fromkeys(sides, node)
    for name in sides:
        assert "nominatedNodeName" not in scenario.pod(name)["status"]
    scenario.wait_event("ours", "Scheduled")  # after the response to the binding
    # A condition in flight changes the pod's version: the first binding may conflict with it.
    outcomes = [write.outcome for write in scenario.writes("POST", "/pods/ours/binding")]
    conflict, created = str(HTTPStatus.CONFLICT.value), str(HTTPStatus.CREATED.value)
    assert [outcome for outcome in outcomes if outcome != conflict] == [created]
    scenario.create_pod("plain")
    scenario.wait_bound("plain")
    assert (_times_named(scenario, "ours"), _times_named(scenario, "plain")) == (1, 0)


def test_a_node_that_somebody_else_names_is_taken_as_kube_scheduler_takes_it(scenario: Scenario) -> None:
    small, _ = (scenario.add_node(cpu=cpu, devices=0) for cpu in (4, 64))
    scenario.run()
    sides = {"ours": "fluence", "theirs": "default-scheduler"}
    for name, scheduler in sides.items():
        path = f"/api/v1/namespaces/{scenario.namespace}/pods/{name}"
        scenario.create_pod(name, schedulerName=scheduler, schedulingGates=[{"name": "example.com/later"}])
        scenario.plane.request("PATCH", f"{path}/status", {"status": {"nominatedNodeName": small}})
        scenario.plane.request("PATCH", path, {"spec": {"schedulingGates": None}})
    assert scenario.wait_bound(*sides) == dict.fromkeys(sides, small)
