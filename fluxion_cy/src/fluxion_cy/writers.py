"""The forms in which R is written: what `match_format` names."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fluxion_cy import rfc40
from fluxion_cy._select import Select
from fluxion_cy.errors import NotSupported, shown
from fluxion_cy.rlite import Entry, execution, r_lite


@dataclass(frozen=True, slots=True)
class Found:
    """The engine's last result, and from which second to which it is held."""

    engine: Select
    start: int
    end: int

    @property
    def entries(self) -> list[Entry]:
        """(vertex, units, exclusive), children before parents; spelled out only for the forms that need it."""
        return self.engine.found_entries()


GraphWriter = Callable[[Found], dict[str, Any]]
Writer = Callable[[Found], dict[str, Any] | str]

SHORTHAND = "fluxion:jgf_shorthand"
#: The forms in which R names its nodes in a hostlist.
WITH_NODELIST = ("rv1", "rv1_nosched", "rv1_shorthand", "rfc40")


def writer_of(name: object) -> Writer:
    """The writer that `match_format` names."""
    if not isinstance(name, str) or name not in _WRITERS:
        raise NotSupported(f"match_format={shown(name)}: is unknown; known are {', '.join(_WRITERS)}")
    return _WRITERS[name]


def _jgf(found: Found) -> dict[str, Any]:
    return found.engine.resource_set()


def _jgf_shorthand(found: Found) -> dict[str, Any]:
    """Without what lies below something that is taken."""
    engine, entries = found.engine, found.entries
    taken = {vertex for vertex, _, exclusive in entries if exclusive}
    outer = [entry for entry in entries if engine.parent_of(entry[0]) not in taken]
    if len(outer) == len(entries):
        return _jgf(found)
    nodes = [engine.emit(vertex, units, exclusive) for vertex, units, exclusive in outer]
    edges = [engine.emit_edge(vertex) for vertex, _, _ in outer if engine.parent_of(vertex) >= 0]
    return {"graph": {"nodes": nodes, "edges": edges}, "writer": SHORTHAND}


def _rv1(scheduling: GraphWriter | None) -> GraphWriter:
    """R version 1, with the graph below `scheduling` or without."""

    def write(found: Found) -> dict[str, Any]:
        held = execution(found.engine, found.start, found.end)
        document: dict[str, Any] = {"version": 1, "execution": held}
        if scheduling is not None:
            document["scheduling"] = scheduling(found)
        return document

    return write


def _rlite(found: Found) -> str:
    return json.dumps(r_lite(found.engine)) + "\n"


def _lines(found: Found, taken: str, shared: str) -> list[str]:
    engine, entries, depths = found.engine, found.entries, dict[int, int]()
    for vertex, _, _ in reversed(entries):  # parents come first this way
        depths[vertex] = depths.get(engine.parent_of(vertex), 0) + 1
    return [
        f"      {'---' * depths[vertex]}{engine.name_of(vertex)}[{units}:{taken if exclusive else shared}]\n"
        for vertex, units, exclusive in entries
    ]


_WRITERS: dict[str, Writer] = {
    "simple": lambda found: "".join(_lines(found, "x", "s")),
    "pretty_simple": lambda found: "".join(reversed(_lines(found, "exclusive", "shared"))),
    "jgf": _jgf,
    "jgf_shorthand": _jgf_shorthand,
    "rlite": _rlite,
    "rv1": _rv1(_jgf),
    "rv1_nosched": _rv1(None),
    "rv1_shorthand": _rv1(_jgf_shorthand),
    "rfc40": _rv1(lambda found: rfc40.graph(found.engine, found.entries)),
}
