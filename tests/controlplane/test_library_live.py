"""Fluxion's own library in a scheduler on a real API server, and restarts with either engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.tools.real_engine import NEEDS_IT

from .scenarios_world import Scenario
from .scheduler_process import SchedulerProcess
from .test_amounts_live import drift, held_of, started_anew

GI = 1024
LIBRARY = {"engine": "reapi", "memoryChunk": "2Gi"}


def pod(scenario: Scenario, name: str, memory: str, **more: Any) -> None:
    asked = {"cpu": "1", "memory": memory}
    scenario.create_pod(name, containers=[{"name": "c", "image": "none", "resources": {"requests": asked}}], **more)


def test_a_library_that_is_not_there_ends_the_start_with_one_line(scenario: Scenario) -> None:
    scenario.add_node()
    scheduler = scenario.new_scheduler(replace(scenario.settings, arguments={**LIBRARY, "library": "/nowhere/lib.so"}))
    scenario.keep_alive(False)
    scheduler.start()
    scenario.until("the end of the scheduler", lambda: not scheduler.running or None)
    assert scheduler.status == 2
    reported = scheduler.tail()
    assert "library: Fluxion's library cannot be used: library '/nowhere/lib.so': cannot be opened" in reported
    assert "Traceback" not in reported


@NEEDS_IT
def test_gangs_devices_and_memory_in_chunks_are_held_over_restarts_with_either_engine(scenario: Scenario) -> None:
    nodes = [scenario.add_node(cpu=4) for _ in range(2)]  # 16 GiB each
    library = replace(scenario.settings, arguments=LIBRARY)
    scheduler = scenario.run(library)
    scenario.occupy("foreign", nodes[0])
    scenario.create_gang("gang", 3, device=True)
    scenario.wait_whole("gang", 3)
    pod(scenario, "whole", "3Gi")
    scenario.wait_bound("whole")
    assert held_of(scenario.pod("whole"))["memory"] == 4 * GI
    scenario.check()
    assert drift(scheduler) == 0

    _nothing_is_lost(scenario, scheduler, library)
    pod(scenario, "too-large", "15Gi")
    scenario.wait_refused("too-large")
    scenario.delete_pod("too-large")
    scenario.end("gang-0")
    scenario.create_gang("next", 4)
    scenario.wait_whole("next", 4)
    pod(scenario, "late", "1Gi")
    scenario.wait_refused("late")  # all eight cores are allocated
    scenario.end("gang-1")
    scenario.wait_bound("late")
    scenario.check()

    _nothing_is_lost(scenario, scheduler, scenario.settings)
    scenario.end("next-0")
    pod(scenario, "exact", "1500Mi")
    scenario.wait_bound("exact")
    assert held_of(scenario.pod("exact"))["memory"] == 1500

    _nothing_is_lost(scenario, scheduler, library)
    scenario.add_node(cpu=1)  # the library gets a new graph
    pod(scenario, "more", "1Mi")
    scenario.wait_bound("more")
    assert held_of(scenario.pod("more"))["memory"] == 2 * GI
    scenario.check()


def _nothing_is_lost(scenario: Scenario, scheduler: SchedulerProcess, settings: Any) -> None:
    before = scheduler.metrics()["fluence_held_pods"]
    started_anew(scheduler, settings)
    assert scheduler.metrics()["fluence_held_pods"] == before
    assert scheduler.metrics()["fluence_missing_parts"] == 0
    assert drift(scheduler) == 0
