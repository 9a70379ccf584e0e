"""A scrape includes the metrics of plugins, and their errors affect no other metric."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from session_scheduler.hookspecs import hookimpl
from session_scheduler.registry.validation import hook_calls
from session_scheduler.reporting.metrics import Metrics


class Measuring:
    """A plugin that returns the given metrics."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked = 0

    @hookimpl
    def metrics(self) -> Any:
        self.asked += 1
        return self.answer() if callable(self.answer) else self.answer


def gauge(name: str, value: float = 1.0) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, "A gauge.", value=value)


def following(*plugins: tuple[str, object]) -> Metrics:
    metrics = Metrics()
    metrics.follow_profiles({"fluence": hook_calls([(name, plugin, None) for name, plugin in plugins])})
    return metrics


def scraped(metrics: Metrics, accept: str = "") -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(metrics.exposition(accept)[0].decode())}


def failures(metrics: Metrics, plugin: str) -> float:
    samples = scraped(metrics)["fluence_plugin_metrics_failures"].samples
    return next(sample.value for sample in samples if sample.labels == {"plugin": plugin})


def test_each_scrape_asks_a_plugin_for_its_metrics() -> None:
    values = iter([1.0, 2.0])
    metrics = following(("a", Measuring(lambda: [gauge("fluence_a", next(values))])))
    assert [scraped(metrics)["fluence_a"].samples[0].value for _ in range(2)] == [1, 2]


def test_a_plugin_without_metrics_is_not_a_failure() -> None:
    metrics = following(("a", Measuring(None)), ("b", Measuring([])))
    scraped(metrics)
    assert failures(metrics, "a") == failures(metrics, "b") == 0


def raising() -> Iterable[Metric]:
    raise RuntimeError("broken")


def half() -> Iterator[Metric]:
    yield gauge("fluence_half")
    raise RuntimeError("broken")


def wrong_label() -> Metric:
    family = gauge("fluence_wrong")
    family.add_sample("fluence_wrong", {"a": 5}, 1)  # type: ignore[dict-item]
    return family


def wrong_value() -> Metric:
    family = gauge("fluence_wrong")
    family.add_sample("fluence_wrong", {}, "many")  # type: ignore[arg-type]
    return family


def wrong_sample() -> Metric:
    family = gauge("fluence_wrong")
    family.samples.append(None)  # type: ignore[arg-type]
    return family


def foreign_sample() -> Metric:
    family = gauge("fluence_wrong")
    family.add_sample("process_cpu_seconds", {}, 1)
    return family


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (raising, "RuntimeError: broken"),
        (half, "RuntimeError: broken"),
        (5, "not iterable"),
        (["fluence_x"], "expected a metric family of prometheus_client.core, got 'fluence_x'"),
        ([gauge("x_seconds")], "x_seconds does not start with fluence_"),
        ([gauge("fluence_cycle_seconds")], "fluence_cycle_seconds already exists"),
        ([gauge("fluence_cycle_seconds_count")], "fluence_cycle_seconds_count already exists"),
        ([gauge("fluence_cycles_total")], "fluence_cycles_total already exists"),
        ([gauge("fluence_twice"), gauge("fluence_twice")], "fluence_twice already exists"),
        ([wrong_label()], "fluence_wrong cannot be written"),
        ([wrong_value()], "fluence_wrong cannot be written"),
        ([wrong_sample()], "fluence_wrong cannot be written"),
        ([foreign_sample()], "samples named process_cpu_seconds"),
    ],
)
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_an_invalid_answer_is_reported_and_counted_and_affects_no_other(answer: Any, problem: str, accept: str) -> None:
    metrics = following(("bad", Measuring(answer)), ("good", Measuring(lambda: [gauge("fluence_good")])))
    with capture_logs() as logs:
        body = metrics.exposition(accept)[0].decode()
        assert "\nfluence_good 1.0\n" in body
        assert "\nfluence_cycle_seconds_count 0.0\n" in body
        assert "\nfluence_wrong" not in body
        metrics.exposition(accept)
    (log,) = (log for log in logs if log["event"] != "a plugin failed")  # of every hook: see test_failures
    assert (log["log_level"], log["plugin"]) == ("warning", "bad")
    assert problem in log["problem"]
    assert failures(metrics, "bad") == 2
    assert failures(metrics, "good") == 0


def test_a_plugin_that_recovered_is_shown_and_reported_when_it_fails_again() -> None:
    answers: list[Any] = [[gauge("x")], [gauge("fluence_x")], [gauge("x")]]
    metrics = following(("a", Measuring(lambda: answers.pop(0))))
    with capture_logs() as logs:
        assert ["fluence_x" in scraped(metrics) for _ in range(3)] == [False, True, False]
    assert len(logs) == 2


def test_the_first_of_two_plugins_with_one_name_is_shown() -> None:
    plugins = [(name, Measuring(lambda v=value: [gauge("fluence_x", v)])) for name, value in (("a", 1.0), ("b", 2.0))]
    metrics = following(*plugins)
    assert [sample.value for sample in scraped(metrics)["fluence_x"].samples] == [1]
    assert failures(metrics, "b") == 1
    assert failures(metrics, "a") == 0


def test_a_plugin_that_several_profiles_share_is_asked_once() -> None:
    plugin = Measuring(lambda: [gauge("fluence_x")])
    metrics = Metrics()
    metrics.follow_profiles({name: hook_calls([("a", plugin, None)]) for name in ("one", "two")})
    assert len(scraped(metrics)["fluence_x"].samples) == 1
    assert plugin.asked == 1


def test_during_a_session_no_plugin_is_asked_and_the_last_answer_is_shown() -> None:
    plugin: Measuring = Measuring(lambda: [gauge("fluence_x", plugin.asked)])
    in_session = [True]
    metrics = Metrics()
    metrics.follow_profiles({"fluence": hook_calls([("a", plugin, None)])}, lambda: in_session[0])
    assert "fluence_x" not in scraped(metrics)
    in_session[0] = False
    assert scraped(metrics)["fluence_x"].samples[0].value == 1
    in_session[0] = True
    assert scraped(metrics)["fluence_x"].samples[0].value == 1
    assert plugin.asked == 1


def test_a_plugin_may_return_the_librarys_own_instruments() -> None:
    histogram = Histogram("fluence_own_seconds", "Own.", registry=CollectorRegistry(), buckets=(1,))
    histogram.observe(0.5)
    metrics = following(("a", Measuring(histogram.collect)))
    assert {s.name for s in scraped(metrics)["fluence_own_seconds"].samples} == {
        f"fluence_own_seconds_{part}" for part in ("bucket", "sum", "count")
    }


def test_a_plugins_own_family_may_have_a_name_that_ends_in_created() -> None:
    metrics = following(("a", Measuring(lambda: [gauge("fluence_created", 3)])))
    assert [sample.value for sample in scraped(metrics)["fluence_created"].samples] == [3]


def test_hooks_are_timed_by_profile_plugin_and_hook() -> None:
    plugin = Measuring(lambda: [])
    metrics = following(("a", plugin))
    for _ in range(3):
        metrics.exposition()
    found = scraped(metrics)
    labels = {"profile": "fluence", "plugin": "a", "hook": "metrics"}
    calls = [s.value for s in found["fluence_hook_calls"].samples if s.labels == labels]
    seconds = [s.value for s in found["fluence_hook_seconds"].samples if s.labels == labels]
    assert calls == [3]
    assert 0 < seconds[0] < 10
