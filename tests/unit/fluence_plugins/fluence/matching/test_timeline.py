"""The graph as it will be: what ends, what is closed when, and that the graph itself stays as it is."""

from __future__ import annotations

from fluence_plugins.fluence.graph.accounting import PodShape
from fluence_plugins.fluence.graph.cluster_graph import HostResources
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.matching.jobspecs import compute_jobspec_text, device_jobspecs
from fluence_plugins.fluence.matching.timeline import (
    Timeline,
    union,
    with_duration,
    without_holes,
)
from fluence_plugins.resources.config import load_resources
from fluence_plugins.resources.maintenance_windows import Window

WALL = 1_000_000.0
TWO = compute_jobspec_text(PodShape(4), 2)


def made() -> LiveGraph:
    """Two hosts of four cores, two devices; pod `a` has n1 and a device, pod `b` half of n2."""
    live = LiveGraph(load_resources("resources: [{type: qpu, name: q, count: 2}]", "f"), "low")
    live.set_hosts({name: HostResources(name, 4, 100) for name in ("n1", "n2")})
    for uid, cores in (("a", 4), ("b", 2)):
        job = live.allocations.match(compute_jobspec_text(PodShape(cores), 1))
        live.allocations.hold(uid, {job.jobid: job.placement})
    job = live.allocations.match(qpu(live))
    live.allocations.hold("a", {job.jobid: job.placement})
    return live


def qpu(live: LiveGraph) -> str:
    return device_jobspecs(live.graph, "qpu", 1)[0].to_json()


def test_what_is_asked_for_can_be_had_when_the_last_pod_in_the_way_ends() -> None:
    live = made()
    assert Timeline(live, WALL, {"a": WALL + 10.5, "b": WALL + 20}).earliest([TWO]) == 20
    assert Timeline(live, WALL, {"a": WALL + 10.5, "b": WALL - 1}).earliest([TWO]) == 11
    assert Timeline(live, WALL, {"a": WALL + 10}).earliest([TWO]) is None
    assert Timeline(live, WALL, {}).earliest([compute_jobspec_text(PodShape(2), 1)]) == 0


def test_several_devices_can_be_had_beside_each_other_when_the_last_is_free() -> None:
    live = made()
    line = Timeline(live, WALL, {"a": WALL + 10})
    assert [line.earliest([qpu(live)], times=times) for times in (1, 2, 3)] == [0, 10, None]
    assert line.earliest([qpu(live)], times=2) == 10


def test_the_graph_itself_stays_as_it_is() -> None:
    live = made()
    before = live.matcher.find("sched-now=allocated")
    Timeline(live, WALL, {"a": WALL + 10, "b": WALL + 5}).earliest([TWO], times=2)
    assert live.matcher.find("sched-now=allocated") == before
    assert sorted(live.holdings.shares) == ["a", "b"]


def test_a_window_lets_through_what_ends_before_and_what_begins_after() -> None:
    live = made()
    windows = [Window(WALL + 100, WALL + 200, nodes=("n1",)), Window(WALL - 50, WALL + 40, backends=("q1",))]
    line = Timeline(live, WALL, {"a": WALL + 10, "b": WALL + 20}, windows)
    assert line.earliest([with_duration(TWO, 80)]) == 20
    assert line.earliest([with_duration(TWO, 81)]) == 200
    assert line.earliest([TWO]) == 200
    assert line.earliest([qpu(live)], times=2) == 40


def test_what_runs_in_a_window_holds_what_it_has_before_and_after_it() -> None:
    live = made()
    line = Timeline(live, WALL, {"b": WALL + 20}, [Window(WALL + 100, WALL + 200, nodes=("n1",))])
    assert line.earliest([compute_jobspec_text(PodShape(4), 1)]) == 20
    assert line.earliest([TWO]) is None


def test_where_others_end_nothing_is_held_for_them() -> None:
    live = made()
    live.allocations.free("a")
    live.foreign.set("n1", (2, 0, 0, 0))
    assert Timeline(live, WALL, {"b": WALL + 20}).earliest([TWO]) is None
    assert Timeline(live, WALL, {"b": WALL + 20}, foreign=["n1"]).earliest([TWO]) == 20


def test_spans_are_joined_and_cut() -> None:
    assert union([(5, 9), (0, 2), (2, 3), (6, 7)]) == [(0, 3), (5, 9)]
    assert without_holes((0, 10), [(2, 3), (5, 20)]) == [(0, 2), (3, 5)]
    assert without_holes((0, 10), []) == [(0, 10)]
    assert without_holes((4, 5), [(0, 9)]) == []
