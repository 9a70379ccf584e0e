"""The benchmark beside kube-scheduler: a small run of each workload ends, and its goals are evaluated correctly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .bench_live import run_all
from .bench_report import Result, goals, summary, table
from .conftest import new_control_plane
from .contenders import CONTENDERS, FILTERS, FLUENCE, KUBE_SCHEDULER, RAW
from .harness import ControlPlane
from .workloads import HIGH, WORKLOADS, Turn, Workload

NODES = 20
PODS = 40
BOTH = [contender for contender in CONTENDERS if contender.name in (KUBE_SCHEDULER, FLUENCE)]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_control_plane(tmp_path_factory.mktemp("bench-plane")) as found:
        found.create(HIGH)
        yield found


@pytest.mark.parametrize(
    "workload", [one for one in WORKLOADS if not one.bare and not one.full], ids=lambda workload: workload.name
)
def test_both_schedulers_bind_all_pods_of_a_workload_and_say_so(
    plane: ControlPlane, tmp_path: Path, workload: Workload
) -> None:
    results = run_all(plane, tmp_path, [workload], BOTH, NODES, PODS, rounds=1)
    assert [(result.contender, result.failure) for result in results] == [(KUBE_SCHEDULER, ""), (FLUENCE, "")]
    for result in results:
        assert result.events == result.pods > 1
        assert result.seconds > 0
        assert result.memory > 0
        assert bool(result.latencies) is (workload.gang > 1)


def test_the_raw_rate_and_that_of_the_default_filters_are_measured_with_plain_pods(
    plane: ControlPlane, tmp_path: Path
) -> None:
    others = [contender for contender in CONTENDERS if contender.name in (RAW, FILTERS)]
    bare = [workload for workload in WORKLOADS if workload.bare]
    results = run_all(plane, tmp_path, (WORKLOADS[0], *bare), others, NODES, PODS, rounds=1)
    assert [(result.workload, result.contender, result.failure) for result in results] == [
        ("bindings", RAW, ""), ("bindings", FILTERS, ""),
    ]  # fmt: skip
    assert {text.split(":")[0] for text, _ in goals(summary(results))} == {"bindings"}
    assert all(result.memory > 0 for result in results)


def test_on_a_full_cluster_all_pods_are_reported_and_then_as_many_as_an_emptied_node_has_room_for_are_bound(
    plane: ControlPlane, tmp_path: Path
) -> None:
    (full,) = (workload for workload in WORKLOADS if workload.full)
    results = run_all(plane, tmp_path, [full], CONTENDERS, 2 * NODES, 2 * PODS, rounds=1)
    assert [(result.workload, result.contender, result.pods, result.failure) for result in results] == [
        ("full", RAW, 120, ""), ("full", KUBE_SCHEDULER, 120, ""), ("freed", KUBE_SCHEDULER, 110, ""),
        ("full", FLUENCE, 120, ""), ("freed", FLUENCE, 110, ""),
    ]  # fmt: skip
    assert [result.events for result in results if result.workload == "full"] == [0, 120, 120]
    assert all(result.seconds > 0 and result.memory > 0 for result in results)


def _result(contender: str, seconds: float, round_: int = 1, workload: str = "basic", **others: float) -> Result:
    result = Result(workload, contender, round_, 101, seconds=seconds, events=101, events_after=1.0, memory=100.0)
    for name, value in others.items():
        setattr(result, name, value)
    return result


def _missed(*results: Result) -> list[str]:
    return [text for text, met in goals(summary(results)) if not met]


def test_a_goal_is_met_by_the_ratio_within_a_round() -> None:
    slow_round = (_result(KUBE_SCHEDULER, 8.0), _result(FLUENCE, 4.0))
    quick_round = (_result(KUBE_SCHEDULER, 2.0, 2), _result(FLUENCE, 1.0, 2))
    assert _missed(*slow_round, *quick_round) == []


def test_each_goal_that_is_missed_is_named() -> None:
    late = _result(FLUENCE, 4.0, events_after=11.0, memory=300.0)
    missed = _missed(_result(RAW, 1.0), _result(KUBE_SCHEDULER, 6.0), late, _result(FILTERS, 2.0))
    assert missed == [
        "basic: 1.50 times kube-scheduler's pods/s (goal: 2)",
        "basic: 3.00 times its memory (goal: at most 2)",
        "basic: all events 11.0 s after the last bind (goal: 10)",
        "basic: 0.50 of the raw rate with the default filters (goal: 0.8)",
    ]


def test_a_failure_and_events_that_do_not_come_are_missed_goals() -> None:
    failed = Result("basic", KUBE_SCHEDULER, 1, 101, failure="3 of 101 pods are bound\nand more")
    results = [failed, _result(FLUENCE, 4.0, events=100)]
    assert _missed(*results) == [
        "basic, kube-scheduler: 3 of 101 pods are bound", "basic: events of 100 of 101 pods (goal: all)",
    ]  # fmt: skip
    assert "kube-scheduler" in table(summary(results))


def test_reports_reach_their_goal_beside_kube_scheduler_or_beside_the_raw_rate() -> None:
    raw, slow = _result(RAW, 1.0, workload="full"), _result(KUBE_SCHEDULER, 20.0, workload="full")
    assert _missed(raw, slow, _result(FLUENCE, 2.0, workload="full")) == []
    quick = _result(KUBE_SCHEDULER, 5.0, workload="full")
    assert _missed(raw, quick, _result(FLUENCE, 1.25, workload="full")) == []
    assert _missed(raw, quick, _result(FLUENCE, 2.0, workload="full", memory=160.0, events_after=11.0)) == [
        "full: reports/s 2.50 times kube-scheduler's (goal: 10) or 0.50 of the raw rate (goal: 0.8)",
        "full: 1.60 times its memory (goal: at most 1.5)",
        "full: all events 11.0 s after the last report (goal: 10)",
    ]
    assert _missed(quick, _result(FLUENCE, 2.0, workload="full")) == [
        "full: reports/s 2.50 times kube-scheduler's (goal: 10)"
    ]


def test_an_emptied_node_must_be_filled_at_least_as_fast_as_by_kube_scheduler() -> None:
    peer = _result(KUBE_SCHEDULER, 1.0, workload="freed")
    assert _missed(peer, _result(FLUENCE, 1.0, workload="freed")) == []
    assert _missed(peer, _result(FLUENCE, 2.0, workload="freed")) == [
        "freed: 0.50 times kube-scheduler's pods/s (goal: 1)"
    ]


def test_who_ran_alone_is_compared_with_nobody() -> None:
    assert [text for text, _ in goals(summary([_result(FLUENCE, 4.0)]))] == [
        "basic: all events 1.0 s after the last bind (goal: 10)"
    ]


@pytest.mark.parametrize(("name", "shapes"), [("basic", 1), ("mixed", 500), ("full", 300)])
def test_a_workload_has_as_many_shapes_as_it_states(name: str, shapes: int) -> None:
    (workload,) = (one for one in WORKLOADS if one.name == name)
    turn = Turn("none", "default", "default", 1000, workload.size(1000, 2000))
    assert len({json.dumps(pod["spec"]) for pod in workload.measured(turn)}) == shapes


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_workload_asks_for_no_more_pods_than_have_room_and_for_whole_groups(workload: Workload) -> None:
    assert workload.size(10, 100_000) <= 10 * workload.most_a_node
    assert workload.size(1000, 1999) % workload.gang == 0
