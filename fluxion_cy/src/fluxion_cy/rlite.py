"""R_lite, nodelist and properties of RFC 20: cores and gpus by the node that they lie below."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from errno import EINVAL
from typing import Any

from fluxion_cy._select import Select
from fluxion_cy.encoding import hostlist_text, idset_text
from fluxion_cy.errors import InvalidGraph

Entry = tuple[int, int, bool]
"""(vertex, units, exclusive), children before parents."""

KINDS = ("core", "gpu")
HOSTS = ("node", "storage_node")


@dataclass(slots=True)
class Host:
    """A node of which cores or gpus are taken."""

    rank: int
    name: str
    properties: dict[str, str]
    ids: dict[str, list[int]] = field(default_factory=dict)


def hosts_of(engine: Select, entries: Iterable[Entry]) -> list[Host]:
    """The hosts that the entries use, by rank; InvalidGraph names a vertex without a rank or an id."""
    found: dict[int, Host] = {}
    for vertex, _, _ in entries:
        kind = engine.type_of(vertex)
        host = _host_above(engine, vertex) if kind in KINDS else -1
        if host < 0:
            continue
        if host not in found:
            found[host] = _host(engine, host)
        number = engine.id_of(vertex)
        if number < 0:
            raise InvalidGraph(
                f"vertex {engine.path(vertex)}: no idset holds id {number}; use match_format jgf", EINVAL
            )
        found[host].ids.setdefault(kind, []).append(number)
    return sorted(found.values(), key=lambda host: host.rank)


def _host_above(engine: Select, vertex: int) -> int:
    vertex = engine.parent_of(vertex)
    while vertex >= 0 and engine.type_of(vertex) not in HOSTS:
        vertex = engine.parent_of(vertex)
    return vertex


def _host(engine: Select, vertex: int) -> Host:
    rank = engine.rank_of(vertex)
    if rank < 0:
        raise InvalidGraph(f"vertex {engine.path(vertex)}: has no rank for R_lite; use match_format jgf", EINVAL)
    return Host(rank, engine.name_of(vertex), engine.props_of(vertex))


def r_lite(hosts: Iterable[Host]) -> list[dict[str, Any]]:
    """One entry per set of children that hosts share, as RFC 20 has it."""
    by_children: dict[str, tuple[dict[str, str], list[int]]] = {}
    for host in hosts:
        children = {kind: idset_text(host.ids[kind]) for kind in KINDS if kind in host.ids}
        by_children.setdefault(json.dumps(children), (children, []))[1].append(host.rank)
    return [{"rank": idset_text(ranks), "children": children} for _, (children, ranks) in sorted(by_children.items())]


def execution(engine: Select, entries: Iterable[Entry], start: int, end: int) -> dict[str, Any]:
    """The key `execution` of R version 1."""
    hosts = hosts_of(engine, entries)
    out: dict[str, Any] = {
        "R_lite": r_lite(hosts),
        "nodelist": [hostlist_text(host.name for host in hosts)] if hosts else [],
    }
    ranks: dict[str, list[int]] = {}
    for host in hosts:
        for name, value in host.properties.items():
            ranks.setdefault(f"{name}={value}" if value else name, []).append(host.rank)
    if ranks:
        out["properties"] = {name: idset_text(ranks[name]) for name in sorted(ranks)}
    return {**out, "starttime": start, "expiration": end}
