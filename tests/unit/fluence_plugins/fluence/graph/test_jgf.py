import json
from typing import Any

import pytest

from fluence_plugins.fluence.errors import GraphError
from fluence_plugins.fluence.graph.jgf import JGFBuilder, Options
from fluence_plugins.resources.errors import DocumentError


@pytest.fixture
def builder():
    found = JGFBuilder()
    root = found.add_root("cluster")
    node = found.add_child(root, "node", options=Options(name="n1", rank=0, node_properties={"virtual=false": ""}))
    found.add_child(node, "core", options=Options(rank=0))
    found.add_child(node, "core", options=Options(rank=0))
    found.add_child(node, "memory", options=Options(size=512, unit="MiB", divisible=True, exclusive=True))
    found.add_child(root, "node", "qpu", Options(rank=1, properties={"vendor": "ibm", "qubits": 5}))
    return found


def metadata(builder: JGFBuilder):
    return {
        node["metadata"]["paths"]["containment"]: node["metadata"] for node in builder.to_mapping()["graph"]["nodes"]
    }


def test_vertices_are_named_and_numbered_under_their_parent(builder: JGFBuilder):
    assert [vertex.path for vertex in builder] == [
        "/cluster0", "/cluster0/n1", "/cluster0/n1/core0", "/cluster0/n1/core1", "/cluster0/n1/memory0",
        "/cluster0/qpu0",
    ]  # fmt: skip


def test_options_become_the_fields_that_the_matcher_reads(builder: JGFBuilder):
    found = metadata(builder)
    memory = found["/cluster0/n1/memory0"]
    assert (memory["size"], memory["unit"], memory["divisible"], memory["exclusive"]) == (512, "MiB", True, True)
    assert found["/cluster0/n1"]["properties"] == {"virtual=false": ""}
    assert found["/cluster0/n1"]["rank"] == 0
    assert found["/cluster0"]["rank"] == -1
    assert (found["/cluster0/qpu0"]["vendor"], found["/cluster0/qpu0"]["type"]) == ("ibm", "node")
    assert "properties" not in found["/cluster0/qpu0"]


def test_edges_lead_from_holder_to_held(builder: JGFBuilder):
    edges = builder.to_mapping()["graph"]["edges"]
    assert [(edge["source"], edge["target"]) for edge in edges] == [
        ("0", "1"), ("1", "2"), ("1", "3"), ("1", "4"), ("0", "5"),
    ]  # fmt: skip
    assert all(edge["metadata"] == {"subsystem": "containment"} for edge in edges)


def test_a_graph_survives_yaml_and_json(builder: JGFBuilder):
    assert JGFBuilder.from_yaml(builder.to_yaml()) == builder
    assert JGFBuilder.from_json(builder.to_json()) == builder
    assert JGFBuilder.from_json(builder.to_json()).to_mapping() == builder.to_mapping()


def test_vertices_are_read_in_any_order(builder: JGFBuilder):
    data = builder.to_mapping()
    data["graph"]["nodes"].reverse()
    assert JGFBuilder.from_mapping(data) == builder


def test_a_graph_that_was_read_can_grow(builder: JGFBuilder):
    again = JGFBuilder.from_json(builder.to_json())
    core = again.add_child(again["/cluster0/n1"], "core")
    assert (core.path, core.uniq_id) == ("/cluster0/n1/core2", 6)


def test_the_matchers_defaults_are_read():
    data = {"graph": {"nodes": [{"id": "7", "metadata": {"type": "cluster", "paths": {"containment": "/c"}}}]}}
    (root,) = JGFBuilder.from_mapping(data)
    assert (root.name, root.uniq_id, root.id, root.options.size, root.options.rank) == ("c", 7, 7, 1, -1)


def test_a_subgraph_holds_the_path_from_the_root(builder: JGFBuilder):
    data = builder.subgraph("/cluster0/n1/core1")
    assert [node["id"] for node in data["graph"]["nodes"]] == ["0", "1", "3"]
    assert len(data["graph"]["edges"]) == 2


def test_removing_a_vertex_removes_what_it_holds(builder: JGFBuilder):
    gone = builder.remove("/cluster0/n1")
    assert len(gone) == 4
    assert [vertex.path for vertex in builder] == ["/cluster0", "/cluster0/qpu0"]
    with pytest.raises(GraphError, match="/cluster0/n1: not in the graph"):
        builder.remove("/cluster0/n1")


def test_what_cannot_be_built_is_refused_by_path(builder: JGFBuilder):
    root = builder["/cluster0"]
    with pytest.raises(GraphError, match="/cluster0/n1: two vertices have this path"):
        builder.add_child(root, "node", options=Options(name="n1"))
    with pytest.raises(GraphError, match="the graph already has the root /cluster0; add this vertex below it"):
        builder.add_root("cluster", options=Options(name="other"))
    with pytest.raises(GraphError, match="size -1 is negative"):
        builder.add_child(root, "core", options=Options(size=-1))
    with pytest.raises(GraphError, match="property 'rank' has the name of a field"):
        builder.add_child(root, "core", options=Options(properties={"rank": 3}))
    with pytest.raises(GraphError, match="must not contain a slash"):
        builder.add_child(root, "core", options=Options(name="a/b"))
    with pytest.raises(GraphError, match="not in this graph; add it first"):
        JGFBuilder().add_child(root, "core")


BAD: dict[str, Any] = {"id": "1", "metadata": {"type": "node", "paths": {"containment": "/c/n"}}}
ROOT = {"id": "0", "metadata": {"type": "cluster", "paths": {"containment": "/c"}}}


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ({"nodes": [{"id": "0", "metadata": {"paths": {"containment": "/c"}}}]}, "g: vertex 0: .*`type`"),
        ({"nodes": [{"id": "0", "metadata": {"type": "cluster"}}]}, "g: vertex 0: .*`paths`"),
        ({"nodes": [{"id": "0", "metadata": {"type": "c", "paths": None}}]}, "g: vertex 0: Expected `object`"),
        ({"nodes": [{"id": 0, "metadata": {}}]}, r"g: Expected `str`.*nodes\[0\]\.id"),
        ({"nodes": [ROOT, ROOT]}, "two vertices have the same id"),
        ({"nodes": [ROOT, ROOT | {"id": "1"}]}, "/c: the graph already has the root /c"),
        (
            {
                "nodes": [ROOT, BAD | {"metadata": BAD["metadata"] | {"uniq_id": 0}}],
                "edges": [{"source": "0", "target": "1"}],
            },
            "two vertices have the same uniq_id",
        ),
        ({"nodes": [ROOT, BAD]}, "vertex 1 has path '/c/n'.*parent path None"),
        ({"nodes": [ROOT, BAD], "edges": [{"source": "0", "target": "9"}]}, "edge 0 to 9: unknown vertex 9"),
        (
            {"nodes": [ROOT, BAD], "edges": [{"source": "0", "target": "1", "metadata": {"subsystem": "power"}}]},
            "edge 0 to 1: not in containment",
        ),
    ],
)
def test_a_document_that_is_no_graph_is_refused(graph, message):
    with pytest.raises(GraphError, match=message):
        JGFBuilder.from_json(json.dumps({"graph": graph}), "g")


def test_a_text_that_is_no_document_is_refused():
    with pytest.raises(DocumentError, match=r"g:\d: is not valid YAML"):
        JGFBuilder.from_yaml("a: [", "g")
