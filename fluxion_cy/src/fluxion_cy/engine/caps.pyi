"""Slots per rank, held to the candidates' caps (compiled)."""

from fluxion_cy.engine.planner import Planner

class Caps(Planner):
    """The planner with the requests of one match, and how many slots it may have and has where."""

    def short(self) -> int: ...
    def tallies_made(self) -> int: ...
