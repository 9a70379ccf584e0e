"""Slots by rank within the candidates' caps (compiled)."""

from fluxion_cy.engine.planner import Planner

class Caps(Planner):
    """The planner, with the requests of one match, and the slots that it allows and uses on each rank."""

    def short(self) -> int: ...
    def tallies_made(self) -> int: ...
