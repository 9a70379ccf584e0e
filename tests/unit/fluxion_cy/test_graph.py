"""Reading, writing and changing the graph."""

import copy
import errno
import json
from typing import Any

import pytest
import yaml

from fluxion_cy import Busy, InvalidGraph, Matcher

from .graphs import Graph, machine, pools, slot, spec, taken, want

CORE = want("core", 1)


def odd() -> dict[str, Any]:
    """Everything that a JGF may carry beside what matching needs."""
    document = machine(nodes=2)
    document["version"] = 7
    document["graph"]["label"] = {"made by": ["hand", None, 1.5]}
    nodes, edges = document["graph"]["nodes"], document["graph"]["edges"]
    nodes[1]["label"] = "the first node"
    nodes[1]["metadata"] |= {
        "uuid": "f00",
        "uniq_id": 77,
        "unit": "",
        "exclusive": False,
        "status": 0,
        "properties": {},
    }
    nodes[2]["metadata"] |= {"unit": "GB", "size": 3, "properties": {"a": "1", "b": ""}, "x": {"y": [1, {"z": True}]}}
    nodes[3] = {"metadata": nodes[3]["metadata"], "id": nodes[3]["id"]}
    nodes[4]["metadata"]["properties"] = None
    nodes[4]["metadata"]["paths"]["power"] = "/power/core2"
    nodes[5]["metadata"]["basename"] = "cpu"
    nodes[5]["metadata"]["name"] = "cpu-3"
    edges[0]["metadata"] = {"subsystem": "containment", "relationship": "contains", "weight": 1}
    edges[1] = {"target": edges[1]["target"], "source": edges[1]["source"], "directed": True}
    nodes.append({"id": "pdu", "metadata": {"type": "pdu", "uniq_id": 500, "paths": {"power": "/power"}}})
    edges.append({"source": "pdu", "target": "4", "metadata": {"subsystem": "power", "relationship": "supplies"}})
    return document


def test_writing_gives_back_what_was_read_to_the_last_key() -> None:
    document = odd()
    before = copy.deepcopy(document)
    matcher = Matcher(document)
    assert json.dumps(matcher.graph()) == json.dumps(before)
    assert document == before
    assert Matcher(matcher.graph()).graph() == before
    assert matcher.clone().graph() == before


def test_the_graph_does_not_share_what_it_was_given_or_gives() -> None:
    document = odd()
    matcher = Matcher(document)
    document["graph"]["nodes"][2]["metadata"]["x"]["y"].append(2)
    matcher.graph()["graph"]["nodes"][2]["metadata"]["x"]["y"].append(3)
    assert matcher.graph() == odd()


@pytest.mark.parametrize("form", [json.dumps, yaml.safe_dump])
def test_text_is_read_as_json_or_yaml(form: Any) -> None:
    matcher = Matcher(form(machine()))
    assert matcher.graph() == machine()
    assert matcher.satisfy(form(spec(slot(1, CORE))))


