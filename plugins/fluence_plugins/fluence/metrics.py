"""What the plugin measures, as the hook `metrics` answers: matches by time, the graph's size, who holds what."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from prometheus_client import Metric

    from fluence_plugins.fluence.graph.live_graph import LiveGraph
    from fluence_plugins.fluence.tasks.resources_reload import Following

Outcome = Literal["matched", "busy", "unsatisfiable"]
"""unsatisfiable: an empty graph could not hold it either."""
_OUTCOMES: Final[tuple[Outcome, ...]] = ("matched", "busy", "unsatisfiable")
_BOUNDS: Final = (1e-05, 2.5e-05, 5e-05, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)
"""Upper bounds of the histogram's buckets, in seconds: a match takes 0.04 ms to a few ms."""


class MatchTimes:
    """How long matches took, by outcome: plain counts, because a match may be asked for thousands of times a cycle."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = {outcome: [0] * (len(_BOUNDS) + 1) for outcome in _OUTCOMES}
        self._seconds = dict.fromkeys(_OUTCOMES, 0.0)

    def add(self, outcome: Outcome, seconds: float) -> None:
        """A match ended so, after so long."""
        self._counts[outcome][bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[outcome] += seconds

    def family(self) -> Metric:
        """The histogram."""
        from prometheus_client.core import HistogramMetricFamily  # only where it is asked for

        family = HistogramMetricFamily(
            "fluence_match_seconds", "One match in the graph, by outcome.", labels=["outcome"]
        )
        bounds = [*map(str, _BOUNDS), "+Inf"]
        for outcome, counts in self._counts.items():
            buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
            family.add_metric([outcome], buckets, self._seconds[outcome])
        return family


class GraphMetrics:
    """Counts of a live graph. Its vertices are counted anew only after its hosts changed."""

    def __init__(self, live: LiveGraph) -> None:
        self._live = live
        self._vertices: tuple[int, Mapping[str, int]] = (-1, {})

    def families(self) -> Iterator[Metric]:
        """Everything that the plugin measures."""
        live = self._live
        held = [share for share in live.shares.values() if share]
        missing = sum(map(len, live.missing.values()))
        loads = list(live.foreign_load_held.values())
        yield live.match_times.family()
        yield _gauges("graph_vertices", "Vertices of the graph, by type.", "type", self._by_type())
        yield _gauge("held_jobs", "Allocations that pods hold.", len({jobid for share in held for jobid in share}))
        yield _gauge("held_pods", "Pods that hold something in the graph.", len(held))
        yield _gauge("missing_parts", "Parts that pods got and the graph does not have now.", missing)
        yield _gauges(
            "foreign_load_hosts",
            "Hosts with load that the graph holds for pods of others: all of it, or a part where a host has too much.",
            "held",
            {"whole": loads.count(True), "part": loads.count(False)},
        )
        yield _gauge("next_jobid", "The number of the next allocation.", live.next_jobid)

    def _by_type(self) -> Mapping[str, int]:
        if self._vertices[0] != self._live.version:
            self._vertices = (self._live.version, self._live.matcher.stat()["by_type"])
        return self._vertices[1]


def of_drift(pods: Mapping[str, int]) -> Metric:
    """About how many pods graph and cluster disagree, by how."""
    return _gauges("graph_drift_pods", "Pods about which graph and cluster disagree.", "kind", pods)


def of_resources(following: Following) -> Iterator[Metric]:
    """What became of the resources file."""
    from prometheus_client.core import CounterMetricFamily  # only where it is asked for

    text = "Whether the resources file, as it is now, could be used."
    yield _gauge("resources_last_load_successful", text, following.usable)
    text = "Changes of the resources file that were taken over."
    yield CounterMetricFamily("fluence_resources_changes", text, value=following.changes)


def _gauge(name: str, text: str, count: int) -> Metric:
    from prometheus_client.core import GaugeMetricFamily  # only where it is asked for

    return GaugeMetricFamily(f"fluence_{name}", text, value=count)


def _gauges(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily  # only where it is asked for

    family = GaugeMetricFamily(f"fluence_{name}", text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
