"""`why`: in words, what stands between a jobspec and a match.

The verdict first, then the first thing that ran short, with numbers: a type in the whole graph, or the places for
one level of the request, which are counted as candidates, constraints, status and other jobs leave fewer and fewer.
Of alternatives each is described. In the end, when it would fit: looked for at the next few seconds at which a job
ends.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fluxion_cy.base.arguments import slots_of
from fluxion_cy.embedded.search import Compiled, Question
from fluxion_cy.embedded.shortage import Shortages, TypeIndex
from fluxion_cy.engine.engine import Engine
from fluxion_cy.jobspec.reader import Resource

#: How an answer begins where not even an empty graph with everything up could hold the request.
NEVER = "the graph could not hold it even if it were empty and all up"
#: What it says where no number is short.
ENOUGH = "enough is there of each type, but not where the request wants it together"
#: The same where it is the number of slots that the candidates allow.
ALLOWED = "the candidates allow at most {slots} on rank {rank}"
_MOST_REPORTED = 3
_CHANGES = 16
_SOON = 10 * 365 * 86400


def explain(
    engine: Engine, compiled: Compiled, candidates: Any, prefer: Any, now: int, whole_nodes: bool = False
) -> str:
    """One line; its first part says fits, busy or never, its last one when it would fit, if that is soon.

    `whole_nodes`: the policy takes nodes whole.
    """
    allowed = None if candidates is None else slots_of(candidates)
    question = Question(engine, compiled, allowed, prefer)
    if question.now(now):
        return "fits now"
    short = engine.short()
    reason = question.why_not().removeprefix(": ")
    possible = question.ever()
    short = short if possible else engine.short()
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
    enough = ENOUGH
    if allowed is not None and short >= 0 and _fits_uncapped(engine, compiled, allowed, prefer, now, possible):
        slots = allowed[short]
        enough = ALLOWED.format(slots=f"{slots} slot{'s' * (slots != 1)}", rank=short)
    question = Question(engine, compiled, allowed, prefer)
    parts += [reason] if reason else []
    shortages = partial(
        Shortages,
        engine=engine,
        constrained=compiled.spec.constraint is not None,
        candidates=hosts is not None,
        start=now,
        end=now + compiled.spec.duration,
        possible=possible,
        whole_nodes=whole_nodes,
        types=TypeIndex(engine),
    )
    parts.append(_short(question, compiled.forms, shortages, possible, enough))
    at = question.later(now, now + _SOON, _CHANGES) if possible else None
    return "; ".join(parts if at is None else [*parts, f"it would fit at second {at}"])


def _fits_uncapped(
    engine: Engine, compiled: Compiled, allowed: list[Any], prefer: Any, now: int, possible: bool
) -> bool:
    """Whether as many slots as wanted on the same candidates would change the verdict."""
    question = Question(engine, compiled, [slots > 0 for slots in allowed], prefer)
    return question.now(now) or (not possible and question.ever())


def _within(hosts: int, possible: bool, fits: bool) -> list[str]:
    """The verdict where candidates restrict; `fits`: without them it would fit now."""
    where = f"on {hosts} candidate node{'s' * (hosts != 1)}"
    if possible:
        parts = [f"no match now {where}, but they could hold it"]
    else:
        parts = [f"no match {where}, even if they were empty and all up, but the graph could hold it"]
    return [*parts, "it fits now without the candidates"] if fits else parts


def _hosts(engine: Engine, allowed: list[Any] | None) -> int | None:
    """How many ranks the candidates leave; None where they restrict nothing."""
    if allowed is None:
        return None
    ranks = engine.ranks()
    fit = sum(rank < len(allowed) and allowed[rank] > 0 for rank in ranks)
    capped = any(type(slots) is not bool for slots in allowed)
    return fit if capped or fit < len(ranks) else None


def _short(
    question: Question, forms: list[list[Resource]], shortages: Callable[..., Shortages], possible: bool, enough: str
) -> str:
    """What each alternative runs short of, the first few of them; `enough`: what is said where no number is short."""
    ways = _alternatives(forms)
    found: list[str] = []
    for which, form, alone in ways[:_MOST_REPORTED]:
        short = shortages(resources=form, gathers=question.gathers(which, possible)).first() or enough
        found.append(f"alternative {len(found) + 1} of {len(ways)}{' alone' * alone}: {short}")
    return "; ".join(found) if len(ways) > 1 else found[0].partition(": ")[2]


def _alternatives(forms: list[list[Resource]]) -> list[tuple[int, list[Resource], bool]]:
    """(which form, its resources, whether its slots may also be mixed) for each of the alternatives."""
    found: list[tuple[int, list[Resource], bool]] = []
    for which, form in enumerate(forms):
        number = max(map(_ways, form), default=1)  # of none of each slot nothing is left
        found += [(which, [_chosen(resource, i) for resource in form], number > 1) for i in range(number)]
    return found


def _ways(resource: Resource) -> int:
    return max([len(resource.alternatives), 1, *map(_ways, resource.children)])


def _chosen(resource: Resource, which: int) -> Resource:
    """With the children of one alternative; of those that have fewer, the last."""
    ways = resource.alternatives
    children = ways[min(which, len(ways) - 1)] if ways else [_chosen(child, which) for child in resource.children]
    return replace(resource, children=children, alternatives=[])
