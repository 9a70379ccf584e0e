"""The fast path of `allocate` (compiled)."""

from collections.abc import Callable
from typing import Any, TypeVar

from fluxion_cy.engine.engine import Engine
from fluxion_cy.engine.job_table import JobTable
from fluxion_cy.engine.jobs import Allocation

_T = TypeVar("_T")

class Turn:
    """The lock of one matcher, which runs one call at a time."""

    lock: Any

    def __init__(self) -> None: ...
    def run(self, name: str, function: Callable[..., _T], arguments: tuple[Any, ...]) -> _T: ...
    def call(
        self, method: Callable[..., _T], matcher: object, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> _T: ...

def allocate(
    matcher: Any,
    turn: Turn,
    engine: Engine,
    table: JobTable,
    known: dict[Any, Any],
    jobspec: Any,
    jobid: Any,
    now: Any,
) -> Allocation: ...
