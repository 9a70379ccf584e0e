"""Rejects valid calls that the library cannot do, or that would end the process.

Functions with `engine` read the embedded engine's copy of the graph. Most raise NotSupported with the remedy. The facts
are from the source of flux-sched 0.54, resource/traversers/dfu*.cpp and resource/planner.
"""

import errno as _errno
from collections.abc import Iterable
from math import prod
from typing import Any

from fluxion_cy.base.arguments import scores_of, second_of
from fluxion_cy.base.ranges import idset_of
from fluxion_cy.engine.engine import Engine
from fluxion_cy.errors import InvalidGraph, InvalidJobspec, NotSupported, shown
from fluxion_cy.formats.resource_set import ResourceSet, holds_of
from fluxion_cy.jobspec.reader import Resource

_LARGEST = 2**31 - 1
_FARTHEST = 2**39
_SLOTS = ("slot", "xor_slot")
_DEEPEST = 4000
_MOST_STATES = 100_000


# ---- arguments -------------------------------------------------------------------------------------------------------


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raises NotSupported for an option with any other value."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise NotSupported(f"{name}={shown(value)}: the library supports only {', '.join(map(repr, choices))}")


def check_extras(now: Any, prefer: Any) -> None:
    """Raises NotSupported for `now` and `prefer`: the library has neither."""
    if second_of(now) != 0:
        raise NotSupported(f"now={shown(now)}: the library's clock is always at 0; use the embedded engine")
    scores = [] if prefer is None else list(scores_of(prefer))
    if any(score != score for score in scores):
        raise InvalidJobspec("prefer: an entry is not a number (NaN)")
    if scores:
        raise NotSupported(
            "prefer: the library does not support preferences; use the embedded engine, or give candidates"
        )


# ---- graphs ----------------------------------------------------------------------------------------------------------


def check_sizes(engine: Engine, vertices: Iterable[int]) -> None:
    """Raises NotSupported for large sizes and ids.

    The library counts a vertex in signed 32-bit numbers when it chooses the best: a larger size turns negative, and the
    choice runs past the end of its list. It adds ids in 64 bits: with sums that wrap around, `locality` searches for
    scores that do not exist.
    """
    for vertex in vertices:
        if engine.size_of(vertex) > _LARGEST:
            raise InvalidGraph(
                f"vertex {engine.path(vertex)}: size {engine.size_of(vertex)} is more than {_LARGEST}, the most that "
                "the library can choose from; use a larger unit"
            )
        if engine.id_of(vertex) > _FARTHEST:
            raise InvalidGraph(
                f"vertex {engine.path(vertex)}: id {engine.id_of(vertex)} is more than {_FARTHEST}, and the library "
                "adds up ids in 64 bits; give the vertex a smaller id"
            )


def leaf_types(engine: Engine) -> set[str]:
    """The types of the vertices without children, which the library counts below every cluster."""
    return {engine.type_of(vertex) for vertex in engine.vertices() if not engine.has_children(vertex)}


def counts_at_root(engine: Engine) -> bool:
    """Whether the library keeps amounts for the root. Without them a search for a start time would end the process."""
    if not engine.has_children(engine.root):
        return False
    kind = engine.type_of(engine.root)
    if any(pruned != kind if anchor is None else anchor == kind for anchor, pruned in engine.filters):
        return True
    return kind == "cluster" and not leaf_types(engine) <= {pruned for _, pruned in engine.filters}


def check_root(engine: Engine) -> None:
    """Raises NotSupported before a call that searches for a start time, or asks whether one exists."""
    if not counts_at_root(engine):
        raise NotSupported(
            f"vertex {engine.path(engine.root)}: the library counts nothing below this root, and could "
            "allocate only for the current time; give the root children, and name a type in prune_filters, as in "
            "ALL:core"
        )


def check_removal(engine: Engine, path: str, vertex: int) -> None:
    """Raises NotSupported for an only child (the library would loop) and for a path of several vertices."""
    if len(engine.children(engine.parent_of(vertex))) == 1:
        raise NotSupported(f"path {path!r}: the library cannot remove an only child; remove its parent")
    for below in engine.subtree(vertex):
        if len(engine.lookup(engine.path(below))) > 1:
            raise NotSupported(
                f"path {shown(engine.path(below), 200)}: several vertices have this path; the library would remove "
                "all of them; give each its own path"
            )


def check_growth(before: set[str], grown: Engine) -> None:
    """Raises NotSupported before the graph grows by a new type of leaf while jobs exist: it shifts other amounts."""
    _check_inner_clusters(grown)
    new = leaf_types(grown) - before - {pruned for _, pruned in grown.filters}
    if new:
        raise NotSupported(
            f"graph: the library cannot start counting {shown(min(new))} while jobs have allocations; cancel the "
            f"jobs first, or name the type in prune_filters from the start, as in ALL:{min(new)[:40]}"
        )


def check_clone(before: set[str], engine: Engine) -> None:
    """Raises NotSupported before a clone while jobs exist, if a counted type is gone: the clone does not count it."""
    _check_inner_clusters(engine)
    gone = before - leaf_types(engine) - {pruned for _, pruned in engine.filters}
    if gone:
        raise NotSupported(
            f"clone: the graph has no vertex of type {shown(min(gone))} left, so the library's copy would not count "
            "this type, and could not cancel the existing jobs; cancel these jobs first"
        )


