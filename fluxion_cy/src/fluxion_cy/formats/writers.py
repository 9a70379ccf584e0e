"""The writers of R, by `match_format`."""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from errno import EINVAL
from typing import Any

from fluxion_cy.engine.engine import Engine
from fluxion_cy.errors import InvalidGraph, NotSupported, shown

Entry = tuple[int, int, bool]
"""(vertex, units, exclusive), children before parents."""

_SPACE = uuid.uuid5(uuid.NAMESPACE_OID, "fluxion vertex")


@dataclass(frozen=True, slots=True)
class Found:
    """The engine's last result, and its time span."""

    engine: Engine
    start: int
    end: int

    @property
    def entries(self) -> list[Entry]:
        """(vertex, units, exclusive), children before parents. Only forms that need it ask for it."""
        return self.engine.found_entries()


GraphWriter = Callable[[Found], dict[str, Any]]
Writer = Callable[[Found], dict[str, Any] | str]

SHORTHAND = "fluxion:jgf_shorthand"
#: The forms in which R names its nodes in a hostlist.
WITH_NODELIST = ("rv1", "rv1_nosched", "rv1_shorthand", "rfc40")


def writer_of(name: object) -> Writer:
    """The writer of a `match_format`."""
    if not isinstance(name, str) or name not in _WRITERS:
        raise NotSupported(f"match_format={shown(name)} is unknown; use one of {', '.join(_WRITERS)}")
    return _WRITERS[name]


def _jgf(found: Found) -> dict[str, Any]:
    return found.engine.resource_set()


def _jgf_shorthand(found: Found) -> dict[str, Any]:
    """Without everything below an exclusive vertex."""
    engine, entries = found.engine, found.entries
    taken = {vertex for vertex, _, exclusive in entries if exclusive}
    outer = [entry for entry in entries if engine.parent_of(entry[0]) not in taken]
    if len(outer) == len(entries):
        return _jgf(found)
    nodes = [engine.emit(vertex, units, exclusive) for vertex, units, exclusive in outer]
    edges = [engine.emit_edge(vertex) for vertex, _, _ in outer if engine.parent_of(vertex) >= 0]
    return {"graph": {"nodes": nodes, "edges": edges}, "writer": SHORTHAND}


def _rv1(scheduling: GraphWriter | None) -> GraphWriter:
    """R version 1, with or without the graph under `scheduling`."""

    def write(found: Found) -> dict[str, Any]:
        held = _execution(found.engine, found.start, found.end)
        document: dict[str, Any] = {"version": 1, "execution": held}
        if scheduling is not None:
            document["scheduling"] = scheduling(found)
        return document

    return write


def _rlite(found: Found) -> str:
    return json.dumps(_r_lite(found.engine)) + "\n"


def _lines(found: Found, taken: str, shared: str) -> list[str]:
    engine, entries, depths = found.engine, found.entries, dict[int, int]()
    for vertex, _, _ in reversed(entries):  # parents come first this way
        depths[vertex] = depths.get(engine.parent_of(vertex), 0) + 1
    return [
        f"      {'---' * depths[vertex]}{engine.name_of(vertex)}[{units}:{taken if exclusive else shared}]\n"
        for vertex, units, exclusive in entries
    ]


# ---- R_lite ----------------------------------------------------------------------------------------------------------


def _r_lite(engine: Engine) -> list[dict[str, Any]]:
    """R_lite of the engine's last result. Raises InvalidGraph, which names a vertex without a rank or an id."""
    _spell(engine)
    return engine.r_lite()


def _execution(engine: Engine, start: int, end: int) -> dict[str, Any]:
    """The key `execution` of R version 1 for the engine's last result. Raises the same as `_r_lite`."""
    _spell(engine)
    return engine.execution(start, end)


def _spell(engine: Engine) -> None:
    wrong = engine.spell()
    if wrong < 0:
        return
    if engine.id_of(wrong) < 0 and engine.type_of(wrong) in ("core", "gpu"):
        problem = f"id {engine.id_of(wrong)} is not valid in an idset"
    else:
        problem = "has no rank, which R_lite needs"
    raise InvalidGraph(f"vertex {engine.path(wrong)}: {problem}; use match_format jgf", EINVAL)


# ---- RFC 40 ----------------------------------------------------------------------------------------------------------


def _rfc40(engine: Engine, entries: Iterable[Entry]) -> dict[str, Any]:
    """The mapping under `scheduling`; vertices of the match have `exclusive: true`."""
    links = engine.edge_metadata()
    nodes, edges = [], []
    for vertex, units, exclusive in entries:
        nodes.append(_rfc40_vertex(engine, vertex, units, exclusive))
        parent = engine.parent_of(vertex)
        if parent >= 0:
            edges.append(_rfc40_edge(engine.outer_id(parent), engine.outer_id(vertex), links.get(vertex, {})))
    return {"graph": {"nodes": nodes, "edges": edges}}


def _rfc40_vertex(engine: Engine, vertex: int, units: int, exclusive: bool) -> dict[str, Any]:
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
    """A uuid that is the same for the same vertex in every R."""
    place = f"{metadata['rank']} {metadata['paths'].get('containment', '')}"
    return str(uuid.uuid5(_SPACE, place.encode("utf-8", "backslashreplace").decode()))  # JSON may hold lone surrogates


def _rfc40_edge(source: str, target: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "source": source,
        "target": target,
        "metadata": {"subsystem": "containment", "relationship": _relationship(metadata)},
    }


def _relationship(metadata: Mapping[str, Any]) -> str:
    """The edge's relationship; older files have it under `name`, by subsystem."""
    own = metadata.get("relationship")
    if isinstance(own, str) and own:
        return own
    names = metadata.get("name")
    older = names.get("containment") if isinstance(names, Mapping) else None
    return older if isinstance(older, str) and older else "contains"


_WRITERS: dict[str, Writer] = {
    "simple": lambda found: "".join(_lines(found, "x", "s")),
    "pretty_simple": lambda found: "".join(reversed(_lines(found, "exclusive", "shared"))),
    "jgf": _jgf,
    "jgf_shorthand": _jgf_shorthand,
    "rlite": _rlite,
    "rv1": _rv1(_jgf),
    "rv1_nosched": _rv1(None),
    "rv1_shorthand": _rv1(_jgf_shorthand),
    "rfc40": _rv1(lambda found: _rfc40(found.engine, found.entries)),
}
