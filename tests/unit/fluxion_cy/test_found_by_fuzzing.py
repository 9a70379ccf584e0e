"""What fuzzing has found, each in its smallest form."""

import time
from typing import Any

import pytest

from fluxion_cy import Busy, FluxionError, InvalidGraph, InvalidJobspec, Matcher, Unsatisfiable
from fluxion_cy.base.ranges import hostlist

from .graphs import Graph, machine, pools, slot, spec, want

CORE = spec(slot(1, want("core", 1)))


def test_a_graph_of_one_vertex_can_be_asked_for_a_later_time() -> None:
    graph = Graph()
    graph.add("cluster", 0)
    matcher = Matcher(graph.jgf())
    with pytest.raises(Unsatisfiable):
        matcher.allocate_orelse_reserve(CORE)
    whole = spec(want("cluster", 1, exclusive=True), duration=10)
    assert matcher.allocate_orelse_reserve(whole).at == 0
    assert matcher.allocate_orelse_reserve(whole).at == 10


@pytest.mark.parametrize(
    "text", ["!!int ''", "!!float ''", "!!timestamp x", "!!bool x", "!!timestamp 0001-01-01T00:00:00+23:59", "9" * 5000]
)
def test_yaml_values_that_their_tags_do_not_allow_are_refused(text: str) -> None:
    with pytest.raises(InvalidJobspec, match="jobspec"):
        Matcher(machine()).allocate(f"version: {text}")
    with pytest.raises(InvalidGraph, match="graph"):
        Matcher(f"graph: {text}")


@pytest.mark.parametrize("rank", [2**31, 2**32 - 1])
def test_a_rank_beyond_those_of_any_graph_is_not_there(rank: int) -> None:
    execution = {"R_lite": [{"rank": str(rank), "children": {"core": "0"}}]}
    with pytest.raises(InvalidGraph, match=f"rank {rank} has no core with id 0"):
        Matcher(machine()).update_allocate(1, {"version": 1, "execution": execution})


def within_a_second(ask: Any) -> None:
    began = time.thread_time()
    with pytest.raises(FluxionError):
        ask()
    assert time.thread_time() - began < 1


def test_hostlists_cannot_be_made_to_fill_the_memory() -> None:
    matcher = Matcher(machine())
    long = "x" * 4000 + "[0-999999]"
    many = [f"a{i}[0-199999]" for i in range(500)]
    for words in ([long], many):
        within_a_second(lambda words=words: matcher.satisfy({**CORE, "attributes": limits(words)}))
        within_a_second(lambda words=words: matcher.find(" or ".join(f"names={word}" for word in words)))
    with pytest.raises(ValueError, match="0-199999"):
        hostlist("[0-199999]" + "[0]" * 1000)
    with pytest.raises(ValueError, match="too many"):
        hostlist("[0-999][0-999]")
    assert len(hostlist("a[0-199999]")) == 200_000


def limits(words: list[str]) -> dict[str, Any]:
    return {"system": {"constraints": {"hostlist": words}}}


def test_many_kinds_under_many_ranks_are_counted_before_they_are_spelled_out() -> None:
    rows = [{"rank": "0-999999", "children": {f"kind{i}": "0" for i in range(1000)}}]
    within_a_second(lambda: Matcher(machine()).update_allocate(1, {"version": 1, "execution": {"R_lite": rows}}))


def test_a_size_that_is_refused_changes_nothing() -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    for i in range(3):
        graph.add("memory", i, root, size=2**61)
    with pytest.raises(InvalidGraph):
        Matcher(graph.jgf())
    graph.nodes[-1]["metadata"]["size"] = 5
    matcher = Matcher(graph.jgf())
    with pytest.raises(InvalidGraph) as refused:
        matcher.resize("/cluster0/memory2", 2**61)
    assert refused.value.errno == 22
    matcher.resize("/cluster0/memory2", 6)
    matcher.allocate(spec(slot(3, want("memory", 1))))
    with pytest.raises(Busy):
        matcher.resize("/cluster0/memory2", 5)


@pytest.mark.parametrize("name", ["a\nb", "\udcff", "x" * 100_000, "\u2028"])
def test_a_message_is_one_line_that_can_be_printed_whatever_it_quotes(name: str) -> None:
    graph = Graph()
    graph.add("cluster", 0)
    graph.nodes[0]["metadata"]["paths"][name] = 1
    with pytest.raises(InvalidGraph, match="must be a string") as refused:
        Matcher(graph.jgf())
    text = str(refused.value)
    assert text.isprintable()
    assert len(text) < 1100
    text.encode()


def test_what_is_added_cannot_have_the_id_of_another_vertex() -> None:
    matcher = Matcher(machine())
    before = matcher.graph()
    more = Graph()
    more.add("cluster", 0)
    more.add("node", 9, 0, rank=9, uniq_id=99)
    with pytest.raises(InvalidGraph, match=r"vertex '1': /cluster0/node0 already has this id"):
        matcher.add_subgraph(more.jgf())
    assert matcher.graph() == before
    more.nodes[1]["id"] = more.edges[0]["target"] = "x"
    matcher.add_subgraph(more.jgf())
    assert Matcher(matcher.graph()).graph() == matcher.graph()


