"""What the plugin measures is what its graph has and does."""

from typing import Any

import numpy as np
import pytest
from prometheus_client.core import Metric

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.graph.accounting import PodShape
from fluence_plugins.fluence.graph.cluster_graph import HostResources
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.match_times import MatchTimes
from fluence_plugins.fluence.matching.jobspecs import compute_jobspec
from fluence_plugins.fluence.metrics import GraphMetrics
from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.resources.config import load_resources
from fluxion_cy import Busy, Matcher, Unsatisfiable
from session_scheduler.registry.validation import hook_calls


@pytest.fixture
def live() -> LiveGraph:
    graph = LiveGraph(load_resources("resources: [{type: licence, name: pool, count: 3}]", "resources.yaml"), "first")
    graph.set_hosts({"n1": HostResources("n1", 4, 1000), "n2": HostResources("n2", 2, 1000)})
    return graph


def values(family: Metric) -> dict[str, float]:
    """By the value of the only label; the whole family by an empty one."""
    return {"".join(sample.labels.values()): sample.value for sample in family.samples}


def measured(live: LiveGraph) -> dict[str, dict[str, float]]:
    return {family.name: values(family) for family in GraphMetrics(live).families()}


def matches(live: LiveGraph) -> dict[str, float]:
    samples = live.allocations.match_times.family().samples
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name.endswith("_count")}


def take(live: LiveGraph, uid: str, pods: int = 1, **shape: Any) -> None:
    job = live.allocations.match(compute_jobspec(PodShape(**shape), pods).to_json())
    live.allocations.hold(uid, {job.jobid: job.placement})


# ------------------------------------------------------------------ matches


def test_each_match_is_counted_by_its_outcome(live: LiveGraph) -> None:
    assert matches(live) == {"matched": 0, "busy": 0, "unsatisfiable": 0}
    take(live, "a", cores=4)
    take(live, "b", cores=2)
    with pytest.raises(Busy):
        take(live, "c", cores=1)
    assert matches(live) == {"matched": 2, "busy": 1, "unsatisfiable": 0}


def test_what_an_empty_graph_could_not_hold_is_unsatisfiable_not_busy(live: LiveGraph) -> None:
    for shape in ({"cores": 9}, {"cores": 1, "gpus": 1}):
        with pytest.raises((Busy, Unsatisfiable)):
            take(live, "a", **shape)
    assert matches(live) == {"matched": 0, "busy": 0, "unsatisfiable": 2}


def test_a_match_refused_for_its_candidates_alone_is_busy(live: LiveGraph) -> None:
    jobspec = compute_jobspec(PodShape(cores=4), 1).to_json()
    only = np.zeros(live.graph.ranks, np.int64)
    only[live.graph.host_ranks["n2"]] = 1
    with pytest.raises(Busy):
        live.allocations.match(jobspec, only)
    assert matches(live) == {"matched": 0, "busy": 1, "unsatisfiable": 0}


def test_a_type_that_no_vertex_has_is_unsatisfiable(live: LiveGraph) -> None:
    with pytest.raises(Unsatisfiable):
        live.allocations.match(compute_jobspec(PodShape(cores=1), 1).to_json().replace('"core"', '"unknown"'))
    assert matches(live) == {"matched": 0, "busy": 0, "unsatisfiable": 1}


def test_foreign_load_and_what_is_held_again_are_no_matches(live: LiveGraph) -> None:
    live.foreign.set("n1", (1, 0, 0, 0))
    take(live, "a", cores=1)
    share = live.holdings.shares["a"]
    live.allocations.free("a")
    live.allocations.replay({"a": share})
    assert matches(live)["matched"] == 1


def test_the_counts_outlive_the_matcher_that_they_are_of(live: LiveGraph) -> None:
    take(live, "a", cores=1)
    live.set_hosts({"n1": None, "n2": None})
    live.set_hosts({"n3": HostResources("n3", 4, 1000)})
    assert matches(live)["matched"] == 1


