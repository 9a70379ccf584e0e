"""What a single vertex has to do with a request (compiled)."""

from fluxion_cy.engine.property_index import PropertyIndex

class Admit(PropertyIndex):
    """An index, with what decides whether a vertex comes into question."""

    node_only: bool
