import pytest

from fluence_plugins.fluence.errors import GraphError
from fluence_plugins.fluence.graph.cluster_graph import ClusterGraph, HostResources, build_graph
from fluence_plugins.fluence.graph.jgf import JGFBuilder
from fluence_plugins.resources.config import load_resources

CONFIG = """
resources:
- type: qdevice
  name: rigetti
  attributes: {region: us-east-1}
  with:
  - {type: qpu, with: [{type: qubit, count: 3, attributes: {shape: square}}]}
- {type: fpga, count: 2, parent: n2}
"""
HOSTS = [HostResources("n1", cores=2, memory_mib=1024, gpus=1), HostResources("n2", cores=1, memory_mib=0)]


@pytest.fixture
def graph():
    return build_graph(HOSTS, load_resources(CONFIG, "resources.yaml"))


def metadata(data):
    return {node["metadata"]["paths"]["containment"]: node["metadata"] for node in data["graph"]["nodes"]}


def test_a_host_is_a_node_that_is_not_virtual_with_cores_gpus_and_one_memory_pool(graph: ClusterGraph):
    found = metadata(graph.jgf())
    assert found["/cluster/n1"]["type"] == "node"
    assert found["/cluster/n1"]["properties"] == {"virtual=false": ""}
    below = [path for path in found if path.startswith("/cluster/n1/")]
    assert below == ["/cluster/n1/core0", "/cluster/n1/core1", "/cluster/n1/gpu0", "/cluster/n1/memory"]
    pool = found["/cluster/n1/memory"]
    assert (pool["size"], pool["unit"], pool["divisible"], pool["rank"]) == (1024, "MiB", True, 0)
    assert "/cluster/n2/memory" not in found


def test_every_level_of_a_tree_is_a_virtual_node_with_classes_and_inherited_attributes(graph: ClusterGraph):
    found = metadata(graph.jgf())
    assert found["/cluster/rigetti"]["properties"].keys() == {
        "virtual=true", "class=qdevice", "class=qpu", "class=qubit", "region=us-east-1", "backend=rigetti",
    }  # fmt: skip
    assert found["/cluster/rigetti/qpu0/qubit2"]["properties"].keys() == {
        "virtual=true", "class=qubit", "region=us-east-1", "shape=square", "backend=rigetti",
    }  # fmt: skip
    assert {found[path]["type"] for path in graph.virtual} == {"node"}


def test_a_count_makes_siblings(graph: ClusterGraph):
    assert [path for path in graph.virtual if "qubit" in path] == [
        f"/cluster/rigetti/qpu0/qubit{number}" for number in range(3)
    ]


def test_every_node_has_a_rank_of_its_own_that_leads_back(graph: ClusterGraph):
    nodes = [data for data in metadata(graph.jgf()).values() if data["type"] == "node"]
    ranks = [data["rank"] for data in nodes]
    assert sorted(ranks) == list(range(len(nodes)))
    assert graph.vertex("/cluster/n2").options.rank == graph.host_ranks["n2"]
    assert graph.at_rank(graph.host_ranks["n2"]) == "n2"
    for path, node in graph.virtual.items():
        assert graph.at_rank(node.rank) is node
        assert node.path == path
    with pytest.raises(GraphError, match="rank 99"):
        graph.at_rank(99)


def test_a_tree_can_hang_below_a_host(graph: ClusterGraph):
    fpga = graph.virtual["/cluster/n2/fpga1"]
    assert (fpga.backend, fpga.level, fpga.above) == ("fpga1", 0, ("/cluster/n2",))
    qubit = graph.virtual["/cluster/rigetti/qpu0/qubit0"]
    assert (qubit.backend, qubit.level) == ("rigetti", 2)
    assert qubit.above == ("/cluster/rigetti", "/cluster/rigetti/qpu0")


def test_the_graph_is_what_the_builder_reads_back(graph: ClusterGraph):
    assert JGFBuilder.from_json(graph.builder.to_json()) == graph.builder


def test_an_unknown_parent_is_refused_unless_it_may_come_later():
    config = load_resources("resources: [{type: fpga, name: f, parent: n9}]", "r")
    with pytest.raises(GraphError, match="resource f: parent 'n9' must be the cluster, one of its nodes or a named"):
        build_graph(HOSTS, config)
    graph = build_graph(HOSTS, config, wait_for_parents=True)
    assert [tree.name for tree in graph.waiting_trees()] == ["f"]
    grown = graph.add_host(HostResources("n9", 1, 0))
    assert "/cluster/n9/f" in metadata(grown)
    assert graph.waiting_trees() == []


def test_adding_a_host_gives_the_subgraph_with_the_path_from_the_root(graph: ClusterGraph):
    before = len(graph.builder)
    grown = graph.add_host(HostResources("n3", 2, 512, 0))
    assert list(metadata(grown)) == [
        "/cluster", "/cluster/n3", "/cluster/n3/core0", "/cluster/n3/core1", "/cluster/n3/memory",
    ]  # fmt: skip
    assert len(grown["graph"]["edges"]) == 4
    assert len(graph.builder) == before + 4
    assert graph.vertex("/cluster/n3").options.rank == graph.host_ranks["n3"]
    assert graph.at_rank(graph.host_ranks["n3"]) == "n3"


def test_removing_a_host_forgets_it_and_what_hung_below_it(graph: ClusterGraph):
    rank, fpga = graph.host_ranks["n2"], graph.virtual["/cluster/n2/fpga0"].rank
    assert graph.remove_host("n2") == "/cluster/n2"
    assert "/cluster/n2/fpga0" not in graph.virtual
    for gone in (rank, fpga):
        with pytest.raises(GraphError, match=r"rank \d+: no vertex of the graph has this rank"):
            graph.at_rank(gone)
    with pytest.raises(GraphError, match="node n2: is not in the graph"):
        graph.remove_host("n2")


