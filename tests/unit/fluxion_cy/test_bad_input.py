"""Bad input gives an error of the matcher's own, whatever it is; no other exception and no end of the process."""

import contextlib
import random
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

from fluxion_cy import FluxionError, InvalidGraph, InvalidJobspec, Matcher
from fluxion_cy.base import arguments

from .graphs import machine, slot, spec, want

LONG = 10**5000
JUNK: list[Any] = [
    None, True, 0, -1, 2**31, 2**32, 2**63, 2**64, LONG, 0.5, float("nan"), float("inf"), "", "x", "1", "nan", "\udcff",
    b"x",
    [], [1], {}, {"a": 1}, {1: 2}, (), set(), object(), "[" * 50_000, "a: &a [*a]",
]  # fmt: skip
CORE = want("core", 1)


def endless() -> dict[str, Any]:
    inside: dict[str, Any] = want("core", 1)
    inside["with"] = [inside, inside]
    return inside


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in places(item, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    """A copy of the document with junk at one place."""
    if not path:
        return junk
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], junk)
    return copy


FULL = spec(
    want("node", {"min": 1, "max": 2, "operator": "+", "operand": 1}, slot(1, CORE, want("gpu", 1)), exclusive=True),
    constraints={"and": [{"properties": ["^x"]}, {"not": [{"hostlist": ["a[1-2]"]}]}, {"ranks": ["0-5"]}]},
)


@pytest.mark.parametrize("place", places(FULL), ids=lambda place: ".".join(map(str, place)) or "whole")
def test_junk_anywhere_in_a_jobspec_is_an_error_of_ours_or_harmless(place: tuple[Any, ...]) -> None:
    matcher = Matcher(machine())
    before = matcher.stat()
    for junk in [*JUNK, endless()]:
        ask = put(FULL, place, junk)
        for operation in (matcher.allocate, matcher.satisfy, matcher.why):
            with contextlib.suppress(FluxionError):
                operation(ask)
        for jobid in range(1, matcher.next_jobid):
            matcher.cancel(jobid, missing_ok=True)
    assert matcher.find("sched-now=allocated") is None
    assert matcher.stat()["by_type"] == before["by_type"]


def test_junk_anywhere_in_a_graph_is_an_error_of_ours_or_harmless() -> None:
    document = machine(nodes=1, cores=1, properties={0: {"a": "b"}})
    document["graph"]["edges"][0]["metadata"] = {"subsystem": "containment"}
    source = random.Random(5)
    for place in places(document):
        for junk in source.sample(JUNK, 12):
            broken = put(document, place, junk)
            with contextlib.suppress(FluxionError):
                matcher = Matcher(broken)
                matcher.graph()
                matcher.stat()
                matcher.allocate(spec(slot(1, CORE)))


def test_junk_as_an_argument_is_an_error_of_ours_or_harmless() -> None:
    matcher = Matcher(machine())
    held = matcher.allocate(spec(slot(1, CORE)), 77)
    calls: list[Callable[[Any], object]] = [
        lambda junk: matcher.allocate(spec(slot(1, CORE)), junk),
        lambda junk: matcher.allocate(spec(slot(1, CORE)), candidates=junk),
        lambda junk: matcher.allocate(spec(slot(1, CORE)), prefer=junk),
        lambda junk: matcher.allocate(spec(slot(1, CORE)), now=junk),
        matcher.cancel, matcher.retract, matcher.info, matcher.find, matcher.get_status, matcher.get_rank_status,
        matcher.remove_subgraph, matcher.add_subgraph,
        lambda junk: matcher.partial_cancel(junk, held.R),
        lambda junk: matcher.partial_cancel(77, junk),
        lambda junk: matcher.update_allocate(78, junk),
        lambda junk: matcher.update_allocate(78, held.R, now=junk),
        lambda junk: matcher.set_status(junk, True),
        lambda junk: matcher.set_rank_status(junk, True),
        lambda junk: matcher.set_properties("/cluster0/node0", junk),
        lambda junk: matcher.resize("/cluster0/node0", junk),
        lambda junk: setattr(matcher, "next_jobid", junk),
        lambda junk: Matcher(machine(), policy=junk),
        lambda junk: Matcher(machine(), prune_filters=junk),
        lambda junk: Matcher(machine(), match_format=junk),
        lambda junk: Matcher(machine(), engine=junk),
    ]  # fmt: skip
    for call in calls:
        for junk in JUNK:
            with contextlib.suppress(FluxionError):
                call(junk)
    assert matcher.info(77).mode in ("ALLOCATED", "CANCELED")


@pytest.mark.parametrize(
    "place", places(machine(nodes=1, cores=1, gpus=0)), ids=lambda place: ".".join(map(str, place))
)
def test_junk_anywhere_in_a_resource_set_is_an_error_of_ours_or_harmless(place: tuple[Any, ...]) -> None:
    matcher = Matcher(machine())
    for junk in JUNK:
        with contextlib.suppress(FluxionError):
            matcher.update_allocate(1, put(machine(nodes=1, cores=1, gpus=0), place, junk))


