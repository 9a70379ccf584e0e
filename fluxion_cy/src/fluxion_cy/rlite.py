"""R_lite, nodelist and properties of RFC 20: cores and gpus by the node that they lie below."""

import json
from collections.abc import Iterable
from errno import EINVAL
from typing import Any

from fluxion_cy._select import Select
from fluxion_cy.encoding import hostlist_text, idset_text
from fluxion_cy.errors import InvalidGraph

Entry = tuple[int, int, bool]
"""(vertex, units, exclusive), children before parents."""

Host = tuple[int, int, str, str]
"""A node of which cores or gpus are taken: the vertex, its rank, the idsets of cores and of gpus ("" for none)."""


def hosts_of(engine: Select) -> list[Host]:
    """The hosts that the last result uses, by rank; InvalidGraph names a vertex without a rank or an id."""
    hosts, wrong = engine.by_host()
    if wrong < 0:
        return hosts
    if engine.id_of(wrong) < 0 and engine.type_of(wrong) in ("core", "gpu"):
        problem = f"no idset holds id {engine.id_of(wrong)}"
    else:
        problem = "has no rank for R_lite"
    raise InvalidGraph(f"vertex {engine.path(wrong)}: {problem}; use match_format jgf", EINVAL)


def r_lite(hosts: Iterable[Host]) -> list[dict[str, Any]]:
    """One entry per set of children that hosts share, as RFC 20 has it: in the order of the children as JSON."""
    by_children: dict[tuple[str, str], list[int]] = {}
    for _, rank, cores, gpus in hosts:
        by_children.setdefault((cores, gpus), []).append(rank)
    found = [
        ({kind: ids for kind, ids in (("core", cores), ("gpu", gpus)) if ids}, ranks)
        for (cores, gpus), ranks in by_children.items()
    ]
    if len(found) > 1:
        found.sort(key=lambda entry: json.dumps(entry[0]))
    return [{"rank": idset_text(ranks), "children": children} for children, ranks in found]


def execution(engine: Select, start: int, end: int) -> dict[str, Any]:
    """The key `execution` of R version 1, for the engine's last result."""
    hosts = hosts_of(engine)
    out: dict[str, Any] = {
        "R_lite": r_lite(hosts),
        "nodelist": [hostlist_text(engine.name_of(host[0]) for host in hosts)] if hosts else [],
    }
    ranks: dict[str, list[int]] = {}
    for vertex, rank, _, _ in hosts:
        for name, value in engine.props_of(vertex).items():
            ranks.setdefault(f"{name}={value}" if value else name, []).append(rank)
    if ranks:
        out["properties"] = {name: idset_text(ranks[name]) for name in sorted(ranks)}
    out["starttime"], out["expiration"] = start, end
    return out
