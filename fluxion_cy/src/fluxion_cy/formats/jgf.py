"""JGF documents: read from text, or built vertex by vertex by the other loaders."""

from collections.abc import Mapping
from typing import Any

from fluxion_cy.base.text import read_text
from fluxion_cy.errors import InvalidGraph

#: The most vertices that a loader generates: 100,000 nodes of 40 vertices are well below.
MAX_VERTICES = 5_000_000
MAX_EDGES = 10_000_000


def read_graph(value: Any) -> dict[str, Any]:
    """The JGF document. Raises InvalidGraph (EPROTO) where the text is neither JSON nor YAML."""
    advice = ""
    if isinstance(value, (str, bytes)):
        try:
            value, advice = read_text(value), "; give the text of a file, not its name"
        except ValueError as error:
            raise InvalidGraph(f"graph: {error}") from None
    if not isinstance(value, Mapping):
        raise InvalidGraph(f"graph: a JGF document must be a mapping, not {type(value).__name__}{advice}")
    return value if isinstance(value, dict) else dict(value)


class Builder:
    """Builds a document. Vertices are numbered from 0 as they are added; the number is also the `uniq_id`."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.edges: list[dict[str, Any]] = []

    def vertex(self, metadata: dict[str, Any]) -> int:
        """Adds a vertex with these metadata (without `uniq_id`) and returns its number."""
        number = len(self.nodes)
        self.nodes.append({"id": str(number), "metadata": {**metadata, "uniq_id": number}})
        return number

    def metadata(self, vertex: int) -> dict[str, Any]:
        """The metadata of a vertex, to be changed in place."""
        found: dict[str, Any] = self.nodes[vertex]["metadata"]
        return found

    def edge(self, source: int, target: int, metadata: dict[str, Any] | None = None) -> None:
        """Adds an edge, of containment unless it has metadata."""
        more = {} if metadata is None else {"metadata": metadata}
        self.edges.append({"source": str(source), "target": str(target), **more})

    def check_limits(self, vertices: int, what: str, edges: int = 0) -> None:
        """Raises InvalidGraph where the graph would have too many vertices or edges with these."""
        if len(self.nodes) + vertices > MAX_VERTICES:
            raise InvalidGraph(f"{what}: the graph would have more than {MAX_VERTICES} vertices; use fewer")
        if len(self.edges) + edges > MAX_EDGES:
            raise InvalidGraph(f"{what}: the graph would have more than {MAX_EDGES} edges; use fewer")

    def document(self) -> dict[str, Any]:
        """The JGF document."""
        return {"graph": {"nodes": self.nodes, "edges": self.edges}}
