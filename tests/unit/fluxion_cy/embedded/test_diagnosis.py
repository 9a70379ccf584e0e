"""`why`: the verdict, and the first thing that ran short, in numbers."""

import time
from typing import Any

import numpy as np
import pytest

from fluxion_cy import InvalidJobspec, Matcher, Unsatisfiable
from fluxion_cy.embedded.shortage import TypeIndex

from ..graphs import Graph, machine, pools, slot, sockets, spec, want

CORE = want("core", 1)
NEVER = "the graph could not hold it even if it were empty and all up; "
BUSY = "no match now, but the graph could hold it; "
LATER = "; it would fit at second 3600"
X = {"properties": ["x"]}


def some() -> Matcher:
    """Four nodes of four cores and two gpus; node0 and node3 have the property x."""
    return Matcher(machine(nodes=4, gpus=2, properties={0: {"x": ""}, 3: {"x": ""}}), policy="low")


def test_what_fits_says_so() -> None:
    assert some().why(spec(slot(1, CORE))) == "fits now"


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (spec(slot(9, want("gpu", 1))), "asked 9 gpu, 8 in the graph"),
        (spec(want("node", 5, slot(1, CORE))), "asked 5 node, 4 in the graph"),
        (spec(slot(1, want("gpu", 4))), "asked 4 gpu below node, at most 2 on any of 4 nodes"),
        (spec(want("node", 1, slot(3, want("gpu", 1)))), "asked 3 gpu below node, at most 2 on any of 4 nodes"),
        (spec(slot(1, CORE), constraints={"properties": ["y"]}),
         "asked 1 slot of 1 core, none of 4 nodes is allowed by the constraints"),
        (spec(want("node", 3, slot(1, CORE)), constraints=X),
         "asked 3 node, 2 of 4 nodes are allowed by the constraints"),
        (spec(slot(5, want("gpu", 1)), constraints=X),
         "asked 5 slots of 1 gpu, room for 4 on 2 nodes allowed by the constraints"),
    ],
)  # fmt: skip
def test_what_the_empty_graph_has_not_is_named(ask: dict[str, Any], text: str) -> None:
    assert some().why(ask) == NEVER + text
    with pytest.raises(Unsatisfiable, match="could not hold it even if it were empty"):
        some().allocate_with_satisfiability(ask)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (spec(slot(1, want("gpu", 2)), constraints=X),
         "asked 2 gpu below node, at most 1 free on any of 2 nodes allowed by the constraints"),
        (spec(slot(2, want("core", 2)), constraints=X),
         "asked 2 slots of 2 core, room for 1 on 2 nodes allowed by the constraints"),
        (spec(want("node", 2, slot(1, want("core", 2), want("gpu", 1))), constraints=X),
         "asked 2 node with 2 core and 1 gpu each, 1 of 2 nodes allowed by the constraints with that much free"),
        (spec(slot(1, want("node", 1)), constraints=X),
         "asked 1 node, whole; 0 of 2 nodes allowed by the constraints wholly free"),
        (spec(slot(1, want("core", 4)), constraints={"ranks": ["0"]}),
         "asked 4 core below node, at most 2 free on the 1 node allowed by the constraints"),
        (spec(want("node", 4, slot(1, want("core", 3)))),
         "asked 4 node with 3 core each, 2 of 4 nodes with that much free"),
    ],
)  # fmt: skip
def test_what_others_hold_is_counted(ask: dict[str, Any], text: str) -> None:
    matcher = some()
    matcher.allocate(spec(slot(1, want("core", 3), want("gpu", 1)), constraints={"ranks": ["3"]}))
    matcher.allocate(spec(slot(1, want("core", 2), want("gpu", 1)), constraints={"ranks": ["0"]}))
    assert matcher.why(ask) == BUSY + text + LATER


def test_a_taken_node_has_nothing_free_below_it() -> None:
    matcher = some()
    matcher.allocate(spec(slot(1, want("node", 1)), constraints={"ranks": ["3"]}))
    assert matcher.why(spec(slot(8, CORE), constraints=X)) == (
        BUSY + "asked 8 slots of 1 core, room for 4 on 2 nodes allowed by the constraints" + LATER
    )


def test_what_is_down_is_counted_where_it_matters() -> None:
    matcher = some()
    ask = spec(want("node", 4, slot(1, CORE)))
    matcher.set_status("/cluster0/node1", up=False)
    assert matcher.why(ask) == BUSY + "asked 4 node, 3 of 4 nodes are up"
    assert matcher.why(spec(slot(13, CORE))) == BUSY + "asked 13 slots of 1 core, room for 12 on 3 nodes that are up"
    matcher.set_status("/cluster0", up=False)
    assert matcher.why(ask) == BUSY + "asked 4 node, none of 4 nodes is up"


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
    assert matcher.why(ask) == NEVER + "asked 3 core below node, at most 2 on any of 2 nodes"
    for n in range(2):
        matcher.set_status(f"/cluster0/node{n}", up=False)
    ask = spec(slot(1, CORE), constraints={"properties": ["virtual=false"]})
    assert matcher.why(ask) == BUSY + "asked 1 slot of 1 core, none of 2 nodes allowed by the constraints is up"


