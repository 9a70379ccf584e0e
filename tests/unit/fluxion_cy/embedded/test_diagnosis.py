"""`why` and `shortage`: what a request lacks, in numbers."""

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from fluxion_cy import InvalidJobspec, Matcher, Unsatisfiable
from fluxion_cy.embedded.diagnosis import ENOUGH, shortage
from fluxion_cy.embedded.shortage import Shortages
from fluxion_cy.embedded.type_index import TypeIndex
from fluxion_cy.jobspec.reader import read
from fluxion_cy.wording import Words

from ..graphs import Graph, machine, pools, slot, sockets, spec, want

CORE = want("core", 1)
LATER = "; the request would fit at second 3600"
X = {"properties": ["x"]}
ONE_EXCLUDED = "; 1 other node has enough for one, but the constraints exclude it"
EXCLUDED = "; 2 other nodes have enough, but the constraints exclude them"
EXCLUDED_FOR_ONE = "; 2 other nodes have enough for one, but the constraints exclude them"


def some() -> Matcher:
    """Four nodes of four cores and two gpus; node0 and node3 have the property x."""
    return Matcher(machine(nodes=4, gpus=2, properties={0: {"x": ""}, 3: {"x": ""}}), policy="low")


def test_what_fits_says_so() -> None:
    assert some().why(spec(slot(1, CORE))) == "fits now"


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (spec(slot(9, want("gpu", 1))), "8 of 9 slots fit: 9 slots request 9 gpus, and 4 nodes have 8 even when empty"),
        (spec(want("node", 5, slot(1, CORE))), "the request needs 5 nodes, and the graph has 4"),
        (spec(slot(1, want("gpu", 4))), "no node has 4 gpus even when empty; the most any of 4 nodes has is 2"),
        (spec(slot(3, want("gpu", 4))),
         "0 of 3 slots fit: 3 slots request 12 gpus, and 4 nodes have 8 even when empty"),
        (spec(slot(2, want("gpu", 4))),
         "0 of 2 slots fit: no node has 4 gpus even when empty; the most any of 4 nodes has is 2"),
        (spec(want("node", 1, slot(3, want("gpu", 1)))),
         "no node has 3 gpus even when empty; the most any of 4 nodes has is 2"),
        (spec(slot(1, CORE), constraints={"properties": ["y"]}), "the constraints exclude all 4 nodes"),
        (spec(want("node", 3, slot(1, CORE)), constraints=X),
         "at most 2 of 3 nodes fit: there are only 2 candidate nodes; 2 other nodes have enough for one, but the "
         "constraints exclude them"),
        (spec(slot(5, want("gpu", 1)), constraints=X),
         "4 of 5 slots fit: 5 slots request 5 gpus, and 2 candidate nodes have 4 even when empty; 2 other nodes have "
         "enough for one, but the constraints exclude them"),
    ],
)  # fmt: skip
def test_what_the_empty_graph_has_not_is_named(ask: dict[str, Any], text: str) -> None:
    assert some().why(ask) == text
    with pytest.raises(Unsatisfiable, match="no match even if nothing were allocated and every vertex were up"):
        some().allocate_with_satisfiability(ask)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (spec(slot(1, want("gpu", 2)), constraints=X),
         "no candidate node has 2 free gpus; the most any of 2 candidate nodes has is 1" + EXCLUDED),
        (spec(slot(2, want("core", 2)), constraints=X),
         "1 of 2 slots fit: 2 slots request 4 cores, and 2 candidate nodes have 3 of 8 free" + EXCLUDED_FOR_ONE),
        (spec(slot(2, CORE), constraints={"ranks": ["3"]}),
         "1 of 2 slots fit: 2 slots request 2 cores, and the only candidate node has 1 of 4 free; 3 other nodes have "
         "enough for one, but the constraints exclude them"),
        (spec(want("node", 2, slot(1, want("core", 2), want("gpu", 1))), constraints=X),
         "1 of 2 nodes fit: no other candidate node has 2 free cores; the only other candidate node has 1"
         + EXCLUDED_FOR_ONE),
        (spec(slot(1, want("node", 1)), constraints=X),
         "no candidate node is entirely free; the request needs whole nodes, and both candidate nodes are in use"
         + EXCLUDED),
        (spec(slot(1, want("core", 4)), constraints={"ranks": ["0"]}),
         "no candidate node has 4 free cores; the only candidate node has 2" + EXCLUDED),
        (spec(want("node", 4, slot(1, want("core", 3)))),
         "2 of 4 nodes fit: no other node has 3 free cores; the most any of 2 other nodes has is 2"),
        (spec(slot(4, want("core", 3))),
         "2 of 4 slots fit: 4 slots request 12 cores, and 4 nodes have 11 of 16 free"),
        (spec(slot(3, want("core", 3))),
         "2 of 3 slots fit: no node has 3 free cores for the next; the most any of 4 nodes has left is 2"),
    ],
)  # fmt: skip
def test_what_others_hold_is_counted(ask: dict[str, Any], text: str) -> None:
    matcher = some()
    matcher.allocate(spec(slot(1, want("core", 3), want("gpu", 1)), constraints={"ranks": ["3"]}))
    matcher.allocate(spec(slot(1, want("core", 2), want("gpu", 1)), constraints={"ranks": ["0"]}))
    assert matcher.why(ask) == text + LATER


