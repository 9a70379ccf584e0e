"""The checks of a single vertex (compiled)."""

from fluxion_cy.engine.property_index import PropertyIndex

class Admit(PropertyIndex):
    """The property index, with the checks of a single vertex."""

    node_only: bool
