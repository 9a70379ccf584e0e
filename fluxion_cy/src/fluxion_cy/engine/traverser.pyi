"""The match itself (compiled)."""

from fluxion_cy.engine.admit import Admit

class Traverser(Admit):
    """A matching walk over what admits requests."""
