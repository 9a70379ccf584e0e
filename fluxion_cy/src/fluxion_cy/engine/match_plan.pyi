"""A request as tables (compiled)."""

from collections.abc import Sequence

class Form:
    """One form of a jobspec."""

    def __init__(
        self,
        rows: Sequence[tuple[int, ...]],
        needs: Sequence[Sequence[int]],
        top_need: Sequence[int],
        tops: int,
        top_slots: int,
        choices: Sequence[tuple[int, Sequence[Sequence[tuple[int, int]]]]],
    ) -> None: ...

class Terms:
    """A compiled constraint."""

    def __init__(
        self,
        rules: Sequence[tuple[int, int, int]],
        links: Sequence[int],
        prop_ok: bytearray,
        hosts: Sequence[int],
        spans: Sequence[tuple[int, int]],
        chosen: Sequence[int] | None,
    ) -> None: ...
    def weight(self) -> int: ...

class MatchPlan:
    """A jobspec that has only one form, compiled for the engine."""

    def __init__(self, form: Form, terms: Terms, duration: int, tables: tuple[int, int, int, int]) -> None: ...
