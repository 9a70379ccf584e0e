"""`fluence run` in a cluster with other clients: kube-scheduler, administrators, and changing nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .invariants import HELD, annotation, condition, held_jobs
from .scenarios_world import Scenario

POOL = "tests/pool"
KUBE: dict[str, Any] = {"schedulerName": "default-scheduler"}


# ---------------------------------------------------------------------- kube-scheduler


def test_what_kube_scheduler_binds_is_counted(scenario: Scenario) -> None:
    node = scenario.add_node(cpu=2, devices=0)
    scenario.run()
    scenario.create_pod("theirs", cpu="1500m", **KUBE)
    assert scenario.wait_bound("theirs") == {"theirs": node}
    scenario.create_pod("ours")
    scenario.wait_refused("ours", "Insufficient cpu")
    assert "Insufficient cpu" in scenario.wait_event("ours", "FailedScheduling")["note"]
    scenario.wait_tries(2)
    assert scenario.node_of("ours") is None
    scenario.end("theirs")
    scenario.wait_bound("ours")
    scenario.check()


def test_a_gang_fills_exactly_what_kube_scheduler_left(scenario: Scenario) -> None:
    for _ in range(3):
        scenario.add_node(cpu=2, devices=0)
    for number in range(4):
        scenario.create_pod(f"theirs-{number}", **KUBE)
    theirs = scenario.wait_bound(*(f"theirs-{number}" for number in range(4)))
    scenario.run()
    scenario.create_gang("gang", 2)
    scenario.wait_whole("gang", 2)
    used = sorted([*theirs.values(), *scenario.places("gang").values()])
    assert used == sorted(scenario.nodes * 2)
    scenario.check("gang")


def test_two_schedulers_that_are_busy_at_once_overcommit_no_node(scenario: Scenario) -> None:
    for pool in ("theirs", "ours"):
        for _ in range(2):
            scenario.add_node(cpu=4, devices=0, labels={POOL: pool})
    scenario.run()
    for number in range(9):
        scenario.create_pod(f"theirs-{number}", nodeSelector={POOL: "theirs"}, **KUBE)
        scenario.create_pod(f"ours-{number}", nodeSelector={POOL: "ours"})

    def evaluated() -> bool:
        said = [condition(pod, "PodScheduled") for pod in scenario.pods()]
        return len([one for one in said if one]) == 18

    scenario.until("a word on every pod", evaluated)
    pods = scenario.pods()
    for owner in ("theirs", "ours"):
        own = [pod for pod in pods if pod["metadata"]["name"].startswith(owner)]
        nodes = sorted(pod["spec"]["nodeName"] for pod in own if "nodeName" in pod["spec"])
        assert len(nodes) == 8
        assert [nodes.count(node) for node in sorted(set(nodes))] == [4, 4]
    scenario.check()


# ---------------------------------------------------------------------- bound by others


def test_pods_that_others_bound_count_toward_a_gang(scenario: Scenario) -> None:
    for _ in range(3):
        scenario.add_node(cpu=1, devices=0)
    scenario.run()
    scenario.create_group("gang", 3)
    for number in range(2):
        scenario.create_pod(f"gang-{number}", group="gang")
    scenario.wait_refused("gang-0")
    scenario.bind_as_admin("gang-0", scenario.nodes[1])
    scenario.create_pod("gang-2", group="gang")
    scenario.wait_whole("gang", 3)
    places = scenario.places("gang")
    assert places["gang-0"] == scenario.nodes[1]
    assert sorted(places.values()) == scenario.nodes
    scenario.check()


def test_a_member_that_others_bound_is_enough_for_the_rest_to_go_on(scenario: Scenario) -> None:
    scenario.add_node(cpu=4, devices=0)
    scenario.run()
    scenario.create_group("gang", 2)
    scenario.create_pod("gang-0", group="gang", schedulerName="none")
    scenario.create_pod("gang-1", group="gang")
    scenario.wait_refused("gang-1")
    scenario.bind_as_admin("gang-0", scenario.nodes[0])
    scenario.wait_whole("gang", 2)
    scenario.check()


def test_a_node_that_others_filled_takes_no_gang(scenario: Scenario) -> None:
    full, free = scenario.add_node(cpu=2, devices=0), scenario.add_node(cpu=2, devices=0)
    scenario.run()
    scenario.occupy("theirs", full, cpu="1")
    scenario.create_gang("gang", 3)
    scenario.wait_whole("gang", 3)
    assert sorted(scenario.places("gang").values()) == [full, free, free]
    scenario.create_pod("late")
    scenario.wait_refused("late", "Insufficient cpu")
    scenario.check("gang")


# ---------------------------------------------------------------------- records that are not believed


def _devices(scenario: Scenario, pod: str) -> list[str]:
    """Return the allocations in a pod's own record."""
    return [path for part in held_jobs(scenario.pod(pod)).values() for path in part.get("devices", [])]


