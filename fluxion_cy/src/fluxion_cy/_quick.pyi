"""Matches for which Python has nothing to say (compiled)."""

from collections.abc import Callable
from typing import Any, TypeVar

from fluxion_cy._jobs import JobTable
from fluxion_cy._select import Select
from fluxion_cy.jobs import Allocation

_T = TypeVar("_T")

class Turn:
    """One call at a time in one matcher."""

    lock: Any

    def __init__(self) -> None: ...
    def call(
        self, method: Callable[..., _T], matcher: object, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> _T: ...

def allocate(
    matcher: Any,
    turn: Turn,
    engine: Select,
    table: JobTable,
    known: dict[Any, Any],
    jobspec: Any,
    jobid: Any,
    now: Any,
) -> Allocation: ...
