"""The same bad input is the same error on both engines: its type, its errno, and what it names.

Against the fake library what is refused before it, or given from its errno; against Fluxion's own, where
FLUXION_REAPI_LIB names it, everything.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fluxion_cy import FluxionError, Matcher, NotSupported
from fluxion_cy.reapi.library import VARIABLE

from ..graphs import Graph, machine, slot, spec, want
from .conftest import Fake

CORE = spec(slot(1, want("core", 1)))
LOADED: dict[str, Any] = {"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {"core": "0"}}]}}
OTHER = "/cluster0/node1/core0"
REAL = os.environ.get(VARIABLE, "")


def vertex(**metadata: Any) -> dict[str, Any]:
    """A cluster with one core, whose metadata these are."""
    graph = Graph()
    graph.add("core", 0, graph.add("cluster", 0))
    graph.nodes[-1]["metadata"].update(metadata)
    return graph.jgf()


def taken(path: str, **metadata: Any) -> dict[str, Any]:
    fields = {"type": "core", "rank": 0, "exclusive": True, **metadata, "paths": {"containment": path}}
    return {"graph": {"nodes": [{"id": "1", "metadata": fields}]}}


def rules(**constraints: Any) -> dict[str, Any]:
    return spec(slot(1, want("core", 1)), constraints=constraints)


@dataclass(frozen=True)
class Bad:
    """A call, and a word of its message that names the vertex, option or field."""

    named: str
    call: Callable[[Matcher], Any]


MATCHING: list[tuple[str, Any]] = [
    ("jobspec", "{"),
    ("version", {}),
    ("version", spec(slot(1, want("core", 1))) | {"version": 0}),
    ("requires", spec(want("core", 1, requires=1))),
    ("count", spec(slot(1, want("core", -1)))),
    ("count", spec(slot(1, want("core", 2**32)))),
    ("operand", spec(slot(1, want("core", {"min": 1, "max": 2, "operator": "*", "operand": 1})))),
    ("warpdrive", spec(slot(1, want("warpdrive", 1)))),
    ("label", spec(want("slot", 1, want("core", 1)))),
    ("exclusive", spec(want("core", 1))),
    ("duration", spec(slot(1, want("core", 1)), duration=-1)),
    ("duration", spec(slot(1, want("core", 1)), duration=1e12)),
    ("duration", spec(slot(1, want("core", 1)), duration=float("nan"))),
    ("hostlist", rules(hostlist=["a[0-99999999]"])),
    ("ranks", rules(ranks=["x"])),
    ("properties", rules(properties=["a|b"])),
    ("nosuch", rules(nosuch=[])),
]
CALLS: dict[str, Bad] = {
    **{
        f"{operation}-{number}": Bad(named, lambda m, o=operation, j=jobspec: getattr(m, o)(j))  # type: ignore[misc]
        for number, (named, jobspec) in enumerate(MATCHING)
        for operation in ("allocate", "allocate_orelse_reserve", "without_allocating", "satisfy")
    },
    "jobid negative": Bad("jobid", lambda m: m.allocate(CORE, -1)),
    "jobid text": Bad("jobid", lambda m: m.allocate(CORE, "1")),  # type: ignore[arg-type]
    "jobid held": Bad("jobid 1", lambda m: m.allocate(CORE, 1)),
    "jobid held by update": Bad("jobid 1", lambda m: m.update_allocate(1, LOADED)),
    "next_jobid": Bad("next_jobid", lambda m: setattr(m, "next_jobid", 0)),
    "now": Bad("now", lambda m: m.allocate(CORE, now="x")),  # type: ignore[arg-type]
    "now negative": Bad("now", lambda m: m.allocate(CORE, now=-5)),
    "now late": Bad("now", lambda m: m.find("status=up", now=2**61)),
    "now true": Bad("now", lambda m: m.satisfy(CORE, now=True)),
    "now nothing": Bad("now", lambda m: m.cancel(1, now="")),  # type: ignore[arg-type]
    "now list": Bad("now", lambda m: m.partial_cancel(1, LOADED, now=[])),  # type: ignore[arg-type]
    "prefer": Bad("prefer", lambda m: m.allocate(CORE, prefer="x")),
    "prefer entry": Bad("prefer", lambda m: m.allocate(CORE, prefer=["1"])),
    "prefer nan": Bad("prefer", lambda m: m.allocate(CORE, prefer=[float("nan")])),
    "candidates negative": Bad("candidates", lambda m: m.allocate(CORE, candidates=[-1])),
    "candidates": Bad("candidates", lambda m: m.allocate(CORE, candidates="x")),
    "candidates entry": Bad("candidates", lambda m: m.allocate(CORE, candidates=["x", "y", "z"])),
    "cancel unknown": Bad("jobid 9", lambda m: m.cancel(9)),
    "cancel text": Bad("jobid", lambda m: m.cancel("1")),  # type: ignore[arg-type]
    "retract unknown": Bad("jobid 9", lambda m: m.retract(9)),
    "info unknown": Bad("jobid 9", lambda m: m.info(9)),
    "partial unknown": Bad("jobid 9", lambda m: m.partial_cancel(9, LOADED)),
    "partial text": Bad("R", lambda m: m.partial_cancel(1, "{")),
    "partial not held": Bad(OTHER, lambda m: m.partial_cancel(1, taken(OTHER, rank=1))),
    "update text": Bad("R", lambda m: m.update_allocate(5, "{")),
    "update version": Bad("R", lambda m: m.update_allocate(5, LOADED | {"version": 2})),
    "update times": Bad("expiration", lambda m: m.update_allocate(5, late(5, 4))),
    "update unknown path": Bad("/cluster0/nowhere", lambda m: m.update_allocate(5, taken("/cluster0/nowhere"))),
    "update unknown rank": Bad("rank 9", lambda m: m.update_allocate(5, of_rank("9", "0"))),
    "update unknown core": Bad("core with id 9", lambda m: m.update_allocate(5, of_rank("0", "9"))),
    "update nothing": Bad("exclusive", lambda m: m.update_allocate(5, taken("/cluster0/node0/core0", exclusive=False))),
    "find": Bad("criteria", lambda m: m.find("status=sideways")),
    "find nothing": Bad("criteria", lambda m: m.find("")),
    "find number": Bad("criteria", lambda m: m.find(5)),  # type: ignore[arg-type]
    "status path": Bad("/nowhere", lambda m: m.set_status("/nowhere", True)),
    "status number": Bad("path", lambda m: m.get_status(5)),  # type: ignore[arg-type]
    "rank true": Bad("rank", lambda m: m.get_rank_status(True)),
    "ranks true": Bad("ranks", lambda m: m.set_rank_status(True, True)),
    "rank": Bad("rank 9", lambda m: m.get_rank_status(9)),
    "ranks": Bad("ranks", lambda m: m.set_rank_status("x", True)),
    "remove path": Bad("/nowhere", lambda m: m.remove_subgraph("/nowhere")),
    "remove root": Bad("/cluster0", lambda m: m.remove_subgraph("/cluster0")),
    "add text": Bad("graph", lambda m: m.add_subgraph("{")),
    "add nothing": Bad("graph", lambda m: m.add_subgraph({})),
    "add elsewhere": Bad("root", lambda m: m.add_subgraph(Graph().jgf() | {"graph": elsewhere()})),
}
GRAPHS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("graph", {"graph": "{"}),
    "number": ("graph", {"graph": 5}),
    "empty": ("graph", {"graph": {}}),
    "property": ("propert", {"graph": vertex(properties={"a": 1})}),
    "path": ("containment", {"graph": vertex(paths={"containment": 5})}),
    "size": ("size", {"graph": vertex(size=1.5)}),
    "size negative": ("size", {"graph": vertex(size=-1)}),
    "status": ("status", {"graph": vertex(status=7)}),
    "rank": ("rank", {"graph": vertex(rank="0")}),
    "type": ("type", {"graph": vertex(type=5)}),
    "policy": ("policy", {"graph": machine(), "policy": "policy"}),
    "policy unknown": ("policy", {"graph": machine(), "policy": "lowest"}),
    "prune_filters": ("prune_filters", {"graph": machine(), "prune_filters": "core"}),
    "replan": ("replan", {"graph": machine(), "replan": "x"}),
    "compatible": ("compatible", {"graph": machine(), "compatible": "x"}),
    "match_format": ("match_format", {"graph": machine(), "match_format": "jfg"}),
    "load_format": ("load_format", {"graph": machine(), "load_format": "hwloc"}),
    "traverser": ("traverser", {"graph": machine(), "traverser": "other"}),
    "rv1exec": ("R_lite", {"graph": {"version": 1, "execution": {}}, "load_format": "rv1exec"}),
    "grug": ("grug", {"graph": "<graphml", "load_format": "grug"}),
}


def late(start: int, end: int) -> dict[str, Any]:
    return {"version": 1, "execution": {**LOADED["execution"], "starttime": start, "expiration": end}}


def of_rank(rank: str, core: str) -> dict[str, Any]:
    return {"version": 1, "execution": {"R_lite": [{"rank": rank, "children": {"core": core}}]}}


def elsewhere() -> dict[str, Any]:
    graph = Graph()
    graph.add("core", 0, graph.add("rack", 7))
    return {"nodes": graph.nodes, "edges": graph.edges}


def given(call: Callable[[], Any]) -> FluxionError:
    with pytest.raises(FluxionError) as caught:
        call()
    return caught.value


def compared(embedded: FluxionError, other: FluxionError, named: str) -> None:
    assert (type(other), other.errno) == (type(embedded), embedded.errno), f"{embedded} / {other}"
    for error in (embedded, other):
        assert named in str(error)
        assert "\n" not in str(error)


@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_is_the_same_error(fake: Fake, name: str) -> None:
    bad, one = CALLS[name], Matcher(machine())
    fake.give('{"graph":{"nodes":[],"edges":[]}}')
    other = fake.matcher(machine())
    for matcher in (one, other):
        matcher.allocate(CORE, 1)
    compared(given(lambda: bad.call(one)), given(lambda: bad.call(other)), bad.named)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_bad_graph_or_option_is_the_same_error(fake: Fake, name: str) -> None:
    named, options = GRAPHS[name]
    compared(given(lambda: Matcher(**options)), given(lambda: fake.matcher(**options)), named)
    assert not fake.calls


LIBRARY_SAYS: dict[str, Bad] = {
    "busy": Bad("jobspec", lambda m: m.allocate(spec(slot(12, want("core", 1))))),
    "busy preview": Bad("jobspec", lambda m: m.without_allocating(spec(slot(12, want("core", 1))))),
    "never": Bad("jobspec", lambda m: m.allocate_with_satisfiability(spec(slot(13, want("core", 1))))),
    "never later": Bad("jobspec", lambda m: m.allocate_orelse_reserve(spec(slot(13, want("core", 1))))),
    "held": Bad("R", lambda m: m.update_allocate(5, m.allocate(CORE, 6).R)),
}


@pytest.mark.skipif(not REAL, reason=f"{VARIABLE} names no library of Fluxion's own")
@pytest.mark.parametrize("name", [*CALLS, *GRAPHS, *LIBRARY_SAYS])
def test_on_fluxions_own_library_it_is_the_same_error_too(name: str) -> None:
    if name in GRAPHS and name not in CALLS:
        named, options = GRAPHS[name]
        compared(
            given(lambda: Matcher(**options)), given(lambda: Matcher(**options, engine="reapi", library=REAL)), named
        )
        return
    bad = {**CALLS, **LIBRARY_SAYS}[name]
    one, other = Matcher(machine()), Matcher(machine(), engine="reapi", library=REAL)
    for matcher in (one, other):
        matcher.allocate(CORE, 1)
    compared(given(lambda: bad.call(one)), given(lambda: bad.call(other)), bad.named)


def test_every_method_of_the_contract_is_on_both_engines(fake: Fake) -> None:
    from fluxion_cy.matcher import ReapiMatcher

    public = [name for name in dir(Matcher) if not name.startswith("_")]
    assert all(callable(getattr(ReapiMatcher, name)) or name == "next_jobid" for name in public)
    matcher = fake.matcher(machine())
    for call in (
        lambda: matcher.why(CORE),
        lambda: matcher.resize("/cluster0", 2),
        lambda: matcher.set_properties("/cluster0/node0", {}),
        lambda: matcher.allocation(1),
        lambda: matcher.allocate(CORE, now=5),
        lambda: matcher.allocate(CORE, prefer=[1, 2, 3]),
        lambda: matcher.allocate(CORE, candidates=[1, 2, 3]),
        lambda: fake.matcher(machine(), replan=True),
        lambda: fake.matcher(machine(), compatible=False),
        lambda: fake.matcher(machine(), policy="pack"),
    ):
        error = given(call)
        assert error.errno == errno.ENOTSUP
        assert any(remedy in str(error) for remedy in ("; ", "only"))


def test_no_preferences_are_none_on_both_engines(fake: Fake) -> None:
    fake.give('{"graph":{"nodes":[],"edges":[]}}')
    for matcher in (Matcher(machine()), fake.matcher(machine())):
        matcher.allocate(CORE, prefer=[])


def test_a_subclass_has_either_engine_and_stays_one_in_its_clones(fake: Fake) -> None:
    class Noted(Matcher):
        def stat(self) -> dict[str, Any]:
            return {**super().stat(), "note": self.note}

        note = "all"

    matcher = Noted(machine(), engine="reapi", library=str(fake.path))
    matcher.note = "mine"
    other = matcher.clone()
    for one in (matcher, other):
        assert isinstance(one, Noted)
        assert one.stat()["note"] == "mine"
    with pytest.raises(NotSupported, match="the library"):
        other.why(CORE)
    matcher.close()
    assert other.get_status("/cluster0") in (True, False)
