"""`why`: in words, what stands between a jobspec and a match."""

from dataclasses import dataclass
from typing import Any

from fluxion_cy import constraint
from fluxion_cy._select import Select
from fluxion_cy.jobspec import Jobspec, Resource
from fluxion_cy.search import Compiled, Question, entries_of


@dataclass(slots=True)
class _Scope:
    """The vertices that are judged; `hosts`: how many ranks the candidates leave, None where they restrict nothing."""

    vertices: list[int]
    hosts: int | None = None

    @property
    def candidate(self) -> str:
        """How their nodes are called."""
        return "nodes" if self.hosts is None else "candidate nodes"


def explain(engine: Select, compiled: Compiled, candidates: Any, prefer: Any, now: int) -> str:
    """One or more sentences; the first says fits, busy or never."""
    allowed = None if candidates is None else entries_of(candidates, "candidates")
    question = Question(engine, compiled, allowed, prefer)
    if question.now(now):
        return "fits now"
    reason = question.why_not()
    possible = question.ever()
    scope = _scope(engine, allowed)
    hosts = scope.hosts
    if hosts is None:
        parts = ["no match now, but the graph could hold it" if possible else "the graph can never hold it"]
    else:
        free = Question(engine, compiled, None, prefer)
        fits = free.now(now)
        if not fits and not possible and not free.ever():
            scope, parts = _scope(engine, None), ["the graph can never hold it"]
        else:
            parts = _within(hosts, possible, fits)
    if reason:
        parts.append(reason.removeprefix(": "))
    parts.extend(_shortages(engine, compiled.spec, scope, now, possible))
    parts.extend(_excluded(engine, compiled.spec, scope))
    return "; ".join(parts)


def _within(hosts: int, possible: bool, fits: bool) -> list[str]:
    """The verdict where candidates restrict; `fits`: without them it would fit now."""
    where = f"on any of {hosts} candidate node{'s' * (hosts != 1)}"
    if possible:
        parts = [f"no match now {where}, but the candidates could hold it"]
    else:
        parts = [f"no match ever {where}, but the graph could hold it"]
    return [*parts, "it fits now without the candidates"] if fits else parts


def _scope(engine: Select, allowed: list[Any] | None) -> _Scope:
    """All vertices, or those that lie on allowed ranks or on none."""
    if allowed is None:
        return _Scope(engine.vertices())
    ranks = engine.ranks()
    fit = {rank for rank in ranks if rank < len(allowed) and allowed[rank] > 0}
    capped = any(type(slots) is not bool for slots in allowed)
    if len(fit) == len(ranks) and not capped:
        return _Scope(engine.vertices())
    return _Scope([v for v in engine.vertices() if _allowed(engine, v, fit)], len(fit))


def _allowed(engine: Select, vertex: int, ranks: set[int]) -> bool:
    while vertex >= 0:
        if engine.rank_of(vertex) >= 0 and engine.rank_of(vertex) not in ranks:
            return False
        vertex = engine.parent_of(vertex)
    return True


def _wanted(resources: list[Resource], times: int, totals: dict[str, int]) -> dict[str, int]:
    for resource in resources:
        count = times * resource.low
        if not resource.slot:
            totals[resource.type] = totals.get(resource.type, 0) + count
        _wanted(resource.children, count, totals)
    return totals


def _shortages(engine: Select, spec: Jobspec, scope: _Scope, start: int, possible: bool) -> list[str]:
    """Types of which there is too little, or too little free."""
    found = []
    end = start + spec.duration
    where = "in the graph" if scope.hosts is None else "within the candidates"
    for kind, wanted in _wanted(spec.resources, 1, {}).items():
        vertices = [v for v in scope.vertices if engine.type_of(v) == kind]
        total = sum(engine.size_of(v) for v in vertices)
        free = sum(engine.free_at(v, start, end) for v in vertices if not _down(engine, v))
        if wanted > total:
            found.append(f"{kind}: {wanted} asked for, {total} {where}")
        elif possible and wanted > free:
            found.append(f"{kind}: {wanted} asked for, {free} of {total} free and up")
    return found


def _down(engine: Select, vertex: int) -> bool:
    while vertex >= 0:
        if engine.is_down(vertex):
            return True
        vertex = engine.parent_of(vertex)
    return False


def _excluded(engine: Select, spec: Jobspec, scope: _Scope) -> list[str]:
    """How many nodes the constraint and their status leave."""
    nodes = [v for v in scope.vertices if engine.type_of(v) == "node"]
    down = sum(_down(engine, v) for v in nodes)
    found = [f"{down} of {len(nodes)} {scope.candidate} are down"] if down else []
    if spec.constraint is not None:
        rule = spec.constraint
        fit = sum(constraint.holds(rule, engine.name_of(v), engine.rank_of(v), engine.props_of(v)) for v in nodes)
        found.append(f"{fit} of {len(nodes)} {scope.candidate} meet the constraint")
    return found
