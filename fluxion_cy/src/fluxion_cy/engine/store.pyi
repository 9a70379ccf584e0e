"""Loads and changes the graph (compiled)."""

from typing import Any

from fluxion_cy.engine.columns import Columns

class Store(Columns):
    """The columns of a graph, with methods that load and change it."""

    lists_hosts: bool
    rank_end: int
    def load(self, document: dict[str, Any]) -> None: ...
    def add(self, document: dict[str, Any]) -> list[int]: ...
    def remove(self, v: int) -> list[int]: ...
    def rebuild_order(self) -> None: ...

def natural_key(text: str) -> tuple[tuple[int, int, str], ...]: ...
