"""What fuzzing has found, each in its smallest form."""

import time
from typing import Any

import pytest
from graphs import Graph, machine, slot, spec, want

from fluxion_cy import Busy, FluxionError, InvalidGraph, InvalidJobspec, Matcher, Unsatisfiable
from fluxion_cy.ranges import hostlist

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
    with pytest.raises(InvalidGraph, match=f"rank {rank} has no core 0"):
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
