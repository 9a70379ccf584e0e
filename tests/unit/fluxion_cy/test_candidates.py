"""Candidates as numbers: at most that many slots on a rank, wherever on it they are filled."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fluxion_cy import Busy, InvalidJobspec, Matcher, Unsatisfiable

from .graphs import Graph, machine, slot, sockets, spec, taken, want

CORE = want("core", 1)
POLICIES = ["first", "low", "high", "lonode", "variation", "locality", "pack"]


def up_to(low: int, high: int) -> dict[str, Any]:
    return {"min": low, "max": high, "operator": "+", "operand": 1}


def places(found: Any) -> Counter[str]:
    """Cores taken per vertex right below the cluster."""
    return Counter(path.split("/")[2] for path in taken(found) if "/core" in path)


def per_node(ask: dict[str, Any], caps: list[int], policy: str = "first", **options: Any) -> Counter[str]:
    return places(Matcher(sockets(), policy=policy, **options).allocate(ask, candidates=caps).R)


IN_SOCKETS = spec(want("node", 1, want("socket", 2, slot(2, CORE))))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_slots_of_all_sockets_of_a_node_count_together(policy: str) -> None:
    matcher = Matcher(sockets(), policy=policy)
    assert not matcher.satisfy(IN_SOCKETS, candidates=[3, 3])
    with pytest.raises(Busy):
        matcher.allocate(IN_SOCKETS, candidates=[3, 3])
    with pytest.raises(Unsatisfiable):
        matcher.allocate_with_satisfiability(IN_SOCKETS, candidates=[3, 3])
    with pytest.raises(Unsatisfiable):
        matcher.clone().allocate_orelse_reserve(IN_SOCKETS, candidates=[3, 3])
    assert places(matcher.allocate(IN_SOCKETS, candidates=[3, 4]).R) == {"node1": 4}


def test_caps_hold_at_the_second_for_which_something_is_reserved() -> None:
    matcher = Matcher(sockets())
    whole = spec(want("node", 1, want("socket", 2, slot(4, CORE))), duration=10)
    matcher.allocate(whole, candidates=[0, 8])
    found = matcher.allocate_orelse_reserve(IN_SOCKETS, candidates=[3, 4])
    assert (found.at, places(found.R)) == (10, {"node1": 4})


@pytest.mark.parametrize("policy", POLICIES)
def test_slots_at_the_top_level_count_over_all_their_places(policy: str) -> None:
    ask = spec(slot(4, CORE))
    assert per_node(ask, [1, 3], policy) == {"node0": 1, "node1": 3}
    with pytest.raises(Busy):
        per_node(ask, [1, 2], policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_range_leaves_of_a_cap_what_its_neighbours_need(policy: str) -> None:
    ask = spec(want("node", 1, want("socket", 2, slot(up_to(1, 4), CORE))))
    assert sum(per_node(ask, [3, 0], policy).values()) in (2, 3)
    assert per_node(ask, [9, 0], policy) == {"node0": 8}
    with pytest.raises(Busy):
        per_node(ask, [1, 1], policy)


def test_a_range_at_the_top_takes_what_the_caps_leave() -> None:
    assert per_node(spec(slot(up_to(1, 8), CORE)), [2, 3]) == {"node0": 2, "node1": 3}


@pytest.mark.parametrize("policy", POLICIES)
def test_slots_side_by_side_share_a_cap(policy: str) -> None:
    ask = spec(want("node", 1, want("socket", 1, slot(2, CORE), slot(1, want("core", 2), label="other"))))
    assert per_node(ask, [3, 0], policy) == {"node0": 4}
    with pytest.raises(Busy):
        per_node(ask, [2, 2], policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_slots_side_by_side_at_the_top_share_a_cap(policy: str) -> None:
    ask = spec(slot(2, CORE), slot(1, want("core", 2), label="other"))
    assert sum(per_node(ask, [2, 1], policy).values()) == 4
    with pytest.raises(Busy):
        per_node(ask, [2, 0], policy)


def test_a_slot_that_gathers_counts_on_the_rank_of_its_node() -> None:
    ask = spec(slot(1, want("core", 6), want("gpu", 1)))
    assert per_node(ask, [0, 1], compatible=False) == {"node1": 6}
    one = spec(want("node", 1, slot(3, want("core", 2))))
    assert per_node(one, [2, 3], compatible=False) == {"node1": 6}


def test_alternatives_that_mix_count_as_slots() -> None:
    ask = spec(want("node", 1, slot(3, want("core", 2)), slot(3, CORE, label="other")))
    flexible = Matcher(machine(), traverser="flexible")
    assert flexible.satisfy(ask)
    assert places(flexible.allocate(ask, candidates=[2, 3, 0]).R).keys() == {"node1"}
    with pytest.raises(Busy):
        flexible.allocate(ask, candidates=[2, 2, 2])


def test_slots_in_slots_are_counted_level_by_level() -> None:
    ask = spec(want("node", 1, slot(2, want("socket", 1, slot(2, CORE, label="inner")))))
    assert per_node(ask, [3, 4]) == {"node1": 4}
    with pytest.raises(Busy):
        per_node(ask, [3, 3])


def racked(node_ranks: list[int], rack_ranks: tuple[int, int] = (-1, -1), core_ranks: list[int] | None = None) -> Any:
    """Two racks of two nodes with three cores each; -1: no rank. `core_ranks`: of each node's cores."""
    graph = Graph()
    root = graph.add("cluster", 0)

    def rank(number: int) -> dict[str, int]:
        return {"rank": number} if number >= 0 else {}

    for r in range(2):
        rack = graph.add("rack", r, root, **rank(rack_ranks[r]))
        for n in range(2 * r, 2 * r + 2):
            node = graph.add("node", n, rack, **rank(node_ranks[n]))
            for c in range(3):
                graph.add("core", c, node, **rank(core_ranks[c] if core_ranks else -1))
    return graph.jgf()


