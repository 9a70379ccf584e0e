"""Any sequence of operations compared with `model`, a brute-force matcher that shares nothing with the engine."""

import contextlib
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxion_cy import Busy, Matcher, Unsatisfiable

from ...tools.examples import examples
from ...unit.fluxion_cy.graphs import Graph, taken
from .model import FOREVER, Ask, Held, World

POLICIES = ["first", "low", "high", "lonode", "hinode", "firstnodex", "lonodex", "variation", "locality", "pack"]
PROPERTIES = [None, {}, {"a": ""}, {"a": "", "b": "x"}]
RULES: list[Any] = [
    None,
    {"properties": ["a"]},
    {"properties": ["^b"]},
    {"not": [{"ranks": ["0,2"]}]},
    {"or": [{"hostlist": ["node1"]}, {"and": [{"properties": ["b"]}, {"ranks": ["0,3"]}]}]},
]
KINDS = ("core", "gpu", "memory")


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """One to four nodes, perhaps in racks; cores, gpus, and chunks or a pool of memory or two directly below them."""
    graph = Graph()
    root = graph.add("cluster", 0)
    above = [graph.add("rack", n, root) for n in range(draw(st.integers(0, 2)))] or [root]
    for n in range(draw(st.integers(1, 4))):
        add_node(draw, graph, n, draw(st.sampled_from(above)))
    return graph.jgf()


def add_node(draw: Callable[[st.SearchStrategy[Any]], Any], graph: Graph, n: int, parent: int) -> None:
    properties = draw(st.sampled_from(PROPERTIES))
    more = {} if properties is None else {"properties": properties}
    node = graph.add("node", n, parent, name=f"node{n}", rank=n, **more)
    for kind, most in (("core", 4), ("gpu", 2)):
        for i in range(draw(st.integers(kind == "core", most))):
            graph.add(kind, i, node, rank=n)
    pool = draw(st.booleans())
    for i in range(draw(st.integers(0, 2))):
        graph.add("memory", i, node, rank=n, size=draw(st.integers(1, 5)) if pool else 1, divisible=pool)


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    shape = draw(st.sampled_from(["slots", "nodes", "nodes", "whole", "memory"]))
    kinds = sorted(draw(st.sets(st.sampled_from(KINDS), min_size=1)))
    needs = tuple((kind, draw(st.integers(1, 2))) for kind in kinds)
    one = st.tuples(*[st.booleans()] * 5)
    candidates = draw(st.one_of(st.none(), st.none(), one, st.tuples(*[st.integers(0, 2)] * 5)))
    if shape in ("whole", "memory") and candidates is not None:
        candidates = tuple(map(bool, candidates))
    return Ask(
        shape,
        draw(st.integers(1, 2)),
        draw(st.integers(1, 3)),
        needs,
        draw(st.integers(1, 9)),
        shape == "nodes" and draw(st.booleans()),
        draw(st.sampled_from(RULES)),
        candidates,
    )


