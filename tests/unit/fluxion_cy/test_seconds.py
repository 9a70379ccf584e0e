"""Seconds: those of a resource set, the `now` of `find`, and the latest that any call has named."""

from collections.abc import Callable
from typing import Any

import pytest

from fluxion_cy import Busy, Matcher

from .graphs import machine, slot, spec, taken, want

CORE = spec(slot(1, want("core", 1)))
PATH = "/cluster0/node0/core0"


def one_core() -> Matcher:
    return Matcher(machine(nodes=1, cores=1, gpus=0), replan=True)


def held(start: float, end: float) -> dict[str, Any]:
    lite = [{"rank": "0", "children": {"core": "0"}}]
    return {"version": 1, "execution": {"starttime": start, "expiration": end, "R_lite": lite}}


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [(1.5, 2.0, 1, 1), (1.2, 1.3, 1, 1), (0, 0.5, 0, 0), (1.9, 3.1, 1, 3), (5, 7.0, 5, 6), (0.5, 2**53 - 1, 0, 9)],
)
def test_a_set_is_held_for_whole_seconds_around_its_times(start: float, end: float, first: int, last: int) -> None:
    matcher = one_core()
    assert matcher.update_allocate(1, held(start, end)).at == first
    second = spec(slot(1, want("core", 1)), duration=1)
    busy = []
    for now in range(10):
        try:
            matcher.without_allocating(second, now=now)
        except Busy:
            busy.append(now)
    assert busy == list(range(first, last + 1))


@pytest.mark.parametrize("criteria", ["sched-now=allocated", "jobid-alloc=1"])
def test_what_has_ended_is_no_longer_found_as_allocated(criteria: str) -> None:
    matcher = one_core()
    matcher.allocate(spec(slot(1, want("core", 1)), duration=10), 1)
    assert [PATH in taken(matcher.find(criteria, now=now)) for now in (0, 9, 10)] == [True, True, False]
    assert PATH in taken(matcher.find("sched-now=free", now=10))
    assert PATH in taken(matcher.find("jobid-tag=1", now=10)), "until it is cancelled"


@pytest.mark.parametrize("criteria", ["sched-future=reserved", "jobid-reserved=2"])
def test_what_has_ended_is_no_longer_found_as_reserved(criteria: str) -> None:
    matcher = one_core()
    for jobid in (1, 2):
        matcher.allocate_orelse_reserve(spec(slot(1, want("core", 1)), duration=10), jobid)
    assert [PATH in taken(matcher.find(criteria, now=now)) for now in (0, 19, 20)] == [True, True, False]


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.satisfy(CORE, now=4),
        lambda m: m.why(CORE, now=4),
        lambda m: m.find("status=up", now=4),
        lambda m: m.without_allocating(spec(slot(1, want("gpu", 1))), now=4),
        lambda m: m.without_allocating_future(CORE, now=4),
        lambda m: m.update_allocate(9, {**held(5000, 5001)}, now=4),
    ],
    ids=["satisfy", "why", "find", "preview", "preview later", "update"],
)
def test_cancel_means_the_latest_second_that_any_call_has_named(call: Callable[[Matcher], object]) -> None:
    matcher = Matcher(machine(nodes=1, cores=1, gpus=1), replan=True)
    matcher.allocate(spec(slot(1, want("core", 1)), duration=100), 1)
    assert matcher.allocate_orelse_reserve(spec(slot(1, want("core", 1)), duration=100), 2).at == 100
    call(matcher)
    matcher.cancel(1)
    assert (matcher.moved(), matcher.info(2).at) == ([2], 4)
