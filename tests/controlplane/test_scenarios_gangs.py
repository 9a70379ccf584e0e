"""`fluence run` and gangs that change or break: replaced pods, failures, rejected bindings, large plans."""

from __future__ import annotations

import json
import random
import string
from collections import Counter
from dataclasses import replace
from typing import Any

from .faults.world import DEVICE
from .invariants import PLAN, Manifest, annotation, attempt_of, condition
from .proxy import Fault
from .scenarios_world import Scenario

TIMEOUT = 2.0
"""Seconds for which a gang may be bound in part in these tests."""
_ANNOTATION_LIMIT = 200 * 1024


# ---------------------------------------------------------------------- replacements


def test_the_replacement_of_a_started_gangs_pod_is_placed_alone(scenario: Scenario) -> None:
    scenario.add_node(cpu=4, devices=0)
    scenario.run()
    scenario.create_group("gang", 2)
    scenario.deploy("gang", 4)
    scenario.wait_whole("gang", 4)
    before = scenario.places("gang")
    gone = min(before)
    scenario.delete_pod(gone)
    scenario.wait_members("gang", 4)
    scenario.wait_whole("gang", 4)
    after = scenario.places("gang")
    assert set(before) - {gone} < set(after), "the others are to stay"
    scenario.check()


def test_a_started_gang_goes_on_below_all_of_its_replacements(scenario: Scenario) -> None:
    """Two of four are replaced, and there is room for one: minCount pods still run, so that one starts alone."""
    node = scenario.add_node(cpu=4, devices=0)
    scenario.run()
    scenario.create_gang("gang", 4, minimum=2)
    scenario.wait_whole("gang", 4)
    for number in range(2):
        scenario.end(f"gang-{number}", "Failed")
    scenario.occupy("theirs", node)
    for number in range(4, 6):
        scenario.create_pod(f"gang-{number}", group="gang")
    bound = scenario.until("one replacement", lambda: {"gang-4", "gang-5"} & set(scenario.places("gang")) or None)
    (left,) = {"gang-4", "gang-5"} - bound
    scenario.wait_refused(left)
    scenario.check()


def test_a_gang_below_its_minimum_again_starts_as_a_gang(scenario: Scenario) -> None:
    """Two of four have failed, and there is room for one of two replacements: neither is bound."""
    node = scenario.add_node(cpu=4, devices=0)
    scenario.run()
    scenario.create_gang("gang", 4)
    scenario.wait_whole("gang", 4)
    for number in range(2):
        scenario.end(f"gang-{number}", "Failed")
    scenario.occupy("theirs", node)
    new = [f"gang-{number}" for number in range(4, 6)]
    for name in new:
        scenario.create_pod(name, group="gang")
    for name in new:
        scenario.wait_refused(name)
    scenario.wait_tries(2)
    assert set(new).isdisjoint(scenario.places("gang"))
    scenario.delete_pod("theirs")
    scenario.wait_bound(*new)
    scenario.wait_whole("gang", 4)
    scenario.check()


# ---------------------------------------------------------------------- bound in part


def test_a_pod_whose_bind_is_refused_is_placed_again_around_the_others(scenario: Scenario) -> None:
    for _ in range(3):
        scenario.add_node(cpu=1, devices=1)
    scheduler = scenario.new_scheduler()
    scenario.create_gang("gang", 3, device=True)
    scenario.refuse_binds_of("gang-1")
    scheduler.start()
    scenario.until("two bound members", lambda: len(scenario.places("gang")) == 2)
    early = scenario.places("gang")
    assert "gang-1" not in early
    scenario.until("another try", lambda: len(scenario.writes("POST", "/gang-1/binding")) > 2)
    scenario.proxies[0].forget()
    scenario.wait_whole("gang", 3)
    assert early.items() < scenario.places("gang").items()
    tries = [write.outcome for write in scenario.writes("POST", "/gang-1/binding")]
    assert tries == ["error"] * (len(tries) - 1) + ["201"]
    assert scheduler.metrics()['fluence_bind_errors_total{code="403"}'] == len(tries) - 1
    assert len(scenario.writes("POST", "/gang-0/binding")) == 1
    scenario.check("gang")