def broken(path: str, value: Any) -> dict[str, Any]:
    document = machine(nodes=1)
    *steps, last = path.split(".")
    place: Any = document
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("graph", None, "graph"),
        ("graph.nodes", {}, "nodes"),
        ("graph.edges", None, "edges"),
        ("graph.nodes.0", 3, "nodes"),
        ("graph.nodes.2.id", 3, "expected a string as an id, got 3"),
        ("graph.nodes.2.id", "1", "'1'"),
        ("graph.nodes.2.metadata", None, "'2'"),
        ("graph.nodes.2.metadata.type", None, "type"),
        ("graph.nodes.2.metadata.type", 3, "type"),
        ("graph.nodes.2.metadata.size", 1.5, "size"),
        ("graph.nodes.2.metadata.size", -1, "size"),
        ("graph.nodes.2.metadata.size", True, "size"),
        ("graph.nodes.2.metadata.size", 2**63, "size"),
        ("graph.nodes.2.metadata.size", [10**5000], "size"),
        ("graph.nodes.2.metadata.rank", "0", "rank"),
        ("graph.nodes.2.metadata.rank", 2**40, "rank"),
        ("graph.nodes.2.metadata.id", None, "'2': id"),
        ("graph.nodes.2.metadata.name", 5, "name"),
        ("graph.nodes.2.metadata.status", 2, "status"),
        ("graph.nodes.2.metadata.divisible", 1, "divisible"),
        ("graph.nodes.1.metadata.divisible", True, "divisible"),
        ("graph.nodes.2.metadata.paths", [], "paths"),
        ("graph.nodes.2.metadata.paths", {"containment": 3}, "paths"),
        ("graph.nodes.2.metadata.paths", {"containment": "/other"}, "'2'"),
        ("graph.nodes.2.metadata.properties", ["a"], "properties"),
        ("graph.nodes.2.metadata.properties", {"a": 1}, "'a'"),
        ("graph.nodes.2.metadata.uniq_id", 3, "uniq_id"),
        ("graph.nodes.0.metadata.paths", {"containment": "/a/b"}, "root"),
        ("graph.edges.1", {"source": "1", "target": "nope"}, "nope"),
        ("graph.edges.1", {"source": "2", "target": "2"}, "'2'"),
        ("graph.edges.1", {"source": "3", "target": "1"}, "'1'"),
        ("graph.edges.0", {"source": "2", "target": "1"}, "'1'|'2'"),
    ],
)
def test_a_malformed_graph_is_refused_by_name(path: str, value: Any, named: str) -> None:
    with pytest.raises(InvalidGraph, match=named) as caught:
        Matcher(broken(path, value))
    assert caught.value.errno == errno.EPROTO


def test_numbers_too_long_to_print_are_refused_too() -> None:
    with pytest.raises(InvalidGraph, match="size"):
        Matcher(broken("graph.nodes.2.metadata.size", 10**5000))


def test_endless_and_deep_graphs_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidGraph, match="nested"):
        Matcher(broken("graph.nodes.2.metadata.extra", [endless, endless]))
    graph = Graph()
    vertex = graph.add("cluster", 0)
    for depth in range(300):
        vertex = graph.add("box", depth, vertex)
    with pytest.raises(InvalidGraph, match="levels deep"):
        Matcher(graph.jgf())
    with pytest.raises(InvalidGraph):
        Matcher("[" * 100_000)
    with pytest.raises(InvalidGraph, match="alias"):
        Matcher("a: &x [1]\nb: [*x, *x]")


def test_sizes_beyond_32_bits_are_kept_and_their_sum_is_bounded() -> None:
    document = pools()
    for node in document["graph"]["nodes"]:
        if node["metadata"]["type"] == "memory":
            node["metadata"]["size"] = 2**40
    matcher = Matcher(document)
    found = taken(matcher.allocate(spec(slot(3, want("memory", 2**32 - 1)))).R)
    assert list(found.values()) == [3 * (2**32 - 1)]
    with pytest.raises(Busy):
        matcher.resize(next(iter(found)), 1)
    document["graph"]["nodes"][-1]["metadata"]["size"] = 2**62
    with pytest.raises(InvalidGraph, match=r"2\*\*62"):
        Matcher(document)


def test_a_graph_grows_and_shrinks() -> None:
    matcher = Matcher(machine(nodes=2), policy="low")
    bigger = machine(nodes=3)
    matcher.add_subgraph(bigger)
    assert matcher.graph() == bigger
    three = spec(want("node", 3, slot(1, CORE)))
    held = matcher.allocate(three)
    matcher.remove_subgraph("/cluster0/node1")
    assert not matcher.satisfy(three)
    assert sorted(taken(matcher.find(f"jobid-alloc={held.jobid}"))) != []
    assert matcher.stat()["by_type"]["node"] == 2
    matcher.cancel(held.jobid)
    assert matcher.find("sched-now=allocated") is None
    matcher.add_subgraph(bigger)
    assert matcher.satisfy(three)


