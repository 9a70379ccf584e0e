"""What the plugin measures, as the hook `metrics` answers: matches by time, the graph's size, who holds what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric

    from fluence_plugins.fluence.graph.live_graph import LiveGraph
    from fluence_plugins.fluence.tasks.resources_reload import ResourcesReload


class GraphMetrics:
    """Counts of a live graph. Its vertices are counted anew only after its hosts changed."""

    def __init__(self, live: LiveGraph) -> None:
        self._live = live
        self._vertices: tuple[int, Mapping[str, int]] = (-1, {})

    def families(self) -> Iterator[Metric]:
        """Everything that the plugin measures."""
        live = self._live
        held = [share for share in live.holdings.shares.values() if share]
        missing = sum(map(len, live.holdings.missing.values()))
        loads = list(live.foreign.held.values())
        yield live.allocations.match_times.family()
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
        yield _gauge("next_jobid", "The number of the next allocation.", live.allocations.next_jobid)

    def _by_type(self) -> Mapping[str, int]:
        if self._vertices[0] != self._live.loaded.version:
            self._vertices = (self._live.loaded.version, self._live.matcher.stat()["by_type"])
        return self._vertices[1]


def drift_metric(pods: Mapping[str, int]) -> Metric:
    """About how many pods graph and cluster disagree, by how."""
    return _gauges("graph_drift_pods", "Pods about which graph and cluster disagree.", "kind", pods)


def reload_metrics(reload: ResourcesReload) -> Iterator[Metric]:
    """What became of the resources file."""
    from prometheus_client.core import CounterMetricFamily  # only where it is asked for

    text = "Whether the resources file, as it is now, could be used."
    yield _gauge("resources_last_load_successful", text, reload.usable)
    text = "Changes of the resources file that were taken over."
    yield CounterMetricFamily("fluence_resources_changes", text, value=reload.changes)


def _gauge(name: str, text: str, count: int) -> Metric:
    return _gauges(name, text, "", {"": count})


def _gauges(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily  # only where it is asked for

    family = GaugeMetricFamily(f"fluence_{name}", text, labels=[label] if label else [])
    for value, count in counts.items():
        family.add_metric([value] if label else [], count)
    return family
