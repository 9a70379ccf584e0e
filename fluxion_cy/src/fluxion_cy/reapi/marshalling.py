"""Writes validated graphs, jobspecs and resource sets for the library, and reads its answers.

Some input ends the process (a property that is not a string, an outer id of twenty digits), an idset is allocated as a
range, and numbers are truncated silently. So the library never reads a caller's text: it gets what the embedded
engine's readers accepted, with every default filled in.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from errno import EPROTO
from typing import Any

from fluxion_cy.base.arguments import slots_of
from fluxion_cy.base.ranges import idset_of
from fluxion_cy.engine.engine import Engine
from fluxion_cy.errors import FluxionError, InvalidGraph, InvalidJobspec, NotSupported, shown
from fluxion_cy.formats.resource_set import Hold
from fluxion_cy.formats.writers import Entry
from fluxion_cy.jobspec.constraint import Rule
from fluxion_cy.jobspec.reader import FOREVER, Jobspec, Resource, read
from fluxion_cy.reapi.limits import check_slots, every

#: The library reads times as floating-point numbers, and rounds those beyond this second.
LATEST = 2**53
_UNSIGNED = 2**32 - 1
_DIGITS = re.compile(r"\d+$")
_NEVER: dict[str, Any] = {"or": []}


def text_of(document: Any, error: type[FluxionError], what: str) -> bytes:
    """JSON in UTF-8. Raises `error` for a string with half of a surrogate pair or a null character."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    if "\\u0000" in text:
        raise error(f"{what}: a string contains a null character")
    return word(text, error, what)


def word(text: str, error: type[FluxionError], what: str) -> bytes:
    """A string for the library. Raises `error` for one that it cannot read."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise error(f"{what}: {shown(text)} is not valid text") from None
    if b"\0" in encoded:
        raise error(f"{what}: {shown(text)} contains a null character")
    return encoded


# ---- graphs ----------------------------------------------------------------------------------------------------------


def graph_text(document: Mapping[str, Any], engine: Engine, known: Mapping[str, int] | None = None) -> bytes:
    """The containment part of a JGF that `engine` has read; `known`: ids of the vertices that existed before."""
    known = known or {}
    nodes, there = [], set()
    for node in document["graph"]["nodes"]:
        outer = node["id"]
        sent = _known(engine, known[outer], outer) if outer in known else _vertex(outer, node["metadata"])
        if sent is not None:
            nodes.append(sent)
            there.add(outer)
    edges = [edge for edge in map(_edge, document["graph"]["edges"]) if edge is not None]
    for edge in edges:
        for end in edge.values():
            if end not in there:
                raise InvalidGraph(f"vertex {end!r}: paths.containment is missing; the library needs it")
    return text_of({"graph": {"nodes": nodes, "edges": edges}}, InvalidGraph, "graph")


def _known(engine: Engine, vertex: int, outer: str) -> dict[str, Any]:
    sent = engine.emit(vertex, engine.size_of(vertex), False)
    return {"id": outer, "metadata": {**sent["metadata"], "uniq_id": int(sent["id"])}}


def _vertex(outer: str, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """A vertex with its defaults; None for one in other subsystems only."""
    path = metadata["paths"].get("containment")
    if path is None:
        return None
    kind, uniq = metadata["type"], metadata.get("uniq_id")
    uniq = int(outer) if uniq is None else uniq
    number = _number(metadata, kind, uniq)
    sent = {"type": kind, "id": number, "uniq_id": uniq, "rank": metadata.get("rank", -1)}
    _check(outer, metadata, sent, path)
    base = metadata.get("basename", kind)
    sent |= {"basename": base, "name": metadata.get("name", f"{base}{number}"), "size": metadata.get("size", 1)}
    sent |= {"status": metadata.get("status", 0), "paths": {"containment": path}}
    if metadata.get("properties"):
        sent["properties"] = metadata["properties"]
    return {"id": outer, "metadata": sent}


def _number(metadata: Mapping[str, Any], kind: str, uniq: int) -> int:
    """The vertex's id; by default the digits at the end of a node's name, else its unique id."""
    if "id" in metadata:
        return int(metadata["id"])
    digits = _DIGITS.search(metadata.get("name", "")) if kind == "node" else None
    return int(digits[0]) if digits else uniq


def _check(outer: str, metadata: Mapping[str, Any], sent: Mapping[str, Any], path: str) -> None:
    """Raises for values that the embedded engine can hold and the library cannot."""
    if metadata.get("divisible"):
        raise NotSupported(f"vertex {outer!r}: the library has no divisible vertices; use one vertex for each chunk")
    size = metadata.get("size", 1)
    if size > _UNSIGNED:
        raise InvalidGraph(
            f"vertex {outer!r}: size {size} is more than {_UNSIGNED}, the largest size that the library supports"
        )
    if sent["uniq_id"] < 0 or sent["id"] < -1:
        raise InvalidGraph(f"vertex {outer!r}: the library reads a negative id or uniq_id as another number")
    if not path.startswith("/"):
        raise InvalidGraph(f"vertex {outer!r}: its path {shown(path)} does not begin with a slash")


def _edge(edge: Mapping[str, Any]) -> dict[str, Any] | None:
    """An edge of containment; None for one of another subsystem."""
    if edge.get("metadata", {}).get("subsystem", "containment") != "containment":
        return None
    return {"source": edge["source"], "target": edge["target"]}


def known_ids(document: Mapping[str, Any], engine: Engine) -> dict[str, int]:
    """The ids of a JGF's vertices that are in the graph, by path and rank."""
    found = {}
    for node in document["graph"]["nodes"]:
        metadata = node["metadata"]
        for vertex in engine.lookup(metadata["paths"].get("containment", "")):
            if engine.rank_of(vertex) == metadata.get("rank", -1):
                found[node["id"]] = vertex
    return found


