"""R_lite, nodelist and properties of RFC 20: cores and gpus by the node that they lie below."""

from errno import EINVAL
from typing import Any

from fluxion_cy._select import Select
from fluxion_cy.errors import InvalidGraph

Entry = tuple[int, int, bool]
"""(vertex, units, exclusive), children before parents."""


def r_lite(engine: Select) -> list[dict[str, Any]]:
    """R_lite of the engine's last result; InvalidGraph names a vertex without a rank or an id."""
    _spell(engine)
    return engine.r_lite()


def execution(engine: Select, start: int, end: int) -> dict[str, Any]:
    """The key `execution` of R version 1, for the engine's last result; errors as `r_lite`."""
    _spell(engine)
    return engine.execution(start, end)


def _spell(engine: Select) -> None:
    wrong = engine.spell()
    if wrong < 0:
        return
    if engine.id_of(wrong) < 0 and engine.type_of(wrong) in ("core", "gpu"):
        problem = f"no idset holds id {engine.id_of(wrong)}"
    else:
        problem = "has no rank for R_lite"
    raise InvalidGraph(f"vertex {engine.path(wrong)}: {problem}; use match_format jgf", EINVAL)
