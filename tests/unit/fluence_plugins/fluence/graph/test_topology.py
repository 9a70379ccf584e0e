"""Levels: their configuration, their names, and the graph with them."""

from __future__ import annotations

import pytest

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.errors import GraphError
from fluence_plugins.fluence.graph.cluster_graph import ClusterGraph, HostResources, build_graph
from fluence_plugins.fluence.graph.placement import HostHolding, Placement
from fluence_plugins.fluence.graph.resource_set import allocation_from_placement, placement_from_allocation
from fluence_plugins.fluence.graph.topology import TopologyLevel, in_words, levels_from, levels_of, vertex_name
from fluence_plugins.resources.config import load_resources
from session_scheduler.config.parsing import validated
from session_scheduler.errors import InputError

ZONE, RACK = ("zone", "a"), ("rack", "1")
TREES = "resources: [{type: fpga, name: f, count: 2, parent: n1}, {type: qpu, name: q}]"


def host(name: str, *levels: tuple[str, str]) -> HostResources:
    return HostResources(name, cores=2, memory_mib=64, gpus=1, levels=levels)


@pytest.fixture
def graph() -> ClusterGraph:
    return build_graph([host("n1", ZONE, RACK), host("n2", RACK), host("n3")], load_resources(TREES, "r"))


@pytest.mark.parametrize(
    ("levels", "says"),
    [
        ([{"type": "rack"}], "topology[0].label: is missing"),
        (
            [{"type": "node", "label": "a"}],
            "topology[0].type: 'node' is a built-in type of the graph; use another word",
        ),
        ([{"type": "a/b", "label": "a"}], "topology[0].type: 'a/b' is not a valid type"),
        ([{"type": "rack", "label": "a b"}], "topology[0].label: 'a b' is not a valid label key"),
        ([{"type": "a", "label": "x"}, {"type": "a", "label": "y"}], "topology[1].type: 'a' is also the type of [0]"),
        ([{"type": "a", "label": "x"}, {"type": "b", "label": "x"}], "topology[1].label: 'x' is also the label of [0]"),
        ([{"type": f"t{n}", "label": f"l{n}"} for n in range(9)], "topology: expected at most 8 levels, got 9"),
        ([{"type": "rack", "label": "a", "more": 1}], "topology[0].more"),
    ],
)
def test_wrong_levels_are_refused_with_the_field_and_the_remedy(levels: list[dict[str, str]], says: str) -> None:
    with pytest.raises(InputError) as error:
        validated(FluenceArguments, {"topology": levels}, "config")
    assert says in str(error.value)


def test_a_command_line_has_levels_as_type_and_label() -> None:
    assert levels_from(["zone=a.b/c", "rack=d"]) == (
        TopologyLevel(type="zone", label="a.b/c"), TopologyLevel(type="rack", label="d")
    )  # fmt: skip
    with pytest.raises(InputError, match="label: is missing"):
        levels_from(["zone"])


def test_a_host_lies_in_the_levels_of_which_it_has_the_label() -> None:
    topology = levels_from(["zone=z", "rack=r"])
    assert levels_of({"r": "1", "z": "a"}, topology) == (ZONE, RACK)
    assert levels_of({"r": "1", "z": ""}, topology) == (RACK,)
    assert levels_of({}, topology) == ()


def test_names_of_levels_are_safe_and_distinct() -> None:
    values = ["a", "a/b", "a%2Fb", "ä", "..", "a=b", "a b"]
    names = [vertex_name("rack", value) for value in values]
    assert len(set(names)) == len(values)
    assert not any("/" in name for name in names)
    assert vertex_name("rack", "r1") == "rack=r1"
    assert in_words((ZONE, ("rack", "rack-1"))) == "rack-1 of zone a"


def test_names_leave_levels_out_and_the_graph_has_them(graph: ClusterGraph) -> None:
    assert [graph.host_path(name) for name in ("n1", "n2", "n3")] == ["/cluster/n1", "/cluster/n2", "/cluster/n3"]
    assert [graph.vertex_path(graph.host_path(name)) for name in ("n1", "n2", "n3")] == [
        "/cluster/zone=a/rack=1/n1", "/cluster/rack=1/n2", "/cluster/n3",
    ]  # fmt: skip
    assert sorted(graph.virtual) == ["/cluster/n1/f0", "/cluster/n1/f1", "/cluster/q"]
    assert graph.virtual["/cluster/n1/f1"].above == ("/cluster/n1",)
    assert all(graph.path_of(graph.vertex(path)) == path for path in (*graph.virtual, "/cluster/n1", "/cluster/n3"))
    assert graph.vertex("/cluster/n1/f1").path == "/cluster/zone=a/rack=1/n1/f1"
    assert graph.vertex("/cluster/n1").options.rank == graph.host_ranks["n1"]
    assert graph.at_rank(graph.host_ranks["n1"]) == "n1"


def test_what_is_held_below_a_level_is_read_and_written_without_it(graph: ClusterGraph) -> None:
    hosts = tuple(HostHolding(name, f"/cluster/{name}", (0, 1), (0,), 10) for name in ("n1", "n2", "n3"))
    devices = placement_from_allocation(graph.jgf()).devices
    held = Placement(hosts, devices)
    written = allocation_from_placement(graph, held)
    paths = {node["metadata"]["paths"]["containment"] for node in written["graph"]["nodes"]}
    assert {"/cluster/zone=a/rack=1/n1/core0", "/cluster/rack=1/n2/core1", "/cluster/zone=a"} <= paths
    assert placement_from_allocation(written) == held


def test_the_last_host_of_a_level_takes_it_along(graph: ClusterGraph) -> None:
    graph.add_host(host("n4", ZONE, ("rack", "2")))
    assert graph.remove_host("n1") == "/cluster/zone=a/rack=1"
    assert graph.remove_host("n4") == "/cluster/zone=a"
    assert graph.remove_host("n3") == "/cluster/n3"
    assert not any("zone" in vertex.path for vertex in graph.builder)
    assert graph.virtual.keys() == {"/cluster/q"}


def test_a_host_is_not_named_like_a_backend_wherever_it_is(graph: ClusterGraph) -> None:
    before = len(graph.builder)
    with pytest.raises(GraphError, match="/cluster/q: two vertices have this path"):
        graph.add_host(host("q", ZONE, ("rack", "9")))
    assert len(graph.builder) == before
    with pytest.raises(GraphError, match="/cluster/n1: two vertices have this path"):
        build_graph([host("n1", ZONE)], load_resources("resources: [{type: qpu, name: n1}]", "r"))
