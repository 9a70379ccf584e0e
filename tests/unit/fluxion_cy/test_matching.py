"""What the matcher takes, and in which order."""

import errno
from typing import Any

import numpy as np
import pytest

from fluxion_cy import Busy, InvalidJobspec, Matcher, NotSupported, Unsatisfiable

from .graphs import Graph, machine, pools, slot, sockets, spec, taken, want

CORE = want("core", 1)


def cores(found: dict[str, int]) -> list[str]:
    return sorted(path for path in found if "core" in path)


def test_first_takes_the_emptiest_node_and_low_the_lowest() -> None:
    ask = spec(want("node", 1, slot(1, want("core", 2))))
    first, low = Matcher(machine(), policy="first"), Matcher(machine(), policy="low")
    assert [cores(taken(first.allocate(ask).R))[0].split("/")[2] for _ in range(3)] == ["node2", "node1", "node0"]
    assert [cores(taken(low.allocate(ask).R))[0].split("/")[2] for _ in range(3)] == ["node0", "node0", "node1"]


def test_pack_fills_the_fullest_node_before_the_next() -> None:
    matcher = Matcher(machine(), policy="pack")
    matcher.allocate(spec(slot(1, CORE), constraints={"ranks": ["1"]}))
    found = [cores(taken(matcher.allocate(spec(slot(1, CORE))).R))[0] for _ in range(4)]
    assert [path.split("/")[2] for path in found] == ["node1", "node1", "node1", "node0"]


def test_a_gang_of_slots_under_low_scatters_and_under_pack_does_not() -> None:
    ask = spec(slot(3, CORE))
    assert cores(taken(Matcher(machine(), policy="low").allocate(ask).R)) == [
        f"/cluster0/node{n}/core0" for n in range(3)
    ]
    assert cores(taken(Matcher(machine(), policy="pack").allocate(ask).R)) == [
        f"/cluster0/node0/core{n}" for n in range(3)
    ]


def test_ties_are_broken_by_path_in_natural_order_whatever_the_order_of_the_file() -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    for n in (10, 9, 2):
        node = graph.add("node", n, root, name=f"host{n}", rank=n)
        graph.add("core", 0, node, rank=n)
    for document in (graph.jgf(), {"graph": {"nodes": graph.nodes, "edges": graph.edges[::-1]}}):
        assert cores(taken(Matcher(document, policy="low").allocate(spec(slot(1, CORE))).R)) == [
            "/cluster0/host2/core0"
        ]
        assert cores(taken(Matcher(document, policy="high").allocate(spec(slot(1, CORE))).R)) == [
            "/cluster0/host2/core0"
        ]


def test_two_slots_side_by_side_both_get_their_resources() -> None:
    matcher = Matcher(machine(nodes=1), policy="low")
    two = (slot(2, CORE, label="a"), slot(1, CORE, want("gpu", 1), label="b"))
    found = taken(matcher.allocate(spec(want("node", 1, *two))).R)
    assert sorted(found) == [f"/cluster0/node0/{name}" for name in ("core0", "core1", "core2", "gpu0")]
    other = Matcher(machine(nodes=2), policy="low")
    assert len(taken(other.allocate(spec(*two)).R)) == 4


def test_a_slot_gathers_from_below_sockets_but_never_across_nodes() -> None:
    matcher = Matcher(sockets(), policy="low")
    found = taken(matcher.allocate(spec(slot(1, want("core", 6), want("gpu", 1)))).R)
    assert len(found) == 7
    assert len({path.split("/")[2] for path in found}) == 1
    with pytest.raises(Busy):
        matcher.allocate(spec(want("node", 2, slot(1, want("core", 6)))))
    assert not matcher.satisfy(spec(slot(1, want("core", 9))))