def _check_inner_clusters(engine: Engine) -> None:
    """Raises NotSupported for a cluster below the root, which counts only the types of leaves before it."""
    every = {pruned for anchor, pruned in engine.filters if anchor is None}
    if leaf_types(engine) <= every:
        return
    for vertex in engine.vertices():
        if vertex != engine.root and engine.type_of(vertex) == "cluster" and engine.has_children(vertex):
            raise NotSupported(
                f"vertex {engine.path(vertex)}: while jobs have allocations, the library can neither clone nor change "
                "a graph with a cluster below the root; cancel the jobs first, or name the types of all leaves in "
                "prune_filters, as in ALL:core"
            )


def leaves_to_hold(engine: Engine) -> list[int]:
    """One leaf of each type: the smallest, and among equally small leaves the one nearest to the root."""
    found: dict[str, int] = {}
    leaves = [vertex for vertex in engine.vertices() if not engine.has_children(vertex)]
    for vertex in sorted(leaves, key=lambda vertex: (engine.size_of(vertex), engine.depth(vertex))):
        found.setdefault(engine.type_of(vertex), vertex)
    return list(found.values())


# ---- slots -----------------------------------------------------------------------------------------------------------


def every(resources: Iterable[Resource]) -> Iterable[Resource]:
    """The entries of all levels of a request."""
    for resource in resources:
        yield resource
        yield from every(resource.children)


def check_slots(resources: list[Resource], engine: Engine, flexible: bool) -> None:
    """Raises NotSupported for slots that are siblings: the simple traverser serves one of them, and with some requests
    the flexible one never ends.
    """
    for beside in (resources, *(resource.children for resource in every(resources))):
        slots = [resource for resource in beside if resource.type in _SLOTS]
        if flexible:
            _check_alternatives(beside, slots, engine)
        elif len(slots) > 1:
            raise NotSupported("resources: the library cannot serve two sibling slots; nest or merge them")


def _check_alternatives(beside: list[Resource], slots: list[Resource], engine: Engine) -> None:
    """The library treats all siblings of a slot as slots, and those without resources as slots that always fit."""
    if not slots:
        return
    for entry in beside:
        if not entry.children or any(child.type in _SLOTS for child in entry.children):
            what = "each slot" if entry.slot else f"{entry.type[:40]}, a sibling of a slot,"
            raise NotSupported(
                f"resources: the library's flexible traverser requires that {what} directly contains resources but no "
                "slots"
            )
    plain = sum(entry.type != "xor_slot" for entry in beside)
    if plain + (plain < len(beside)) > 1:
        for entry in beside:
            if len({child.type for child in entry.children}) < len(entry.children):
                what = "a slot contains" if entry.slot else f"{entry.type[:40]}, a sibling of a slot, contains"
                raise NotSupported(f"resources: {what} two entries of the same type; merge them into one")
        _check_ways(beside, engine)


def _check_ways(slots: list[Resource], engine: Engine) -> None:
    """The library recurses over every way to fill slots that are siblings."""
    least: dict[str, int] = {}
    for child in (child for slot in slots for child in slot.children):
        least[child.type] = min(least.get(child.type, child.low), child.low) or 1
    amounts = dict.fromkeys(least, 0)
    for vertex in engine.vertices():
        kind = engine.type_of(vertex)
        if kind in amounts:
            amounts[kind] += engine.size_of(vertex)
    steps = [amounts[kind] // low + 1 for kind, low in least.items()]
    if sum(steps) > _DEEPEST or prod(steps) > _MOST_STATES:
        raise NotSupported(
            f"resources: the library cannot try all ways to fill sibling slots from {sum(amounts.values())} units "
            f"of {', '.join(sorted(amounts))[:80]}; use xor_slot, or request each slot by itself"
        )


# ---- jobs ------------------------------------------------------------------------------------------------------------


def ranks_to_free(rset: ResourceSet, touched: set[int], engine: Engine) -> str | None:
    """An idset of the ranks to free, empty for none, or None for the whole job.

    The library frees whole ranks of a job correctly. For single vertices, or a rank where the job holds nothing, it
    miscounts or stops halfway. So an R of vertices must name everything that the job holds on a rank. `touched`: the
    vertices that the job holds, and everything above them.
    """
    ranks = {engine.rank_of(vertex) for vertex in touched}
    if rset.graph is None:
        return idset_of(ranks & {rank for rank, _, _ in rset.ranks})
    named = {vertex for vertex, _, exclusive in holds_of(rset, engine) if exclusive}
    for vertex in named - touched:
        raise InvalidGraph(f"R: vertex {engine.path(vertex)} is not allocated to this job", _errno.EINVAL)
    held = {vertex for vertex in touched if touched.isdisjoint(engine.children(vertex))}
    if held <= named:
        return None
    chosen = {engine.rank_of(vertex) for vertex in named}
    for vertex in held - named:
        if engine.rank_of(vertex) in chosen:
            raise NotSupported(
                f"R: lacks vertex {engine.path(vertex)}; on rank {engine.rank_of(vertex)}, the library frees either "
                "everything that a job holds, or nothing"
            )
    if -1 in chosen:
        raise NotSupported("R: names vertices without a rank; the library frees them only with the whole job")
    return idset_of(chosen)
