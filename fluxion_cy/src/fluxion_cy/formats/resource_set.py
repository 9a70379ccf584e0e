"""Reads resource sets (R): JGF, or the envelope of RFC 20 with `scheduling` or with `execution` alone."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from errno import EINVAL, ENOENT
from typing import Any

from fluxion_cy.base.ranges import idset
from fluxion_cy.engine.engine import Engine
from fluxion_cy.errors import Busy, InvalidGraph, shown
from fluxion_cy.jobspec.reader import FOREVER

_SEVERAL = -2
Hold = tuple[int, int, bool]
"""(vertex, units, exclusive)."""


@dataclass(slots=True)
class ResourceSet:
    """The content of an R: `graph`, or `ranks` (rank, type, ids). `start` is None where the set has no times."""

    start: int | None
    duration: int
    graph: Mapping[str, Any] | None
    ranks: list[tuple[int, str, list[tuple[int, int]]]]
    shorthand: bool = False
    """`graph` omits everything below an exclusive vertex."""


def read_resource_set(value: Any, shorthand: bool = False) -> ResourceSet:
    """The resource set of a mapping or of JSON text. Raises InvalidGraph (EINVAL), which names the field.

    `shorthand`: a bare JGF without the key `writer` is shorthand.
    """
    if isinstance(value, (str, bytes)):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _bad("R: expected JSON") from None
    if not isinstance(value, Mapping):
        raise _bad(f"R: must be a mapping or JSON text, not {type(value).__name__}")
    if "graph" in value:
        return ResourceSet(None, FOREVER, value, [], _is_shorthand(value, "R", shorthand))
    if value.get("version") != 1 or not isinstance(value.get("execution"), Mapping):
        raise _bad("R: expected JGF or a resource set of version 1 (RFC 20)")
    execution = value["execution"]
    start, duration = _times(execution)
    if value.get("scheduling") is not None:
        if not isinstance(value["scheduling"], Mapping):
            raise _bad("R.scheduling: must be a mapping")
        scheduling = value["scheduling"]
        return ResourceSet(start, duration, scheduling, [], _is_shorthand(scheduling, "R.scheduling", False))
    return ResourceSet(start, duration, None, _ranks(execution.get("R_lite")))


def _is_shorthand(document: Mapping[str, Any], where: str, default: bool) -> bool:
    """Whether its key `writer` names the shorthand form; `fluxion`, with or without `:jgf`, is the long form."""
    writer = document.get("writer")
    if writer is None:
        return default
    if writer not in ("fluxion", "fluxion:", "fluxion:jgf", "fluxion:jgf_shorthand"):
        raise _bad(f"{where}.writer: expected fluxion:jgf or fluxion:jgf_shorthand, got {shown(writer)}")
    return bool(writer == "fluxion:jgf_shorthand")


def _bad(message: str, errno: int = EINVAL) -> InvalidGraph:
    return InvalidGraph(message, errno)


def _times(execution: Mapping[str, Any]) -> tuple[int, int]:
    start, expiration = execution.get("starttime", 0), execution.get("expiration", 0)
    for name, number in (("starttime", start), ("expiration", expiration)):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < 2**53:
            raise _bad(f"R.execution.{name}: expected a number of seconds below 2**53, got {shown(number)}")
    if expiration and expiration <= start:
        raise _bad("R.execution.expiration: must be later than starttime")
    begin = int(start)  # rounded outwards to whole seconds
    return begin, math.ceil(expiration) - begin if expiration else FOREVER


def _ranks(rows: Any) -> list[tuple[int, str, list[tuple[int, int]]]]:
    if isinstance(rows, str) or not isinstance(rows, Sequence):
        raise _bad("R.execution.R_lite: must be a list")
    found: list[tuple[int, str, list[tuple[int, int]]]] = []
    room = 1_000_000
    for row in rows:
        children = row.get("children") if isinstance(row, Mapping) else None
        if not isinstance(children, Mapping):
            raise _bad("R.execution.R_lite: each entry needs rank and children")
        below = [(_word(kind), _spans(_word(ids), _word(kind))) for kind, ids in children.items()]
        below = below or [("", [])]  # enough to free the rank
        ranks = _spans(_word(row.get("rank", "")), "rank")
        room -= sum(high - low + 1 for low, high in ranks) * len(below)
        if room < 0:
            raise _bad("R.execution.R_lite: more than a million combinations of rank and type")
        found += [(rank, *what) for low, high in ranks for rank in range(low, high + 1) for what in below]
    return found


def _word(value: Any) -> str:
    """A string; ids may also be numbers."""
    return value if isinstance(value, str) else shown(value)


def _spans(text: str, what: str) -> list[tuple[int, int]]:
    try:
        return idset(text)
    except ValueError:
        raise _bad(f"R.execution.R_lite: expected an idset for {what[:40]}, got {text[:40]!r}") from None


def holds_of(rset: ResourceSet, engine: Engine) -> list[Hold]:
    """The vertices of the set in this graph, in the set's order; ancestors are not exclusive."""
    if rset.graph is not None:
        return _holds_of_graph(rset.graph, engine, rset.shorthand)
    return _holds_of_ranks(rset, engine)


