"""`why` and `shortage`: what keeps a jobspec from matching now, and when it would match.

Both count on the graph what the request lacks (`shortage`). `why` searches first, and counts only where it finds no
match; it describes each alternative, and looks for a match at the next few seconds at which a job begins or ends.
"""

from dataclasses import dataclass, replace
from typing import Any

from fluxion_cy.base.arguments import buffer_of, slots_of
from fluxion_cy.embedded.search import Compiled, Question
from fluxion_cy.embedded.shortage import Shortages
from fluxion_cy.embedded.type_index import TypeIndex
from fluxion_cy.engine.engine import Engine
from fluxion_cy.jobspec.reader import Resource
from fluxion_cy.wording import Shortage, Words

#: What an answer says where counting finds no shortage: for now, and for an empty graph with everything up.
ENOUGH = "enough of each type is free, but not in the combination that the request needs"
NEVER = "the graph has enough of each type, but not in the combination that the request needs"
#: The same where it is the number of slots that the candidates allow.
ALLOWED = "the candidates allow at most {slots} on rank {rank}"
_MOST_REPORTED = 3
_CHANGES = 16
_SOON = 10 * 365 * 86400


def explain(
    types: TypeIndex, compiled: Compiled, candidates: Any, prefer: Any, now: int, whole_nodes: bool = False
) -> str:
    """One line; its last part says when it would fit, if that is soon. `whole_nodes`: the policy takes nodes whole."""
    engine = types.engine
    allowed = None if candidates is None else slots_of(candidates)
    question = Question(engine, compiled, allowed, prefer)
    if question.now(now):
        return "fits now"
    short = engine.short()
    reason = question.why_not().removeprefix(": ")
    possible = question.ever()
    short = short if possible else engine.short()
    enough = ENOUGH if possible else NEVER
    if allowed is not None and short >= 0 and _fits_uncapped(engine, compiled, allowed, prefer, now, possible):
        slots = allowed[short]
        enough = ALLOWED.format(slots=f"{slots} slot{'s' * (slots != 1)}", rank=short)
        question = Question(engine, compiled, allowed, prefer)
    counted = Count(types, compiled, _exclude(engine, allowed), now, whole_nodes, Words()).shortage(question, enough)
    parts = [*([reason] if reason else []), str(counted or enough)]
    at = question.later(now, now + _SOON, _CHANGES) if possible else None
    return "; ".join(parts if at is None else [*parts, f"the request would fit at second {at}"])


def shortage(
    types: TypeIndex, compiled: Compiled, candidates: Any, now: int, whole_nodes: bool, words: Words
) -> Shortage | None:
    """What the request lacks now within the candidates, by counting alone; None where that finds nothing."""
    engine = types.engine
    view = None if candidates is None else buffer_of(candidates)
    if candidates is not None and (view is None or view.format == "?"):
        candidates, view = slots_of(candidates), None
    question = Question(engine, compiled, candidates, None)
    exclude = view is not None or _exclude(engine, candidates)
    return Count(types, compiled, exclude, now, whole_nodes, words).shortage(question, ENOUGH)


def _fits_uncapped(
    engine: Engine, compiled: Compiled, allowed: list[Any], prefer: Any, now: int, possible: bool
) -> bool:
    """Whether any number of slots on the same candidates would change the result."""
    question = Question(engine, compiled, [slots > 0 for slots in allowed], prefer)
    return question.now(now) or (not possible and question.ever())


def _exclude(engine: Engine, allowed: list[Any] | None) -> bool:
    """Whether the candidates exclude anything."""
    if allowed is None:
        return False
    ranks = engine.ranks()
    capped = any(type(slots) is not bool for slots in allowed)
    return capped or not all(rank < len(allowed) and allowed[rank] > 0 for rank in ranks)


@dataclass(frozen=True, slots=True)
class Count:
    """Counts each alternative of a jobspec, the first few of them."""

    types: TypeIndex
    compiled: Compiled
    candidates: bool
    """Whether candidates exclude anything."""
    now: int
    whole_nodes: bool
    words: Words

    def shortage(self, question: Question, enough: str) -> Shortage | None:
        """The one shortage, or those of all alternatives; `enough`: the text where an alternative lacks nothing."""
        ways = _alternatives(self.compiled.forms)
        found = [self._of_way(form, question.may_gather(which)) for which, form, _ in ways[:_MOST_REPORTED]]
        if len(ways) == 1:
            return found[0]
        texts = [
            f"alternative {number} of {len(ways)}{' alone' * alone}: {short or enough}"
            for number, (short, (_, _, alone)) in enumerate(zip(found, ways, strict=False), 1)
        ]
        return Shortage("; ".join(texts))

    def _of_way(self, resources: list[Resource], gathers: bool) -> Shortage | None:
        end = self.now + self.compiled.spec.duration
        return Shortages(
            self.types.engine,
            self.words,
            self.types,
            resources,
            self.candidates,
            gathers,
            self.whole_nodes,
            self.now,
            end,
        ).first()


def _alternatives(forms: list[list[Resource]]) -> list[tuple[int, list[Resource], bool]]:
    """For each alternative: its form, its resources, and whether its slots may also be mixed."""
    found: list[tuple[int, list[Resource], bool]] = []
    for which, form in enumerate(forms):
        number = max(map(_ways, form), default=1)  # an empty form
        found += [(which, [_chosen(resource, i) for resource in form], number > 1) for i in range(number)]
    return found


def _ways(resource: Resource) -> int:
    return max([len(resource.alternatives), 1, *map(_ways, resource.children)])


def _chosen(resource: Resource, which: int) -> Resource:
    """The resource with the children of one alternative, or of the last where it has fewer."""
    ways = resource.alternatives
    children = ways[min(which, len(ways) - 1)] if ways else [_chosen(child, which) for child in resource.children]
    return replace(resource, children=children, alternatives=[])
