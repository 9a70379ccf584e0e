import pytest

from fluence_plugins.fluence.errors import GraphError
from fluence_plugins.fluence.graph.jgf import JGFBuilder, Options


@pytest.fixture
def builder():
    found = JGFBuilder()
    root = found.add_root("cluster")
    node = found.add_child(root, "node", options=Options(name="n1", rank=0, node_properties={"virtual=false": ""}))
    found.add_child(node, "core", options=Options(rank=0))
    found.add_child(node, "core", options=Options(rank=0))
    found.add_child(node, "memory", options=Options(size=512, unit="MiB", divisible=True))
    found.add_child(root, "node", "qpu", Options(rank=1))
    return found


def metadata(builder):
    return {
        node["metadata"]["paths"]["containment"]: node["metadata"] for node in builder.to_mapping()["graph"]["nodes"]
    }


def test_vertices_are_named_and_numbered_under_their_parent(builder):
    assert [vertex.path for vertex in builder] == [
        "/cluster0", "/cluster0/n1", "/cluster0/n1/core0", "/cluster0/n1/core1", "/cluster0/n1/memory0",
        "/cluster0/qpu0",
    ]  # fmt: skip


def test_options_become_the_fields_that_the_matcher_reads(builder):
    found = metadata(builder)
    memory = found["/cluster0/n1/memory0"]
    assert (memory["size"], memory["unit"], memory["divisible"], memory["exclusive"]) == (512, "MiB", True, False)
    assert found["/cluster0/n1"]["properties"] == {"virtual=false": ""}
    assert found["/cluster0/n1"]["rank"] == 0
    assert found["/cluster0"]["rank"] == -1
    assert found["/cluster0/qpu0"]["type"] == "node"
    assert "properties" not in found["/cluster0/qpu0"]


def test_edges_lead_from_holder_to_held(builder):
    edges = builder.to_mapping()["graph"]["edges"]
    assert [(edge["source"], edge["target"]) for edge in edges] == [
        ("0", "1"), ("1", "2"), ("1", "3"), ("1", "4"), ("0", "5"),
    ]  # fmt: skip
    assert all(edge["metadata"] == {"subsystem": "containment"} for edge in edges)


def test_a_subgraph_holds_the_path_from_the_root(builder):
    data = builder.subgraph("/cluster0/n1/core1")
    assert [node["id"] for node in data["graph"]["nodes"]] == ["0", "1", "3"]
    assert len(data["graph"]["edges"]) == 2


def test_removing_a_vertex_removes_what_it_holds(builder):
    gone = builder.remove("/cluster0/n1")
    assert len(gone) == 4
    assert [vertex.path for vertex in builder] == ["/cluster0", "/cluster0/qpu0"]
    with pytest.raises(GraphError, match="/cluster0/n1: is no vertex"):
        builder.remove("/cluster0/n1")


def test_what_cannot_be_built_is_refused_by_path(builder):
    root = builder["/cluster0"]
    with pytest.raises(GraphError, match="/cluster0/n1: two vertices have this path"):
        builder.add_child(root, "node", options=Options(name="n1"))
    with pytest.raises(GraphError, match="a graph has one root"):
        builder.add_root("cluster", options=Options(name="other"))
    with pytest.raises(GraphError, match="size -1 is negative"):
        builder.add_child(root, "core", options=Options(size=-1))
    with pytest.raises(GraphError, match="may not hold a slash"):
        builder.add_child(root, "core", options=Options(name="a/b"))
    with pytest.raises(GraphError, match="is no vertex of this graph"):
        JGFBuilder().add_child(root, "core")
