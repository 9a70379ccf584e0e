"""The match itself (compiled)."""

from fluxion_cy._admit import Admit

class Walk(Admit):
    """A matching walk over what admits requests."""
