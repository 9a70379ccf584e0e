"""The match (compiled)."""

from fluxion_cy.engine.admit import Admit

class Traverser(Admit):
    """The walk over the vertices that may serve a request."""