def _holds_of_ranks(rset: ResourceSet, engine: Engine) -> list[Hold]:
    """The vertices that R_lite names; a node is exclusive if nothing else is below it."""
    found: list[Hold] = []
    tables: dict[int, dict[tuple[str, int], int]] = {}
    taken: set[int] = set()
    for rank, kind, spans in rset.ranks:
        if rank not in tables:
            tables[rank] = _below(engine, rank)
        for low, high in spans:
            if high - low >= 1_000_000:
                raise _bad(f"R.execution.R_lite: more than a million ids of {kind}")
            for number in range(low, high + 1):
                vertex = tables[rank].get((kind, number), -1)
                if vertex < 0:
                    what = "more than one" if vertex == _SEVERAL else "no"
                    raise _bad(f"R: rank {rank} has {what} {kind} with id {number} in the graph", ENOENT)
                if vertex not in taken:
                    taken.add(vertex)
                    found.append((vertex, engine.size_of(vertex), True))
    return found + _whole(engine, tables, taken)


def _below(engine: Engine, rank: int) -> dict[tuple[str, int], int]:
    """The vertices below those of a rank, by type and id; their children need no rank."""
    found: dict[tuple[str, int], int] = {}
    seen: set[int] = set()
    for top in engine.of_rank(rank):
        for vertex in [] if top in seen else engine.subtree(top):
            seen.add(vertex)
            if engine.rank_of(vertex) in (rank, -1):
                key = (engine.type_of(vertex), engine.id_of(vertex))
                found[key] = _SEVERAL if key in found else vertex
    return found


def _whole(engine: Engine, tables: Mapping[int, object], taken: set[int]) -> list[Hold]:
    """The nodes of these ranks below which the set takes everything."""
    found: list[Hold] = []
    for rank in tables:
        for vertex in engine.of_rank(rank):
            below = engine.subtree(vertex)[1:] if engine.type_of(vertex) in ("node", "storage_node") else []
            if below and vertex not in taken and all(child in taken for child in below):
                found.append((vertex, engine.size_of(vertex), True))
    return found


def _holds_of_graph(document: Mapping[str, Any], engine: Engine, shorthand: bool) -> list[Hold]:
    graph = document.get("graph")
    nodes = graph.get("nodes") if isinstance(graph, Mapping) else None
    if not isinstance(nodes, (list, tuple)):
        raise _bad("R.graph.nodes: must be a list")
    found: dict[int, Hold] = {}
    for node in nodes:
        metadata = node.get("metadata") if isinstance(node, Mapping) else None
        if not isinstance(metadata, Mapping):
            raise _bad("R.graph.nodes: an entry has no metadata")
        hold = _hold_of_vertex(metadata, engine)
        if hold[0] in found:
            raise _bad(f"R: vertex {engine.path(hold[0])} is listed twice")
        found[hold[0]] = hold
    if shorthand:
        for vertex in [vertex for vertex, _, exclusive in found.values() if exclusive]:
            for below in engine.subtree(vertex)[1:]:
                found.setdefault(below, (below, engine.size_of(below), True))
    return list(found.values())


