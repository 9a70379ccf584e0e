"""`fluence run` with the actions backfill and stale-gang-eviction."""

from __future__ import annotations

from dataclasses import replace

from .scenarios_world import Scenario

DURATION = "fluence.flux-framework.org/duration"
FILLING = {"actions": ["allocate", "preempt", "backfill"]}
EVICTING = {"actions": ["allocate", "preempt", "stale-gang-eviction"], "staleGangSeconds": 2}


def _lasting(seconds: int) -> dict[str, str]:
    return {DURATION: f"{seconds}s"}


def test_nodes_are_kept_for_a_gang_and_used_by_what_ends_before_it_can_start(scenario: Scenario) -> None:
    for _ in range(2):
        scenario.add_node(cpu=4, devices=0)
    scheduler = scenario.run(replace(scenario.settings, more=FILLING))
    scenario.create_pod("first", cpu="4", annotations=_lasting(3600))
    scenario.wait_bound("first")
    scenario.create_gang("gang", 2, cpu="4")
    assert "nodes are reserved for the gang" in scenario.wait_refused("gang-0", "nodes are reserved")

    def kept() -> set[str]:
        return {scenario.pod(f"gang-{number}")["status"].get("nominatedNodeName") for number in range(2)}

    scenario.until("a node for each member", lambda: kept() == set(scenario.nodes))
    scenario.create_pod("endless", cpu="1")
    scenario.create_pod("long", cpu="1", annotations=_lasting(7200))
    scenario.create_pod("short", cpu="1", annotations=_lasting(600))
    scenario.wait_bound("short")
    scenario.wait_refused("endless")
    scenario.wait_refused("long")
    reported = scheduler.metrics()
    assert (reported["fluence_backfilled_pods_total"], reported["fluence_reserved_groups"]) == (1, 1)
    scenario.end("short")
    scenario.end("first")
    scenario.wait_whole("gang", 2)
    scenario.wait_refused("endless")


def test_what_is_left_of_a_gang_that_lost_a_member_ends_and_the_gang_starts_anew(scenario: Scenario) -> None:
    for _ in range(3):
        scenario.add_node(cpu=4, devices=0)
    scenario.run(replace(scenario.settings, more=EVICTING))
    scenario.create_gang("gang", 3, cpu="4")
    scenario.wait_whole("gang", 3)
    scenario.cordon(scenario.node_of("gang-1") or "")
    scenario.end("gang-1", "Failed")
    scenario.until("the end of the others", lambda: {one["metadata"]["name"] for one in scenario.pods()} == {"gang-1"})
    scenario.delete_pod("gang-1")
    for node in scenario.nodes:
        scenario.cordon(node, wanted=False)
    for number in range(3):
        scenario.create_pod(f"again-{number}", "gang", cpu="4")
    scenario.wait_bound("again-0", "again-1", "again-2")


def test_members_that_succeed_make_no_gang_stale(scenario: Scenario) -> None:
    for _ in range(2):
        scenario.add_node(cpu=4, devices=0)
    scenario.run(replace(scenario.settings, more=EVICTING))
    scenario.create_gang("done", 2, cpu="2")
    scenario.create_gang("broken", 2, cpu="2")
    scenario.wait_whole("done", 2)
    scenario.wait_whole("broken", 2)
    scenario.end("done-0")
    scenario.end("broken-0", "Failed")
    scenario.until(
        "the end of the broken one", lambda: "broken-1" not in {p["metadata"]["name"] for p in scenario.pods()}
    )
    assert scenario.node_of("done-1")