def test_units_of_pools_are_counted() -> None:
    matcher = Matcher(pools())
    for _ in range(2):
        matcher.allocate(spec(slot(1, want("memory", 60))))
    assert matcher.why(spec(slot(1, want("memory", 50), CORE))) == (
        BUSY + "asked 50 memory below node, at most 40 free on any of 2 nodes" + LATER
    )
    assert matcher.why(spec(slot(5, want("memory", 20)))) == (
        BUSY + "asked 5 slots of 20 memory, room for 4 on 2 nodes" + LATER
    )


def test_a_level_below_the_node_is_named() -> None:
    ask = spec(want("node", 1, want("socket", 1, slot(1, want("core", 5)))))
    assert Matcher(sockets()).why(ask) == NEVER + "asked 5 core below socket, at most 4 on any of 4 sockets"


def test_whole_sockets_are_places_too() -> None:
    matcher = Matcher(sockets(), policy="low")
    for socket in range(4):
        path = f"/cluster0/node{socket // 2}/socket{socket % 2}/core{socket % 2 * 4}"
        core = {"type": "core", "rank": socket // 2, "exclusive": True, "paths": {"containment": path}}
        matcher.update_allocate(socket, {"graph": {"nodes": [{"metadata": core}]}})
    ask = spec(want("node", 2, slot(2, want("socket", 1))))
    assert matcher.why(ask) == BUSY + "asked 4 socket, whole; 0 of 4 sockets wholly free"  # for a hundred years


def test_it_judges_within_the_candidates() -> None:
    matcher = Matcher(machine(nodes=4, cores=2))
    one, three = spec(slot(1, CORE)), spec(slot(3, CORE))
    matcher.allocate(spec(slot(2, CORE), constraints={"ranks": ["0"]}))
    assert matcher.why(one) == matcher.why(one, candidates=[True] * 4) == "fits now"
    assert matcher.why(one, candidates=[False, True, False, False]) == "fits now"
    assert matcher.why(one, candidates=np.array([True, False, False, False])) == (
        "no match now on 1 candidate node, but they could hold it; it fits now without the candidates; "
        "asked 1 core below node, none free on the 1 candidate node" + LATER
    )
    assert matcher.why(three, candidates=np.array([0, 9, 0, 0])) == (
        "no match on 1 candidate node, even if they were empty and all up, but the graph could hold it; "
        "it fits now without the candidates; asked 3 slots of 1 core, room for 2 on 1 candidate node"
    )
    assert matcher.why(three, candidates=[1, 1, 0, 0]).endswith(
        "asked 3 slots of 1 core, room for 2 on 2 candidate nodes"
    )
    assert matcher.why(one, candidates=[]).endswith("none of 4 nodes is among the candidates")


def test_it_counts_status_and_constraint_within_the_candidates() -> None:
    matcher = Matcher(machine(nodes=4, properties={0: {"x": ""}, 3: {"x": ""}}))
    matcher.set_status("/cluster0/node1", up=False)
    assert matcher.why(spec(slot(1, CORE), constraints=X), candidates=iter([False, True, True])) == (
        "no match on 2 candidate nodes, even if they were empty and all up, but the graph could hold it; it fits now "
        "without the candidates; asked 1 slot of 1 core, none of 2 candidate nodes is allowed by the constraints"
    )
    assert matcher.why(spec(slot(1, CORE)), candidates=[False, True]).endswith("none of 1 candidate node is up")


def test_candidates_that_restrict_nothing_or_do_not_matter_change_nothing() -> None:
    matcher = Matcher(machine(nodes=3))
    never = spec(slot(4, want("gpu", 1)))
    assert matcher.why(never, candidates=[True, True, True, True]) == matcher.why(never)
    assert matcher.why(never, candidates=[True, False, False]) == matcher.why(never)
    assert matcher.why(never) == NEVER + "asked 4 gpu, 3 in the graph"
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
    assert (
        matcher.why(ask) == BUSY + "enough is there of each type, but not where the request wants it together" + LATER
    )


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
        NEVER + "alternative 1 of 4: asked 5 core, 4 in the graph; alternative 2 of 4: asked 3 gpu, 2 in the graph; "
        "alternative 3 of 4: asked 9 core, 4 in the graph"
    )
    matcher.allocate(spec(slot(1, want("core", 3), want("gpu", 2)), duration=50))
    mixed = spec(want("node", 1, slot(2, want("core", 2)), slot(2, want("gpu", 1))), duration=1)
    assert matcher.why(mixed) == (
        BUSY + "alternative 1 of 2 alone: asked 4 core below node, at most 1 free on the 1 node; "
        "alternative 2 of 2 alone: asked 2 gpu below node, none free on the 1 node; it would fit at second 50"
    )