def test_a_taken_node_has_nothing_free_below_it() -> None:
    matcher = some()
    matcher.allocate(spec(slot(1, want("node", 1)), constraints={"ranks": ["3"]}))
    assert matcher.why(spec(slot(8, CORE), constraints=X)) == (
        "4 of 8 slots fit: 8 slots request 8 cores, and 2 candidate nodes have 4 of 8 free" + EXCLUDED_FOR_ONE + LATER
    )


def test_what_is_down_is_counted_where_it_matters() -> None:
    matcher = some()
    ask = spec(want("node", 4, slot(1, CORE)))
    matcher.set_status("/cluster0/node1", up=False)
    assert matcher.why(ask) == "3 of 4 nodes fit: there are only 3 candidate nodes; 1 more node is down"
    assert matcher.why(spec(slot(13, CORE))) == (
        "12 of 13 slots fit: 13 slots request 13 cores, and 3 candidate nodes have 12 of 12 free; 1 more node is down"
    )
    matcher.set_status("/cluster0", up=False)
    assert matcher.why(ask) == "0 of 4 nodes fit: all 4 nodes are down"


def test_only_vertices_that_have_what_is_asked_count_as_places() -> None:
    """Devices are vertices of type node too, and do not count among the nodes that could run a pod."""
    graph = Graph()
    root = graph.add("cluster", 0)
    for n in range(2):
        node = graph.add("node", n, root, rank=n, properties={"virtual=false": ""})
        for core in range(2):
            graph.add("core", core, node, rank=n)
    for n in range(2, 10):
        graph.add("node", n, root, name=f"qpu{n}", rank=n, properties={"virtual=true": ""})
    matcher = Matcher(graph.jgf())
    ask = spec(slot(1, want("core", 3)), constraints={"properties": ["virtual=false"]})
    assert matcher.why(ask) == "no node has 3 cores even when empty; the most any of 2 nodes has is 2"
    for n in range(2):
        matcher.set_status(f"/cluster0/node{n}", up=False)
    ask = spec(slot(1, CORE), constraints={"properties": ["virtual=false"]})
    assert matcher.why(ask) == "both nodes are down"


def test_units_of_pools_are_counted() -> None:
    matcher = Matcher(pools())
    for _ in range(2):
        matcher.allocate(spec(slot(1, want("memory", 60))))
    assert matcher.why(spec(slot(1, want("memory", 50), CORE))) == (
        "no node has 50 units of free memory; the most any of 2 nodes has is 40 units" + LATER
    )
    assert matcher.why(spec(slot(5, want("memory", 20)))) == (
        "4 of 5 slots fit: 5 slots request 100 units of memory, and 2 nodes have 80 units of 200 units free" + LATER
    )
    assert matcher.why(spec(slot(2, want("memory", 101)))) == (
        "0 of 2 slots fit: 2 slots request 202 units of memory, and 2 nodes have 200 units even when empty"
    )