class Pair:
    """A matcher and its model; each method draws an operation, runs it on both and compares the results."""

    def __init__(self, document: dict[str, Any], policy: str, data: st.DataObject) -> None:
        self.matcher = Matcher(document, policy=policy, prune_filters="ALL:core,ALL:node,ALL:gpu,ALL:memory")
        self.world = World.of(document, policy.endswith("nodex"))
        self.data = data
        self.now = 0
        self.next = 100

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def match(self) -> None:
        ask = self.draw(asks())
        candidates = None if ask.candidates is None else list(ask.candidates)
        self.now += self.draw(st.integers(0, 3))
        operation = self.draw(st.sampled_from(["allocate", "allocate_orelse_reserve", "allocate_with_satisfiability"]))
        ever, here = self.world.fits(ask, 0, ever=True), self.world.fits(ask, self.now)
        assert self.matcher.satisfy(ask.jobspec(), candidates=candidates) == ever
        at = self.now if here else None
        if operation == "allocate_orelse_reserve":
            at = self.world.earliest(ask, self.now)
        try:
            found = getattr(self.matcher, operation)(ask.jobspec(), now=self.now, candidates=candidates)
        except Unsatisfiable:
            assert at is None
            assert not ever
            assert operation != "allocate"
            return
        except Busy:
            assert at is None
            assert ever or operation == "allocate"
            return
        assert found.at == at
        assert found.reserved == (at != self.now)
        units = taken(found.R)
        assert not self.world.wrong(ask, found.at, units)
        end = min(found.at + ask.duration, self.now + FOREVER)
        # a pool without units is part of an allocated whole node
        self.world.held[found.jobid] = Held(found.at, end, {path: n for path, n in units.items() if n})

    def chosen(self) -> int | None:
        return self.draw(st.sampled_from(sorted(self.world.held))) if self.world.held else None

    def cancel(self) -> None:
        jobid = self.chosen()
        if jobid is not None:
            self.matcher.cancel(jobid)
            del self.world.held[jobid]

    def give_back_vertices(self) -> None:
        jobid = self.chosen()
        if jobid is None or self.matcher.info(jobid).reserved:
            return
        units = self.world.held[jobid].units
        path = self.draw(st.sampled_from(sorted(units)))
        pool = self.world.there[path].get("divisible")
        amount = self.draw(st.integers(1, units[path])) if pool else units[path]
        empty = self.matcher.partial_cancel(jobid, self.rset({path: amount}))
        units[path] -= amount
        self.world.held[jobid].units = {p: n for p, n in units.items() if n}
        self.check_cancelled(jobid, empty)

    def give_back_rank(self) -> None:
        jobid = self.chosen()
        if jobid is None or self.matcher.info(jobid).reserved:
            return
        rank = self.draw(st.integers(0, 4))
        lite = [{"rank": str(rank), "children": {"core": "0"}}]
        empty = self.matcher.partial_cancel(jobid, {"version": 1, "execution": {"R_lite": lite}})
        units = self.world.held[jobid].units
        rest = {p: n for p, n in units.items() if self.world.there[p].get("rank", -1) != rank}
        self.world.held[jobid].units = rest
        self.check_cancelled(jobid, empty)

    def check_cancelled(self, jobid: int, empty: bool) -> None:
        assert empty == (not self.world.held[jobid].units)
        if empty:
            del self.world.held[jobid]
            assert self.matcher.info(jobid).mode == "CANCELED"

    def rset(self, units: dict[str, int], start: int | None = None, end: int = 0) -> dict[str, Any]:
        nodes = [{"metadata": {**self.world.there[p], "exclusive": True, "size": n}} for p, n in units.items()]
        graph = {"graph": {"nodes": nodes}}
        if start is None:
            return graph
        return {"version": 1, "execution": {"starttime": start, "expiration": end}, "scheduling": graph}

    def replay(self) -> None:
        path = self.draw(st.sampled_from(sorted(self.world.there)))
        pool = self.world.there[path].get("divisible")
        size = self.world.size(path)
        if not size:
            return
        amount = self.draw(st.integers(1, size)) if pool else size
        start = self.now + self.draw(st.integers(0, 5))
        end = start + self.draw(st.integers(1, 9))
        room = size - self.world.used(path, start, end, wholly=not pool)
        self.next += 1
        try:
            found = self.matcher.update_allocate(self.next, self.rset({path: amount}, start, end))
        except Busy:
            assert room < amount
            return
        assert room >= amount
        assert taken(found.R) == {path: amount}
        self.world.held[self.next] = Held(start, end, {path: amount})

    def status(self) -> None:
        whole = {p for job in self.world.held.values() for p in job.units if self.world.there[p]["type"] != "memory"}
        path = self.draw(
            st.sampled_from(sorted(p for p, f in self.world.there.items() if f["type"] in ("node", "rack")))
        )
        up = self.draw(st.booleans())
        self.matcher.set_status(path, up)
        self.world.there[path]["status"] = int(not up)
        assert self.matcher.get_status(path) == up
        assert whole <= self.world.there.keys()

    def properties(self) -> None:
        path = self.draw(st.sampled_from(self.world.nodes()))
        properties = self.draw(st.sampled_from(PROPERTIES[1:]))
        self.matcher.set_properties(path, properties)
        self.world.there[path]["properties"] = properties

    def resize(self) -> None:
        pools = sorted(path for path, fields in self.world.there.items() if fields.get("divisible"))
        if not pools:
            return
        path, size = self.draw(st.sampled_from(pools)), self.draw(st.integers(0, 7))
        moments = [job.start for job in self.world.held.values()]
        most = max((self.world_units(path, moment) for moment in moments), default=0)
        try:
            self.matcher.resize(path, size)
        except Busy:
            assert most > size
            return
        assert most <= size
        self.world.there[path]["size"] = size

    def world_units(self, path: str, moment: int) -> int:
        return sum(job.units.get(path, 0) for job in self.world.held.values() if job.start <= moment < job.end)

    def grow(self) -> None:
        number = next(n for n in range(99) if all(not p.endswith(f"/node{n}") for p in self.world.nodes()))
        if number > 4:
            return
        graph = Graph()
        root = graph.add("cluster", 0)
        racks = sorted(p for p, fields in self.world.there.items() if fields["type"] == "rack")
        if racks:
            rack = self.world.there[self.draw(st.sampled_from(racks))]
            root = graph.add("rack", rack["id"], root)
        add_node(self.data.draw, graph, number, root)
        self.next += 100
        for place in (*[(node, "id") for node in graph.nodes], *[(e, k) for e in graph.edges for k in e]):
            place[0][place[1]] = str(self.next + int(place[0][place[1]]))  # ids that no vertex had before
        self.matcher.add_subgraph(graph.jgf())
        self.world.there = World.of(graph.jgf(), False).there | self.world.there

    def shrink(self) -> None:
        nodes = self.world.nodes()
        if len(nodes) < 2:
            return
        path = self.draw(st.sampled_from(nodes))
        self.matcher.remove_subgraph(path)
        gone = {path, *self.world.below(path)}
        self.world.there = {p: fields for p, fields in self.world.there.items() if p not in gone}
        for jobid, job in list(self.world.held.items()):
            job.units = {p: n for p, n in job.units.items() if p not in gone}
            if not job.units:
                del self.world.held[jobid]
                assert self.matcher.info(jobid).mode == "CANCELED"

    def go_on_with_a_clone(self) -> None:
        """The original is then used up, which must not affect the clone."""
        behind, self.matcher = self.matcher, self.matcher.clone()
        for jobid in self.world.held:
            behind.cancel(jobid)
        with contextlib.suppress(Busy, Unsatisfiable):
            behind.allocate(Ask("whole", 1, 1, (), 50).jobspec())
        behind.set_status("/cluster0", up=False)

    def compare(self) -> None:
        """Status, allocations and every counter of every profile."""
        engine = self.matcher._engine
        kinds = [engine.types[kind] for kind in engine.column_types()]
        for v in engine.vertices():
            path = engine.path(v)
            if not self.world.there[path].get("divisible") and engine.has_children(v):
                assert merged(engine.profile(v)) == merged(self.world.profile(path, kinds)), path
        assert engine.next_change(-1) == min((job.start for job in self.world.held.values()), default=None)
        there = {n["metadata"]["paths"]["containment"]: n["metadata"] for n in self.matcher.graph()["graph"]["nodes"]}
        assert there.keys() == self.world.there.keys()
        for path, fields in self.world.there.items():
            seen = there[path]
            assert (seen.get("size", 1), seen.get("status", 0), seen.get("properties") or {}) == (
                fields.get("size", 1),
                fields.get("status", 0),
                fields.get("properties") or {},
            )

    OPERATIONS: tuple[Callable[["Pair"], None], ...] = (
        *[match] * 6,
        cancel,
        give_back_vertices,
        give_back_rank,
        replay,
        status,
        properties,
        resize,
        grow,
        shrink,
        go_on_with_a_clone,
    )


def merged(rows: list[tuple[int, int, list[int]]]) -> list[tuple[int, int, list[int]]]:
    """Without the rows that change nothing."""
    found: list[tuple[int, int, list[int]]] = []
    for row in rows:
        if tuple(row[1:]) != (tuple(found[-1][1:]) if found else (0, [0] * len(row[2]))):
            found.append(tuple(row))  # type: ignore[arg-type]
    return found


@settings(max_examples=examples(200))
@given(graphs(), st.sampled_from(POLICIES), st.data())
def test_after_any_operations_the_matchers_answers_and_counters_equal_the_models(
    document: dict[str, Any], policy: str, data: st.DataObject
) -> None:
    pair = Pair(document, policy, data)
    for _ in range(data.draw(st.integers(1, 14))):
        data.draw(st.sampled_from(Pair.OPERATIONS))(pair)
        pair.compare()
    before = pair.matcher.graph()
    assert Matcher(before).graph() == before
    for jobid in list(pair.world.held):
        pair.matcher.cancel(jobid)
    pair.world.held.clear()
    pair.compare()
    assert pair.matcher.graph() == before
