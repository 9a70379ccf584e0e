"""What the library is told to free of a job.

It frees whole ranks of a job well. Given single vertices, or a rank of which the job holds nothing, it counts wrong or
stops halfway (flux-sched 0.54), so an R of vertices is only taken where it names all that the job holds of a rank.
"""

import errno as _errno

from fluxion_cy._select import Select
from fluxion_cy.errors import InvalidGraph, NotSupported
from fluxion_cy.reapi.sending import idset_of
from fluxion_cy.resource_set import ResourceSet, holds_of


def ranks_to_free(rset: ResourceSet, touched: set[int], engine: Select) -> str | None:
    """An idset of ranks, empty for nothing at all, or None for the whole job.

    `touched` are the vertices that the job holds and all above them.
    """
    ranks = {engine.rank_of(vertex) for vertex in touched}
    if rset.graph is None:
        return idset_of(ranks & {rank for rank, _, _ in rset.ranks})
    named = {vertex for vertex, _, exclusive in holds_of(rset, engine) if exclusive}
    for vertex in named - touched:
        raise InvalidGraph(f"R: vertex {engine.path(vertex)} is not held by this job", _errno.EINVAL)
    held = {vertex for vertex in touched if touched.isdisjoint(engine.children(vertex))}
    if held <= named:
        return None
    chosen = {engine.rank_of(vertex) for vertex in named}
    for vertex in held - named:
        if engine.rank_of(vertex) in chosen:
            raise NotSupported(
                f"R: vertex {engine.path(vertex)} of rank {engine.rank_of(vertex)} is not in it; the real engine only "
                "frees all that a job holds of a rank"
            )
    if -1 in chosen:
        raise NotSupported("R: names vertices without a rank; the real engine frees them only with the whole job")
    return idset_of(chosen)
