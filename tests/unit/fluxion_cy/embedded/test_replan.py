"""`replan=True`: reservations move forward when something ends early, and never back."""

from collections.abc import Callable
from typing import Any

import pytest

from fluxion_cy import Busy, InvalidGraph, InvalidJobspec, Matcher, NoSuchJob

from ..graphs import machine, pools, slot, spec, taken, want

WHOLE = want("node", 1, slot(1, want("core", 4)))


def whole(duration: int) -> dict[str, object]:
    return spec(WHOLE, duration=duration)


def test_a_reservation_starts_at_once_when_an_allocation_is_cancelled() -> None:
    matcher = Matcher(machine(nodes=1), replan=True)
    first = matcher.allocate(whole(100))
    second, third = (matcher.allocate_orelse_reserve(whole(50)) for _ in range(2))
    assert (second.at, third.at) == (100, 150)
    matcher.cancel(first.jobid, now=10)
    assert matcher.moved() == [second.jobid, third.jobid]
    assert matcher.moved() == []
    assert matcher.info(second.jobid).mode == "ALLOCATED"
    assert (matcher.info(second.jobid).at, matcher.info(third.jobid).at) == (10, 60)
    assert matcher.info(third.jobid).mode == "RESERVED"
    assert taken(matcher.allocation(third.jobid).R) == taken(third.R)


def test_without_the_option_reservations_stay() -> None:
    matcher = Matcher(machine(nodes=1))
    first, second = matcher.allocate(whole(100)), matcher.allocate_orelse_reserve(whole(50))
    matcher.cancel(first.jobid)
    assert matcher.info(second.jobid).at == 100
    assert matcher.moved() == []


def test_the_latest_second_that_was_named_is_now() -> None:
    matcher = Matcher(machine(nodes=1), replan=True)
    first = matcher.allocate(whole(100), now=7)
    second = matcher.allocate_orelse_reserve(whole(50), now=20)
    matcher.cancel(first.jobid)
    assert matcher.info(second.jobid).at == 20


def test_a_part_that_is_given_back_is_used_too() -> None:
    matcher = Matcher(machine(nodes=2), policy="low", replan=True)
    both = matcher.allocate(spec(want("node", 2, slot(1, want("core", 4))), duration=100))
    later = matcher.allocate_orelse_reserve(whole(50))
    assert later.at == 100
    lite = {"version": 1, "execution": {"R_lite": [{"rank": "1", "children": {"core": "0-3"}}]}}
    assert not matcher.partial_cancel(both.jobid, lite, now=30)
    moved = matcher.allocation(later.jobid)
    assert (moved.at, moved.reserved) == (30, False)
    assert {path.split("/")[2] for path in taken(moved.R)} == {"node1"}


def test_the_earlier_reservation_goes_first_and_a_begun_one_stays() -> None:
    matcher = Matcher(machine(nodes=1), replan=True)
    first = matcher.allocate(whole(100), 50)
    begun = matcher.allocate_orelse_reserve(whole(10), 40)
    late = matcher.allocate_orelse_reserve(whole(10), 9)
    later = matcher.allocate_orelse_reserve(whole(10), 8)
    assert [job.at for job in (begun, late, later)] == [100, 110, 120]
    matcher.cancel(first.jobid, now=105)
    assert matcher.moved() == []
    assert matcher.info(40).at == 100
    matcher.cancel(40, now=106)
    assert [matcher.info(jobid).at for jobid in (9, 8)] == [106, 116]


def test_what_was_asked_for_still_holds() -> None:
    matcher = Matcher(machine(nodes=2, properties={0: {"a": ""}}), policy="low", replan=True)
    jobs = [matcher.allocate(spec(WHOLE, duration=100, constraints={"ranks": [str(n)]})) for n in range(2)]
    constrained = matcher.allocate_orelse_reserve(spec(WHOLE, duration=10, constraints={"properties": ["a"]}))
    candidates = [True, False]
    confined = matcher.allocate_orelse_reserve(whole(10), candidates=iter(candidates))
    assert (constrained.at, confined.at) == (100, 110)
    matcher.cancel(jobs[1].jobid)
    assert matcher.moved() == []
    matcher.cancel(jobs[0].jobid)
    assert matcher.moved() == [constrained.jobid, confined.jobid]
    assert all("/node0/" in path for path in taken(matcher.allocation(confined.jobid).R))


def test_a_reservation_whose_type_has_left_the_graph_keeps_its_place() -> None:
    matcher = Matcher(machine(nodes=2), policy="low", replan=True)
    first = matcher.allocate(spec(want("node", 2, slot(1, want("core", 4), want("gpu", 1))), duration=100))
    later = matcher.allocate_orelse_reserve(spec(slot(1, want("gpu", 1)), duration=10))
    for n in range(2):
        matcher.set_status(f"/cluster0/node{n}", up=False)
    matcher.cancel(first.jobid)
    assert matcher.info(later.jobid).at == 100
    with pytest.raises(Busy):
        matcher.allocate(spec(slot(2, want("gpu", 1))))


def test_units_of_pools_are_planned_anew() -> None:
    matcher = Matcher(pools(), policy="low", replan=True)
    most = [matcher.allocate(spec(slot(1, want("memory", 80)), duration=100)) for _ in range(2)]
    later = matcher.allocate_orelse_reserve(spec(slot(1, want("memory", 90)), duration=10))
    small = matcher.allocate_orelse_reserve(spec(slot(1, want("memory", 20)), duration=200))
    assert (later.at, small.at) == (100, 0)
    matcher.cancel(most[0].jobid, now=1)
    assert (matcher.info(later.jobid).at, matcher.info(small.jobid).at) == (1, 0)