def matches(graph: Any, ask: dict[str, Any], caps: list[int], policy: str) -> bool:
    matcher = Matcher(graph, policy=policy)
    fits = matcher.satisfy(ask, candidates=caps)
    assert (matcher.why(ask, candidates=caps) == "fits now") == fits
    return fits


@pytest.mark.parametrize("policy", POLICIES)
def test_ranks_may_lie_above_or_below_what_is_asked_for(policy: str) -> None:
    in_racks = spec(want("rack", 2, want("node", 2, slot(2, CORE))))
    assert matches(racked([0, 1, 2, 3]), in_racks, [2, 2, 2, 2], policy)
    assert not matches(racked([0, 1, 2, 3]), in_racks, [2, 2, 2, 1], policy)
    in_nodes = spec(want("node", 2, slot(2, CORE)))
    assert matches(racked([-1] * 4, (0, 1)), in_nodes, [4, 0], policy)
    assert matches(racked([-1] * 4, (0, 1)), in_nodes, [2, 3], policy)
    assert not matches(racked([-1] * 4, (0, 1)), in_nodes, [3, 1], policy)
    assert matches(racked([-1] * 4), in_nodes, [0], policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_nodes_that_share_a_rank_share_its_cap(policy: str) -> None:
    shared = racked([0, 0, 1, 1])
    assert matches(shared, spec(want("node", 2, slot(2, CORE))), [2, 2], policy)
    assert matches(shared, spec(want("node", 2, slot(2, CORE))), [0, 4], policy)
    assert not matches(shared, spec(want("node", 2, slot(2, CORE))), [0, 3], policy)
    assert not matches(shared, spec(want("node", 3, slot(2, CORE))), [3, 3], policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_where_only_cores_have_ranks_a_slot_counts_on_that_of_its_first_piece(policy: str) -> None:
    graph = racked([-1] * 4, core_ranks=[0, 0, 1])
    one = spec(want("node", 1, slot(2, CORE)))
    assert matches(graph, one, [1, 1], policy)
    assert not matches(graph, one, [1, 0], policy)


def test_what_was_asked_before_leaves_nothing_behind() -> None:
    matcher = Matcher(sockets())
    for _ in range(3):
        with pytest.raises(Busy):
            matcher.without_allocating(IN_SOCKETS, candidates=[3, 3])
        assert matcher.without_allocating(IN_SOCKETS, candidates=[3, 4]).R
        assert matcher.clone().allocate(IN_SOCKETS, candidates=[4, 3]).R
        assert matcher.without_allocating(IN_SOCKETS).R


def test_yes_among_numbers_allows_any_number() -> None:
    ask = spec(slot(6, CORE))
    assert per_node(ask, [True, 1]) == {"node0": 5, "node1": 1}
    assert Matcher(sockets()).satisfy(ask, candidates=[True, 0])
    matcher = Matcher(sockets())
    assert matcher.why(ask, candidates=[True, 0]) == "fits now"
    assert matcher.why(spec(slot(10, CORE)), candidates=[True, 1]) == (
        "9 of 10 slots fit: no other candidate node has 1 free core for the next; the only other candidate node has 0 "
        "left; the candidates allow no more slots on 1 candidate node"
    )
    with pytest.raises(Busy):
        matcher.allocate(ask, candidates=[False, 5])


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, object])
def test_the_largest_number_is_read_alike_by_a_match_and_by_why(dtype: Any) -> None:
    ask, most = spec(slot(6, CORE)), np.iinfo(np.int32 if dtype is np.int32 else np.int64).max
    for slots in (np.array([0, most], dtype=dtype), [0, int(most)]):
        matcher = Matcher(sockets())
        assert matcher.why(ask, candidates=slots) == "fits now"
        assert places(matcher.allocate(ask, candidates=slots).R) == {"node1": 6}
    with pytest.raises(InvalidJobspec, match=r"from 0 to 2\*\*63 - 1"):
        Matcher(sockets()).allocate(ask, candidates=[2**63])


