"""The benchmark beside kube-scheduler: a small run of each workload ends, and its goals are evaluated correctly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .bench_live import run_all
from .bench_report import Result, goals, summary, table
from .conftest import new_control_plane
from .contenders import CONTENDERS, FILTERS, FLUENCE, KUBE_SCHEDULER, RAW
from .harness import ControlPlane
from .workloads import HIGH, WORKLOADS, Workload

NODES = 20
PODS = 40
BOTH = [contender for contender in CONTENDERS if contender.name in (KUBE_SCHEDULER, FLUENCE)]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_control_plane(tmp_path_factory.mktemp("bench-plane")) as found:
        found.create(HIGH)
        yield found


@pytest.mark.parametrize("workload", [one for one in WORKLOADS if not one.bare], ids=lambda workload: workload.name)
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


def _result(contender: str, seconds: float, round_: int = 1, **others: float) -> Result:
    result = Result("basic", contender, round_, 101, seconds=seconds, events=101, events_after=1.0, memory=100.0)
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


def test_who_ran_alone_is_compared_with_nobody() -> None:
    assert [text for text, _ in goals(summary([_result(FLUENCE, 4.0)]))] == [
        "basic: all events 1.0 s after the last bind (goal: 10)"
    ]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_workload_asks_for_no_more_pods_than_have_room_and_for_whole_groups(workload: Workload) -> None:
    assert workload.size(10, 100_000) <= 10 * workload.most_a_node
    assert workload.size(1000, 1999) % workload.gang == 0
