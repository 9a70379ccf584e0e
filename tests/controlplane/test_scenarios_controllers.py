"""`fluence run` and other changes of pods in Kubernetes: Jobs, gates, grace periods, recreated groups and nodes."""

from __future__ import annotations

from http import HTTPStatus

from .invariants import Manifest, condition, group_name, is_bound, plan_of
from .scenarios_world import Scenario, pod_spec


def _create_job(scenario: Scenario, name: str, pods: int) -> None:
    """Create an Indexed Job for which the Job controller creates a gang."""
    template = {"spec": pod_spec(device=True) | {"restartPolicy": "Never"}}
    spec = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "template": template}
    scenario.plane.create({"apiVersion": "batch/v1", "kind": "Job", "spec": spec,
                           "metadata": {"name": name, "namespace": scenario.namespace}})  # fmt: skip


def _pods_of(scenario: Scenario, job: str) -> list[Manifest]:
    return [pod for pod in scenario.pods() if pod["metadata"]["labels"].get("job-name") == job]


def test_a_job_is_bound_whole_by_the_group_that_its_controller_made(scenario: Scenario) -> None:
    scenario.add_node(cpu=3, devices=3)
    scenario.run()
    for job in ("first", "second"):
        _create_job(scenario, job, 3)
        scenario.until(f"the pods of job {job}", lambda job=job: len(_pods_of(scenario, job)) == 3)  # type: ignore[misc]
    group = group_name(_pods_of(scenario, "first")[0])
    assert group is not None, "the Job controller is to make a PodGroup"
    scenario.wait_whole(group, 3)
    assert plan_of(scenario.group(group)) is not None
    (late,) = {group_name(pod) for pod in _pods_of(scenario, "second")}
    assert late is not None
    scenario.wait_tries(1)
    assert scenario.places(late) == {}
    scenario.finish(_pods_of(scenario, "first"))
    scenario.wait_whole(late, 3)
    job = f"/apis/batch/v1/namespaces/{scenario.namespace}/jobs/first"
    scenario.until("the Job's end", lambda: condition(scenario.plane.request("GET", job)[1], "Complete"))
    scenario.check(late)


def test_a_gang_with_a_gated_pod_waits_until_the_gate_is_open(scenario: Scenario) -> None:
    scenario.add_node(cpu=2, devices=0)
    scenario.run()
    scenario.create_group("gang", 2)
    scenario.create_pod("gang-0", group="gang")
    scenario.create_pod("gang-1", group="gang", schedulingGates=[{"name": "tests/gate"}])
    scenario.wait_refused("gang-0")
    assert scenario.places("gang") == {}
    said = condition(scenario.pod("gang-1"), "PodScheduled")
    assert said is not None
    assert said["reason"] == "SchedulingGated", "the API server's own word stays"
    status, answer = scenario.plane.request("PATCH", f"{scenario._pods}/gang-1", {"spec": {"schedulingGates": None}})
    assert status == HTTPStatus.OK, answer
    scenario.wait_whole("gang", 2)
    scenario.check("gang")


def test_a_pod_that_is_still_ending_keeps_what_it_has(scenario: Scenario) -> None:
    scenario.add_node(cpu=1, devices=1)
    scheduler = scenario.run()
    scenario.create_pod("first", device=True, terminationGracePeriodSeconds=600)
    scenario.wait_bound("first")
    scenario.create_pod("second", device=True)
    scenario.wait_refused("second")
    scenario.plane.request("DELETE", f"{scenario._pods}/first")
    assert "deletionTimestamp" in scenario.pod("first")["metadata"]
    scenario.wait_tries(2)
    assert scenario.node_of("second") is None
    assert scheduler.metrics()["fluence_held_pods"] == 1
    scenario.delete_pod("first")
    scenario.wait_bound("second")
    scenario.check()


def test_a_group_that_is_made_anew_under_its_name_starts_on_its_own(scenario: Scenario) -> None:
    scenario.add_node(cpu=2, devices=2)
    scenario.run()
    scenario.create_gang("gang", device=True)
    scenario.wait_whole("gang", 2)
    first = scenario.group("gang")["metadata"]["uid"]
    for number in range(2):
        scenario.delete_pod(f"gang-{number}")
    scenario.plane.request("DELETE", f"{scenario._groups}/gang")
    scenario.until("the end of the group", lambda: scenario.group("gang").get("code") == HTTPStatus.NOT_FOUND)
    scenario.create_gang("gang", device=True)
    scenario.wait_whole("gang", 2)
    assert scenario.group("gang")["metadata"]["uid"] != first
    scenario.check("gang")


def test_a_node_that_is_made_anew_under_its_name_is_as_full_as_before(scenario: Scenario) -> None:
    node = scenario.add_node(cpu=2, devices=2)
    scheduler = scenario.run()
    scenario.create_gang("gang", device=True)
    scenario.wait_whole("gang", 2)
    places = scenario.places("gang")
    scenario.plane.request("DELETE", f"/api/v1/nodes/{node}")
    scenario.until("the loss", lambda: scheduler.metrics()["fluence_missing_parts"] > 0)
    scenario.create_pod("late", device=True)
    scenario.plane.new_node(node, cpu="2", **{"fluxion.flux-framework.org/qpu": "2"})
    scenario.until("the node's return", lambda: scheduler.metrics()["fluence_missing_parts"] == 0)
    scenario.wait_refused("late", "Insufficient cpu")
    assert scenario.places("gang") == places
    scenario.check("gang")


def test_a_deployment_of_a_gang_grows_and_shrinks(scenario: Scenario) -> None:
    scenario.add_node(cpu=3, devices=0)
    scenario.run()
    scenario.create_group("gang", 2)
    scenario.deploy("gang", 2)
    scenario.wait_whole("gang", 2)
    path = f"/apis/apps/v1/namespaces/{scenario.namespace}/deployments/gang"
    scenario.plane.request("PATCH", path, {"spec": {"replicas": 4}})
    scenario.wait_members("gang", 4)
    scenario.wait_whole("gang", 3)
    (left,) = [pod["metadata"]["name"] for pod in scenario.members("gang") if not is_bound(pod)]
    scenario.wait_refused(left)
    said = condition(scenario.group("gang"), "PodGroupScheduled")
    assert said is not None
    assert said["status"] == "True", "the gang runs, whatever waits besides"
    scenario.plane.request("PATCH", path, {"spec": {"replicas": 2}})
    scenario.wait_members("gang", 2)
    assert len(scenario.places("gang")) == 2
    scenario.check()