def test_a_slot_below_a_socket_takes_cores_and_gpus_of_one_socket() -> None:
    graph = Graph()
    node = graph.add("node", 0, graph.add("cluster", 0), rank=0)
    for number, gpus in enumerate((0, 2)):
        socket = graph.add("socket", number, node, rank=0)
        for kind, count in (("core", 4), ("gpu", gpus)):
            for one in range(count):
                graph.add(kind, 4 * number + one, socket, rank=0)
    matcher = Matcher(graph.jgf(), policy="low")
    job = spec(want("node", 1, want("socket", 1, slot(1, want("core", 3), want("gpu", 1)))))
    below = "/cluster0/node0/socket1/"
    assert sorted(taken(matcher.allocate(job).R)) == [f"{below}{name}" for name in ("core4", "core5", "core6", "gpu4")]
    with pytest.raises(Busy):
        matcher.allocate(job)
    without = spec(want("node", 1, slot(1, want("core", 6), want("gpu", 1))))
    with pytest.raises(Busy, match="write out the levels in between"):
        Matcher(graph.jgf()).allocate(without)
    found = taken(Matcher(graph.jgf(), compatible=False).allocate(without).R)
    assert {path.split("/")[3] for path in found} == {"socket0", "socket1"}


def test_an_exclusive_node_takes_everything_below_it() -> None:
    matcher = Matcher(machine(nodes=1))
    found = taken(matcher.allocate(spec(want("node", 1, slot(1, CORE), exclusive=True))).R)
    assert len(found) == 6
    assert "/cluster0/node0" in found


def test_a_rejected_exclusive_jobspec_leaves_no_trace() -> None:
    matcher = Matcher(machine(nodes=1))
    with pytest.raises(InvalidJobspec):
        matcher.allocate(spec(want("node", 1, slot(1, CORE), exclusive=True), duration=-1))
    assert len(taken(matcher.allocate(spec(want("node", 1, slot(1, CORE)))).R)) == 1


def test_nothing_exclusive_is_an_error_that_says_so() -> None:
    with pytest.raises(InvalidJobspec, match="exclusive") as caught:
        Matcher(machine()).allocate(spec(want("node", 1)))
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        ({"min": 2}, 4),
        ({"min": 1, "max": 3, "operator": "+", "operand": 2}, 3),
        ({"min": 1, "max": 4, "operator": "*", "operand": 2}, 4),
        ({"min": 2, "max": 100, "operator": "^", "operand": 2}, 4),
        ("3", 3),
    ],
)
def test_counts_take_the_most_that_their_steps_reach(count: Any, expected: int) -> None:
    found = taken(Matcher(machine(nodes=1)).allocate(spec(want("node", 1, slot(1, want("core", count))))).R)
    assert len(cores(found)) == expected


@pytest.mark.parametrize(
    ("constraints", "hosts"),
    [
        ({"properties": ["big"]}, {1}),
        ({"properties": ["^big"]}, {0, 2}),
        ({"hostlist": ["node[0,2]"]}, {0, 2}),
        ({"ranks": ["1-2"]}, {1, 2}),
        ({"and": [{"ranks": ["0-1"]}, {"not": [{"properties": ["big"]}]}]}, {0}),
        ({"or": [{"properties": ["big"]}, {"hostlist": ["node2"]}]}, {1, 2}),
        ({}, {0, 1, 2}),
    ],
)
def test_constraints_choose_nodes(constraints: Any, hosts: set[int]) -> None:
    matcher = Matcher(machine(properties={1: {"big": ""}}))
    ask = spec(want("node", 1, slot(1, want("core", 4))), constraints=constraints)
    found = set()
    for _ in hosts:
        found |= {int(path.split("/")[2].removeprefix("node")) for path in taken(matcher.allocate(ask).R)}
    assert found == hosts
    with pytest.raises(Busy):
        matcher.allocate(ask)


def test_constraints_reach_other_types_only_when_not_compatible() -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    for n, properties in enumerate(({"vendor": "a"}, {"vendor": "b", "fast": ""})):
        graph.add("qpu", n, root, properties=properties)
    ask = spec(slot(2, want("qpu", 1)), constraints={"properties": ["fast"]})
    assert len(taken(Matcher(graph.jgf()).allocate(ask).R)) == 2
    strict = Matcher(graph.jgf(), compatible=False)
    with pytest.raises(Busy):
        strict.allocate(ask)
    one = spec(slot(1, want("qpu", 1)), constraints={"properties": ["fast"]})
    assert list(taken(strict.allocate(one).R)) == ["/cluster0/qpu1"]


