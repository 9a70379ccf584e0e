"""`why`: in words, what stands between a jobspec and a match."""

from fluxion_cy import constraint
from fluxion_cy._select import Select
from fluxion_cy.jobspec import Jobspec, Resource
from fluxion_cy.search import Question


def explain(engine: Select, spec: Jobspec, question: Question, now: int) -> str:
    """One or more sentences; the first says fits, busy or never."""
    if question.now(now):
        return "fits now"
    reason = question.why_not()
    possible = question.ever()
    parts = ["no match now, but the graph could hold it" if possible else "the graph can never hold it"]
    if reason:
        parts.append(reason.removeprefix(": "))
    parts.extend(_shortages(engine, spec, now, now + spec.duration, possible))
    parts.extend(_excluded(engine, spec))
    return "; ".join(parts)


def _wanted(resources: list[Resource], times: int, totals: dict[str, int]) -> dict[str, int]:
    for resource in resources:
        count = times * resource.low
        if not resource.slot:
            totals[resource.type] = totals.get(resource.type, 0) + count
        _wanted(resource.children, count, totals)
    return totals


def _shortages(engine: Select, spec: Jobspec, start: int, end: int, possible: bool) -> list[str]:
    """Types of which the whole graph has too little, or has too little free."""
    found = []
    for kind, wanted in _wanted(spec.resources, 1, {}).items():
        vertices = [v for v in engine.vertices() if engine.type_of(v) == kind]
        total = sum(engine.size_of(v) for v in vertices)
        free = sum(engine.free_at(v, start, end) for v in vertices if not _down(engine, v))
        if wanted > total:
            found.append(f"{kind}: {wanted} asked for, {total} in the graph")
        elif possible and wanted > free:
            found.append(f"{kind}: {wanted} asked for, {free} of {total} free and up")
    return found


def _down(engine: Select, vertex: int) -> bool:
    while vertex >= 0:
        if engine.is_down(vertex):
            return True
        vertex = engine.parent_of(vertex)
    return False


def _excluded(engine: Select, spec: Jobspec) -> list[str]:
    """How many nodes the constraint and their status leave."""
    nodes = [v for v in engine.vertices() if engine.type_of(v) == "node"]
    down = sum(_down(engine, v) for v in nodes)
    found = [f"{down} of {len(nodes)} nodes are down"] if down else []
    if spec.constraint is not None:
        rule = spec.constraint
        fit = sum(constraint.holds(rule, engine.name_of(v), engine.rank_of(v), engine.props_of(v)) for v in nodes)
        found.append(f"{fit} of {len(nodes)} nodes meet the constraint")
    return found
