"""Resource sets read back: JGF, or the RFC 20 envelope with `scheduling` or only `execution`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from errno import EINVAL, ENOENT
from typing import Any

from fluxion_cy._select import Select
from fluxion_cy.errors import Busy, InvalidGraph, shown
from fluxion_cy.jobspec import FOREVER
from fluxion_cy.ranges import idset

Hold = tuple[int, int, bool]
"""(vertex, units, exclusive)."""


@dataclass(slots=True)
class ResourceSet:
    """`start` None: the set does not say; `graph` or `ranks` (rank, type, ids) say what is in it."""

    start: int | None
    duration: int
    graph: Mapping[str, Any] | None
    ranks: list[tuple[int, str, list[tuple[int, int]]]]


def read_resource_set(value: Any) -> ResourceSet:
    """A mapping or JSON text; InvalidGraph (EINVAL) names what is wrong."""
    if isinstance(value, (str, bytes)):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _bad("R: is not JSON") from None
    if not isinstance(value, Mapping):
        raise _bad(f"R: must be a mapping or JSON text, not {type(value).__name__}")
    if "graph" in value:
        return ResourceSet(None, FOREVER, value, [])
    if value.get("version") != 1 or not isinstance(value.get("execution"), Mapping):
        raise _bad("R: is neither JGF nor an RFC 20 resource set of version 1")
    execution = value["execution"]
    start, duration = _times(execution)
    if value.get("scheduling") is not None:
        if not isinstance(value["scheduling"], Mapping):
            raise _bad("R.scheduling: must be a mapping")
        return ResourceSet(start, duration, value["scheduling"], [])
    return ResourceSet(start, duration, None, _ranks(execution.get("R_lite")))


def _bad(message: str, errno: int = EINVAL) -> InvalidGraph:
    return InvalidGraph(message, errno)


def _times(execution: Mapping[str, Any]) -> tuple[int, int]:
    start, expiration = execution.get("starttime", 0), execution.get("expiration", 0)
    for name, number in (("starttime", start), ("expiration", expiration)):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < 2**53:
            raise _bad(f"R.execution.{name}: {shown(number)} is not a number of seconds")
    if expiration and expiration <= start:
        raise _bad("R.execution.expiration: is not later than starttime")
    return int(start), int(expiration - start) if expiration else FOREVER


def _ranks(rows: Any) -> list[tuple[int, str, list[tuple[int, int]]]]:
    if isinstance(rows, str) or not isinstance(rows, Sequence):
        raise _bad("R.execution.R_lite: must be a list")
    found = []
    for row in rows:
        children = row.get("children") if isinstance(row, Mapping) else None
        if not isinstance(children, Mapping):
            raise _bad("R.execution.R_lite: each entry needs rank and children")
        for rank in _ids(_word(row.get("rank", "")), "rank"):
            for kind, ids in children.items():
                found.append((rank, _word(kind), _spans(_word(ids), _word(kind))))
    return found


def _word(value: Any) -> str:
    """Ids are also accepted as bare numbers."""
    return value if isinstance(value, str) else shown(value)


def _spans(text: str, what: str) -> list[tuple[int, int]]:
    try:
        return idset(text)
    except ValueError:
        raise _bad(f"R.execution.R_lite: {text[:40]!r} is no idset for {what[:40]}") from None


def _ids(text: str, what: str) -> list[int]:
    spans = _spans(text, what)
    if sum(high - low + 1 for low, high in spans) > 1_000_000:
        raise _bad(f"R.execution.R_lite: more than a million ids for {what}")
    return [number for low, high in spans for number in range(low, high + 1)]


def holds_of(rset: ResourceSet, engine: Select) -> list[Hold]:
    """What the set takes in this graph, in its own order, ancestors without exclusive."""
    if rset.graph is not None:
        return _holds_of_graph(rset.graph, engine)
    found: list[Hold] = []
    for rank, kind, spans in rset.ranks:
        below = {engine.id_of(v): v for v in engine.of_rank(rank) if engine.type_of(v) == kind}
        for low, high in spans:
            if high - low >= 1_000_000:
                raise _bad(f"R.execution.R_lite: more than a million ids of {kind}")
            for number in range(low, high + 1):
                if number not in below:
                    raise _bad(f"R: rank {rank} has no {kind} {number} in the graph", ENOENT)
                found.append((below[number], engine.size_of(below[number]), True))
    return found


def _holds_of_graph(document: Mapping[str, Any], engine: Select) -> list[Hold]:
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
    return list(found.values())


def _hold_of_vertex(metadata: Mapping[str, Any], engine: Select) -> Hold:
    paths = metadata.get("paths")
    path = paths.get("containment") if isinstance(paths, Mapping) else None
    if not isinstance(path, str):
        raise _bad("R.graph.nodes: an entry has no paths.containment")
    rank = metadata.get("rank", -1)
    matches = [v for v in engine.lookup(path) if engine.rank_of(v) == rank]
    if not matches:
        raise _bad(f"R: no vertex {path[:200]} of rank {shown(rank)} is in the graph", ENOENT)
    vertex = matches[0]
    if metadata.get("type") != engine.type_of(vertex):
        raise _bad(f"R: vertex {path} is of type {engine.type_of(vertex)!r}, not {shown(metadata.get('type'))}")
    size = metadata.get("size", 1)
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise _bad(f"R: vertex {path}: size {shown(size)} is not a number of units")
    exclusive = metadata.get("exclusive", False) is True
    if size > engine.size_of(vertex) or (exclusive and not engine.is_pool(vertex) and size != engine.size_of(vertex)):
        raise _bad(f"R: vertex {path} has {engine.size_of(vertex)} units, not {shown(size)}")
    return vertex, size, exclusive


def check_free(engine: Select, holds: list[Hold], start: int, end: int) -> None:
    """Busy (EINVAL) where some job holds one of these vertices, or one above or below it, within [start, end)."""
    for vertex, units, _ in holds:
        held = _in_the_way(engine, vertex, units, start, end)
        if held == vertex:
            raise Busy(f"R: vertex {engine.path(vertex)} is held already", EINVAL)
        if held >= 0:
            raise Busy(f"R: vertex {engine.path(held)} is held already, and so {engine.path(vertex)} cannot be", EINVAL)


def _in_the_way(engine: Select, vertex: int, units: int, start: int, end: int) -> int:
    """The vertex of which too much is held: itself, one above or, unless it is a pool, one below; -1 for none."""
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