def test_a_pool_is_shared_by_units() -> None:
    matcher = Matcher(pools(), policy="low")
    ask = spec(slot(1, CORE, want("memory", 40)))
    first, second = matcher.allocate(ask), matcher.allocate(ask)
    assert taken(first.R) == {"/cluster0/node0/core0": 1, "/cluster0/node0/memory0": 40}
    third = matcher.allocate(ask)
    memories = [next(p for p in taken(found.R) if "memory" in p) for found in (first, second, third)]
    assert sorted(memories.count(path) for path in set(memories)) == [1, 2]
    with pytest.raises(Unsatisfiable):
        matcher.allocate_with_satisfiability(spec(slot(1, want("memory", 101))))
    with pytest.raises(Busy):
        matcher.allocate(spec(slot(1, want("memory", 100))))
    matcher.cancel(first.jobid)
    matcher.update_allocate(9, first.R)
    assert sum(memories.count(path) for path in set(memories)) == 3


def test_one_match_takes_several_slots_from_one_pool() -> None:
    matcher = Matcher(pools(), policy="low")
    found = taken(matcher.allocate(spec(want("node", 1, slot(4, CORE, want("memory", 25))))).R)
    assert found["/cluster0/node0/memory0"] == 100
    with pytest.raises(Busy):
        matcher.allocate(spec(want("node", 2, slot(1, want("memory", 1)))))


def test_an_exclusive_node_takes_its_whole_pool() -> None:
    matcher = Matcher(pools(), policy="low")
    found = taken(matcher.allocate(spec(want("node", 1, slot(1, CORE), exclusive=True))).R)
    assert found["/cluster0/node0/memory0"] == 100


def test_a_pool_asked_for_exclusively_gives_only_the_units() -> None:
    found = taken(Matcher(pools(), policy="low").allocate(spec(want("memory", 7, exclusive=True))).R)
    assert found == {"/cluster0/node0/memory0": 7}


@pytest.mark.parametrize("wrap", [list, np.array])
def test_candidates_say_where_and_how_many(wrap: Any) -> None:
    ask = spec(slot(3, CORE))
    found = taken(Matcher(machine()).allocate(ask, candidates=wrap([False, True, False])).R)
    assert {path.split("/")[2] for path in found} == {"node1"}
    found = taken(Matcher(machine()).allocate(ask, candidates=wrap([1, 0, 2])).R)
    assert sorted(path.split("/")[2] for path in found) == ["node0", "node2", "node2"]
    with pytest.raises(Busy):
        Matcher(machine()).allocate(ask, candidates=wrap([1, 1, 0]))
    with pytest.raises(Busy):
        Matcher(machine()).allocate(ask, candidates=wrap([False]))


def test_candidates_and_preferences_come_in_any_sequence() -> None:
    ask = spec(slot(2, CORE))
    for candidates in (
        (0, 2, 0),
        np.array([0, 2, 0], dtype=np.int16),
        np.array([0, 9, 2, 9, 0, 9])[::2],
        iter([0, 2, 0]),
    ):
        found = taken(Matcher(machine()).allocate(ask, candidates=candidates).R)
        assert {path.split("/")[2] for path in found} == {"node1"}
    for prefer in ((0, 1, 0), np.array([0, 5, 0], dtype=np.float32), np.array([0, 1, 0]), range(3)):
        found = taken(Matcher(machine()).allocate(ask, prefer=prefer).R)
        assert {path.split("/")[2] for path in found} == {"node2" if isinstance(prefer, range) else "node1"}
    wrong: Any
    for wrong in ([0.5], ["x"], [-1], np.array([-1]), np.array([[1]]), np.array([0.5]), "101", b"101", {0: 1}, [2**63]):
        with pytest.raises(InvalidJobspec, match="candidates"):
            Matcher(machine()).allocate(ask, candidates=wrong)
    for wrong in ([float("nan")], np.array([np.nan]), ["x"], "123", [[1]], np.array([[1.0]])):
        with pytest.raises(InvalidJobspec, match="prefer"):
            Matcher(machine()).allocate(ask, prefer=wrong)


@pytest.mark.parametrize("policy", ["first", "low", "high", "lonode"])
def test_preferred_ranks_come_first(policy: str) -> None:
    ask = spec(want("node", 2, slot(1, CORE)))
    found = taken(Matcher(machine(), policy=policy).allocate(ask, prefer=np.array([0.5, -1.0, 2.0])).R)
    assert {path.split("/")[2] for path in found} == {"node0", "node2"}


