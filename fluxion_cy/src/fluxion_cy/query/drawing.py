"""The graph in the formats of `--graph-format`: dot for Graphviz, GraphML, or JGF."""

import json
from typing import Any
from xml.sax.saxutils import escape, quoteattr

GRAPH_FORMATS = ("dot", "graphml", "jgf")
_FIELDS = ("type", "basename", "name", "id", "rank", "size")


def drawn(document: dict[str, Any], form: str) -> str:
    """A JGF in one of `GRAPH_FORMATS`."""
    if form == "jgf":
        return json.dumps(document) + "\n"
    graph = document["graph"]
    edges = [(edge["source"], edge["target"], _subsystem(edge)) for edge in graph.get("edges", [])]
    return (_dot if form == "dot" else _graphml)(graph["nodes"], edges)


def _subsystem(edge: dict[str, Any]) -> str:
    metadata = edge.get("metadata")
    return str(metadata.get("subsystem", "containment")) if isinstance(metadata, dict) else "containment"


def _name(node: dict[str, Any]) -> str:
    metadata = node["metadata"]
    path = next(iter(metadata["paths"].values()), "")
    return str(metadata.get("name") or str(path).rpartition("/")[2] or node["id"])


def _dot(nodes: list[dict[str, Any]], edges: list[tuple[str, str, str]]) -> str:
    lines = [f"{json.dumps(str(node['id']))} [label={json.dumps(_name(node))}];" for node in nodes]
    lines += [f"{json.dumps(str(a))} -> {json.dumps(str(b))} [label={json.dumps(label)}];" for a, b, label in edges]
    return "\n".join(["digraph G {", *lines, "}", ""])


def _graphml(nodes: list[dict[str, Any]], edges: list[tuple[str, str, str]]) -> str:
    keys = [f'<key id="{name}" for="node" attr.name="{name}" attr.type="string"/>' for name in (*_FIELDS, "path")]
    keys.append('<key id="subsystem" for="edge" attr.name="subsystem" attr.type="string"/>')
    lines = [*map(_graphml_node, nodes)]
    for source, target, label in edges:
        data = f'<data key="subsystem">{escape(label)}</data>'
        lines.append(f"<edge source={quoteattr(str(source))} target={quoteattr(str(target))}>{data}</edge>")
    head = ['<?xml version="1.0" encoding="UTF-8"?>', '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']
    return "\n".join([*head, *keys, '<graph id="G" edgedefault="directed">', *lines, "</graph>", "</graphml>", ""])


def _graphml_node(node: dict[str, Any]) -> str:
    metadata = {**node["metadata"], "name": _name(node)}
    given = {name: metadata[name] for name in _FIELDS if name in metadata}
    given["path"] = next(iter(metadata["paths"].values()), "")
    data = "".join(f'<data key="{name}">{escape(str(value))}</data>' for name, value in given.items())
    return f"<node id={quoteattr(str(node['id']))}>{data}</node>"
