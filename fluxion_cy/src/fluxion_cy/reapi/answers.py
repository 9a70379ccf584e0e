"""What the library answers, read back: JSON, and the vertices of a JGF."""

import json
from errno import EPROTO
from typing import Any

from fluxion_cy._select import Select
from fluxion_cy.errors import FluxionError
from fluxion_cy.rlite import Entry


def parsed(text: str) -> Any:
    """The document; FluxionError (EPROTO) where it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        raise FluxionError(f"the library's answer is no JSON: {text[:40]!r}", EPROTO) from None


def completed(document: Any, engine: Select) -> Any:
    """A JGF with what the library was not told of its vertices: units, and their paths in other subsystems."""
    nodes = document["graph"]["nodes"] if held_in(document, engine) else []
    for node in nodes:
        for vertex, units, exclusive in _entries([node], engine):
            node["metadata"] = {**node["metadata"], **engine.emit(vertex, units, exclusive)["metadata"]}
    return document


def held_in(document: Any, engine: Select) -> list[Entry]:
    """(vertex, units, exclusive) of each vertex of a JGF; none of None. FluxionError (EPROTO) where it is no JGF."""
    try:
        return _entries(document["graph"]["nodes"], engine) if document is not None else []
    except (AttributeError, KeyError, TypeError):
        raise FluxionError("the library's answer is no JGF", EPROTO) from None


def _entries(nodes: Any, engine: Select) -> list[Entry]:
    return [
        (vertex, metadata.get("size", 1), metadata.get("exclusive", False))
        for metadata in (node["metadata"] for node in nodes)
        for vertex in engine.lookup(metadata["paths"]["containment"])
        if engine.rank_of(vertex) == metadata.get("rank", -1)
    ]