def test_a_host_that_comes_back_gets_its_names_again_and_ranks_do_not_run_away(graph: ClusterGraph):
    ranks = graph.ranks
    graph.remove_host("n2")
    graph.add_host(HOSTS[1])
    assert graph.host_ranks["n2"] < graph.ranks == ranks
    assert graph.vertex("/cluster/n2").options.rank == graph.host_ranks["n2"]
    assert graph.at_rank(graph.host_ranks["n2"]) == "n2"
    assert graph.virtual["/cluster/n2/fpga1"].backend == "fpga1"
    assert graph.builder["/cluster/n2/core0"].id == 0


def test_unnamed_trees_never_share_a_backend_name():
    text = "resources: [{type: f, parent: n1}, {type: f}, {type: g, name: f1}, {type: f, parent: n2, count: 2}]"
    graph = build_graph(HOSTS, load_resources(text, "r"))
    assert sorted(graph.virtual) == ["/cluster/f1", "/cluster/f2", "/cluster/n1/f0", "/cluster/n2/f3", "/cluster/n2/f4"]
    assert len({node.backend for node in graph.virtual.values()}) == 5


def test_two_vertices_of_one_name_are_refused():
    with pytest.raises(GraphError, match="/cluster/n1: two vertices"):
        build_graph([HOSTS[0], HOSTS[0]], load_resources("", "r"))
    with pytest.raises(GraphError, match="/cluster/n1: two vertices"):
        build_graph(HOSTS, load_resources("resources: [{type: a, name: n1}]", "r"))


def test_a_host_cannot_offer_less_than_nothing():
    with pytest.raises(GraphError, match="node n1: has a negative amount"):
        HostResources("n1", -1, 0)


def test_what_is_down_is_marked_and_of_no_class_nor_is_what_lies_in_it():
    config = load_resources(CONFIG.replace("name: rigetti", "name: rigetti\n  status: down"), "resources.yaml")
    found = metadata(build_graph(HOSTS, config).jgf())
    for path in ("/cluster/rigetti", "/cluster/rigetti/qpu0", "/cluster/rigetti/qpu0/qubit0"):
        properties = found[path]["properties"].keys()
        assert {"virtual=true", "status=down", "backend=rigetti"} <= properties
        assert not [name for name in properties if name.startswith("class=")]
    assert "class=fpga" in found["/cluster/n2/fpga0"]["properties"]


def test_only_trees_that_differ_are_outdated_and_only_they_are_built_anew(graph: ClusterGraph):
    before = {path: node.rank for path, node in graph.virtual.items()}
    other = load_resources(CONFIG.replace("count: 2", "count: 3"), "resources.yaml")
    assert graph.outdated(other) == []
    assert graph.set_config(other) == ["/cluster/n2/fpga2"]
    assert {path: graph.virtual[path].rank for path in before} == before
    moved = load_resources(CONFIG.replace("us-east-1", "eu"), "resources.yaml")
    assert graph.outdated(moved) == ["/cluster/n2/fpga2", "/cluster/rigetti"]


SHARED = (
    "resources: [{type: qpu, name: a, sharing: 2, attributes: {x: y}, with: [{type: qubit}]}, {type: qpu, name: b}]"
)


def test_what_is_shared_has_places_like_itself_with_all_that_is_inside():
    graph = build_graph(HOSTS, load_resources(SHARED, "resources.yaml"))
    assert list(graph.virtual) == [
        "/cluster/a", "/cluster/a/@0", "/cluster/a/@0/qubit0", "/cluster/a/@1", "/cluster/a/@1/qubit0", "/cluster/b",
    ]  # fmt: skip
    found = metadata(graph.jgf())
    assert found["/cluster/a"]["properties"] == found["/cluster/a/@1"]["properties"]
    assert (graph.virtual["/cluster/a"].places, graph.virtual["/cluster/b"].places) == (2, 0)
    place = graph.virtual["/cluster/a/@1"]
    assert (place.is_place, place.name, place.backend, place.attributes) == (True, "a", "a", {"x": "y"})
    assert graph.same_device("/cluster/a/@") == ["/cluster/a/@0", "/cluster/a/@1"]
    assert graph.same_device("/cluster/a/@7/qubit0") == ["/cluster/a/@0/qubit0", "/cluster/a/@1/qubit0"]
    assert graph.same_device("/cluster/b/@") == ("/cluster/b",)
    assert graph.same_device("/cluster/c") == ()
    assert graph.offered(["qpu", "qubit", "none"]) == {
        "fluxion.flux-framework.org/qpu": 3,
        "fluxion.flux-framework.org/qubit": 2,
        "fluxion.flux-framework.org/none": 0,
    }


def test_what_more_hold_than_may_share_it_has_more_places_and_no_class():
    config = load_resources(SHARED, "resources.yaml")
    graph = build_graph(HOSTS, config)
    graph.remove_tree("/cluster/a")
    graph.extra_places["/cluster/a"] = 1
    assert graph.set_config(config) == ["/cluster/a"]
    assert graph.virtual["/cluster/a"].places == 3
    inside = [node for path, node in graph.virtual.items() if path.startswith("/cluster/a")]
    assert all(node.closed and not any(name.startswith("class=") for name in node.properties) for node in inside)
    graph.remove_tree("/cluster/a")
    assert graph.extra_places == {}
