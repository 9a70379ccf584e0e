"""Two replicas of `fluence run`: one schedules, the other takes over when it dies or leaves."""

from __future__ import annotations

import threading
from dataclasses import replace

from .faults.world import LEASE
from .proxy import Fault
from .scenarios_world import Scenario
from .scheduler_process import Ended, SchedulerProcess

LEASE_SECONDS = 5
LONG_LEASE_SECONDS = 3600
"""A lease that does not expire during a test: another replica leads only after a release."""
EXIT = 10.0


def _two(scenario: Scenario, lease_seconds: int = LEASE_SECONDS) -> tuple[SchedulerProcess, SchedulerProcess]:
    """A leader, and a standby replica."""
    scenario.keep_alive(False)
    settings = replace(scenario.with_election(), lease_seconds=lease_seconds)
    leader, standby = scenario.new_scheduler(settings), scenario.new_scheduler(settings)
    leader.start()
    scenario.until("the leader", lambda: _leads(leader))
    leader.wait_ready()
    standby.start()
    standby.wait_ready()
    return leader, standby


def _leads(scheduler: SchedulerProcess) -> bool:
    """Whether it serves, and reports that it leads."""
    return scheduler.is_ready() and scheduler.metrics()["fluence_leader"] == 1


def test_a_replica_that_stands_by_is_ready_and_schedules_nothing(scenario: Scenario) -> None:
    scenario.add_node(cpu=2, devices=0)
    leader, standby = _two(scenario)
    scenario.create_gang("gang")
    scenario.wait_whole("gang", 2)
    status, said = standby.get("/readyz?verbose")
    assert status == 200
    assert "standing-by ok" in said
    assert "standing-by" not in leader.get("/readyz?verbose")[1]
    assert standby.metrics()["fluence_leader"] == 0
    assert standby.metrics().get('fluence_pods_total{result="scheduled"}', 0) == 0
    assert leader.metrics()['fluence_pods_total{result="scheduled"}'] == 2
    assert not [write for write in scenario.proxies[1].writes if "/leases" not in write.path]
    scenario.check("gang")


def test_the_other_replica_takes_over_from_a_leader_that_was_killed(scenario: Scenario) -> None:
    scenario.add_node(cpu=3, devices=3)
    leader, standby = _two(scenario)
    scenario.create_gang("gang", device=True)
    scenario.wait_whole("gang", 2)
    places = scenario.places("gang")
    leader.kill()
    scenario.create_pod("next", device=True)
    scenario.wait_bound("next")
    assert _leads(standby)
    assert standby.metrics()["fluence_held_pods"] == 3
    scenario.create_pod("late", device=True)
    scenario.wait_refused_by(standby, "late")
    assert scenario.places("gang") == places
    scenario.check("gang")


def test_a_leader_that_is_asked_to_end_hands_over_at_once(scenario: Scenario) -> None:
    scenario.add_node(cpu=1, devices=0)
    leader, standby = _two(scenario, LONG_LEASE_SECONDS)
    ended = leader.terminate()
    assert (ended.status, ended.seconds < EXIT) == (0, True)
    scenario.until("the other leader", lambda: _leads(standby))
    transitions = scenario.plane.request("GET", LEASE)[1]["spec"]["leaseTransitions"]
    assert transitions >= 1
    scenario.create_pod("single")
    scenario.wait_bound("single")
    scenario.check()


def test_binds_under_way_end_before_a_scheduler_that_is_asked_to_end(scenario: Scenario) -> None:
    scenario.add_node(cpu=8, devices=0)
    leader, standby = _two(scenario, LONG_LEASE_SECONDS)
    held = [scenario.proxies[0].at(number, Fault.HOLD, where=_binds) for number in range(5, 9)]
    ended: list[Ended] = []
    asked = threading.Thread(target=lambda: ended.append(leader.terminate()))
    scenario.create_gang("gang", 8)
    scenario.until("four binds that are held", lambda: all(rule.struck.is_set() for rule in held))
    scenario.until("the other binds", lambda: len(scenario.places("gang")) == 4)
    asked.start()
    scenario.until("its word that it stops", lambda: "stopping" in leader.log.read_text())
    for rule in held:
        scenario.proxies[0].release(rule)
    asked.join()
    assert ended[0].status == 0
    assert ended[0].seconds < EXIT
    assert len(scenario.places("gang")) == 8
    assert len(scenario.writes("POST", "/binding")) == 8
    scenario.until("the other leader", lambda: _leads(standby))
    scenario.wait_whole("gang", 8)
    assert not [write for write in scenario.proxies[1].writes if write.path.endswith("/binding")]
    scenario.check("gang")


def _binds(method: str, path: str) -> bool:
    return path.endswith("/binding")
