"""The groups that the search found, and the choice among them (compiled)."""

from collections.abc import Iterable
from typing import Any

from fluxion_cy.engine.caps import Caps

class Pick(Caps):
    """The requests of one match, and the groups found for each of them."""

    def trouble(self) -> tuple[int, int]: ...
    def found_entries(self) -> list[tuple[int, int, bool]]: ...
    def arrange(self, entries: Iterable[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]: ...
    def resource_set(self) -> dict[str, Any]: ...
