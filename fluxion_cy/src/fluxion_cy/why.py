"""`why`: in words, what stands between a jobspec and a match.

The verdict first, then the first thing that ran short, with numbers: a type in the whole graph, or the places for
one level of the request, which are counted as candidates, constraints, status and other jobs leave fewer and fewer.
"""

from typing import Any

from fluxion_cy._select import Select
from fluxion_cy.jobspec import Resource
from fluxion_cy.search import Compiled, Question, entries_of
from fluxion_cy.shortage import Shortages

#: How an answer begins where not even an empty graph with everything up could hold the request.
NEVER = "the graph could not hold it even if it were empty and all up"


def explain(engine: Select, compiled: Compiled, candidates: Any, prefer: Any, now: int) -> str:
    """One line; its first part says fits, busy or never."""
    allowed = None if candidates is None else entries_of(candidates, "candidates")
    question = Question(engine, compiled, allowed, prefer)
    if question.now(now):
        return "fits now"
    reason = question.why_not().removeprefix(": ")
    possible = question.ever()
    hosts = _hosts(engine, allowed)
    if hosts is None:
        parts = ["no match now, but the graph could hold it" if possible else NEVER]
    else:
        free = Question(engine, compiled, None, prefer)
        fits = free.now(now)
        if not fits and not possible and not free.ever():
            allowed, hosts, parts = None, None, [NEVER]
        else:
            parts = _within(hosts, possible, fits)
    Question(engine, compiled, allowed, prefer)
    short = _short(engine, compiled, hosts is not None, now, possible)
    return "; ".join([*parts, *([reason] if reason else []), short])


def _within(hosts: int, possible: bool, fits: bool) -> list[str]:
    """The verdict where candidates restrict; `fits`: without them it would fit now."""
    where = f"on {hosts} candidate node{'s' * (hosts != 1)}"
    if possible:
        parts = [f"no match now {where}, but they could hold it"]
    else:
        parts = [f"no match {where}, even if they were empty and all up, but the graph could hold it"]
    return [*parts, "it fits now without the candidates"] if fits else parts


def _hosts(engine: Select, allowed: list[Any] | None) -> int | None:
    """How many ranks the candidates leave; None where they restrict nothing."""
    if allowed is None:
        return None
    ranks = engine.ranks()
    fit = sum(rank < len(allowed) and allowed[rank] > 0 for rank in ranks)
    capped = any(type(slots) is not bool for slots in allowed)
    return fit if capped or fit < len(ranks) else None


def _short(engine: Select, compiled: Compiled, candidates: bool, start: int, possible: bool) -> str:
    end, constrained = start + compiled.spec.duration, compiled.spec.constraint is not None
    form = compiled.forms[0]
    found = Shortages(engine, form, constrained, candidates, start, end, possible).first()
    text = found or "enough is there of each type, but not where the request wants it together"
    return f"of its first alternative: {text}" if len(compiled.forms) > 1 or _mixed(form) else text


def _mixed(resources: list[Resource]) -> bool:
    return any(resource.alternatives or _mixed(resource.children) for resource in resources)
