"""Reads a graph from R version 1 (RFC 20): a cluster, a node for each rank, and below it the children in R_lite."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any

from fluxion_cy.base.ranges import MAX_HOSTS, hostlist, idset
from fluxion_cy.base.text import read_text
from fluxion_cy.errors import InvalidGraph, shown
from fluxion_cy.formats.jgf import MAX_VERTICES, Builder

Spans = list[tuple[int, int]]
"""Ranges (low, high) in ascending order; no two adjoin."""

_MAX_KINDS = 100
_TAIL = re.compile(r"[0-9]+$")


def read_rv1exec(value: Any) -> dict[str, Any]:
    """The JGF document of an R (a mapping, or JSON or YAML text). Raises InvalidGraph (EPROTO), naming the field."""
    execution = _execution(value)
    rows = _rows(execution.get("R_lite"))
    ranks = sorted(rows)
    hosts = _hosts(execution.get("nodelist"))
    if len(hosts) < len(ranks):
        raise InvalidGraph(f"R.execution.nodelist: names {len(hosts)} hosts for {len(ranks)} ranks")
    marks = _properties(execution.get("properties"), ranks)
    names = dict(zip(ranks, hosts, strict=False))
    out = Builder()
    root = out.vertex(_fields("cluster", "cluster", "cluster0", 0, -1, "/cluster0"))
    for rank, children in rows.items():
        _node(out, root, rank, names[rank], children, marks.get(rank, []))
    return out.document()


def _execution(value: Any) -> Mapping[str, Any]:
    if isinstance(value, (str, bytes)):
        try:
            value = read_text(value)
        except ValueError as error:
            raise InvalidGraph(f"R: {error}") from None
    if not isinstance(value, Mapping):
        raise InvalidGraph(f"R: must be a mapping, or JSON or YAML text, not {type(value).__name__}")
    if type(value.get("version")) is not int or value["version"] != 1:
        raise InvalidGraph(f"R.version: expected 1, got {shown(value.get('version'))}")
    execution = value.get("execution")
    if not isinstance(execution, Mapping):
        raise InvalidGraph("R.execution: must be a mapping")
    return execution


def spans_of(value: Any, where: str) -> Spans:
    """The joined ranges of an idset. Raises InvalidGraph."""
    try:
        spans = sorted(idset(value)) if isinstance(value, str) else None
    except ValueError:
        spans = None
    if spans is None:
        raise InvalidGraph(f"{where}: expected an idset such as '0-3,7', got {shown(value)}")
    joined: Spans = []
    for low, high in spans:
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return joined


def _count(spans: Spans) -> int:
    return sum(high - low + 1 for low, high in spans)


def _rows(value: Any) -> dict[int, dict[str, Spans]]:
    """By rank, in the order of R_lite, the children of its node. Their number is checked before they are generated."""
    if not isinstance(value, (list, tuple)) or not value:
        raise InvalidGraph("R.execution.R_lite: must be a list with at least one entry")
    found: dict[int, dict[str, Spans]] = {}
    total = 1
    for i, row in enumerate(value):
        where = f"R.execution.R_lite[{i}]"
        children = row.get("children") if isinstance(row, Mapping) else None
        if not isinstance(children, Mapping):
            raise InvalidGraph(f"{where}: needs rank and children")
        if len(children) > _MAX_KINDS:
            raise InvalidGraph(f"{where}.children: has more than {_MAX_KINDS} types")
        ranks = spans_of(row.get("rank"), f"{where}.rank")
        below = {_kind(kind, where): spans_of(ids, f"{where}.children.{kind[:40]}") for kind, ids in children.items()}
        total += _count(ranks) * (1 + sum(map(_count, below.values())))
        if total > MAX_VERTICES:
            raise InvalidGraph(f"{where}: the graph would have more than {MAX_VERTICES} vertices; use fewer")
        for rank in (number for low, high in ranks for number in range(low, high + 1)):
            if rank in found:
                raise InvalidGraph(f"{where}.rank: rank {rank} is listed twice; put its children into one entry")
            found[rank] = below
    return found


def _kind(kind: Any, where: str) -> str:
    if not isinstance(kind, str) or not kind or "/" in kind:
        raise InvalidGraph(f"{where}.children: expected the name of a type, got {shown(kind)}")
    return kind


def _hosts(value: Any) -> list[str]:
    if not isinstance(value, (list, tuple)):
        raise InvalidGraph("R.execution.nodelist: must be a list of hostlists")
    found: list[str] = []
    for words in value:
        try:
            found.extend(hostlist(words) if isinstance(words, str) else _none())
        except ValueError:
            raise InvalidGraph(
                f"R.execution.nodelist: expected a hostlist of at most {MAX_HOSTS:,} hosts, got {shown(words)}"
            ) from None
        if len(found) > MAX_VERTICES:
            raise InvalidGraph(f"R.execution.nodelist: names more than {MAX_VERTICES} hosts")
    bad = next((host for host in found if "/" in host), None)
    if bad is not None:
        raise InvalidGraph(f"R.execution.nodelist: the host {shown(bad)} has a slash in its name")
    return found


def _none() -> list[str]:
    raise ValueError


def _properties(value: Any, ranks: list[int]) -> dict[int, list[str]]:
    """The names of properties by rank; `ranks` are in ascending order."""
    found: dict[int, list[str]] = {}
    if value is None:
        return found
    if not isinstance(value, Mapping):
        raise InvalidGraph("R.execution.properties: must be a mapping of names to idsets")
    room = MAX_VERTICES
    for name, ids in value.items():
        if not isinstance(name, str):
            raise InvalidGraph(f"R.execution.properties: expected a string as a name, got {shown(name)}")
        for low, high in spans_of(ids, f"R.execution.properties.{name[:40]}"):
            marked = ranks[bisect_left(ranks, low) : bisect_right(ranks, high)]
            room -= len(marked)
            if room < 0:
                raise InvalidGraph(
                    f"R.execution.properties: the ranks have more than {MAX_VERTICES} properties in total"
                )
            for rank in marked:
                found.setdefault(rank, []).append(name)
    return found


def _fields(kind: str, basename: str, name: str, number: int, rank: int, path: str) -> dict[str, Any]:
    return {
        "type": kind,
        "basename": basename,
        "name": name,
        "id": number,
        "rank": rank,
        "paths": {"containment": path},
    }


def _node(out: Builder, root: int, rank: int, host: str, children: Mapping[str, Spans], properties: list[str]) -> None:
    path = f"/cluster0/{host}"
    basename, number = _split(host)
    marks = {"properties": dict.fromkeys(properties, "")} if properties else {}
    node = out.vertex({**_fields("node", basename, host, number, rank, path), **marks})
    out.edge(root, node)
    for kind, spans in children.items():
        for i in (number for low, high in spans for number in range(low, high + 1)):
            out.edge(node, out.vertex(_fields(kind, kind, f"{kind}{i}", i, rank, f"{path}/{kind}{i}")))


def _split(host: str) -> tuple[str, int]:
    """The basename and id of a host: `node` and 12 of `node012`; the id is -1 without a number."""
    found = _TAIL.search(host)
    if found is None:
        return host, -1
    if len(found.group()) > 18:
        raise InvalidGraph(f"R.execution.nodelist: the number in the host name {shown(host)} is too large")
    return host[: found.start()] or host, int(found.group())