@pytest.mark.parametrize("ranks", [[float("inf")], [float("nan")], [None], ["x"], {"a": 1}, 1.5])
def test_ranks_that_are_no_numbers_are_refused(ranks: Any) -> None:
    with pytest.raises(InvalidGraph, match="ranks"):
        Matcher(machine()).set_rank_status(ranks, False)


def test_nothing_can_be_added_below_a_pool_that_is_there_already() -> None:
    matcher = Matcher(pools())
    before = matcher.graph()
    more = Graph()
    cluster = more.add("cluster", 0)
    node = more.add("node", 0, cluster, rank=0)
    memory = more.add("memory", 0, node, rank=0)
    more.add("page", 0, memory, rank=0)
    more.nodes[-1]["id"] = more.edges[-1]["target"] = "999"
    with pytest.raises(InvalidGraph, match="a divisible vertex must not have children"):
        matcher.add_subgraph(more.jgf())
    assert matcher.graph() == before


def test_what_could_not_be_added_leaves_no_place_for_it() -> None:
    matcher, other = Matcher(machine()), Matcher(machine())
    more = Graph()
    cluster = more.add("cluster", 0)
    node = more.add("node", 0, cluster, rank=0)
    core = more.add("core", 0, node, rank=0)
    more.add("thread", 0, core, rank=0)
    more.add("stray", 0)
    for number in (3, 4):
        more.nodes[number]["id"] = f"{number + 900}"
        more.nodes[number]["metadata"]["uniq_id"] = number + 900
    more.edges[-1]["target"] = "903"
    more.nodes[4]["metadata"]["paths"] = {"containment": "/cluster0/elsewhere/stray0"}
    with pytest.raises(InvalidGraph, match="no edge leads from the graph to it"):
        matcher.add_subgraph(more.jgf())
    assert matcher.graph() == other.graph()
    assert not matcher._engine.has_children(matcher._engine.lookup("/cluster0/node0/core0")[0])
    for _ in range(12):
        assert matcher.allocate(CORE).R == other.allocate(CORE).R


@pytest.mark.parametrize("policy", ["first", "lonode", "hinode", "hinodex", "low", "high", "pack", "locality"])
def test_what_lies_below_a_node_of_a_very_large_id_can_be_had(policy: str) -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    node = graph.add("node", 10**15, root, rank=0)
    for core in (2**62 - 1, 2**62 - 2):
        graph.add("core", core, node, rank=0)
    found = Matcher(graph.jgf(), policy=policy).allocate(spec(slot(1, want("core", 2))))
    assert len(found.R["graph"]["nodes"]) == 4


def test_why_says_something_of_none_of_several_slots_that_differ() -> None:
    asked = spec(slot(0, want("core", 1), want("core", 1)), slot(0, want("gpu", 1)))
    assert Matcher(machine(), traverser="flexible").why(asked) == (
        "the request needs 0 slots, and a count of 0 never matches"
    )


@pytest.mark.parametrize(
    "text",
    [
        '{true: 1, "graph": {"nodes": [%s], "edges": []}}',
        '{"graph": {true: 1, "nodes": [%s], "edges": []}}',
        '{"graph": {"nodes": [{true: 1, %s], "edges": []}}',
    ],
)
def test_a_key_that_json_has_not_is_refused_when_it_is_read_and_not_when_it_is_written(text: str) -> None:
    root = '{"id": "0", "metadata": {"type": "cluster", "paths": {"containment": "/c"}}}'
    with pytest.raises(InvalidGraph, match="expected a string as a key, got True"):
        Matcher(text % (root[1:] if "{true: 1, %s]" in text else root))


def test_a_path_with_half_a_character_has_a_uuid_of_its_own() -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    for n, name in enumerate(("\udcff", "\udcfe")):
        node = graph.add("node", n, root, rank=n, name=name)
        graph.add("core", 0, node, rank=n)
    found = Matcher(graph.jgf(), match_format="rfc40").allocate(spec(slot(2, want("core", 1)))).R
    nodes = found["scheduling"]["graph"]["nodes"]
    assert len({node["metadata"]["uuid"] for node in nodes}) == len(nodes) == 5


def test_of_a_pool_no_units_can_be_taken_and_given_back() -> None:
    matcher = Matcher(pools())
    document = matcher.allocate(spec(slot(1, want("core", 1))), 1).R
    node = next(node["metadata"] for node in document["graph"]["nodes"] if node["metadata"]["type"] == "node")
    path = node["paths"]["containment"]
    none = {"type": "memory", "rank": node["rank"], "size": 0, "exclusive": True}
    none["paths"] = {"containment": f"{path}/memory0"}
    document["graph"]["nodes"].append({"id": "none", "metadata": none})
    matcher.cancel(1)
    matcher.update_allocate(2, document)
    assert matcher.partial_cancel(2, document)
    assert matcher.info(2).mode == "CANCELED"