def _hold_of_vertex(metadata: Mapping[str, Any], engine: Engine) -> Hold:
    paths = metadata.get("paths")
    path = paths.get("containment") if isinstance(paths, Mapping) else None
    if not isinstance(path, str):
        raise _bad("R.graph.nodes: an entry has no paths.containment")
    rank = metadata.get("rank", -1)
    matches = [v for v in engine.lookup(path) if engine.rank_of(v) == rank]
    if not matches:
        raise _bad(f"R: the graph has no vertex {path[:200]} of rank {shown(rank)}", ENOENT)
    vertex = matches[0]
    if metadata.get("type") != engine.type_of(vertex):
        raise _bad(f"R: vertex {path} is of type {engine.type_of(vertex)!r}, not {shown(metadata.get('type'))}")
    size = metadata.get("size", 1)
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise _bad(f"R: vertex {path}: size: expected a number of units, got {shown(size)}")
    exclusive = metadata.get("exclusive", False) is True
    if size > engine.size_of(vertex) or (exclusive and not engine.is_pool(vertex) and size != engine.size_of(vertex)):
        raise _bad(f"R: vertex {path} has {engine.size_of(vertex)} units, not {shown(size)}")
    return vertex, size, exclusive


def check_free(engine: Engine, holds: list[Hold], start: int, end: int) -> None:
    """Raises Busy (EINVAL) where a job holds one of these vertices, or one above or below it, within [start, end)."""
    for vertex, units, _ in holds:
        held = _in_the_way(engine, vertex, units, start, end)
        if held == vertex:
            raise Busy(f"R: vertex {engine.path(vertex)} is already allocated", EINVAL)
        if held >= 0:
            raise Busy(
                f"R: vertex {engine.path(held)} is already allocated, so {engine.path(vertex)} cannot be allocated",
                EINVAL,
            )


def _in_the_way(engine: Engine, vertex: int, units: int, start: int, end: int) -> int:
    """The held vertex: this one, one above it or, unless it is a pool, one below it; -1 for none."""
    if engine.free_at(vertex, start, end) < units:
        return vertex
    above = engine.parent_of(vertex)
    while above >= 0:
        if engine.free_at(above, start, end) < engine.size_of(above):
            return above
        above = engine.parent_of(above)
    if engine.is_pool(vertex) or not engine.touched_at(vertex, start, end):
        return -1
    below = engine.subtree(vertex)
    return next((v for v in below if engine.free_at(v, start, end) < engine.size_of(v)), vertex)


def remaining(engine: Engine, slot: int, given_back: ResourceSet) -> list[Hold]:
    """What a job (`slot`) holds without `given_back`. Raises InvalidGraph (EINVAL) for what it does not hold."""
    held = {vertex: units for vertex, units, exclusive in engine.entries(slot) if exclusive}
    if given_back.graph is None:
        ranks = {rank for rank, _, _ in given_back.ranks}
        return [(v, units, True) for v, units in held.items() if _nearest_rank(engine, v) not in ranks]
    for vertex, units, exclusive in holds_of(given_back, engine):
        if not exclusive:
            continue
        left = held.pop(vertex, 0) - units  # an R may name a pool without units
        if left < 0:
            raise InvalidGraph(f"R: vertex {engine.path(vertex)} is not allocated to this job", EINVAL)
        if left:
            held[vertex] = left
    return [(vertex, units, True) for vertex, units in held.items()]


def _nearest_rank(engine: Engine, vertex: int) -> int:
    """The rank of the vertex, or of the nearest vertex above that has one."""
    while vertex >= 0 and engine.rank_of(vertex) < 0:
        vertex = engine.parent_of(vertex)
    return engine.rank_of(vertex) if vertex >= 0 else -1