def test_a_job_ends_when_all_that_it_holds_is_removed() -> None:
    matcher = Matcher(machine(nodes=2), policy="low")
    held = matcher.allocate(spec(slot(1, CORE)))
    matcher.remove_subgraph("/cluster0/node0")
    assert matcher.info(held.jobid).mode == "CANCELED"


def test_a_subgraph_that_does_not_fit_changes_nothing() -> None:
    matcher = Matcher(machine(nodes=2))
    apart = machine(nodes=3)
    apart["graph"]["edges"] = [edge for edge in apart["graph"]["edges"] if edge["target"] != "13"]
    unknown = machine(nodes=3)
    unknown["graph"]["nodes"][-1]["metadata"]["type"] = "warpdrive"
    unknown["graph"]["nodes"][-1]["metadata"]["size"] = -1
    for document in (apart, unknown):
        with pytest.raises(InvalidGraph):
            matcher.add_subgraph(document)
        assert matcher.graph() == machine(nodes=2)
    path: Any
    for path in ("/cluster0", "/nowhere", 3):
        with pytest.raises(InvalidGraph) as caught:
            matcher.remove_subgraph(path)
        assert caught.value.errno == errno.EINVAL
    with pytest.raises(Busy):
        matcher.allocate(spec(want("node", 3, slot(1, CORE))))


def test_status_properties_and_size_change_the_graph() -> None:
    matcher = Matcher(machine(nodes=1))
    matcher.set_status("/cluster0/node0/core1", up=False)
    matcher.set_properties("/cluster0/node0", {"fast": ""})
    matcher.resize("/cluster0/node0/gpu0", 5)
    fields = {node["metadata"]["paths"]["containment"]: node["metadata"] for node in matcher.graph()["graph"]["nodes"]}
    assert fields["/cluster0/node0/core1"]["status"] == 1
    assert fields["/cluster0/node0"]["properties"] == {"fast": ""}
    assert fields["/cluster0/node0/gpu0"]["size"] == 5
    assert not matcher.get_status("/cluster0/node0/core1")
    assert matcher.get_status("/cluster0/node0")
    assert matcher.get_rank_status(0)
    assert matcher.satisfy(spec(want("node", 1, slot(1, want("gpu", 5))), constraints={"properties": ["fast"]}))
    with pytest.raises(InvalidGraph):
        matcher.get_rank_status(5)
    with pytest.raises(InvalidGraph):
        matcher.set_properties("/cluster0/node0", {"a": 1})  # type: ignore[dict-item]


def test_a_held_pool_does_not_shrink_below_what_is_held() -> None:
    matcher = Matcher(pools(), policy="low")
    matcher.allocate(spec(slot(1, want("memory", 60))), now=5)
    with pytest.raises(Busy, match="60"):
        matcher.resize("/cluster0/node0/memory0", 59)
    matcher.resize("/cluster0/node0/memory0", 60)
    assert taken(matcher.allocate(spec(slot(1, want("memory", 1))), now=5).R) == {"/cluster0/node1/memory0": 1}


def test_the_same_path_may_stand_under_two_ranks() -> None:
    document = machine(nodes=1, cores=1, gpus=0)
    twin = copy.deepcopy(document["graph"]["nodes"][2])
    twin["id"] = "9"
    twin["metadata"]["rank"] = 1
    document["graph"]["nodes"].append(twin)
    document["graph"]["edges"].append({"source": "1", "target": "9"})
    matcher = Matcher(document)
    held = matcher.allocate(spec(slot(2, CORE)))
    matcher.cancel(held.jobid)
    assert len(matcher.update_allocate(5, held.R).R["graph"]["nodes"]) == 4
    twin["metadata"]["rank"] = 0
    with pytest.raises(InvalidGraph, match="path and rank"):
        Matcher(document)


def test_a_name_with_a_slash_keeps_its_path() -> None:
    document = machine(nodes=1, cores=1, gpus=0)
    document["graph"]["nodes"][2]["metadata"] |= {"name": "a/b", "paths": {"containment": "/cluster0/node0/a/b"}}
    matcher = Matcher(document)
    assert matcher.graph() == document
    assert matcher.get_status("/cluster0/node0/a/b")
