"""Racks from node labels on a real API server: gangs within one rack or spread over several, despite restarts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

from .invariants import GROUPS
from .scenarios_world import Scenario
from .scheduler_process import SchedulerProcess

PREFIX = "fluence.flux-framework.org/"


def _annotations(said: dict[str, str]) -> dict[str, str]:
    return {PREFIX + key.replace("_", "-"): value for key, value in said.items()}


class Racks:
    """The scenario's nodes in racks."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.key = f"{scenario.namespace}.example.com/rack"
        self.rack_of: dict[str, str] = {}

    def add_node(self, short: str, rack: str, **resources: str) -> str:
        name = f"{self.scenario.namespace}-{short}"
        self.scenario.nodes.append(name)
        self.scenario.plane.new_node(name, **resources)
        self.label(name, rack)
        return name

    def label(self, node: str, rack: str) -> None:
        self.rack_of[node] = rack
        labels = {"metadata": {"labels": {self.key: rack}}}
        self.scenario.plane.request("PATCH", f"/api/v1/nodes/{node}", labels)

    def start(self) -> SchedulerProcess:
        settings = replace(self.scenario.settings, arguments={"topology": [{"type": "rack", "label": self.key}]})
        return self.scenario.run(settings)

    def pass_label(self, rack: str) -> None:
        """Wait until the scheduler knows a node's new rack: nodes have their own watch, so pods may arrive before."""
        name = f"large-in-{rack}"
        self.scenario.create_pod(name, cpu="9", nodeSelector={self.key: rack})
        self.scenario.wait_refused(name, "Insufficient cpu")

    def annotate(self, group: str, **said: str) -> None:
        path = f"{GROUPS}/namespaces/{self.scenario.namespace}/podgroups/{group}"
        self.scenario.plane.request("PATCH", path, {"metadata": {"annotations": _annotations(said)}})

    def gang(self, name: str, size: int, **said: str) -> list[str]:
        """Create a gang. Its group has the annotations from the start: pods may arrive before a later change of it."""
        metadata = {"name": name, "namespace": self.scenario.namespace, "annotations": _annotations(said)}
        self.scenario.plane.create({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
                                    "metadata": metadata,
                                    "spec": {"schedulingPolicy": {"gang": {"minCount": size}}}})  # fmt: skip
        members = [f"{name}-{number}" for number in range(size)]
        for member in members:
            self.scenario.create_pod(member, group=name)
        return members

    def of(self, *pods: str) -> Counter[str]:
        """Wait until all are bound; return how many are in each rack."""
        return Counter(self.rack_of[node] for node in self.scenario.wait_bound(*pods).values())


def held(scenario: Scenario, pod: str) -> str:
    """Return the allocations in a pod's record."""
    record: str = scenario.pod(pod)["metadata"]["annotations"][f"{PREFIX}held"]
    assert "rack" not in json.dumps(json.loads(record)["plugins"]["fluence"])
    return record


def agrees(scenario: Scenario, scheduler: SchedulerProcess) -> None:
    """Wait until graph and cluster match, and no pod's allocation is missing."""

    def agree() -> bool:
        off = ("fluence_missing_parts", "fluence_graph_drift_pods")
        return not sum(count for name, count in scheduler.metrics().items() if name.startswith(off))

    scenario.until("graph and cluster to agree", agree)


def test_gangs_stay_within_a_rack_over_moved_nodes_and_restarts(scenario: Scenario) -> None:
    racks = Racks(scenario)
    moving = racks.add_node("n1", "r1", cpu="3")
    for short, rack, cpu in (("n2", "r1", "3"), ("n3", "r2", "3"), ("n4", "r2", "1")):
        racks.add_node(short, rack, cpu=cpu)
    scheduler = racks.start()
    first = racks.gang("first", 5, within="rack")
    assert racks.of(*first) == {"r1": 5}
    records = {pod: held(scenario, pod) for pod in first}
    second = racks.gang("second", 5, within="rack")
    why = (
        "no rack has room for 5 pods; in rack r2, 4 of 5 pods fit: 5 pods request 5 cores, and 2 candidate nodes have "
        "4 even when empty"
    )
    scenario.wait_refused(second[0], why)

    racks.label(moving, "r3")  # running pods keep it
    racks.pass_label("r3")
    third = racks.gang("third", 5, within="rack")
    scenario.wait_refused(third[0], why)
    scenario.create_pod("first-5", group="first")
    scenario.wait_refused("first-5", "the group must stay within one rack, but its pods are in several: ")
    agrees(scenario, scheduler)
    racks.label(moving, "r1")
    assert racks.of("first-5") == {"r1": 1}

    scenario.retire(scheduler)
    successor = racks.start()
    agrees(scenario, successor)
    assert {pod: held(scenario, pod) for pod in first} == records
    scenario.create_pod("first-6", group="first")
    scenario.wait_refused("first-6")
    scenario.end("first-0")
    assert racks.of("first-6") == {"r1": 1}
    agrees(scenario, successor)


def test_a_group_is_spread_and_a_label_that_changes_lets_a_gang_start(
    scenario: Scenario,
) -> None:
    racks = Racks(scenario)
    for number in range(1, 4):
        racks.add_node(f"n{number}", f"r{number}", cpu="8")
    racks.start()
    spread = racks.gang("spread", 6, spread_over="rack=3")
    assert racks.of(*spread) == {"r1": 2, "r2": 2, "r3": 2}
    late = racks.gang("late", 8, within="rack")
    scenario.wait_refused(
        late[0],
        "no rack has room for 8 pods; in rack r1, 6 of 8 pods fit: 8 pods request 8 cores, and the only candidate node "
        "has 6 of 8 free",
    )
    racks.label(f"{scenario.namespace}-n2", "r1")
    assert racks.of(*late) == {"r1": 8}
    unknown = racks.gang("unknown", 2, within="row")
    scenario.wait_refused(unknown[0], "unknown level 'row'; known levels: rack")
    racks.annotate("unknown", within="rack")
    (rack,) = racks.of(*unknown)
    assert rack in ("r1", "r3")
