"""`scheduling.graph` of R version 1 as RFC 40 wants it: every required key of every vertex and edge."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from fluxion_cy._select import Select
from fluxion_cy.rlite import Entry

_SPACE = uuid.uuid5(uuid.NAMESPACE_OID, "fluxion vertex")


def graph(engine: Select, entries: Iterable[Entry]) -> dict[str, Any]:
    """The mapping below `scheduling`; what was taken has `exclusive: true`."""
    links = engine.edge_metadata()
    nodes, edges = [], []
    for vertex, units, exclusive in entries:
        nodes.append(_vertex(engine, vertex, units, exclusive))
        parent = engine.parent_of(vertex)
        if parent >= 0:
            edges.append(_edge(engine.outer_id(parent), engine.outer_id(vertex), links.get(vertex, {})))
    return {"graph": {"nodes": nodes, "edges": edges}}


def _vertex(engine: Select, vertex: int, units: int, exclusive: bool) -> dict[str, Any]:
    plain = engine.emit(vertex, units, exclusive)["metadata"]
    known = engine.kept(vertex, "uuid")
    metadata = {
        "type": plain["type"],
        "uuid": known if isinstance(known, str) and known else _uuid(plain),
        "basename": engine.base_of(vertex),
        "name": engine.name_of(vertex),
        "id": plain["id"],
        "rank": plain["rank"],
        "properties": dict(engine.props_of(vertex)),
        "size": units,
        "unit": engine.unit_of(vertex),
        **({"exclusive": True} if exclusive else {}),
        "paths": plain["paths"],
    }
    return {"id": engine.outer_id(vertex), "metadata": metadata}


def _uuid(metadata: Mapping[str, Any]) -> str:
    """The same for the same place in a graph, whatever R it appears in."""
    place = f"{metadata['rank']} {metadata['paths'].get('containment', '')}"
    return str(uuid.uuid5(_SPACE, place.encode("utf-8", "backslashreplace").decode()))  # JSON has lone surrogates


def _edge(source: str, target: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "source": source,
        "target": target,
        "metadata": {"subsystem": "containment", "relationship": _relationship(metadata)},
    }


def _relationship(metadata: Mapping[str, Any]) -> str:
    """The edge's own word; older files keep it under `name`, by subsystem."""
    own = metadata.get("relationship")
    if isinstance(own, str) and own:
        return own
    names = metadata.get("name")
    older = names.get("containment") if isinstance(names, Mapping) else None
    return older if isinstance(older, str) and older else "contains"
