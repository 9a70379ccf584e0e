"""What is left of an allocation after a part of it is given back."""

from errno import EINVAL

from fluxion_cy._select import Select
from fluxion_cy.errors import InvalidGraph
from fluxion_cy.resource_set import Hold, ResourceSet, holds_of


def remaining(engine: Select, slot: int, given_back: ResourceSet) -> list[Hold]:
    """What `slot` still takes when `given_back` is freed; InvalidGraph (EINVAL) where it is not held."""
    held = {vertex: units for vertex, units, exclusive in engine.entries(slot) if exclusive}
    if given_back.graph is None:
        ranks = {rank for rank, _, _ in given_back.ranks}
        return [(v, units, True) for v, units in held.items() if _rank(engine, v) not in ranks]
    for vertex, units, exclusive in holds_of(given_back, engine):
        if not exclusive:
            continue
        left = held.pop(vertex, 0) - units  # of a pool an R may name no units at all
        if left < 0:
            raise InvalidGraph(f"R: vertex {engine.path(vertex)} is not held by this job", EINVAL)
        if left:
            held[vertex] = left
    return [(vertex, units, True) for vertex, units in held.items()]


def _rank(engine: Select, vertex: int) -> int:
    """The vertex's own rank, or that of the nearest one above it that has one."""
    while vertex >= 0 and engine.rank_of(vertex) < 0:
        vertex = engine.parent_of(vertex)
    return engine.rank_of(vertex) if vertex >= 0 else -1