def test_a_level_below_the_node_is_named() -> None:
    ask = spec(want("node", 1, want("socket", 1, slot(1, want("core", 5)))))
    assert Matcher(sockets()).why(ask) == "no socket has 5 cores even when empty; the most any of 4 sockets has is 4"


def test_whole_sockets_are_places_too() -> None:
    matcher = Matcher(sockets(), policy="low")
    for socket in range(4):
        path = f"/cluster0/node{socket // 2}/socket{socket % 2}/core{socket % 2 * 4}"
        core = {"type": "core", "rank": socket // 2, "exclusive": True, "paths": {"containment": path}}
        matcher.update_allocate(socket, {"graph": {"nodes": [{"metadata": core}]}})
    ask = spec(want("node", 2, slot(2, want("socket", 1))))
    assert matcher.why(ask) == (  # for a hundred years
        "0 of 4 sockets fit: no socket is entirely free; the request needs whole sockets, and all 4 sockets are in use"
    )


def test_it_judges_within_the_candidates() -> None:
    matcher = Matcher(machine(nodes=4, cores=2))
    one, three = spec(slot(1, CORE)), spec(slot(3, CORE))
    matcher.allocate(spec(slot(2, CORE), constraints={"ranks": ["0"]}))
    assert matcher.why(one) == matcher.why(one, candidates=[True] * 4) == "fits now"
    assert matcher.why(one, candidates=[False, True, False, False]) == "fits now"
    assert matcher.why(one, candidates=np.array([True, False, False, False])) == (
        "no candidate node has 1 free core; the only candidate node has 0; 3 other nodes have enough, but the "
        "candidates exclude them" + LATER
    )
    assert matcher.why(three, candidates=np.array([0, 9, 0, 0])) == (
        "2 of 3 slots fit: 3 slots request 3 cores, and the only candidate node has 2 even when empty; 3 other nodes "
        "have enough for one, but the candidates exclude them"
    )
    assert matcher.why(three, candidates=[1, 1, 0, 0]) == (
        "1 of 3 slots fit: 3 slots request 3 cores, and 2 candidate nodes have 2 of 4 free; 2 other nodes have enough "
        "for one, but the candidates exclude them; the candidates allow no more slots on 1 candidate node"
    )
    assert matcher.why(one, candidates=[]) == "the candidates exclude all 4 nodes"


def test_it_counts_status_and_constraint_within_the_candidates() -> None:
    matcher = Matcher(machine(nodes=4, properties={0: {"x": ""}, 3: {"x": ""}}))
    matcher.set_status("/cluster0/node1", up=False)
    assert matcher.why(spec(slot(1, CORE), constraints=X), candidates=iter([False, True, True])) == (
        "the constraints exclude both candidate nodes"
    )
    assert matcher.why(spec(slot(1, CORE)), candidates=[False, True]) == "the only candidate node is down"
    assert matcher.why(spec(slot(1, want("core", 5))), candidates=[False, True, True]) == (
        "no node has 5 cores even when empty; the most any of 2 candidate nodes has is 4"
    )


def test_candidates_that_exclude_nothing_change_nothing() -> None:
    matcher = Matcher(machine(nodes=3))
    never = spec(slot(4, want("gpu", 1)))
    assert matcher.why(never, candidates=[True, True, True, True]) == matcher.why(never)
    assert matcher.why(never) == "3 of 4 slots fit: 4 slots request 4 gpus, and 3 nodes have 3 even when empty"
    assert matcher.why(never, candidates=[True, False, False]) == (
        "1 of 4 slots fit: 4 slots request 4 gpus, and the only candidate node has 1 even when empty; 2 other nodes "
        "have enough for one, but the candidates exclude them"
    )
    for bad in ("110", b"110", [2.5], 7):
        with pytest.raises(InvalidJobspec, match="candidates"):
            matcher.why(never, candidates=bad)


def test_where_counting_finds_nothing_it_says_that() -> None:
    """One socket of each node still has two cores, and a node needs two such sockets."""
    matcher = Matcher(sockets(), policy="low")
    for node in range(2):
        matcher.allocate(
            spec(want("node", 1, want("socket", 1, slot(1, want("core", 3)))), constraints={"ranks": [str(node)]})
        )
    ask = spec(want("node", 1, want("socket", 2, slot(1, want("core", 2)))))
    assert matcher.why(ask) == ENOUGH + LATER
    assert matcher.shortage(ask) is None


def test_the_graph_stands_as_it_was() -> None:
    matcher = some()
    before = matcher.graph()
    matcher.why(spec(slot(1, want("gpu", 4)), constraints=X), candidates=[1, 0, 0, 0])
    assert matcher.graph() == before
    assert matcher.stat()["jobs"] == {"ALLOCATED": 0, "RESERVED": 0, "CANCELED": 0}


def test_every_alternative_is_described_the_first_three_of_them() -> None:
    def xor(*inside: dict[str, Any]) -> dict[str, Any]:
        return want("xor_slot", 1, *inside, label="task")

    matcher = Matcher(machine(nodes=1, gpus=2), traverser="flexible")
    ways = [xor(want("core", 5)), xor(want("gpu", 3)), xor(want("core", 9)), xor(want("gpu", 9))]
    assert matcher.why(spec(*ways)) == (
        "alternative 1 of 4: no node has 5 cores even when empty; the only node has 4; "
        "alternative 2 of 4: no node has 3 gpus even when empty; the only node has 2; "
        "alternative 3 of 4: no node has 9 cores even when empty; the only node has 4"
    )
    matcher.allocate(spec(slot(1, want("core", 3), want("gpu", 2)), duration=50))
    mixed = spec(want("node", 1, slot(2, want("core", 2)), slot(2, want("gpu", 1))), duration=1)
    assert matcher.why(mixed) == (
        "alternative 1 of 2 alone: no node has 4 free cores; the only node has 1; "
        "alternative 2 of 2 alone: no node has 2 free gpus; the only node has 0; the request would fit at second 50"
    )


def test_units_asked_for_by_themselves_are_counted_where_they_are_allowed() -> None:
    matcher = Matcher(pools())
    ask = spec(want("memory", 120, exclusive=True), constraints={"ranks": ["1"]})
    assert matcher.why(ask) == (
        "the request needs 120 units of memory, and the only candidate node has 100 units even when empty"
        + ONE_EXCLUDED
    )
    matcher.allocate(spec(slot(1, want("memory", 60)), constraints={"ranks": ["1"]}))
    ask = spec(want("memory", 50, exclusive=True), constraints={"ranks": ["1"]})
    assert matcher.why(ask) == (
        "the request needs 50 units of memory, and the only candidate node has 40 units of 100 units free"
        + ONE_EXCLUDED
        + LATER
    )
    none = spec(want("memory", 1, exclusive=True), constraints={"ranks": ["7"]})
    assert matcher.why(none) == "the constraints exclude both nodes"


def test_large_vertices_are_whole_parts_of_a_slot() -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    for n in range(2):
        node = graph.add("node", n, root, rank=n)
        for chunk in range(3):
            graph.add("memory", chunk, node, rank=n, size=4)
    ask = spec(slot(7, want("memory", 1)))
    assert Matcher(graph.jgf()).why(ask) == (
        "at most 6 of 7 slots fit: no node has 1 memory in one piece for the next even when empty"
    )
    assert Matcher(graph.jgf()).allocate(spec(slot(6, want("memory", 1)))).at == 0


def test_slots_are_counted_per_socket_where_they_do_not_gather() -> None:
    """Six cores of a node are free, and three of each of its sockets: there is no slot of four."""
    matcher = Matcher(sockets(), policy="low")
    for number in range(4):
        place = want("node", 1, want("socket", 1, slot(1, CORE)))
        core = f"/cluster0/node{number // 2}/socket{number % 2}/core{number % 2 * 4}"
        fields = {"type": "core", "rank": number // 2, "exclusive": True, "paths": {"containment": core}}
        matcher.update_allocate(number, {"graph": {"nodes": [{"metadata": fields}]}})
        assert matcher.satisfy(spec(place))
    assert matcher.why(spec(slot(1, want("core", 4)))) == (
        "no socket has 4 free cores; the most any of 4 sockets has is 3"
    )
    assert matcher.why(spec(slot(1, want("core", 7)))) == ("no node has 7 free cores; the most any of 2 nodes has is 6")


def test_a_slot_of_nodes_is_counted_over_all_racks() -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    for n in range(4):
        node = graph.add("node", n, graph.add("rack", n, root), rank=n)
        graph.add("core", 0, node, rank=n)
    matcher = Matcher(graph.jgf())
    four = spec(slot(1, want("node", 4)))
    assert matcher.why(four) == "fits now"
    matcher.set_status("/cluster0/rack2", up=False)
    assert matcher.why(four) == "3 of 4 nodes fit: there are only 3 candidate nodes; 1 more node is down"
    assert matcher.why(spec(slot(1, want("node", 5)))) == "the request needs 5 nodes, and the graph has 4"


def test_it_says_when_it_would_fit_at_now_and_among_reservations() -> None:
    matcher = Matcher(machine(nodes=1))
    half, whole = (spec(slot(1, want("core", n)), duration=100) for n in (2, 4))
    matcher.allocate(half)
    assert matcher.allocate_orelse_reserve(whole).at == 100
    assert matcher.why(spec(slot(1, want("core", 4)), duration=20), now=50) == (
        "no node has 4 free cores; the only node has 2; the request would fit at second 200"
    )
    for ask, now in ((whole, 50), (half, 1)):  # their spans reach into the reservation
        assert matcher.why(ask, now=now).endswith("the only node has 0; the request would fit at second 200")
    assert matcher.why(half, now=200) == "fits now"
    assert matcher.why(whole, now=200, prefer=[1.0]) == "fits now"
    with pytest.raises(InvalidJobspec, match="now"):
        matcher.why(half, now=-1)
    with pytest.raises(InvalidJobspec, match="prefer"):
        matcher.why(half, prefer=["x"])


def test_what_gathering_is_not_allowed_for_is_said() -> None:
    ask = spec(want("node", 1, slot(1, want("core", 6))))
    text = Matcher(sockets()).why(ask)
    assert text == (
        "the slot needs resources from several vertices below its parent; write out the levels in between, or use "
        "compatible=False; the graph has enough of each type, but not in the combination that the request needs"
    )
    assert Matcher(sockets(), compatible=False).why(ask) == "fits now"


def test_ten_thousand_nodes_are_counted_in_bounded_time() -> None:
    matcher = Matcher(machine(nodes=10_000, cores=4, gpus=0))
    for job in range(40):
        matcher.allocate(spec(slot(1, want("node", 250)), duration=10 + job))
    asks = [
        spec(slot(9, want("core", 3))),
        spec(want("node", 20, slot(1, want("core", 5)))),
        spec(slot(50_000, CORE)),
        spec(slot(5, CORE), constraints={"properties": ["none"]}),
    ]
    began = time.process_time()
    texts = [matcher.why(ask) for ask in asks]
    assert time.process_time() - began < 4
    assert texts[0] == (
        "0 of 9 slots fit: 9 slots request 27 cores, and 10000 nodes have 0 of 40000 free; the request "
        "would fit at second 10"
    )
    assert texts[1] == ("0 of 20 nodes fit: no node has 5 cores even when empty; the most any of 10000 nodes has is 4")
    assert texts[2] == (
        "0 of 50000 slots fit: 50000 slots request 50000 cores, and 10000 nodes have 40000 even when empty"
    )
    assert texts[3] == "0 of 5 slots fit: the constraints exclude all 10000 nodes"


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (slot(0, CORE), "0 slots"),
        (slot(1, CORE, want("gpu", 0)), "0 gpus"),
        (want("node", 0, slot(1, CORE)), "0 nodes"),
        (want("node", 1, slot(1, CORE), slot(0, want("gpu", 1))), "0 slots"),
    ],
)
def test_a_count_of_none_is_named(ask: dict[str, Any], text: str) -> None:
    assert some().why(spec(ask)) == f"the request needs {text}, and a count of 0 never matches"
    assert not some().satisfy(spec(ask))