def test_what_ended_before_now_is_free() -> None:
    matcher = Matcher(machine(nodes=1))
    ask = spec(want("node", 1, slot(1, want("core", 4))), duration=10)
    matcher.allocate(ask, now=100)
    with pytest.raises(Busy):
        matcher.allocate(ask, now=109)
    assert matcher.allocate(ask, now=110).at == 110


def test_a_reservation_starts_as_soon_as_everything_is_free() -> None:
    matcher = Matcher(machine(nodes=2))
    whole = want("node", 1, slot(1, want("core", 4)))
    matcher.allocate(spec(whole, duration=10))
    matcher.allocate(spec(whole, duration=25))
    both = spec(want("node", 2, slot(1, want("core", 4))), duration=5)
    found = matcher.allocate_orelse_reserve(both, now=3)
    assert (found.at, found.reserved) == (25, True)
    assert matcher.info(found.jobid).mode == "RESERVED"
    one = matcher.allocate_orelse_reserve(spec(whole, duration=15), now=3)
    assert one.at == 10
    with pytest.raises(Unsatisfiable):
        matcher.allocate_orelse_reserve(spec(want("node", 3, slot(1, CORE))))


def test_a_preview_holds_nothing() -> None:
    matcher = Matcher(machine(nodes=1))
    ask = spec(want("node", 1, slot(1, want("core", 4))))
    before = matcher.stat()
    assert taken(matcher.without_allocating(ask).R) == taken(matcher.without_allocating(ask).R)
    assert matcher.stat() == before
    matcher.allocate(ask)
    assert matcher.without_allocating_future(ask).at == 3600


def test_down_means_busy_and_not_unsatisfiable() -> None:
    matcher = Matcher(machine(nodes=2))
    matcher.set_status("/cluster0/node0", up=False)
    two = spec(want("node", 2, slot(1, CORE)))
    assert matcher.satisfy(two)
    for operation in (matcher.allocate, matcher.allocate_orelse_reserve, matcher.allocate_with_satisfiability):
        with pytest.raises(Busy):
            operation(two)
    matcher.set_rank_status("all", up=True)
    assert len(taken(matcher.allocate(two).R)) == 2


def test_nodes_loaded_down_do_not_count_against_those_that_are_up() -> None:
    document = machine(nodes=4)
    for node in document["graph"]["nodes"]:
        if node["metadata"]["type"] == "node" and node["metadata"]["id"] < 2:
            node["metadata"]["status"] = 1
    assert len(taken(Matcher(document).allocate(spec(want("node", 2, slot(1, CORE)))).R)) == 2


def test_options_that_are_not_there_are_named() -> None:
    options: list[dict[str, Any]] = [
        {"match_format": "rv2"},
        {"engine": "other"},
        {"traverser": "other"},
        {"load_format": "hwloc"},
    ]
    for option in options:
        with pytest.raises(NotSupported, match=next(iter(option))):
            Matcher(machine(), **option)
    with pytest.raises(InvalidJobspec, match="policy"):
        Matcher(machine(), policy="policy")


@pytest.mark.parametrize("policy", ["first", "firstnodex", "low", "pack"])
@pytest.mark.parametrize(
    ("sizes", "asked"), [([(8, True), (5, True), (5, True)], 8), ([(1, False), (1, True), (1, False), (1, False)], 3)]
)
def test_what_is_left_over_of_one_pool_does_not_end_the_search_for_another(
    policy: str, sizes: list[tuple[int, bool]], asked: int
) -> None:
    graph = Graph()
    node = graph.add("node", 0, graph.add("cluster", 0), rank=0)
    for n, (size, divisible) in enumerate(sizes):
        graph.add("memory", n, node, rank=0, size=size, divisible=divisible)
    for ask in (spec(slot(1, want("memory", asked))), spec(want("memory", asked, exclusive=True))):
        matcher = Matcher(graph.jgf(), policy=policy)
        assert matcher.satisfy(ask)
        assert sum(taken(matcher.allocate(ask).R).values()) >= asked


@pytest.mark.parametrize("allowed", [[False, True], [0, 4]])
def test_what_is_taken_whole_has_only_candidates_below_it(allowed: list[Any]) -> None:
    matcher = Matcher(machine(nodes=2))
    whole = spec(want("cluster", 1, exclusive=True))
    with pytest.raises(Busy):
        matcher.allocate(whole, candidates=allowed)
    assert matcher.allocate(whole, candidates=[type(allowed[1])(1)] * 2).R