def grown(number: int) -> dict[str, Any]:
    """What adds a node of four cores and a gpu to `machine`."""
    return machine(nodes=number + 1)


def set_up(matcher: Matcher) -> None:
    matcher.set_status("/cluster0/node1", up=True)


def set_rank_up(matcher: Matcher) -> None:
    matcher.set_rank_status("1", up=True)


def set_all_up(matcher: Matcher) -> None:
    matcher.set_rank_status("all", up=True)


def take_one_away(matcher: Matcher) -> None:
    """Makes no room by itself, but whoever comes next finds the second node up."""
    matcher.set_rank_status([1], up=True)
    matcher.remove_subgraph("/cluster0/node0/gpu0")


@pytest.mark.parametrize("change", [set_up, set_rank_up, set_all_up, take_one_away])
def test_a_reservation_starts_at_once_on_a_node_that_comes_up(change: Callable[[Matcher], None]) -> None:
    matcher = Matcher(machine(nodes=2), replan=True)
    matcher.set_status("/cluster0/node1", up=False)
    matcher.allocate(whole(100), now=4)
    later = matcher.allocate_orelse_reserve(whole(50), now=4)
    matcher.set_status("/cluster0/node0", up=True)
    assert (later.at, matcher.moved()) == (104, [])
    change(matcher)
    assert matcher.moved() == [later.jobid]
    found = matcher.allocation(later.jobid)
    assert (found.at, found.reserved) == (4, False)
    assert {path.split("/")[2] for path in taken(found.R)} == {"node1"}


def test_a_reservation_starts_at_once_on_a_node_that_is_added() -> None:
    matcher = Matcher(machine(nodes=1), replan=True)
    matcher.allocate(whole(100))
    later = matcher.allocate_orelse_reserve(whole(50))
    with pytest.raises(InvalidGraph):
        matcher.add_subgraph({"graph": {"nodes": [], "edges": [{"source": "8", "target": "9"}]}})
    assert matcher.moved() == []
    matcher.add_subgraph(grown(1))
    assert matcher.moved() == [later.jobid]
    assert matcher.info(later.jobid).mode == "ALLOCATED"


def test_a_reservation_starts_at_once_in_a_pool_that_grows() -> None:
    matcher = Matcher(pools(), policy="low", replan=True)
    most = [matcher.allocate(spec(slot(1, want("memory", 80)), duration=100)) for _ in range(2)]
    later = matcher.allocate_orelse_reserve(spec(slot(1, want("memory", 30)), duration=10))
    matcher.resize("/cluster0/node1/memory0", 109)
    assert (later.at, len(most), matcher.moved()) == (100, 2, [])
    matcher.resize("/cluster0/node1/memory0", 110)
    assert matcher.moved() == [later.jobid]
    assert taken(matcher.allocation(later.jobid).R) == {"/cluster0/node1/memory0": 30}


def test_a_reservation_starts_at_once_where_properties_come_to_meet_its_constraint() -> None:
    matcher = Matcher(machine(nodes=2, properties={0: {"a": ""}}), replan=True)
    only = {"properties": ["a"]}
    matcher.allocate(spec(WHOLE, duration=100, constraints=only))
    later = matcher.allocate_orelse_reserve(spec(WHOLE, duration=10, constraints=only))
    matcher.set_properties("/cluster0/node1", {"b": ""})
    assert (later.at, matcher.moved()) == (100, [])
    matcher.set_properties("/cluster0/node1", {"a": ""})
    assert matcher.moved() == [later.jobid]


def test_what_takes_room_away_moves_no_reservation() -> None:
    matcher = Matcher(machine(nodes=2), policy="low", replan=True)
    jobs = [matcher.allocate(whole(100)) for _ in range(2)]
    later = matcher.allocate_orelse_reserve(whole(50))
    for path in ("/cluster0/node0", "/cluster0"):
        matcher.set_status(path, up=False)
    matcher.set_properties("/cluster0/node0", {"a": ""})
    matcher.remove_subgraph("/cluster0/node1")
    assert (matcher.moved(), matcher.info(later.jobid).at) == ([], 100)
    assert [matcher.info(job.jobid).mode for job in jobs] == ["ALLOCATED", "CANCELED"]
    matcher.retract(jobs[0].jobid)
    assert (matcher.moved(), matcher.info(later.jobid).at) == ([], 100), "as if it had never been"


def test_a_clone_plans_on_its_own() -> None:
    matcher = Matcher(machine(nodes=1), replan=True)
    first, second = matcher.allocate(whole(100)), matcher.allocate_orelse_reserve(whole(50))
    other = matcher.clone()
    other.cancel(first.jobid)
    assert (other.info(second.jobid).at, matcher.info(second.jobid).at) == (0, 100)
    assert (other.moved(), matcher.moved()) == ([second.jobid], [])


def test_bad_options_and_jobs_are_refused() -> None:
    with pytest.raises(InvalidJobspec, match="replan"):
        Matcher(machine(), replan="yes")  # type: ignore[arg-type]
    matcher = Matcher(machine(), replan=True)
    with pytest.raises(NoSuchJob):
        matcher.allocation(3)
    with pytest.raises(InvalidJobspec, match="now"):
        matcher.cancel(1, missing_ok=True, now=-1)
