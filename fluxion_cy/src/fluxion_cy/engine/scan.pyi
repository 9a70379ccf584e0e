"""Reads JGF text without a Python object for each value (compiled)."""

from fluxion_cy.engine.store import Store

def scan(store: Store, text: str | bytes) -> bool:
    """Reads plain JGF text into an empty store. For any other text, returns False and leaves the store empty."""
