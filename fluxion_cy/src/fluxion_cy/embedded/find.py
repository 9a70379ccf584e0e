"""`find`: the vertices that meet criteria, and their ancestors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxion_cy.engine.engine import Engine
from fluxion_cy.engine.job_table import JobTable
from fluxion_cy.engine.jobs import Mode
from fluxion_cy.formats.criteria import Facts, Test, read_criteria

_Amounts = dict[str, int]


def find(engine: Engine, table: JobTable, criteria: str, now: int) -> dict[str, Any] | None:
    """A JGF of hits and their ancestors, children first; None without a hit.

    With `agfilter=true` in the criteria it has only vertices with a pruning filter. Their metadata have an `agfilter`:
    by type, how much below them is used at `now` (or by the job that the criteria name), and how much there is. A job
    that has ended by `now` has nothing allocated or reserved; it keeps its tags until it is cancelled.
    """
    wanted, filters = read_criteria(criteria), Filters.of(engine)
    holdings = _holdings(engine, table, filters, now)
    usage = Usage.of(engine, table, filters, now, wanted.jobid) if wanted.agfilter else None
    search = _Search(engine, wanted.test, holdings, usage)
    search.visit(engine.root, Facts("", {}))
    if not search.hits:
        return None
    nodes = [engine.emit(v, engine.size_of(v), True) for v in search.hits]
    for node, vertex in zip(nodes, search.hits, strict=True):
        if usage is not None:
            node["metadata"]["agfilter"] = usage.shown(vertex)
    edges = [engine.emit_edge(v) for v in search.hits if engine.parent_of(v) >= 0]
    return {"graph": {"nodes": nodes, "edges": edges}}


@dataclass(slots=True)
class Filters:
    """The pruned types: below a vertex of each type (`types`), and anywhere (`pruned`)."""

    engine: Engine
    types: dict[str, list[str]]
    pruned: set[str]

    @classmethod
    def of(cls, engine: Engine) -> "Filters":
        """The configured filters. A cluster also has the types of leaves that no filter names."""
        asked: list[tuple[str | None, str]] = list(engine.filters)
        named = {kind for _, kind in asked}
        leaves = {engine.type_of(v) for v in engine.vertices() if not engine.has_children(v)}
        found = {}
        for anchor in {engine.type_of(v) for v in engine.vertices()}:
            own = {kind for at, kind in asked if at == anchor or (at is None and kind != anchor)}
            found[anchor] = sorted(own | (leaves - named if anchor == "cluster" else set()))
        return cls(engine, found, named | leaves)

    def at(self, vertex: int) -> list[str]:
        """The types that the filters count below a vertex."""
        return self.types[self.engine.type_of(vertex)] if self.engine.has_children(vertex) else []

    def spanned(self, slot: int) -> set[int]:
        """The vertices whose filters count anything of a job."""
        engine, found = self.engine, set[int]()
        for vertex, _, exclusive in engine.entries(slot):
            if exclusive and engine.type_of(vertex) in self.pruned:
                above = engine.parent_of(vertex)
                while above >= 0 and above not in found:
                    found.add(above)
                    above = engine.parent_of(above)
        return {vertex for vertex in found if self.at(vertex)}


def _holdings(engine: Engine, table: JobTable, filters: Filters, now: int) -> dict[int, dict[str, set[int]]]:
    """By vertex: the jobs that hold it, by their key in criteria."""
    found: dict[int, dict[str, set[int]]] = {}
    for jobid, job in table.jobs.items():
        if job.slot < 0:
            continue
        hold = "jobid-reserved" if job.mode is Mode.RESERVED else "jobid-alloc"
        spanned, ended = filters.spanned(job.slot), engine.span(job.slot)[1] <= now
        for vertex, _, exclusive in engine.entries(job.slot):
            jobs = found.setdefault(vertex, {})
            for name, holds in (
                ("jobid-tag", True),
                ("jobid-span", vertex in spanned),
                (hold, exclusive and not ended),
            ):
                if holds:
                    jobs.setdefault(name, set()).add(jobid)
    return found


@dataclass(slots=True)
class _Search:
    engine: Engine
    test: Test
    holdings: Mapping[int, dict[str, set[int]]]
    usage: "Usage | None"
    hits: list[int] = field(default_factory=list)

    def visit(self, vertex: int, above: Facts) -> bool:
        """Whether the vertex or one below it is a hit. `above` are facts that it inherits."""
        engine, jobs = self.engine, self.holdings.get(vertex, {})
        facts = Facts(
            engine.name_of(vertex),
            engine.props_of(vertex),
            above.down or engine.is_down(vertex),
            above.allocated or "jobid-alloc" in jobs,
            above.reserved or "jobid-reserved" in jobs,
            jobs,
        )
        below = [self.visit(child, facts) for child in engine.children(vertex)]
        hit = any(below) or self.test(facts)
        if not hit or (self.usage is not None and not self.usage.knows(vertex)):
            return False
        self.hits.append(vertex)
        return True


@dataclass(slots=True)
class Usage:
    """The use of each pruned type below each vertex, by all jobs at one second or by one job."""

    engine: Engine
    filters: Filters
    used: dict[int, _Amounts]
    totals: dict[int, _Amounts]
    spanned: set[int] | None
    """The vertices whose filters count anything of the one job."""

    @classmethod
    def of(cls, engine: Engine, table: JobTable, filters: Filters, now: int, jobid: int | None) -> "Usage":
        """Sums over the held jobs that run at `now`, or over `jobid` alone, whenever it runs."""
        slots = [job.slot for number, job in table.jobs.items() if job.slot >= 0 and jobid in (None, number)]
        if jobid is None:
            slots = [slot for slot in slots if _runs(engine, slot, now)]
        entries = [entry for slot in slots for entry in engine.entries(slot)]
        used = _sums(engine, [(vertex, units) for vertex, units, exclusive in entries if exclusive])
        totals = _sums(engine, [(vertex, engine.size_of(vertex)) for vertex in engine.vertices()])
        spanned = None if jobid is None else {v for slot in slots for v in filters.spanned(slot)}
        return cls(engine, filters, used, totals, spanned)

    def knows(self, vertex: int) -> bool:
        """Whether the filters of the vertex count anything."""
        return bool(self.filters.at(vertex)) and (self.spanned is None or vertex in self.spanned)

    def shown(self, vertex: int) -> dict[str, str]:
        """By pruned type, `used:N, total:M`."""
        used, totals = self.used.get(vertex, {}), self.totals.get(vertex, {})
        types = self.filters.at(vertex)
        return {kind: f"used:{used.get(kind, 0)}, total:{totals.get(kind, 0)}" for kind in types}


def _runs(engine: Engine, slot: int, now: int) -> bool:
    start, end = engine.span(slot)
    return start <= now < end


def _sums(engine: Engine, amounts: list[tuple[int, int]]) -> dict[int, _Amounts]:
    """Units by type below every vertex."""
    found: dict[int, _Amounts] = {}
    for vertex, units in amounts:
        kind, above = engine.type_of(vertex), engine.parent_of(vertex)
        while above >= 0:
            below = found.setdefault(above, {})
            below[kind] = below.get(kind, 0) + units
            above = engine.parent_of(above)
    return found