@pytest.mark.parametrize(
    ("allowed", "text"),
    [
        ([1, 1], "1 on any of 2 candidate nodes; 2 other nodes have enough, but the candidates exclude them"),
        ([1, 0, 2], "2 on any of 2 candidate nodes; 2 other nodes have enough, but the candidates exclude them"),
        ([0, 2], "2 on the only candidate node; 3 other nodes have enough, but the candidates exclude them"),
    ],
)
def test_slots_in_a_node_are_held_against_what_candidates_allow(allowed: list[int], text: str) -> None:
    ask = spec(want("node", 1, slot(3, CORE)))
    assert some().why(ask, candidates=allowed) == (
        f"no candidate node may have 3 slots; the candidates allow at most {text}"
    )
    assert some().why(ask, candidates=[1, 3]) == "fits now"


def test_nodes_that_allow_enough_slots_are_counted() -> None:
    ask = spec(want("node", 2, slot(3, CORE)))
    assert some().why(ask, candidates=[3, 1, 0, 1]) == (
        "1 of 2 nodes fit: no other candidate node may have 3 slots; the candidates allow at most 1 on any of 2 other "
        "candidate nodes; 1 other node has enough for one, but the candidates exclude it"
    )


def test_the_graph_is_gone_through_once_for_all_entries() -> None:
    engine = Matcher(machine(nodes=200))._engine
    asked: list[int] = []

    class Counted:
        root = engine.root

        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

        def type_of(self, vertex: int) -> str:
            asked.append(vertex)
            return engine.type_of(vertex)

    around = TypeIndex(Counted())  # type: ignore[arg-type]
    for _ in range(100):
        assert around.first("rack") is None
        assert around.around({"node": 1}) == "cluster"
        assert around.parent({"core": 1, "gpu": 1}) == "node"
        assert around.parent({"core": 1, "node": 1}) is None
    assert len(asked) < 6 * len(engine.vertices())