@pytest.mark.parametrize(
    ("seconds", "first"), [(0.0, "1e-05"), (1e-05, "1e-05"), (1.1e-05, "2.5e-05"), (0.02, "0.025"), (99.0, "+Inf")]
)
def test_a_time_counts_in_every_bucket_that_is_not_below_it(seconds: float, first: str) -> None:
    times = MatchTimes()
    times.add("busy", seconds)
    samples = [sample for sample in times.family().samples if sample.labels["outcome"] == "busy"]
    buckets = {sample.labels["le"]: sample.value for sample in samples if "le" in sample.labels}
    assert next(bound for bound, count in buckets.items() if count) == first
    assert list(buckets.values()) == sorted(buckets.values())
    assert {sample.name: sample.value for sample in samples if "le" not in sample.labels} == {
        "fluence_match_seconds_count": 1,
        "fluence_match_seconds_sum": seconds,
    }


# ------------------------------------------------------------------ the graph


def test_vertices_are_counted_by_type_as_hosts_come_and_go(live: LiveGraph) -> None:
    measured_graph = GraphMetrics(live)

    def cores() -> float:
        return next(values(f)["core"] for f in measured_graph.families() if f.name == "fluence_graph_vertices")

    assert cores() == 6
    live.set_hosts({"n3": HostResources("n3", 8, 1000)})
    assert cores() == 14
    live.set_hosts({"n1": None})
    assert cores() == 10


def test_vertices_are_not_counted_again_while_the_hosts_are_the_same(
    live: LiveGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_graph = GraphMetrics(live)
    first = [values(family) for family in measured_graph.families()]
    monkeypatch.setattr(Matcher, "stat", None)
    assert [values(family) for family in measured_graph.families()] == first


def test_what_pods_hold_is_counted_by_pod_and_by_allocation(live: LiveGraph) -> None:
    take(live, "a", cores=1)
    job = live.allocations.match(compute_jobspec(PodShape(cores=1), 2).to_json())
    live.allocations.hold("b", {job.jobid: job.placement, **live.holdings.shares["a"]})
    live.allocations.hold("none", {})
    found = measured(live)
    assert found["fluence_held_pods"] == {"": 2}
    assert found["fluence_held_jobs"] == {"": 2}
    assert found["fluence_next_jobid"] == {"": 3}
    live.allocations.free("b")
    assert measured(live)["fluence_held_pods"] == {"": 1}


def test_what_a_pod_lost_with_its_node_is_missing_until_the_node_is_back(live: LiveGraph) -> None:
    take(live, "a", cores=4)
    assert measured(live)["fluence_missing_parts"] == {"": 0}
    live.set_hosts({"n1": None})
    assert measured(live)["fluence_missing_parts"] == {"": 1}
    assert measured(live)["fluence_held_pods"] == {"": 0}
    live.set_hosts({"n1": HostResources("n1", 4, 1000)})
    assert measured(live)["fluence_missing_parts"] == {"": 0}
    assert measured(live)["fluence_held_pods"] == {"": 1}


def test_hosts_with_foreign_load_are_counted_by_how_much_of_it_is_held(live: LiveGraph) -> None:
    assert measured(live)["fluence_foreign_load_hosts"] == {"whole": 0, "part": 0}
    live.foreign.set("n1", (1, 0, 0, 0))
    live.foreign.set("n2", (9, 0, 0, 0))
    assert measured(live)["fluence_foreign_load_hosts"] == {"whole": 1, "part": 1}
    live.foreign.set("n1", None)
    assert measured(live)["fluence_foreign_load_hosts"] == {"whole": 0, "part": 1}


def test_the_plugin_answers_with_all_of_it() -> None:
    (hook,) = hook_calls([("fluence", FluencePlugin(FluenceArguments()), None)]).functions("metrics")
    names = {family.name for family in hook()}
    assert {"fluence_match_seconds", "fluence_graph_vertices", "fluence_held_pods", "fluence_missing_parts"} < names
