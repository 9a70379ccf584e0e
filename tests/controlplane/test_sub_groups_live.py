"""`fluence run` and gangs with minimum counts of sub-groups: a leader and workers, and elastic gangs that grow."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest

from .invariants import SUB_GROUP, SUB_GROUPS, condition
from .scenarios_world import Scenario, pod_spec
from .scheduler_process import UNTIL_HELPED

WITHOUT_MATCHER = {"profiles": [{"schedulerName": "fluence", "plugins": [{"name": "fluence", "enabled": False}]}]}
TIMEOUT = 2.0
"""Seconds for which a gang may be bound in part in these tests."""


def create_crew(scenario: Scenario, minima: str, minimum: int, **counts: int) -> None:
    """Create the gang `crew` with so many pods of each sub-group, `<sub-group>-0` and so on."""
    scenario.plane.create({
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
        "metadata": {"name": "crew", "namespace": scenario.namespace, "annotations": {SUB_GROUPS: minima}},
        "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}},
    })  # fmt: skip
    for name, count in counts.items():
        for number in range(count):
            create_member(scenario, f"{name}-{number}", name)


def create_member(scenario: Scenario, name: str, sub_group: str) -> None:
    metadata: dict[str, Any] = {"name": name, "namespace": scenario.namespace, "labels": {SUB_GROUP: sub_group}}
    scenario.plane.create({"apiVersion": "v1", "kind": "Pod", "spec": pod_spec("crew"), "metadata": metadata})


def says(scenario: Scenario, status: str) -> str:
    """Wait for the PodGroup's condition with this status; return its message."""

    def reported() -> str | None:
        said = condition(scenario.group("crew"), "PodGroupScheduled")
        return str(said["message"]) if said is not None and said["status"] == status else None

    return scenario.until(f"a PodGroup that is {status}", reported)


@pytest.mark.parametrize("placer", ["core", "matcher"])
def test_leader_and_workers_start_when_there_is_room_for_all_needed(scenario: Scenario, placer: str) -> None:
    scenario.add_node(cpu=3, devices=0)
    create_crew(scenario, "leader=1,worker=3", 2, leader=1, worker=3)
    scenario.run(replace(scenario.settings, more=WITHOUT_MATCHER) if placer == "core" else None)
    scenario.wait_refused("leader-0")
    said = says(scenario, "False")
    assert ("and lacks nodes for 1 pod of sub-group worker" in said) == (placer == "core")
    why = "3 of 4 pods fit: 4 pods request 4 cores, and the only candidate node has 3 even when empty"
    assert (why in said) == (placer == "matcher"), "it places all or none"
    assert scenario.places("crew") == {}, "two workers and the leader would have had room"
    scenario.add_node(cpu=1, devices=0)
    scenario.wait_whole("crew", 4)
    if placer == "matcher":
        scenario.check("crew")


def test_a_gang_that_lacks_pods_of_a_sub_group_is_told_which_and_starts_when_they_come(scenario: Scenario) -> None:
    scenario.add_node(cpu=6, devices=0)
    create_crew(scenario, "leader=1,worker=3", 2, leader=2, worker=2)
    scenario.run(replace(scenario.settings, more=UNTIL_HELPED))
    said = scenario.wait_refused("worker-0", "sub-group")
    assert said.endswith("/crew needs 3 pods of sub-group worker to start and has 2")
    assert scenario.places("crew") == {}
    create_member(scenario, "worker-2", "worker")
    scenario.wait_whole("crew", 5)
    scenario.check("crew")


def test_an_annotation_that_names_no_sub_groups_is_refused_until_it_is_fixed(scenario: Scenario) -> None:
    scenario.add_node(cpu=6, devices=0)
    create_crew(scenario, "worker=many", 1, worker=1)
    scenario.run(replace(scenario.settings, more=UNTIL_HELPED))
    said = scenario.wait_refused("worker-0", "sub-group")
    entry = "has the invalid entry 'worker=many'; write comma-separated name=minimum pairs"
    assert f"/crew: metadata.annotations[{SUB_GROUPS}] {entry}" in said
    path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{scenario.namespace}/podgroups/crew"
    fixed = {"metadata": {"annotations": {SUB_GROUPS: "worker=1"}}}
    status, answer = scenario.plane.request("PATCH", path, fixed)
    assert status == HTTPStatus.OK, answer
    scenario.wait_whole("crew", 1)
    scenario.check()


def test_after_a_crash_a_gang_without_its_leader_has_not_started_and_becomes_whole(scenario: Scenario) -> None:
    """The number of bound pods suffices, but the leader is missing, because its bindings were rejected."""
    scenario.add_node(cpu=6, devices=0)
    create_crew(scenario, "leader=1,worker=2", 3, leader=1, worker=4)
    scheduler = scenario.new_scheduler()
    scenario.keep_alive(False)
    scenario.refuse_binds_of("leader-0")
    scheduler.start()
    scenario.wait_bound(*(f"worker-{number}" for number in range(4)))
    scheduler.kill()
    workers = scenario.places("crew")
    assert "leader-0" not in workers
    said = condition(scenario.group("crew"), "PodGroupScheduled")
    assert said is None or said["status"] == "False", "the number alone does not make it whole"
    scenario.run()
    scenario.wait_whole("crew", 5)
    assert workers.items() < scenario.places("crew").items()
    scenario.check()


def test_workers_whose_leader_cannot_be_bound_in_time_are_evicted(scenario: Scenario) -> None:
    scenario.add_node(cpu=6, devices=0)
    scheduler = scenario.new_scheduler(replace(scenario.settings, gang_bind_timeout_seconds=TIMEOUT))
    create_crew(scenario, "leader=1,worker=2", 3, leader=1, worker=3)
    scenario.refuse_binds_of("leader-0")
    scheduler.start()
    scenario.wait_bound(*(f"worker-{number}" for number in range(3)))
    scenario.until("the end of the workers", lambda: len(scenario.members("crew")) == 1)

    def reported() -> str | None:
        notes = (one["note"] for one in scenario.events("crew", "FailedScheduling"))
        return next((note for note in notes if "evicts the bound pods" in note), None)

    assert (
        "3 pods were bound within 2 s, but the gang needs at least 3 and lacks 1 pod of sub-group leader"
        in scenario.until("a word", reported)
    )
    scenario.check()


def test_an_elastic_gang_starts_with_min_count_and_takes_the_rest_one_by_one_as_room_comes(scenario: Scenario) -> None:
    scenario.add_node(cpu=1, devices=0)
    scenario.run()
    scenario.create_group("gang", 2)
    scenario.deploy("gang", 4)
    for pod in scenario.wait_members("gang", 4):
        scenario.wait_refused(pod["metadata"]["name"])
    assert scenario.places("gang") == {}
    for size in (2, 3, 4):
        before = scenario.places("gang")
        scenario.add_node(cpu=1, devices=0)
        scenario.wait_whole("gang", size)
        assert len(scenario.places("gang")) == size
        assert before.items() <= scenario.places("gang").items(), "who runs stays"
    scenario.check()