def test_what_is_found_at_once_needs_no_pass() -> None:
    engine = Matcher(machine(nodes=200))._engine
    around = TypeIndex(engine)
    assert around.around({"core": 1}) == "node"
    assert next(around._rest)[0] < 10


def test_a_second_refusal_goes_through_no_vertices_again() -> None:
    matcher = Matcher(machine(nodes=200, gpus=1))
    ask = spec(slot(300, want("gpu", 1)))
    first_answer = matcher.shortage(ask)
    engine: Any = Counted(matcher._engine)
    matcher._types.engine = engine
    assert matcher.shortage(ask) == first_answer
    assert matcher.why(ask)
    assert engine.calls["vertices"] == 0
    assert engine.calls["type_of"] + engine.calls["parent_of"] < 20
    matcher.remove_subgraph("/cluster0/node199")
    assert matcher.shortage(ask) != first_answer
    assert engine.calls["vertices"] == 1, "the graph has another shape"
    assert matcher.clone()._types.engine is not matcher._types.engine


class Counted:
    """An engine that counts what it is asked."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.calls = engine, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self.engine, name)


def first(engine: Any, *resources: dict[str, Any]) -> str:
    """The first shortage of a request."""
    asked = read(spec(*resources)).resources
    return str(Shortages(engine, Words(), TypeIndex(engine), asked, False, False, False, 0, 9).first())


@pytest.mark.parametrize("nodes", [4, 400])
def test_slots_on_nodes_take_one_pass_and_no_match(nodes: int) -> None:
    matcher = Matcher(machine(nodes=nodes))
    matcher.allocate(spec(slot(nodes, want("core", 3))))
    engine: Any = Counted(matcher._engine)
    compiled = matcher._compile(spec(slot(2, want("core", 3))))
    found = shortage(TypeIndex(engine), compiled, np.full(nodes, 9), now=0, whole_nodes=False, words=Words())
    assert str(found) == (
        f"0 of 2 slots fit: no node has 3 free cores; the most any of {nodes} candidate nodes has is 1"
        if nodes > 4
        else "0 of 2 slots fit: 2 slots request 6 cores, and 4 candidate nodes have 4 of 16 free"
    )
    assert (engine.calls["survey"], engine.calls["match"]) == (1, 0)
    assert engine.calls["type_of"] + engine.calls["children"] < 50, "the first node says where cores are"


def test_a_request_of_many_levels_is_counted_in_so_many_passes_only() -> None:
    engine = Counted(Matcher(sockets())._engine)
    places = [want("node", 1, want("socket", 1, slot(1, CORE))) for _ in range(60)]
    assert first(engine, *places) == "the request needs 60 nodes, and the graph has 2"
    engine.calls.clear()
    levels = [want("socket", 1, slot(1, want("core", 4)), slot(1, CORE)) for _ in range(64)]
    assert first(engine, want("node", 1, *levels[:4], *[want("gpu", 1)] * 20)) != ""
    assert engine.calls["survey"] <= 18


def test_a_shortage_says_how_many_fit() -> None:
    matcher = Matcher(machine(nodes=2))
    found = matcher.shortage(spec(slot(9, CORE)))
    assert found is not None
    assert (found.wanted, found.fitting, found.reason) == (
        9, 8, "9 slots request 9 cores, and 2 nodes have 8 even when empty"
    )  # fmt: skip
    found = matcher.shortage(spec(slot(1, want("core", 5))), candidates=[True, False])
    assert found is not None
    assert str(found) == found.reason == "no node has 5 cores even when empty; the only candidate node has 4"
    assert matcher.shortage(spec(slot(8, CORE))) is None


class Seats(Words):
    slot, filters, graph = "guest", "the waiters", "the house"

    def amount(self, kind: str, number: int, unit: str, *, free: bool = False) -> str:
        return f"{number} {'empty ' * free}{'seat' if number == 1 else 'seats'}"

    def note(self, kind: str) -> str:
        return " (not the bench)"


def test_a_shortage_has_the_words_of_its_user() -> None:
    matcher = Matcher(machine(nodes=2))
    matcher.allocate(spec(slot(4, CORE)), candidates=[True, False])
    assert str(matcher.shortage(spec(slot(1, want("core", 3))), candidates=[1, 0], words=Seats())) == (
        "no candidate node has 3 empty seats (not the bench); the only candidate node has 0; 1 other node has enough, "
        "but the waiters exclude it"
    )
    assert str(matcher.shortage(spec(slot(3, CORE)), candidates=[1, 2], words=Seats())) == (
        "2 of 3 guests fit: no other candidate node has 1 empty seat for the next (not the bench); the only other "
        "candidate node has 0 left; the waiters allow no more guests on 1 candidate node"
    )
    assert str(matcher.shortage(spec(want("node", 3, slot(1, CORE))), words=Seats())) == (
        "the request needs 3 seats, and the house has 2"
    )


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (2048, "MiB", "no node has 2 GiB of free memory; the most any of 2 nodes has is 1 GiB"),
        (1500, "MiB", "no node has 1500 MiB of free memory; the most any of 2 nodes has is 1 GiB"),
        (1500, "kB", "no node has 1500 kB of free memory; the most any of 2 nodes has is 1024 kB"),
        (1025, "", "no node has 1025 units of free memory; the most any of 2 nodes has is 1024 units"),
    ],
)
def test_amounts_have_the_unit_of_their_vertices(number: int, unit: str, text: str) -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    for n in range(2):
        node = graph.add("node", n, root, rank=n)
        graph.add("core", 0, node, rank=n)
        graph.add("memory", 0, node, rank=n, size=4096, divisible=True, unit=unit)
    matcher = Matcher(graph.jgf())
    matcher.allocate(spec(slot(2, want("memory", 3072)), duration=0))
    assert matcher.why(spec(slot(1, want("memory", number)))) == text