def test_a_record_that_was_copied_from_another_pod_is_ignored_and_told_of(scenario: Scenario) -> None:
    node = scenario.add_node(cpu=4, devices=2)
    scheduler = scenario.run()
    scenario.create_pod("honest", device=True)
    scenario.wait_bound("honest")
    copied = annotation(scenario.pod("honest"), HELD)
    assert copied
    scenario.create_group("waits", 2)  # its other member never exists, so fluence does not bind this pod
    scenario.create_pod("waits-0", group="waits")
    scenario.bind_as_admin("waits-0", node, {HELD: copied})
    event = scenario.wait_event("waits-0", "FluenceRecovery")
    assert "another pod" in event["note"]
    scenario.create_pod("next", device=True)
    scenario.wait_bound("next")
    held = [_devices(scenario, pod) for pod in ("honest", "next")]
    assert list(map(len, held)) == [1, 1]
    assert held[0] != held[1]
    assert scheduler.metrics()["fluence_held_pods"] == 2
    scenario.delete_pod("waits-0")
    scenario.check_places()


@pytest.mark.parametrize("restarted", [False, True], ids=["at-run-time", "at-the-start"])
def test_a_record_that_does_not_fit_is_foreign_load_and_told_of(scenario: Scenario, restarted: bool) -> None:
    node = scenario.add_node(cpu=2, devices=1)
    scheduler = scenario.new_scheduler()
    if not restarted:
        scheduler.start()
        scheduler.wait_ready()
    scenario.create_group("gang", 2)
    forged = scenario.create_pod("forged", group="gang")
    record = {"uid": forged["metadata"]["uid"], "plugins": {"fluence": {"jobs": {"7": {
        "host": node, "cores": [0], "gpus": [40], "memory": 64, "devices": []}}}}}  # fmt: skip
    scenario.bind_as_admin("forged", node, {HELD: json.dumps(record)})
    if restarted:
        scheduler.start()
        scheduler.wait_ready()
    assert "forged" in scenario.wait_event("forged", "FluenceRecovery")["note"]
    scenario.until(
        "foreign load",
        lambda: (
            sum(value for name, value in scheduler.metrics().items() if name.startswith("fluence_foreign_load_hosts"))
            == 1
        ),
    )
    scenario.create_pod("fits")
    scenario.wait_bound("fits")
    scenario.create_pod("late")
    scenario.wait_refused("late", "Insufficient cpu")
    scenario.delete_pod("forged")
    scenario.wait_bound("late")
    scenario.check()


# ---------------------------------------------------------------------- nodes


def test_a_node_that_comes_is_used(scenario: Scenario) -> None:
    scenario.run()
    scenario.create_pod("single")
    scenario.wait_refused("single")
    node = scenario.add_node(cpu=1, devices=0)
    assert scenario.wait_bound("single") == {"single": node}
    scenario.check()


def test_a_node_that_grows_takes_more_and_one_that_shrinks_takes_less(scenario: Scenario) -> None:
    node = scenario.add_node(cpu=1, devices=0)
    scheduler = scenario.run()
    scenario.create_gang("gang", 2)
    scenario.wait_refused("gang-0")
    scenario.resize(node, 3)
    scenario.wait_whole("gang", 2)
    scenario.resize(node, 2)
    scenario.create_pod("large", cpu="9")
    explain, token = f"/explain/{scenario.namespace}/large", scenario.plane.token()
    shrunk = f"9 cpu were free on {node} (0 of 2 now)"
    # Nodes have their own watch: pods may arrive before the change.
    scenario.until("the node's change", lambda: shrunk in scheduler.get(explain, token)[1])
    scenario.create_pod("late")
    scenario.wait_refused("late", "Insufficient cpu")
    scenario.wait_tries(1)
    assert scenario.node_of("late") is None
    scenario.check_places()  # a pod may have the removed core until it is added again
    scenario.resize(node, 3)
    scenario.wait_bound("late")
    scenario.check("gang")


def test_a_node_that_is_cordoned_takes_nothing_new(scenario: Scenario) -> None:
    node = scenario.add_node(cpu=2, devices=0)
    scenario.run()
    scenario.create_pod("first")
    scenario.wait_bound("first")
    scenario.cordon(node)
    scenario.create_pod("large", cpu="9")
    scenario.wait_refused("large", "unschedulable")  # nodes have their own watch: pods may arrive before the change
    scenario.create_pod("second")
    scenario.wait_refused("second", "unschedulable")
    scenario.cordon(node, wanted=False)
    scenario.wait_bound("second")
    assert scenario.node_of("first") == node
    scenario.check()


def test_a_node_that_is_removed_takes_nothing_new(scenario: Scenario) -> None:
    lost = scenario.add_node(cpu=1, devices=1)
    scheduler = scenario.run()
    scenario.create_pod("first", device=True)
    scenario.wait_bound("first")
    vertices = 'fluence_graph_vertices{type="core"}'
    assert scheduler.metrics()[vertices] == 1
    scenario.delete_pod("first")
    scenario.delete_node(lost)
    scenario.until("the end of the node", lambda: not scheduler.metrics().get(vertices))
    scenario.create_pod("second", device=True)
    scenario.wait_refused("second")
    assert scenario.node_of("second") is None
    node = scenario.add_node(cpu=1, devices=1)
    assert scenario.wait_bound("second") == {"second": node}
    scenario.check()
