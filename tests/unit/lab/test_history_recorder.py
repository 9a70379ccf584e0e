"""What the dashboard records: series in bounded memory, and pods that are gone."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest

from fluence_lab.dashboard import history as module
from fluence_lab.dashboard.history import HistoryRecorder, Rates
from fluence_lab.dashboard.prometheus import parsed, range_values
from session_scheduler.observation.values import Observed

from .observations import NOW, nodes, observed, pod, pods


def at(time: float, rows: list[dict[str, Any]], **more: Any) -> Observed:
    return msgspec.structs.replace(observed(), pods=pods(rows), time=time, **more)


def test_the_series_count_pods_by_state() -> None:
    recorder = HistoryRecorder()
    recorder.record(at(NOW, [pod("a/x"), pod("a/g", phase="Gated"), pod("b/y", phase="Running", node=0)]))
    recorder.record(at(NOW + 1, [pod("b/y", phase="Running", node=0)]))
    found = recorder.history(None)
    assert found.times.tolist() == [NOW, NOW + 1]
    assert found.series["pending"].tolist() == [2, 0]
    assert found.series["running"].tolist() == [1, 1]
    assert found.since == NOW


def test_allocated_shares_are_recorded_by_resource() -> None:
    recorder = HistoryRecorder()
    recorder.record(at(NOW, [], nodes=nodes(["n-0", "n-1"], used=[8, 4])))
    assert recorder.history(None).series["allocated/cpu"].tolist() == [0.75]


def test_binds_are_counted_over_ten_seconds() -> None:
    recorder = HistoryRecorder()
    rows = [pod(f"a/{n}", node=0, phase="Bound", bound=NOW - n) for n in range(30)]
    recorder.record(at(NOW, rows))
    assert recorder.history(None).series["binds"].tolist() == [1.0]


def test_memory_is_bounded_and_older_samples_are_coarser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIERS", ((1.0, 5), (10.0, 3)))
    recorder = HistoryRecorder()
    for second in range(60):
        recorder.record(at(NOW + second, []))
    times = recorder.history(None).times - NOW
    assert times.tolist() == [30, 40, 50, 55, 56, 57, 58, 59]


def test_a_clock_that_is_set_back_does_not_stop_the_series() -> None:
    recorder = HistoryRecorder()
    for second in (0, 1, 3600, 3601, 2, 3):
        recorder.record(at(NOW + second, []))
    assert (recorder.history(None).times - NOW).tolist() == [0, 1, 2, 3]


def test_a_pod_that_is_gone_becomes_a_stay_which_only_its_readers_see() -> None:
    recorder = HistoryRecorder()
    recorder.record(at(NOW, [pod("a/x", node=0, phase="Running", bound=NOW - 5), pod("b/y")], nodes=nodes(["n-0"])))
    recorder.record(at(NOW + 1, [], nodes=nodes(["n-0"])))
    stays = {stay.key: stay for stay in recorder.history(None).stays}
    assert set(stays) == {"a/x", "b/y"}
    assert (stays["a/x"].node, stays["a/x"].bound, stays["a/x"].ended) == ("n-0", NOW - 5, NOW + 1)
    assert stays["b/y"].node is None
    assert [stay.key for stay in recorder.history(frozenset({"b"})).stays] == ["b/y"]
    assert recorder.history(frozenset()).stays == ()


def test_an_evicted_pod_is_one_that_was_being_evicted_when_it_was_last_seen() -> None:
    recorder = HistoryRecorder()
    known = at(NOW, [pod("a/x", node=0, phase="Terminating"), pod("a/deleted", node=0, phase="Terminating")])
    recorder.record(
        msgspec.structs.replace(known, pods=msgspec.structs.replace(known.pods, evicted=frozenset({"a/x"})))
    )
    recorder.record(at(NOW + 1, []))
    assert {stay.key: stay.evicted for stay in recorder.history(None).stays} == {"a/x": True, "a/deleted": False}


def test_a_pod_that_was_gone_at_once_after_its_eviction_is_an_evicted_one() -> None:
    recorder = HistoryRecorder()
    recorder.record(at(NOW, [pod("a/x", node=0, created=NOW - 9), pod("a/before", node=0, created=NOW - 9)]))
    recorder.record(at(NOW + 1, [], evictions={"a/x": NOW - 9, "a/before": NOW - 50}))
    assert {stay.key: stay.evicted for stay in recorder.history(None).stays} == {"a/x": True, "a/before": False}


def test_stays_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STAYS", 3)
    recorder = HistoryRecorder()
    recorder.record(at(NOW, [pod(f"a/{n}") for n in range(10)]))
    recorder.record(at(NOW + 1, []))
    assert len(recorder.history(None).stays) == 3


def test_cycles_per_second_come_from_two_scrapes_and_become_unknown_without_a_third() -> None:
    recorder = HistoryRecorder()
    recorder.scraped(Rates(NOW, 100, {}))
    recorder.record(at(NOW, []))
    recorder.scraped(Rates(NOW + 5, 150, {"fluence": {"seconds": 1.0, "calls": 3.0}}))
    recorder.record(at(NOW + 5, []))
    recorder.record(at(NOW + 500, []))
    found = recorder.history(None)
    assert math.isnan(found.series["cycles"][0])
    assert found.series["cycles"][1] == 10
    assert math.isnan(found.series["cycles"][2])
    assert found.timings == {"fluence": {"seconds": 1.0, "calls": 3.0}}


def test_prometheus_adds_what_was_before_the_first_observation() -> None:
    recorder = HistoryRecorder()
    recorder.record(at(NOW, []))
    recorder.before([(NOW - 60, {"pending": 7.0}), (NOW + 60, {"pending": 9.0}), (NOW - 120, {"pending": 5.0})])
    found = recorder.history(None)
    assert found.times.tolist() == [NOW - 120, NOW - 60, NOW]
    assert found.series["pending"].tolist() == [5, 7, 0]
    assert np.isnan(found.series["running"]).tolist() == [True, True, False]


def test_cycles_and_plugin_timings_are_read_from_metrics() -> None:
    text = """# HELP fluence_cycles_total Scheduling cycles by result.
fluence_cycles_total{result="ok"} 40
fluence_cycles_total{result="error"} 2
fluence_hook_calls_total{profile="a",plugin="NodeAffinity",hook="filter"} 3
fluence_hook_calls_total{profile="b",plugin="NodeAffinity",hook="score"} 4
fluence_hook_seconds_total{profile="a",plugin="NodeAffinity",hook="filter"} 0.5
other_metric{plugin="x"} not-a-number
"""
    found = parsed(text, NOW)
    assert found.cycles == 42
    assert found.timings == {"NodeAffinity": {"calls": 7.0, "seconds": 0.5}}


def test_a_range_query_gives_times_and_values_without_nan() -> None:
    answer = {"status": "success", "data": {"result": [{"values": [[NOW, "3"], [NOW + 60, "NaN"]]}]}}
    assert range_values(answer) == [(NOW, 3.0)]
    assert range_values({"status": "success", "data": {"result": []}}) == []


@pytest.mark.parametrize("answer", [[], {}, {"status": "error"}, {"status": "success", "data": {"result": [{}]}}])
def test_another_answer_is_an_error(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"status error|not the result of a range query"):
        range_values(json.loads(json.dumps(answer)))
