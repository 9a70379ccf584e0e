"""`fluence run` with a busy API server, or with watches that miss events."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from itertools import pairwise

from .invariants import attempt_of
from .proxy import Fault, Write
from .scenarios_world import Scenario

RETRY_AFTER = 1.0
"""Seconds in the Retry-After of the proxy's 429."""
RECONCILE = 2.0
BACKOFF = (0.2, 0.4, 0.8, 1.0)
"""Seconds between attempts in the tests' configuration."""


def _plans(method: str, path: str) -> bool:
    return method == "PATCH" and "/podgroups/" in path and not path.endswith("/status")


def _apart(writes: list[Write]) -> list[float]:
    return [after.seconds - before.seconds for before, after in pairwise(writes)]


def test_a_bind_that_is_put_off_is_sent_again_when_the_api_server_said(scenario: Scenario) -> None:
    scenario.add_node(cpu=2, devices=0)
    scenario.run()
    scenario.proxies[0].at(1, Fault.ERROR, status=HTTPStatus.TOO_MANY_REQUESTS,
                           where=lambda _, path: path.endswith("/gang-0/binding"))  # fmt: skip
    scenario.create_gang("gang")
    scenario.wait_whole("gang", 2)
    first, again = scenario.writes("POST", "/gang-0/binding")
    assert (first.outcome, again.outcome) == ("error", "201")
    assert _apart([first, again])[0] >= RETRY_AFTER
    assert len(scenario.writes("POST", "/gang-1/binding")) == 1
    assert len({attempt_of(pod) for pod in scenario.members("gang")}) == 1
    scenario.check("gang")


def test_a_plan_that_is_put_off_is_written_before_anything_is_bound(scenario: Scenario) -> None:
    scenario.add_node(cpu=2, devices=0)
    scenario.run()
    for number in (1, 2):
        scenario.proxies[0].at(number, Fault.ERROR, status=HTTPStatus.TOO_MANY_REQUESTS, where=_plans)
    scenario.create_gang("gang")
    scenario.wait_whole("gang", 2)
    plans = [write for write in scenario.proxies[0].writes if _plans(write.method, write.path)]
    assert [write.outcome for write in plans] == ["error", "error", "200"]
    assert min(_apart(plans)) >= RETRY_AFTER
    assert min(write.seconds for write in scenario.writes("POST", "/binding")) > plans[-1].seconds
    scenario.check("gang")


def test_a_bind_that_is_refused_again_and_again_is_tried_ever_less_often(scenario: Scenario) -> None:
    scenario.add_node(cpu=1, devices=0)
    scenario.new_scheduler()
    scenario.refuse_binds_of("single")
    scenario.create_pod("single")
    scenario.schedulers[0].start()
    scenario.until("five tries", lambda: len(scenario.writes("POST", "/binding")) >= 5)
    tries = scenario.writes("POST", "/binding")[:5]
    waited = zip(_apart(tries), BACKOFF, strict=True)
    assert all(seconds >= least for seconds, least in waited), _apart(tries)
    assert "403" in scenario.wait_event("single", "FailedScheduling")["note"]
    assert len(scenario.events("single", "FailedScheduling")) == 1
    scenario.proxies[0].forget()
    scenario.wait_bound("single")
    scenario.check()


def test_what_a_watch_did_not_tell_is_found_by_reconciliation(scenario: Scenario) -> None:
    scenario.add_node(cpu=2, devices=0)
    scheduler = scenario.run(replace(scenario.settings, reconcile_seconds=RECONCILE))
    scenario.hide("ADDED", "unheard")
    scenario.create_pod("unheard")
    scenario.wait_bound("unheard")
    assert scenario.hidden == 1
    assert scheduler.metrics()['fluence_missed_events_total{kind="Pod"}'] >= 1
    scenario.check()


def test_an_end_that_a_watch_did_not_tell_is_found_by_reconciliation(scenario: Scenario) -> None:
    scenario.add_node(cpu=1, devices=1)
    scheduler = scenario.run(replace(scenario.settings, reconcile_seconds=RECONCILE))
    scenario.create_pod("first", device=True)
    scenario.wait_bound("first")
    scenario.hide("DELETED", "first")
    scenario.delete_pod("first")
    scenario.create_pod("second", device=True)
    scenario.wait_bound("second")
    assert scenario.hidden == 1
    assert scheduler.metrics()['fluence_missed_events_total{kind="Pod"}'] >= 1
    scenario.check()
