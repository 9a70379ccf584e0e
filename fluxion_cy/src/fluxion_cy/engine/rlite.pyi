"""The cores and gpus of a result by node, and their R_lite (compiled)."""

from typing import Any

from fluxion_cy.engine.pick import Pick

class RLite(Pick):
    """`Pick`, with the result grouped by node."""

    def spell(self) -> int: ...
    def r_lite(self) -> list[dict[str, Any]]: ...
    def execution(self, start: int, end: int) -> dict[str, Any]: ...