@pytest.mark.parametrize(
    "times",
    [
        ("starttime", -1),
        ("starttime", float("nan")),
        ("expiration", float("inf")),
        ("expiration", "x"),
        ("starttime", LONG),
    ],
    ids=lambda times: times[0],
)
def test_times_of_a_resource_set_are_numbers(times: tuple[str, Any]) -> None:
    execution = {"R_lite": [{"rank": "0", "children": {"core": "0"}}], times[0]: times[1]}
    with pytest.raises(FluxionError, match=times[0]):
        Matcher(machine()).update_allocate(1, {"version": 1, "execution": execution})


@pytest.mark.parametrize("duration", [float("nan"), float("inf"), -0.1, 1e300, "nan", True, [1], "1e999", [LONG]])
def test_durations_are_numbers_of_seconds(duration: Any) -> None:
    with pytest.raises(InvalidJobspec, match="duration"):
        Matcher(machine()).allocate(spec(slot(1, CORE), duration=duration))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 0}, "version"),
        ({"tasks": None}, "tasks"),
        ({"tasks": [{"command": "x", "slot": "a", "count": {"per_slot": 1}}]}, "command"),
        ({"more": 1}, "more"),
        ({"resources": []}, "empty"),
        ({"resources": [want("slot", 1, CORE)]}, "label"),
        ({"resources": [want("warpdrive", 1, exclusive=True)]}, "warpdrive"),
        ({"resources": [want("core", {"min": 0}, exclusive=True)]}, "min"),
        ({"resources": [want("core", {"min": 1, "max": 2}, exclusive=True)]}, "operator"),
        ({"resources": [want("core", {"min": 3, "max": 2, "operator": "+", "operand": 1}, exclusive=True)]}, "max"),
        ({"resources": [want("core", {"min": 1, "max": 2, "operator": "^", "operand": 2}, exclusive=True)]}, "min"),
        ({"resources": [want("core", {"min": 1, "max": 2, "operator": "*", "operand": 1}, exclusive=True)]}, "operand"),
        ({"resources": [want("core", -1, exclusive=True)]}, "count"),
        ({"resources": [want("core", 2**32, exclusive=True)]}, "count"),
        ({"resources": [want("core", 1, requires={})]}, "requires"),
        ({"attributes": {"other": 1}}, "other"),
        ({"attributes": {"system": {"constraints": {"foo": []}}}}, "foo"),
        ({"attributes": {"system": {"constraints": {"properties": ["a|b"]}}}}, "properties"),
        ({"attributes": {"system": {"constraints": {"hostlist": ["a[1-"]}}}}, "hostlist"),
        ({"attributes": {"system": {"constraints": {"hostlist": ["a[0-99999999]"]}}}}, "hostlist"),
        ({"attributes": {"system": {"constraints": {"ranks": ["3-1"]}}}}, "ranks"),
        ({"attributes": {"system": {"constraints": {"and": [], "or": []}}}}, "one operation"),
    ],
)  # fmt: skip
def test_a_malformed_jobspec_is_refused_by_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidJobspec, match=named):
        Matcher(machine()).allocate({**spec(slot(1, CORE)), **change})


def test_deep_and_wide_jobspecs_are_refused() -> None:
    deep = CORE
    for _ in range(100):
        deep = want("node", 1, deep)
    rule: dict[str, Any] = {}
    for _ in range(100):
        rule = {"not": [rule]}
    for ask in (spec(deep), spec(slot(1, *[CORE] * 65)), spec(slot(1, CORE), constraints=rule)):
        with pytest.raises(InvalidJobspec):
            Matcher(machine()).allocate(ask)


def test_huge_counts_neither_overflow_nor_take_long() -> None:
    most = 2**32 - 1
    matcher = Matcher(machine())
    ask = spec(want("node", most, slot(most, want("core", most))))
    assert not matcher.satisfy(ask)
    assert not matcher.satisfy(spec(slot(most, want("node", most, want("core", most)))))


@pytest.mark.parametrize("up", ["down", "", None, [], np.zeros(2), 2, float("nan")])
def test_a_status_is_true_or_false_and_no_word(up: Any) -> None:
    matcher = Matcher(machine())
    for mark in (lambda: matcher.set_status("/cluster0/node0", up), lambda: matcher.set_rank_status("0", up)):
        with pytest.raises(InvalidJobspec, match=r"^up: expected true or false, got "):
            mark()
    with pytest.raises(InvalidJobspec, match=r"^compatible: "):
        Matcher(machine(), compatible=up)
    matcher.set_status("/cluster0/node0", np.bool_(False))  # type: ignore[arg-type]
    assert matcher.stat()["nodes_down"] == 1


def test_the_name_of_a_file_is_not_taken_for_its_text() -> None:
    with pytest.raises(InvalidGraph, match=r"not its name$"):
        Matcher("graph.json")
    with pytest.raises(InvalidJobspec, match=r"not its name$"):
        Matcher(machine()).allocate("job.yaml")


def test_an_argument_per_rank_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arguments._MOST_ENTRIES == 2**24
    monkeypatch.setattr(arguments, "_MOST_ENTRIES", 1000)  # what is counted until then costs seconds
    matcher = Matcher(machine())
    for keyword in ("candidates", "prefer"):
        endless: dict[str, Any] = {keyword: count()}
        with pytest.raises(InvalidJobspec, match=rf"^{keyword}: has more than 1,000 entries"):
            matcher.allocate(spec(slot(1, want("core", 1))), **endless)
    with pytest.raises(InvalidGraph, match=r"^ranks: has more than 1,000 entries"):
        matcher.set_rank_status(count(), False)