# ---- jobspecs --------------------------------------------------------------------------------------------------------


def jobspec_text(value: Any, engine: Engine, candidates: Any, whole_nodes: bool, flexible: bool) -> tuple[bytes, int]:
    """A jobspec with `candidates` (true or false by rank) as a constraint, and its seconds. Raises InvalidJobspec."""
    spec = read(value)
    slots = ("slot", "xor_slot") if flexible else ("slot",)
    for resource in every(spec.resources):
        if resource.type not in slots and resource.type not in engine.type_ids:
            raise InvalidJobspec(f"resources: the graph does not know the type {resource.type[:40]!r}")
    check_slots(spec.resources, engine, flexible)
    if not whole_nodes and not any(r.type in slots or r.exclusive is True for r in every(spec.resources)):
        raise InvalidJobspec(
            "resources: the request has no exclusive resource; put one under a slot, or set exclusive: true"
        )
    sent = _jobspec(spec, _rules(spec, candidates, engine.ranks()))
    return text_of(sent, InvalidJobspec, "jobspec"), spec.duration


def _jobspec(spec: Jobspec, rule: dict[str, Any] | None) -> dict[str, Any]:
    system: dict[str, Any] = {"duration": spec.duration if spec.duration < FOREVER else 0}
    if rule is not None:
        system["constraints"] = rule
    if spec.queue is not None:
        system["queue"] = spec.queue
    resources = [_resource(resource) for resource in spec.resources]
    return {"version": 1, "resources": resources, "tasks": [], "attributes": {"system": system}}


def _resource(resource: Resource) -> dict[str, Any]:
    sent: dict[str, Any] = {"type": resource.type, "count": _count(resource)}
    if resource.exclusive is not None:
        sent["exclusive"] = resource.exclusive
    if resource.type in ("slot", "xor_slot"):
        sent["label"] = "task"
    if resource.children:
        sent["with"] = [_resource(child) for child in resource.children]
    return sent


def _count(resource: Resource) -> Any:
    """A count that the library can step through.

    It steps in 32 bits until it exceeds the maximum, and loops forever if a product wraps around. So the maximum is
    lowered until its next step does not wrap, which leaves out counts of more than 2^32 divided by the operand.
    """
    low, high = resource.low, resource.high
    if resource.oper != "+" or resource.operand > high - low:
        steps = [low]
        while low and (following := _step(steps[-1], resource)) <= high:
            steps.append(following)
        if len(steps) > 1 and _step(steps[-1], resource) > _UNSIGNED:
            steps.pop()
        high = steps[-1]
    if low == high:
        return low
    return {"min": low, "max": high, "operator": resource.oper, "operand": resource.operand}


def _step(count: int, resource: Resource) -> int:
    if resource.oper == "+":
        return count + resource.operand
    if resource.oper == "*":
        return count * resource.operand
    return _UNSIGNED + 1 if count > 1 and resource.operand > 32 else int(count**resource.operand)


