"""An index of properties (compiled)."""

from typing import Any

from fluxion_cy.engine.rlite import RLite

class PropertyIndex(RLite):
    """`Pick` with an index of properties."""

    def index(self) -> None: ...
    def set_props(self, v: int, properties: Any) -> None: ...
