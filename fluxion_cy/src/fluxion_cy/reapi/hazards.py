"""What ends or holds up the process inside the library, although graph and call are right, and how it is kept away.

Each function answers from the embedded engine's copy of the graph, and raises NotSupported with the remedy. Facts are
from the source of flux-sched 0.54, resource/traversers/dfu*.cpp and resource/planner.
"""

from collections.abc import Iterable

from fluxion_cy._select import Select
from fluxion_cy.errors import InvalidGraph, NotSupported, shown

_LARGEST = 2**31 - 1
_FARTHEST = 2**39


def check_sizes(engine: Select, vertices: Iterable[int]) -> None:
    """Counts of a vertex are signed 32-bit numbers when the best are chosen, and sums of ids 64-bit ones.

    A larger size turns negative there: the choice runs past the end of its list. Sums of ids that wrap round are looked
    for among scores that do not have them (`locality`).
    """
    for vertex in vertices:
        if engine.size_of(vertex) > _LARGEST:
            raise InvalidGraph(
                f"vertex {engine.path(vertex)}: size {engine.size_of(vertex)} is more than {_LARGEST}, the most that "
                "the real engine can choose from; count in a larger unit"
            )
        if engine.id_of(vertex) > _FARTHEST:
            raise InvalidGraph(
                f"vertex {engine.path(vertex)}: id {engine.id_of(vertex)} is more than {_FARTHEST}; the real engine "
                "adds ids up in 64 bits; give it a smaller one"
            )


def leaf_types(engine: Select) -> set[str]:
    """Types of the vertices without children; the library counts each of them below every cluster."""
    return {engine.type_of(vertex) for vertex in engine.vertices() if not engine.has_children(vertex)}


def counts_at_root(engine: Select) -> bool:
    """Whether the library keeps amounts for the root, without which it ends the process when it seeks a time."""
    if not engine.has_children(engine.root):
        return False
    kind = engine.type_of(engine.root)
    if any(pruned != kind if anchor is None else anchor == kind for anchor, pruned in engine.filters):
        return True
    return kind == "cluster" and not leaf_types(engine) <= {pruned for _, pruned in engine.filters}


def check_root(engine: Select) -> None:
    """Before a call that seeks a time, or asks whether there could be one."""
    if not counts_at_root(engine):
        raise NotSupported(
            f"vertex {engine.path(engine.root)}: the real engine counts nothing below this root, and could only "
            "allocate at once; give the root children, and name a type in prune_filters as ALL:core does"
        )


def check_removal(engine: Select, path: str, vertex: int) -> None:
    """The edges of an only child are searched for ever; vertices of one path are forgotten together."""
    if len(engine.children(engine.parent_of(vertex))) == 1:
        raise NotSupported(f"path {path!r}: the real engine cannot remove an only child; remove its parent")
    for below in engine.subtree(vertex):
        if len(engine.lookup(engine.path(below))) > 1:
            raise NotSupported(
                f"path {shown(engine.path(below), 200)}: several vertices have it; the real engine would forget all of "
                "them; give each a path of its own"
            )


def check_growth(before: set[str], grown: Select) -> None:
    """Before the graph changes while jobs are held: a new type of leaf moves the amounts of the others."""
    _check_inner_clusters(grown)
    new = leaf_types(grown) - before - {pruned for _, pruned in grown.filters}
    if new:
        raise NotSupported(
            f"graph: the real engine cannot begin to count {shown(min(new))} while jobs are held; cancel them first, "
            f"or name it in prune_filters from the start, as in ALL:{min(new)[:40]}"
        )


def check_clone(before: set[str], engine: Select) -> None:
    """Before a clone while jobs are held: it counts the types that are left, and stumbles over the others."""
    _check_inner_clusters(engine)
    gone = before - leaf_types(engine) - {pruned for _, pruned in engine.filters}
    if gone:
        raise NotSupported(
            f"clone: the real engine's copy forgets to count {shown(min(gone))}, of which no vertex is left, and could "
            "not cancel the jobs that are held; cancel them first"
        )


def _check_inner_clusters(engine: Select) -> None:
    """Below a cluster that is not the root it counts the types of leaf that it had come by until then."""
    every = {pruned for anchor, pruned in engine.filters if anchor is None}
    if leaf_types(engine) <= every:
        return
    for vertex in engine.vertices():
        if vertex != engine.root and engine.type_of(vertex) == "cluster" and engine.has_children(vertex):
            raise NotSupported(
                f"vertex {engine.path(vertex)}: while jobs are held, the real engine can neither clone nor change a "
                "graph with a cluster below the root; cancel them first, or name the types of all leaves in "
                "prune_filters, as in ALL:core"
            )


def leaves_to_hold(engine: Select) -> list[int]:
    """One vertex without children for each type of them: the smallest first, then as near to the root as there is."""
    found: dict[str, int] = {}
    leaves = [vertex for vertex in engine.vertices() if not engine.has_children(vertex)]
    for vertex in sorted(leaves, key=lambda vertex: (engine.size_of(vertex), engine.depth(vertex))):
        found.setdefault(engine.type_of(vertex), vertex)
    return list(found.values())