def _rules(spec: Jobspec, candidates: Any, ranks: list[int]) -> dict[str, Any] | None:
    rules = [] if spec.constraint is None else [_rule(spec.constraint, ranks)]
    if candidates is not None:
        allowed = _candidates(candidates)
        rules.append(_ranks(ranks, lambda rank: rank < len(allowed) and allowed[rank]))
    if len(rules) == 2:
        return {"and": rules}
    return rules[0] if rules else None


def _candidates(value: Any) -> list[bool]:
    allowed = slots_of(value)
    if not all(type(entry) is bool for entry in allowed):
        raise NotSupported(
            "candidates: the library accepts true or false per rank, not a number of slots; request whole nodes"
        )
    return [bool(entry) for entry in allowed]


def _rule(rule: Rule, ranks: list[int]) -> dict[str, Any]:
    if rule.operation == "ranks":
        return _ranks(ranks, lambda rank: any(low <= rank <= high for low, high in rule.spans))
    if rule.operation in ("properties", "hostlist"):
        return {rule.operation: rule.words}
    return {rule.operation: [_rule(below, ranks) for below in rule.rules]}


def _ranks(ranks: list[int], meets: Callable[[int], bool]) -> dict[str, Any]:
    """The constraint to the graph's ranks that meet a condition."""
    text = idset_of(rank for rank in ranks if meets(rank))
    return {"ranks": [text]} if text else _NEVER


# ---- resource sets ---------------------------------------------------------------------------------------------------


def holding_text(holds: Iterable[Hold], engine: Engine, start: int, duration: int) -> bytes:
    """An RFC 20 envelope of vertices and all vertices above them, from `start` for `duration` seconds."""
    if start + duration > LATEST:
        raise NotSupported(
            f"R.execution: the end is after second {LATEST}, and the library rounds later times; use an earlier end"
        )
    end = start + duration if duration < FOREVER else 0
    envelope = {"version": 1, "execution": {"starttime": start, "expiration": end}}
    return text_of({**envelope, "scheduling": _tree(holds, engine)}, InvalidGraph, "R")


def ranks_text(ranks: str) -> bytes:
    """An RFC 20 envelope of ranks to free."""
    rows = [{"rank": ranks, "children": {}}]
    return text_of({"version": 1, "execution": {"R_lite": rows}}, InvalidGraph, "R")


def _tree(holds: Iterable[Hold], engine: Engine) -> dict[str, Any]:
    """Vertices and everything above them as JGF, with everything below a whole vertex if nothing below it is named."""
    taken = {vertex: exclusive for vertex, _, exclusive in holds}
    for vertex in [v for v, exclusive in taken.items() if exclusive]:
        below = engine.subtree(vertex)[1:]
        if not any(v in taken for v in below):
            taken.update(dict.fromkeys(below, True))
    engine.arrange([(vertex, engine.size_of(vertex), exclusive) for vertex, exclusive in taken.items()])
    return engine.resource_set()


# ---- answers ---------------------------------------------------------------------------------------------------------


def parsed(text: str) -> Any:
    """The document. Raises FluxionError (EPROTO) for invalid JSON."""
    try:
        return json.loads(text)
    except ValueError:
        raise FluxionError(f"the library's answer is not JSON: {text[:40]!r}", EPROTO) from None


def completed(document: Any, engine: Engine) -> Any:
    """A JGF with the vertices' units and paths in other subsystems, which the library does not have."""
    nodes = document["graph"]["nodes"] if held_in(document, engine) else []
    for node in nodes:
        for vertex, units, exclusive in _entries([node], engine):
            node["metadata"] = {**node["metadata"], **engine.emit(vertex, units, exclusive)["metadata"]}
    return document


def held_in(document: Any, engine: Engine) -> list[Entry]:
    """(vertex, units, exclusive) of each vertex of a JGF; empty for None. Raises FluxionError (EPROTO)."""
    try:
        return _entries(document["graph"]["nodes"], engine) if document is not None else []
    except (AttributeError, KeyError, TypeError):
        raise FluxionError("the library's answer is not JGF", EPROTO) from None


def _entries(nodes: Any, engine: Engine) -> list[Entry]:
    return [
        (vertex, metadata.get("size", 1), metadata.get("exclusive", False))
        for metadata in (node["metadata"] for node in nodes)
        for vertex in engine.lookup(metadata["paths"]["containment"])
        if engine.rank_of(vertex) == metadata.get("rank", -1)
    ]
