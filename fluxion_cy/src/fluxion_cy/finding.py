"""`find`: which vertices meet criteria, with the ancestors that lead to them."""

from typing import Any

from fluxion_cy._select import Select
from fluxion_cy.criteria import Facts, Test, read_criteria
from fluxion_cy.jobs import JobTable, Mode


def find(engine: Select, table: JobTable, criteria: str) -> dict[str, Any] | None:
    """A JGF of hits and their ancestors, children first; None without a hit."""
    test = read_criteria(criteria)
    hits: list[int] = []
    _visit(engine, engine.root, test, _holdings(engine, table), Facts("", {}), hits)
    if not hits:
        return None
    nodes = [engine.emit(v, engine.size_of(v), True) for v in hits]
    edges = [engine.emit_edge(v) for v in hits if engine.parent_of(v) >= 0]
    return {"graph": {"nodes": nodes, "edges": edges}}


def _holdings(engine: Select, table: JobTable) -> dict[int, dict[str, set[int]]]:
    """Per vertex: which jobs hold it, by the names that criteria use."""
    found: dict[int, dict[str, set[int]]] = {}
    for jobid, job in table.jobs.items():
        if job.slot < 0:
            continue
        hold = "jobid-reserved" if job.mode is Mode.RESERVED else "jobid-alloc"
        for vertex, _, exclusive in engine.entries(job.slot):
            jobs = found.setdefault(vertex, {})
            for name in (
                "jobid-tag",
                *(["jobid-span"] if engine.has_children(vertex) else []),
                *([hold] if exclusive else []),
            ):
                jobs.setdefault(name, set()).add(jobid)
    return found


def _visit(
    engine: Select, vertex: int, test: Test, holdings: dict[int, dict[str, set[int]]], above: Facts, hits: list[int]
) -> bool:
    """Whether the vertex or one below it is a hit; down, allocated and reserved reach from above."""
    jobs = holdings.get(vertex, {})
    facts = Facts(
        engine.name_of(vertex),
        engine.props_of(vertex),
        above.down or engine.is_down(vertex),
        above.allocated or "jobid-alloc" in jobs,
        above.reserved or "jobid-reserved" in jobs,
        jobs,
    )
    below = [_visit(engine, child, test, holdings, facts, hits) for child in engine.children(vertex)]
    if test(facts) or any(below):
        hits.append(vertex)
        return True
    return False