@pytest.mark.parametrize(
    ("ask", "caps", "text"),
    [
        (
            IN_SOCKETS,
            [3, 2],
            "no node may have 4 slots; the candidates allow at most 3 on any of 2 candidate nodes",
        ),
        (
            spec(slot(4, CORE)),
            [1, 2],
            "3 of 4 slots fit: the candidates allow no more slots on 2 candidate nodes",
        ),
        (
            spec(slot(2, CORE), slot(1, want("core", 2), label="other")),
            [2, 0],
            "the candidates allow at most 2 slots on rank 0",
        ),
    ],
)
def test_why_says_where_a_cap_is_short(ask: dict[str, Any], caps: list[int], text: str) -> None:
    assert Matcher(sockets()).why(ask, candidates=caps) == text


def test_why_counts_slots_of_nodes_that_share_a_rank_once() -> None:
    assert Matcher(racked([0, 0, 1, 1])).why(spec(slot(5, CORE)), candidates=[2, 1]) == (
        "3 of 5 slots fit: the candidates allow no more slots on 4 candidate nodes"
    )


@pytest.mark.parametrize("policy", ["first", "low", "lonode", "pack"])
def test_what_caps_cost_grows_with_the_nodes_that_are_visited(policy: str) -> None:
    def kept(nodes: int) -> int:
        matcher = Matcher(machine(nodes=nodes, cores=2, gpus=0), policy=policy)
        matcher.allocate(spec(want("node", nodes // 2, slot(2, CORE))), candidates=[2] * nodes)
        return matcher._engine.tallies_made()

    assert 0 < kept(400) <= 2 * kept(200) + 8


def test_what_caps_cost_does_not_grow_with_ranks_that_do_not_matter() -> None:
    def kept(nodes: int) -> int:
        matcher = Matcher(machine(nodes=nodes, cores=2, gpus=0))
        matcher.allocate(spec(want("node", 4, slot(2, CORE))), candidates=[2] * nodes)
        return matcher._engine.tallies_made()

    assert 0 < kept(400) == kept(50)


@pytest.mark.parametrize("chosen", [[], [0], [7], [8], [19], [0, 19], [6, 7, 8, 9], list(range(20))])
def test_a_mask_allows_the_same_hosts_as_numbers_of_slots(chosen: list[int]) -> None:
    mask = np.isin(np.arange(20), chosen)
    asked = spec(want("node", 1, slot(1, CORE)))
    by_mask, by_number = Matcher(machine(20)), Matcher(machine(20))
    for matcher, candidates in ((by_mask, mask), (by_number, mask.astype(np.int64) * 100)):
        found = set()
        for _ in range(20 * 16):
            try:
                found |= set(places(matcher.allocate(asked, candidates=candidates).R))
            except (Busy, Unsatisfiable):
                break
        assert found == {f"node{rank}" for rank in chosen}
