"""The plugin's metrics, for the hook `metrics`: matches by time, the size of the graph, and allocations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric

    from fluence_plugins.fluence.graph.live_graph import LiveGraph
    from fluence_plugins.fluence.tasks.resources_reload import ResourcesReload


class GraphMetrics:
    """Metrics of a live graph. Vertices are recounted only after the graph's hosts have changed."""

    def __init__(self, live: LiveGraph) -> None:
        self._live = live
        self._vertices: tuple[int, Mapping[str, int]] = (-1, {})

    def families(self) -> Iterator[Metric]:
        """All metrics of the live graph."""
        live = self._live
        held = [share for share in live.holdings.shares.values() if share]
        missing = sum(map(len, live.holdings.missing.values()))
        loads = list(live.foreign.held.values())
        yield live.allocations.match_times.family()
        yield _gauges("graph_vertices", "Vertices of the graph, by type.", "type", self._by_type())
        yield _gauge("held_jobs", "Allocations that pods hold.", len({jobid for share in held for jobid in share}))
        yield _gauge("held_pods", "Pods that hold something in the graph.", len(held))
        yield _gauge("missing_parts", "Resources that running pods hold and the graph lacks.", missing)
        yield _gauges(
            "foreign_load_hosts",
            "Nodes with pods of other schedulers, by whether the graph holds their whole load, or only part of it.",
            "held",
            {"whole": loads.count(True), "part": loads.count(False)},
        )
        yield _gauge("next_jobid", "The number of the next allocation.", live.allocations.next_jobid)

    def _by_type(self) -> Mapping[str, int]:
        if self._vertices[0] != self._live.loaded.version:
            self._vertices = (self._live.loaded.version, self._live.matcher.stat()["by_type"])
        return self._vertices[1]


def drift_metric(pods: Mapping[str, int]) -> Metric:
    """The number of pods on which the graph and the cluster disagree, by kind."""
    return _gauges("graph_drift_pods", "Pods for which the graph and the cluster disagree.", "kind", pods)


def reload_metrics(reload: ResourcesReload) -> Iterator[Metric]:
    """Metrics of the resources file."""
    from prometheus_client.core import CounterMetricFamily  # imported only for metrics

    text = "Whether the current resources file is valid."
    yield _gauge("resources_last_load_successful", text, reload.usable)
    text = "Changes to the resources file that were applied."
    yield CounterMetricFamily("fluence_resources_changes", text, value=reload.changes)


def _gauge(name: str, text: str, count: int) -> Metric:
    return _gauges(name, text, "", {"": count})


def _gauges(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily  # imported only for metrics

    family = GaugeMetricFamily(f"fluence_{name}", text, labels=[label] if label else [])
    for value, count in counts.items():
        family.add_metric([value] if label else [], count)
    return family
