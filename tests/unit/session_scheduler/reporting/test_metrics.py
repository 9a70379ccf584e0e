"""A scrape shows the recorded values."""

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import enable_created_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from session_scheduler.cluster import errors
from session_scheduler.reporting.metrics import BIND_ERRORS, OPENMETRICS, TEXT, Metrics, Pending


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    families = text_families(metrics.exposition()[0].decode())
    found = [s.value for family in families for s in family.samples if s.name == name and s.labels == labels]
    assert len(found) < 2
    return found[0] if found else None


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("1.2.3")


def test_results_are_counted_and_shown_as_0_before(metrics: Metrics) -> None:
    assert value(metrics, "fluence_groups_total", result="timeout") == 0
    metrics.groups("scheduled")
    metrics.groups("scheduled", 2)
    metrics.pods("error", 4)
    assert value(metrics, "fluence_groups_total", result="scheduled") == 3
    assert value(metrics, "fluence_pods_total", result="error") == 4
    assert value(metrics, "fluence_pods_total", result="scheduled") == 0


def test_a_cycle_is_counted_by_its_result_and_always_timed(metrics: Metrics) -> None:
    metrics.cycle(0.5)
    metrics.cycle(2.0, failed=True)
    assert value(metrics, "fluence_cycles_total", result="ok") == 1
    assert value(metrics, "fluence_cycles_total", result="error") == 1
    assert value(metrics, "fluence_cycle_seconds_sum") == 2.5
    assert value(metrics, "fluence_cycle_seconds_bucket", le="1.0") == 1


def test_a_timed_stage_is_recorded_even_if_it_raises(metrics: Metrics) -> None:
    with pytest.raises(KeyError), metrics.timed("bind"):
        raise KeyError
    metrics.stage("bind", 3.0)
    assert value(metrics, "fluence_stage_seconds_count", stage="bind") == 2
    assert (value(metrics, "fluence_stage_seconds_sum", stage="bind") or 0) >= 3


@pytest.mark.parametrize(("answer", "code"), [*BIND_ERRORS.items(), ("TimeoutError", "other"), ('a\n"b', "other")])
def test_a_failed_bind_is_counted_by_the_answer_s_code(metrics: Metrics, answer: str, code: str) -> None:
    metrics.bind_error(answer)
    assert value(metrics, "fluence_bind_errors_total", code=code) == 1


def test_every_code_belongs_to_an_error_of_the_cluster() -> None:
    for name in BIND_ERRORS:
        assert issubclass(getattr(errors, name), errors.ClusterError)


def test_recoveries_are_counted_by_plan_outcome_and_by_pods(metrics: Metrics) -> None:
    metrics.recovered("rolled forward", 3)
    metrics.recovered("aborted", 0)
    assert value(metrics, "fluence_recoveries_total", what="rolled_forward") == 1
    assert value(metrics, "fluence_recoveries_total", what="aborted") == 1
    assert value(metrics, "fluence_recovered_pods_total") == 3


def test_watches_and_reports_are_counted_by_kind_and_cause(metrics: Metrics) -> None:
    metrics.watches.event("Pod")
    metrics.watches.event("Pod")
    metrics.watches.watch_ended("Pod", "Ended")
    metrics.watches.relisted("Node", "Gone")
    metrics.watches.missed("Node", 5)
    metrics.reports.written("event")
    metrics.reports.dropped("condition", "Conflict")
    assert value(metrics, "fluence_watch_events_total", kind="Pod") == 2
    assert value(metrics, "fluence_watch_ends_total", kind="Pod", why="Ended") == 1
    assert value(metrics, "fluence_watch_relists_total", kind="Node", why="Gone") == 1
    assert value(metrics, "fluence_missed_events_total", kind="Node") == 5
    assert value(metrics, "fluence_reports_written_total", kind="event") == 1
    assert value(metrics, "fluence_reports_dropped_total", kind="condition", why="Conflict") == 1


def test_lag_evictions_and_failed_renewals_are_counted(metrics: Metrics) -> None:
    metrics.watch_lag.observe(0.02)
    metrics.evictions.add()
    metrics.renewal_failures.add()
    assert value(metrics, "fluence_watch_lag_seconds_bucket", le="0.01") == 0
    assert value(metrics, "fluence_watch_lag_seconds_bucket", le="0.025") == 1
    assert value(metrics, "fluence_gang_evictions_total") == 1
    assert value(metrics, "fluence_lease_renewal_failures_total") == 1


def test_each_scrape_asks_for_the_leadership(metrics: Metrics) -> None:
    assert value(metrics, "fluence_leader") == 0
    leads = [True]
    metrics.follow_leader(lambda: leads[0])
    assert value(metrics, "fluence_leader") == 1
    leads[0] = False
    assert value(metrics, "fluence_leader") == 0


def test_each_scrape_asks_for_the_waiting_groups_and_an_empty_state_is_0(metrics: Metrics) -> None:
    waiting = Pending(groups={"due": 2}, pods={"due": 7, "gated": 1}, reserved=0)
    metrics.follow_pending(lambda: waiting)
    assert value(metrics, "fluence_pending_pods", state="due") == 7
    waiting = waiting._replace(pods={})
    assert value(metrics, "fluence_pending_pods", state="due") == 0
    assert value(metrics, "fluence_pending_groups", state="due") == 2
    assert value(metrics, "fluence_pending_groups", state="in_flight") == 0


def test_a_collector_is_registered_once(metrics: Metrics) -> None:
    waiting = Pending(groups={}, pods={}, reserved=0)
    apis: Any = SimpleNamespace(versions=["v1alpha2"], gates={})
    follows = (lambda: metrics.follow_pending(lambda: waiting), lambda: metrics.follow_pod_groups(apis),
               lambda: metrics.follow_profiles({}))  # fmt: skip
    for follow in follows:
        follow()
        with pytest.raises(ValueError, match="Duplicated timeseries"):
            follow()


def test_two_schedulers_of_one_process_count_separately() -> None:
    first, second = Metrics(), Metrics()
    first.evictions.add()
    assert value(second, "fluence_gang_evictions_total") == 0


def test_the_build_is_shown(metrics: Metrics) -> None:
    assert b'version="1.2.3"' in metrics.exposition()[0]


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain;version=0.0.4;q=0.3", TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", OPENMETRICS),
        ("application/openmetrics-text;version=nonsense;escaping=nonsense", OPENMETRICS),
    ],
)
def test_the_format_is_one_that_the_request_accepts(metrics: Metrics, accept: str, content_type: str) -> None:
    body, got = metrics.exposition(accept)
    assert got == content_type
    parse = openmetrics_families if got == OPENMETRICS else text_families
    names = {family.name for family in parse(body.decode())}
    assert names >= {"fluence_cycles", "fluence_cycle_seconds", "fluence_leader"}


def test_every_name_has_the_products_prefix_and_no_series_has_a_creation_time() -> None:
    enable_created_metrics()
    metrics = Metrics()
    for accept in ("", "application/openmetrics-text"):
        lines = metrics.exposition(accept)[0].decode().splitlines()
        assert all(line.startswith("fluence_") for line in lines if not line.startswith("#"))
        assert not any("_created" in line for line in lines)
