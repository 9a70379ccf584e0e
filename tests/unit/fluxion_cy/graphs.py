"""Small graphs and jobspecs for tests of the matcher."""

from typing import Any


class Graph:
    """Builds a JGF vertex by vertex."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.edges: list[dict[str, Any]] = []
        self.paths: list[str] = []

    def add(self, kind: str, number: int, parent: int | None = None, **metadata: Any) -> int:
        vertex = len(self.nodes)
        name = metadata.get("name", f"{kind}{number}")
        path = ("" if parent is None else self.paths[parent]) + f"/{name}"
        self.paths.append(path)
        fields = {"type": kind, "id": number, **metadata, "paths": {"containment": path}}
        self.nodes.append({"id": str(vertex), "metadata": fields})
        if parent is not None:
            self.edges.append({"source": str(parent), "target": str(vertex)})
        return vertex

    def jgf(self) -> dict[str, Any]:
        return {"graph": {"nodes": self.nodes, "edges": self.edges}}


def machine(
    nodes: int = 3, cores: int = 4, gpus: int = 1, properties: dict[int, dict[str, str]] | None = None
) -> dict[str, Any]:
    graph = Graph()
    root = graph.add("cluster", 0)
    for n in range(nodes):
        more = {"properties": properties[n]} if properties and n in properties else {}
        node = graph.add("node", n, root, rank=n, **more)
        for kind, count in (("core", cores), ("gpu", gpus)):
            for i in range(count):
                graph.add(kind, i, node, rank=n)
    return graph.jgf()


def sockets() -> dict[str, Any]:
    """Two nodes with two sockets of four cores each and a gpu directly below the node."""
    graph = Graph()
    root = graph.add("cluster", 0)
    for n in range(2):
        node = graph.add("node", n, root, rank=n)
        graph.add("gpu", 0, node, rank=n)
        for s in range(2):
            socket = graph.add("socket", s, node, rank=n)
            for c in range(4):
                graph.add("core", 4 * s + c, socket, rank=n)
    return graph.jgf()


def pools() -> dict[str, Any]:
    """Two nodes with four cores and a divisible memory of 100 units each."""
    graph = Graph()
    root = graph.add("cluster", 0)
    for n in range(2):
        node = graph.add("node", n, root, rank=n)
        for c in range(4):
            graph.add("core", c, node, rank=n)
        graph.add("memory", 0, node, rank=n, size=100, divisible=True)
    return graph.jgf()


def want(kind: str, count: Any, *inside: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": kind, "count": count, **({"with": list(inside)} if inside else {}), **more}


def slot(count: Any, *inside: dict[str, Any], label: str = "task") -> dict[str, Any]:
    return want("slot", count, *inside, label=label)


def spec(*resources: dict[str, Any], duration: float = 3600, constraints: Any = None) -> dict[str, Any]:
    system: dict[str, Any] = {"duration": duration}
    if constraints is not None:
        system["constraints"] = constraints
    task = {"command": ["app"], "slot": "task", "count": {"per_slot": 1}}
    return {"version": 1, "resources": list(resources), "tasks": [task], "attributes": {"system": system}}


def taken(document: dict[str, Any] | None) -> dict[str, int]:
    """Exclusive paths of an R and their units."""
    nodes = document["graph"]["nodes"] if document else []
    fields = [node["metadata"] for node in nodes]
    return {f["paths"]["containment"]: f.get("size", 1) for f in fields if f.get("exclusive")}