def test_a_gang_that_cannot_be_bound_whole_in_time_is_evicted_and_starts_over(scenario: Scenario) -> None:
    for _ in range(3):
        scenario.add_node(cpu=1, devices=0)
    scheduler = scenario.new_scheduler(replace(scenario.settings, gang_bind_timeout_seconds=TIMEOUT))
    scenario.create_group("gang", 3)
    scenario.deploy("gang", 3)
    refused = sorted(pod["metadata"]["name"] for pod in scenario.wait_members("gang", 3))[0]
    scenario.refuse_binds_of(refused)
    scheduler.start()
    scenario.until("two bound members", lambda: len(scenario.places("gang")) == 2)
    early = scenario.places("gang")
    assert refused not in early
    scenario.until(
        "the end of the bound members",
        lambda: not set(early) & {pod["metadata"]["name"] for pod in scenario.members("gang")},
    )
    tried = scenario.writes("POST", f"/{refused}/binding")
    evictions = [scenario.writes("POST", f"/{pod}/eviction")[0] for pod in early]
    bound = [scenario.writes("POST", f"/{pod}/binding")[0] for pod in early]
    assert len(tried) > 1, "the rest is to be placed again before that"
    assert min(write.seconds for write in evictions) >= max(write.seconds for write in bound) + TIMEOUT
    scenario.proxies[0].forget()
    scenario.wait_whole("gang", 3)
    assert refused in scenario.places("gang")
    assert scheduler.metrics()["fluence_gang_evictions_total"] == 1
    scenario.until(
        "the event",
        lambda: any("evicts the bound pods" in one["note"] for one in scenario.events("gang", "FailedScheduling")),
    )
    scenario.check("gang")


def test_evicted_members_leave_the_gang_whole_unbound_while_it_cannot_start(scenario: Scenario) -> None:
    """No controller replaces the members: the rest of the gang waits, without allocations."""
    scenario.add_node(cpu=3, devices=3)
    scheduler = scenario.new_scheduler(replace(scenario.settings, gang_bind_timeout_seconds=TIMEOUT))
    scenario.create_gang("gang", 3, device=True)
    scenario.refuse_binds_of("gang-2")
    scheduler.start()
    scenario.until("the end of the bound members", lambda: len(scenario.members("gang")) == 1)
    scenario.proxies[0].forget()
    scenario.wait_without_plan("gang")
    scenario.wait_refused("gang-2")
    said = condition(scenario.group("gang"), "PodGroupScheduled")
    assert said is not None
    assert said["status"] == "False"
    scenario.create_gang("other", 3, device=True)
    scenario.wait_whole("other", 3)
    scenario.check("other")


# ---------------------------------------------------------------------- plans


def _resources(count: int) -> str:
    """Devices with long names that do not compress."""
    chance = random.Random(4)
    letters = string.ascii_letters + string.digits
    names = ("".join(chance.choices(letters, k=200)) for _ in range(count))
    devices = "".join(f"      - {{type: qpu, name: {name}}}\n" for name in names)
    return f"resources:\n  - type: qdevice\n    name: large\n    with:\n{devices}"


def _in_config_map(group: Manifest) -> str | None:
    """The ConfigMap with a group's plan."""
    written = json.loads(annotation(group, PLAN) or "{}")
    name: str | None = written.get("configMap")
    return name


def _ask_for(devices: int) -> dict[str, Any]:
    amounts = {"cpu": "1", "memory": "64Mi", DEVICE: str(devices)}
    resources = {"requests": amounts, "limits": {DEVICE: str(devices)}}
    return {"containers": [{"name": "main", "image": "example.com/none", "resources": resources}]}


def test_a_plan_too_large_for_an_annotation_is_kept_read_and_deleted_in_a_config_map(scenario: Scenario) -> None:
    members, devices = 8, 250
    scenario.add_node(cpu=members, devices=members * devices)
    scheduler = scenario.new_scheduler(replace(scenario.settings, resources=_resources(members * devices)))
    scenario.create_gang("gang", members, **_ask_for(devices))
    scenario.proxies[0].in_order = True
    rule = scenario.proxies[0].at(3, Fault.CALL_AFTER, call=scheduler.kill,
                                  where=lambda _, path: path.endswith("/binding"))  # fmt: skip
    scenario.keep_alive(False)
    scheduler.start()
    scenario.until("the scheduler's death amid the binds", rule.done.is_set)
    assert len(scenario.places("gang")) == 3
    name = _in_config_map(scenario.group("gang"))
    assert name is not None
    path = f"/api/v1/namespaces/kube-system/configmaps/{name}"
    status, found = scenario.plane.request("GET", path)
    assert status == 200
    assert sum(map(len, found["data"].values())) > _ANNOTATION_LIMIT
    attempt = json.loads(annotation(scenario.group("gang"), PLAN) or "{}")["attempt"]
    scheduler.start()
    scenario.wait_whole("gang", members)
    assert Counter(map(attempt_of, scenario.members("gang"))) == {attempt: members}
    scenario.check()
    scenario.finish(scenario.members("gang"))
    scenario.wait_without_plan("gang")
    scenario.until("the end of the ConfigMap", lambda: scenario.plane.request("GET", path)[0] == 404)
