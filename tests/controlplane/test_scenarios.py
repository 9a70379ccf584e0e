"""`fluence run` among the real controllers: gangs, devices, the end of pods, and reports for users."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import yaml

from .faults.world import DEVICE, SIZE
from .invariants import condition, held_jobs, is_bound, plan_of
from .scenarios_world import EXAMPLES, Scenario

_DEVICES = {"aurora": {"region": "us-east-1", "connectivity": "all-to-all"},
            "borealis": {"region": "eu-north-1", "connectivity": "grid"}}  # fmt: skip


# ---------------------------------------------------------------------- the examples


def test_the_example_of_a_gang_is_bound_whole(scenario: Scenario) -> None:
    scenario.add_node(cpu=2, devices=0)
    scenario.run()
    scenario.apply(EXAMPLES / "podgroup.yaml")
    scenario.wait_whole("training", 2)
    for pod, node in scenario.places("training").items():
        event = scenario.wait_event(pod, "Scheduled")
        assert event["note"] == f"Successfully assigned {scenario.namespace}/{pod} to {node}"
        assert (event["type"], event["action"]) == ("Normal", "Binding")
        assert event["reportingController"] == "fluence"
    scenario.check("training")


def test_the_example_of_a_quantum_pod_gets_its_backend_and_attributes(scenario: Scenario) -> None:
    resources = (EXAMPLES / "01-quickstart" / "resources.yaml").read_text()
    node = scenario.add_node(cpu=2, devices=0)
    scenario.run(replace(scenario.settings, resources=resources))
    scenario.apply(EXAMPLES / "quantum-pod.yaml")
    assert DEVICE in scenario.wait_refused("sampler")
    advertised = {"status": {"capacity": {DEVICE: "1"}, "allocatable": {DEVICE: "1"}}}
    scenario.plane.request("PATCH", f"/api/v1/nodes/{node}/status", advertised)
    scenario.wait_bound("sampler")
    sampler = scenario.pod("sampler")
    ours = {name.partition("/")[2]: value for name, value in sampler["metadata"]["annotations"].items()
            if name.startswith("fluence.flux-framework.org/")}  # fmt: skip
    backend = ours["backend"]
    assert {key: ours[f"attr-{key}"] for key in ("region", "connectivity")} == _DEVICES[backend]
    jobs = held_jobs(sampler)
    assert ours["jobid"].split(",") == sorted(jobs)
    assert [path.split("/")[2] for part in jobs.values() for path in part.get("devices", [])] == [backend]
    scenario.check()


# ---------------------------------------------------------------------- no room


def test_a_gang_that_does_not_fit_waits_whole_and_is_told_why_until_a_node_comes(scenario: Scenario) -> None:
    for _ in range(2):
        scenario.add_node(cpu=1, devices=0)
    scenario.create_gang("gang", 3)  # before the scheduler, which reports a gang that is incomplete for a second
    scenario.run()
    why = "2 of 3 pods fit: 3 pods request 3 cores, and 2 candidate nodes have 2 even when empty"
    for number in range(3):
        scenario.wait_refused(f"gang-{number}", why)
        event = scenario.wait_event(f"gang-{number}", "FailedScheduling")
        assert (event["type"], event["action"]) == ("Warning", "Scheduling")
        assert why in event["note"]
    said = scenario.until("the group's condition", lambda: condition(scenario.group("gang"), "PodGroupScheduled"))
    assert (said["status"], said["reason"]) == ("False", "Unschedulable")
    assert why in said["message"]
    assert why in scenario.wait_event("gang", "FailedScheduling")["note"]
    scenario.wait_tries(3)
    assert scenario.places("gang") == {}
    assert plan_of(scenario.group("gang")) is None

    scenario.add_node(cpu=1, devices=0)
    scenario.wait_whole("gang", 3)
    scenario.check("gang")


def test_a_gang_that_waits_long_raises_no_storm(scenario: Scenario) -> None:
    scenario.add_node(cpu=1, devices=0)
    scenario.create_gang("gang", 2)  # before the scheduler, which reports a gang that is incomplete for a second
    scenario.run()
    scenario.wait_event("gang-0", "FailedScheduling")
    scenario.wait_event("gang-1", "FailedScheduling")
    scenario.wait_event("gang", "FailedScheduling")
    scenario.wait_tries(5)
    for name in ("gang", "gang-0", "gang-1"):
        assert len(scenario.events(name, "FailedScheduling")) == 1
        assert len(scenario.writes("PATCH", f"/{name}/status")) == 1
    events = [write for write in scenario.proxies[0].writes if "/events" in write.path]
    assert len(events) <= 6, "each is said once, and once that it goes on"
    scenario.check()


# ---------------------------------------------------------------------- ends


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_what_a_gang_held_is_free_when_its_pods_have_ended(scenario: Scenario, phase: str) -> None:
    scenario.add_room()
    scenario.run()
    scenario.create_gang("first", SIZE, device=True)
    scenario.wait_whole("first")
    scenario.create_gang("second", SIZE, device=True)
    scenario.wait_refused("second-0")
    for number in range(SIZE - 1):
        scenario.end(f"first-{number}", phase)
    scenario.wait_tries(1)
    assert scenario.places("second") == {}
    assert plan_of(scenario.group("first")) is not None, "one of its pods still runs"
    scenario.end(f"first-{SIZE - 1}", phase)
    scenario.wait_whole("second")
    scenario.wait_without_plan("first")
    scenario.check("second")


def test_what_a_gang_held_is_free_when_its_pods_are_deleted(scenario: Scenario) -> None:
    scenario.add_room()
    scenario.run()
    scenario.create_gang("first", SIZE, device=True)
    scenario.wait_whole("first")
    scenario.create_gang("second", SIZE, device=True)
    scenario.wait_refused("second-0")
    for number in range(SIZE):
        scenario.delete_pod(f"first-{number}")
    scenario.wait_whole("second")
    scenario.wait_without_plan("first")
    scenario.check("second")


def test_a_group_that_is_deleted_frees_nothing_that_its_pods_use(scenario: Scenario) -> None:
    scenario.add_node(cpu=2, devices=2)
    scenario.run()
    scenario.create_gang("first", device=True)
    scenario.wait_whole("first", 2)
    scenario.plane.request("DELETE", f"{scenario._groups}/first")
    assert "deletionTimestamp" in scenario.group("first")["metadata"], "its pods are to protect it"
    scenario.create_gang("second", device=True)
    scenario.wait_refused("second-0")
    scenario.wait_tries(2)
    assert len(scenario.places("first")) == 2
    assert scenario.places("second") == {}
    scenario.check("first")
    for number in range(2):
        scenario.delete_pod(f"first-{number}")
    scenario.wait_whole("second", 2)
    scenario.until("the end of the group", lambda: scenario.group("first").get("code") == 404)
    scenario.check("second")


def test_no_pod_is_bound_into_a_group_that_is_being_deleted(scenario: Scenario) -> None:
    scenario.add_node(cpu=4, devices=0)
    scenario.run()
    scenario.create_gang("gang")
    scenario.wait_whole("gang", 2)
    scenario.plane.request("DELETE", f"{scenario._groups}/gang")
    scenario.create_gang("after", 1)
    scenario.wait_whole("after", 1)  # groups have their own watch: the deletion, too, has arrived
    scenario.create_pod("late", group="gang")
    scenario.wait_refused("late")
    scenario.wait_tries(2)
    assert scenario.node_of("late") is None
    scenario.check()


# ---------------------------------------------------------------------- groups that are not complete


def test_a_pod_in_a_missing_group_is_told_so_and_bound_when_the_group_comes(scenario: Scenario) -> None:
    scenario.add_node(cpu=2, devices=0)
    scenario.run()
    scenario.create_pod("gang-0", group="gang")
    assert "gang" in scenario.wait_refused("gang-0")
    assert "gang" in scenario.wait_event("gang-0", "FailedScheduling")["note"]
    scenario.create_pod("gang-1", group="gang")
    scenario.create_group("gang", 2)
    scenario.wait_whole("gang", 2)
    scenario.check("gang")


def test_an_incomplete_gang_is_told_so_after_a_second(scenario: Scenario) -> None:
    scenario.add_node(cpu=2, devices=0)
    scenario.run()
    scenario.create_group("gang", 2)
    scenario.create_pod("gang-0", group="gang")
    scenario.wait_refused("gang-0")
    scenario.wait_event("gang-0", "FailedScheduling")
    said = scenario.until("the group's condition", lambda: condition(scenario.group("gang"), "PodGroupScheduled"))
    assert (said["status"], said["reason"]) == ("False", "Unschedulable")
    scenario.create_pod("gang-1", group="gang")
    scenario.wait_whole("gang", 2)
    scenario.check("gang")


def test_a_gang_that_comes_in_time_is_never_told_that_it_is_incomplete(scenario: Scenario) -> None:
    scenario.add_node(cpu=20, devices=0)
    scenario.run()
    for number in range(10):  # the machine may be too slow for that second, but not always
        name = f"gang-{number}"
        tries = scenario.tries()
        scenario.create_group(name, 2)
        began = time.monotonic()
        scenario.create_pod(f"{name}-0", group=name)
        scenario.until("a try", lambda tries=tries: scenario.tries() > tries)  # type: ignore[misc]
        scenario.create_pod(f"{name}-1", group=name)
        in_time = time.monotonic() - began < 0.7
        scenario.wait_whole(name, 2)
        if in_time:
            break
    assert in_time, "no gang was created within a second"
    scenario.wait_event(f"{name}-1", "Scheduled")
    assert not [scenario.events(each, "FailedScheduling") for each in (name, f"{name}-0", f"{name}-1")
                if scenario.events(each, "FailedScheduling")]  # fmt: skip
    scenario.check(name)


# ---------------------------------------------------------------------- endpoints


def test_the_running_process_answers_probes_and_counts_what_happened(scenario: Scenario) -> None:
    scenario.add_node(cpu=3, devices=1)
    scheduler = scenario.run()
    scenario.create_gang("gang")
    scenario.wait_whole("gang", 2)
    scenario.create_pod("single", device=True)
    scenario.wait_bound("single")
    scenario.create_pod("late")
    scenario.wait_refused("late", "Insufficient cpu")
    assert scheduler.get("/healthz") == (200, "ok")
    assert scheduler.get("/readyz") == (200, "ok")
    status, said = scheduler.get("/readyz?verbose")
    assert status == 200
    assert all(f"[+]{check} ok" in said for check in ("leading", "synced", "recovered"))
    scheduled = 'fluence_pods_total{result="scheduled"}'
    scenario.until("the response to the last bind", lambda: scheduler.metrics()[scheduled] >= 3)
    seen = scheduler.metrics()
    assert seen[scheduled] == 3
    assert seen['fluence_groups_total{result="scheduled"}'] == 2
    assert seen['fluence_groups_total{result="unschedulable"}'] >= 1
    assert sum(seen[f'fluence_pending_pods{{state="{state}"}}'] for state in ("due", "backoff", "unschedulable")) == 1
    assert seen["fluence_held_pods"] == 3
    assert seen["fluence_leader"] == 1
    assert seen["fluence_watch_lag_seconds_count"] == 3
    assert seen['fluence_stage_seconds_count{stage="plan"}'] == 1
    assert seen['fluence_stage_seconds_count{stage="bind"}'] >= 2
    assert sum(value for name, value in seen.items() if name.startswith("fluence_bind_errors_total")) == 0
    assert seen['fluence_cycles_total{result="error"}'] == 0
    scenario.check("gang")


def test_nothing_that_is_secret_is_shown(scenario: Scenario) -> None:
    scenario.add_node(cpu=1, devices=0)
    scheduler = scenario.run()
    scenario.create_pod("single")
    scenario.wait_bound("single")
    user = yaml.safe_load(scheduler._kubeconfig.read_text())["users"][0]["user"]
    token = scenario.plane.token()
    shown = [scheduler.get(path, token)[1] for path in ("/configz", "/metrics", "/readyz?verbose")]
    assert '"reconcileSeconds": 3600.0' in shown[0]
    assert scheduler.terminate().status == 0
    assert scheduler.log.read_text()
    for secret in (user["token"], token):
        assert secret not in "".join([*shown, scheduler.log.read_text()])
    assert is_bound(scenario.pod("single"))
