"""Reading JGF text without a Python object per value (compiled)."""

from fluxion_cy.engine.store import Store

def scan(store: Store, text: str | bytes) -> bool:
    """Reads plain JGF text into an empty store; False, and the store empty, where it takes the long way."""
