"""RFC 40 and what it needs of RFC 20, as a list of complaints about an R."""

from typing import Any

VERTEX = {
    "type": str,
    "uuid": str,
    "basename": str,
    "name": str,
    "id": int,
    "properties": dict,
    "size": int,
    "unit": str,
}


def complaints(document: Any) -> list[str]:
    """Empty for a document that keeps to the RFC."""
    if document.get("version") != 1:
        return ["version is not 1"]
    found = []
    execution = document.get("execution", {})
    for key, kind in (("R_lite", list), ("nodelist", list), ("starttime", int), ("expiration", int)):
        if not isinstance(execution.get(key), kind):
            found.append(f"execution.{key}")
    if set(document.get("scheduling", {})) != {"graph"}:
        return [*found, "scheduling holds more or less than graph"]
    graph = document["scheduling"]["graph"]
    if set(graph) != {"nodes", "edges"}:
        return [*found, "graph holds more or less than nodes and edges"]
    ids = [node.get("id") for node in graph["nodes"]]
    if len(set(ids)) != len(ids):
        found.append("ids repeat")
    found += [f"vertex {node.get('id')}: {text}" for node in graph["nodes"] for text in _vertex(node)]
    found += [f"edge {n}: {text}" for n, edge in enumerate(graph["edges"]) for text in _edge(edge, set(ids))]
    uuids = [node["metadata"].get("uuid") for node in graph["nodes"]]
    return found + (["uuids repeat"] if len(set(uuids)) != len(uuids) else [])


def _vertex(node: Any) -> list[str]:
    if set(node) != {"id", "metadata"} or not isinstance(node["id"], str):
        return ["needs id, a string, and metadata"]
    metadata = node["metadata"]
    return [key for key, kind in VERTEX.items() if type(metadata.get(key)) is not kind]


def _edge(edge: Any, ids: set[Any]) -> list[str]:
    if set(edge) != {"source", "target", "metadata"}:
        return ["needs source, target and metadata"]
    found = [f"{end} is not a vertex" for end in ("source", "target") if edge[end] not in ids]
    if set(edge["metadata"]) != {"subsystem", "relationship"}:
        found.append("metadata needs subsystem and relationship and nothing else")
    return found + [key for key, value in edge["metadata"].items() if not isinstance(value, str) or not value]
