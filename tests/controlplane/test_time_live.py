"""`fluence run` with durations, reservations and maintenance windows; the scheduler is killed in between."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from .scenarios_world import Scenario
from .scheduler_process import SHIFTED_CLOCK, UNTIL_HELPED, Settings
from .test_resources_live import holding, write

DURATION = "fluence.flux-framework.org/duration"
TREES = "resources: [{type: qpu, name: q, count: 2}]\n"
FILLING = {"actions": ["allocate", "preempt", "backfill"]}


def _at(seconds: float) -> str:
    return f"{datetime.fromtimestamp(time.time() + seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _lasting(seconds: int) -> dict[str, str]:
    return {DURATION: f"{seconds}s"}


def test_devices_are_kept_for_a_gang_also_by_a_successor_and_used_by_what_ends_before(scenario: Scenario) -> None:
    for _ in range(2):
        scenario.add_node(cpu=4, devices=4)
    settings = Settings(resources=TREES, more=FILLING)
    scheduler = scenario.run(settings)
    scenario.create_pod("first", device=True, annotations=_lasting(3600))
    scenario.wait_bound("first")
    scenario.create_gang("gang", 2, device=True)
    assert "nodes are reserved for the gang, and it can start at" in scenario.wait_refused(
        "gang-0", "nodes are reserved"
    )
    scenario.create_pod("endless", device=True)
    scenario.wait_refused("endless", "the pod requests 1 qpu, and 0 of 2 are free")
    scenario.retire(scheduler)
    scenario.run(settings)
    scenario.wait_refused("gang-0", "nodes are reserved")
    scenario.create_pod("long", device=True, annotations=_lasting(7200))
    scenario.wait_refused("long", "the pod requests 1 qpu, and 0 of 2 are free")
    scenario.create_pod("short", device=True, annotations=_lasting(600))
    scenario.wait_bound("short")
    scenario.end("short")
    scenario.end("first")
    scenario.wait_whole("gang", 2)
    held = [path for number in range(2) for paths in holding(scenario.pod(f"gang-{number}")).values() for path in paths]
    assert sorted(held) == ["/cluster/q0", "/cluster/q1"]
    assert scenario.node_of("endless") is None
    scenario.check()


def test_who_outlives_its_duration_keeps_what_it_holds_also_over_a_restart(scenario: Scenario) -> None:
    scenario.add_node(cpu=8, devices=8)
    settings = Settings(resources="resources: [{type: qpu, name: q}]\n", more=FILLING)
    scheduler = scenario.run(settings)
    scenario.create_pod("late", device=True, annotations=_lasting(1))
    scenario.wait_bound("late")
    time.sleep(1.5)  # longer than its duration
    scenario.create_pod("next", device=True, annotations=_lasting(1))
    scenario.wait_refused("next", "the pod requests 1 qpu, and 0 of 1 is free")
    scenario.retire(scheduler)
    scenario.run(settings)
    scenario.create_pod("other", device=True)
    scenario.wait_refused("other", "the pod requests 1 qpu, and 0 of 1 is free")
    scenario.end("late")
    scenario.until("the device's next owner", lambda: scenario.node_of("next") or scenario.node_of("other"))
    scenario.check()


def test_a_window_is_kept_free_and_its_end_wakes_who_waits(scenario: Scenario, tmp_path: Path) -> None:
    node = scenario.add_node(cpu=4, devices=4)
    begin = f"windows: [{{name: firmware, nodes: [{node}], start: '{_at(3600)}', end: '{_at(7200)}'}}]\n"
    settings = Settings(resources=TREES + begin)
    scheduler = scenario.run(settings)
    scenario.create_pod("short", annotations=_lasting(600))
    scenario.wait_bound("short")
    scenario.create_pod("endless")
    reported = scenario.wait_refused("endless", "must be free for maintenance window firmware from")
    assert f"node {node}" in reported
    scenario.retire(scheduler)
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    successor = scenario.run(replace(settings, script=(SHIFTED_CLOCK, ahead), more=UNTIL_HELPED))
    scenario.create_pod("long", annotations=_lasting(7200))
    scenario.wait_refused("long", "must be free for maintenance window firmware from")
    closing = f"windows: [{{nodes: [{node}], start: '{_at(-60)}', end: '{_at(3600)}'}}]\n"
    write(scenario, successor, TREES + closing)
    scenario.create_pod("now", annotations=_lasting(1))
    for name in ("now", "endless", "long"):
        scenario.wait_refused(name, "is in maintenance window from")
    ahead.write_text("3600")
    scenario.wait_bound("now", "endless", "long")
    assert scenario.node_of("short") == node
    scenario.check()


def test_a_closed_backend_is_given_to_nobody(scenario: Scenario) -> None:
    scenario.add_node(cpu=4, devices=4)
    text = "resources: [{type: qpu, name: a}, {type: qpu, name: b}]\n"
    window = f"windows: [{{backends: [a], start: '{_at(-60)}', end: '{_at(3600)}'}}]\n"
    scheduler = scenario.run(Settings(resources=text + window))
    for name in ("one", "two"):
        scenario.create_pod(name, device=True)
    scenario.until("a device for one", lambda: scenario.node_of("one") or scenario.node_of("two"))
    owner, waits = ("one", "two") if scenario.node_of("one") else ("two", "one")
    assert list(holding(scenario.pod(owner)).values()) == [["/cluster/b"]]
    scenario.wait_refused(waits, "backend a is in maintenance window from")
    write(scenario, scheduler, text)
    scenario.wait_bound(waits)
    scenario.check()