def test_units_asked_for_by_themselves_are_counted_where_they_are_allowed() -> None:
    matcher = Matcher(pools())
    ask = spec(want("memory", 120, exclusive=True), constraints={"ranks": ["1"]})
    assert matcher.why(ask) == NEVER + "asked 120 memory, 100 on 1 node allowed by the constraints"
    matcher.allocate(spec(slot(1, want("memory", 60)), constraints={"ranks": ["1"]}))
    ask = spec(want("memory", 50, exclusive=True), constraints={"ranks": ["1"]})
    assert matcher.why(ask) == BUSY + "asked 50 memory, 40 free on 1 node allowed by the constraints" + LATER
    none = spec(want("memory", 1, exclusive=True), constraints={"ranks": ["7"]})
    assert matcher.why(none) == NEVER + "asked 1 memory, none of 2 nodes is allowed by the constraints"


def test_large_vertices_are_whole_parts_of_a_slot() -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    for n in range(2):
        node = graph.add("node", n, root, rank=n)
        for chunk in range(3):
            graph.add("memory", chunk, node, rank=n, size=4)
    ask = spec(slot(7, want("memory", 1)))
    assert Matcher(graph.jgf()).why(ask) == NEVER + "asked 7 slots of 1 memory, room for at most 6 on 2 nodes"
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
        BUSY + "asked 4 core below socket, at most 3 free on any of 4 sockets"
    )
    assert matcher.why(spec(slot(1, want("core", 7)))) == (
        BUSY + "asked 7 core below node, at most 6 free on any of 2 nodes"
    )


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
    assert matcher.why(four) == BUSY + "asked 4 node, 3 of 4 nodes are up"
    assert matcher.why(spec(slot(1, want("node", 5)))) == NEVER + "asked 5 node, 4 in the graph"


def test_it_says_when_it_would_fit_at_now_and_among_reservations() -> None:
    matcher = Matcher(machine(nodes=1))
    half, whole = (spec(slot(1, want("core", n)), duration=100) for n in (2, 4))
    matcher.allocate(half)
    assert matcher.allocate_orelse_reserve(whole).at == 100
    assert matcher.why(spec(slot(1, want("core", 4)), duration=20), now=50) == (
        BUSY + "asked 4 core below node, at most 2 free on the 1 node; it would fit at second 200"
    )
    for ask, now in ((whole, 50), (half, 1)):  # their spans reach into the reservation
        assert matcher.why(ask, now=now).endswith("none free on the 1 node; it would fit at second 200")
    assert matcher.why(half, now=200) == "fits now"
    assert matcher.why(whole, now=200, prefer=[1.0]) == "fits now"
    with pytest.raises(InvalidJobspec, match="now"):
        matcher.why(half, now=-1)
    with pytest.raises(InvalidJobspec, match="prefer"):
        matcher.why(half, prefer=["x"])


def test_what_gathering_is_not_allowed_for_is_said() -> None:
    ask = spec(want("node", 1, slot(1, want("core", 6))))
    text = Matcher(sockets()).why(ask)
    assert text.startswith(NEVER + "a slot would have to gather from several vertices below its parent")
    assert text.endswith("; enough is there of each type, but not where the request wants it together")
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
    assert texts[0] == BUSY + "asked 3 core below node, none free on any of 10000 nodes; it would fit at second 10"
    assert texts[1] == NEVER + "asked 5 core below node, at most 4 on any of 10000 nodes"
    assert texts[2] == NEVER + "asked 50000 core, 40000 in the graph"
    assert texts[3] == NEVER + "asked 5 slots of 1 core, none of 10000 nodes is allowed by the constraints"


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (slot(0, CORE), "asked 0 slots of 1 core"),
        (slot(1, CORE, want("gpu", 0)), "asked 0 gpu"),
        (want("node", 0, slot(1, CORE)), "asked 0 node"),
        (want("node", 1, slot(1, CORE), slot(0, want("gpu", 1))), "asked 0 slots of 1 gpu"),
    ],
)
def test_a_count_of_none_is_named(ask: dict[str, Any], text: str) -> None:
    assert some().why(spec(ask)) == NEVER + text + ", and a count of 0 never matches"
    assert not some().satisfy(spec(ask))


@pytest.mark.parametrize(
    ("allowed", "text"),
    [
        ([1, 1], "asked 3 slots below node, at most 1 allowed on any of 2 candidate nodes"),
        ([1, 0, 2], "asked 3 slots below node, at most 2 allowed on any of 2 candidate nodes"),
        ([0, 2], "asked 3 slots below node, at most 2 allowed on the 1 candidate node"),
    ],
)
def test_slots_in_a_node_are_held_against_what_candidates_allow(allowed: list[int], text: str) -> None:
    ask = spec(want("node", 1, slot(3, CORE)))
    assert some().why(ask, candidates=allowed).endswith("; it fits now without the candidates; " + text)
    assert some().why(ask, candidates=[1, 3]) == "fits now"


def test_nodes_that_allow_enough_slots_are_counted() -> None:
    ask = spec(want("node", 2, slot(3, CORE)))
    told = some().why(ask, candidates=[3, 1, 0, 1])
    assert told.endswith("asked 2 node with 3 core each, 1 of 3 candidate nodes with that much")


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
