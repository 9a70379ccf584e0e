"""Evaluates whether a row of section 7 of the semantics excuses a difference; independent of the engine.

Each predicate proves from the session that the recorded answer is wrong or that the row forbids it. It uses the
allocations, the status and the graph at that time, and a placement that passes every check of `validity`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .validity import Ledger, least, never

#: Operations that promise to report a jobspec that can never match.
PROMISING = ("allocate_orelse_reserve", "allocate_with_satisfiability", "without_allocating_future", "satisfy")


@dataclass
class Difference:
    """One operation whose answer differs from the recorded one, with the state before it."""

    op: dict[str, Any]
    answer: dict[str, Any]
    ledger: Ledger
    invalid: str
    """The flaw in this engine's placement; empty if it passes or does not exist."""
    exhibit: Callable[[], bool]
    """Whether the graph, idle and all up, has a placement that passes every check."""

    @property
    def resources(self) -> list[dict[str, Any]]:
        """The resources of the jobspec."""
        found: list[dict[str, Any]] = (self.op.get("jobspec") or {}).get("resources", [])
        return found

    @property
    def errors(self) -> tuple[str | None, str | None]:
        """(recorded, answered) errno; None if the operation succeeded."""
        expect = self.op["expect"]
        return (None if expect["ok"] else expect["errno"]), self.answer.get("errno")

    @property
    def placed_what_was_refused(self) -> bool:
        """The recorded session refused a jobspec that this engine placed, and the placement passes every check."""
        return not self.op["expect"]["ok"] and self.answer["ok"] and "exclusive" in self.answer and not self.invalid


def miscounted(case: Difference) -> bool:
    """1, 2: the recorded session does not count nodes that were loaded down or added later; the jobspec needs them."""
    wanted = least(case.resources, 1, True, False).get("node", 0)
    return case.placed_what_was_refused and case.ledger.counted_up < wanted <= case.ledger.up("node")


def two_slots(case: Difference) -> bool:
    """4: slots side by side; the recorded session refused them or gave less than requested."""
    return case.placed_what_was_refused and _slots_side_by_side(case.resources)


def nothing_exclusive(case: Difference) -> bool:
    """5: no slot and nothing exclusive; EINVAL is the only answer that reports it."""
    recorded, answered = case.errors
    return recorded == "EBUSY" and answered == "EINVAL" and not _exclusive(case.resources)


def can_never_be(case: Difference) -> bool:
    """7: the request exceeds the empty graph within the constraint, and the operation promises to report that."""
    return case.errors == ("EBUSY", "ENODEV") and case.op["op"] in PROMISING and never(case.ledger, case.op["jobspec"])


def can_be(case: Difference) -> bool:
    """8: the recorded answer is "impossible", although the jobspec fits the idle graph with all vertices up."""
    return case.errors == ("ENODEV", "EBUSY") and case.exhibit()


def tied(case: Difference) -> bool:
    """11: the same types and ids at the same time under other parents; only the order of the file decided."""
    expect, answer = case.op["expect"], case.answer
    if not (expect["ok"] and answer["ok"] and "exclusive" in answer) or case.invalid or expect["at"] != answer["at"]:
        return False
    chosen = [sorted(map(case.ledger.kind_and_id, found["exclusive"])) for found in (expect, answer)]
    return chosen[0] == chosen[1] and expect["exclusive"] != answer["exclusive"]


def held_twice(case: Difference) -> bool:
    """13: the id belongs to a job with an allocation."""
    return case.op["expect"]["ok"] and case.answer.get("errno") == "EEXIST" and case.op["jobid"] in case.ledger.held


#: Row of section 7 -> the predicates that show that it applies. A row without an entry excuses nothing.
RULES: dict[str, tuple[Callable[[Difference], bool], ...]] = {
    "1, 2": (miscounted,),
    "4, 6": (two_slots,),
    "5": (nothing_exclusive,),
    "7, 8": (can_never_be, can_be),
    "11": (tied,),
    "13": (held_twice,),
}


def excuses(case: Difference) -> set[str]:
    """The rows of section 7 that apply."""
    return {rule for rule, proofs in RULES.items() if any(holds(case) for holds in proofs)}


def _slots_side_by_side(resources: list[dict[str, Any]]) -> bool:
    if sum(resource["type"] == "slot" for resource in resources) > 1:
        return True
    return any(_slots_side_by_side(resource.get("with", [])) for resource in resources)


def _exclusive(resources: list[dict[str, Any]]) -> bool:
    return any(
        resource["type"] == "slot"
        or resource.get("exclusive") in (True, "true")
        or _exclusive(resource.get("with", []))
        for resource in resources
    )
