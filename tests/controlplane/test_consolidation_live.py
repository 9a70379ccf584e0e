"""`fluence run` with the action consolidate; real controllers create the moved pods again."""

from __future__ import annotations

from dataclasses import replace

from .invariants import Manifest, is_bound
from .scenarios_world import Scenario, pod_spec

CONSOLIDATING = {"actions": ["allocate", "preempt", "reclaim", "consolidate"]}


def _deploy(scenario: Scenario, name: str) -> Manifest:
    """Create a Deployment of one pod with two cores; wait until it is bound."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod_spec(cpu="2") | {"terminationGracePeriodSeconds": 600}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    scenario.plane.create({"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec,
                           "metadata": {"name": name, "namespace": scenario.namespace}})  # fmt: skip

    def bound() -> Manifest | None:
        return next(filter(is_bound, _pods_of(scenario, name)), None)

    return scenario.until(f"a node for {name}", bound)


def _pods_of(scenario: Scenario, app: str) -> list[Manifest]:
    return [pod for pod in scenario.pods() if pod["metadata"].get("labels", {}).get("app") == app]


def _leaving(scenario: Scenario, number: int) -> set[str] | None:
    """Wait for so many terminating pods; return their apps."""
    found = {pod["metadata"]["labels"]["app"] for pod in scenario.pods() if "deletionTimestamp" in pod["metadata"]}
    return found if len(found) == number else None


def test_a_gang_runs_where_pods_were_moved_and_these_run_elsewhere(scenario: Scenario) -> None:
    for _ in range(4):
        scenario.add_node(cpu=4, devices=0)
    scheduler = scenario.run(replace(scenario.settings, more=CONSOLIDATING))
    before = {app: _deploy(scenario, app) for app in "abcd"}
    assert {pod["spec"]["nodeName"] for pod in before.values()} == set(scenario.nodes), "empty nodes come first"
    scenario.create_gang("gang", 2, cpu="4")
    moved = scenario.until("the moves", lambda: _leaving(scenario, 2))
    for app in moved:
        name = before[app]["metadata"]["name"]
        assert "so that podgroup" in scenario.wait_event(name, "Moved")["note"]
    scenario.until("what comes in their place", lambda: len(list(filter(is_bound, scenario.pods()))) == 6)
    assert scenario.places("gang") == {}, "its room is not free yet"
    for app in moved:  # as their kubelets would do
        scenario.delete_pod(before[app]["metadata"]["name"])
    scenario.wait_whole("gang", 2)
    assert sorted(scenario.places("gang").values()) == sorted(before[app]["spec"]["nodeName"] for app in moved)
    after = {app: _pods_of(scenario, app) for app in before}
    assert [len(pods) for pods in after.values()] == [1, 1, 1, 1]
    kept = [app for app, (pod,) in after.items() if pod["metadata"]["uid"] == before[app]["metadata"]["uid"]]
    assert set(kept) == before.keys() - moved
    reported = scheduler.metrics()
    assert (reported["fluence_consolidations_total"], reported["fluence_moved_pods_total"]) == (1, 2)
    assert reported["fluence_preemption_victims_total"] == 0
    scenario.check("gang")
