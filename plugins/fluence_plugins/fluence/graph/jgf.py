"""The JSON Graph Format document that the matcher loads, as a typed value that is built vertex by vertex.

The builder numbers vertices, forms their containment paths and adds the edges; callers say what a vertex is.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fluence_plugins.fluence.errors import GraphError

SUBSYSTEM = "containment"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a vertex is beyond its type.

    size: how many units the vertex stands for; unit: what they are ("MiB"), empty for things that are counted.
    rank: the execution rank; every `node` vertex needs one of its own, what lies in it shares it, -1 is none.
    node_properties: RFC 31 properties, which constraints match against, by presence of the key alone.
    divisible: many allocations may share the vertex, each holding some of its units.
    """

    name: str = ""
    id: int = -1
    size: int = 1
    unit: str = ""
    rank: int = -1
    node_properties: Mapping[str, str] = {}
    divisible: bool = False


class Vertex(msgspec.Struct, frozen=True):
    """A vertex of the graph, as the builder returns it. `path` identifies it; `parent` is a path or None."""

    type: str
    basename: str
    id: int
    uniq_id: int
    path: str
    parent: str | None
    options: Options

    @property
    def name(self) -> str:
        """The vertex's own name, the last part of its path."""
        return self.path.rpartition("/")[2]

    def metadata(self) -> dict[str, Any]:
        """Return the vertex's JGF metadata."""
        options = self.options
        found: dict[str, Any] = {
            "type": self.type,
            "basename": self.basename,
            "name": self.name,
            "id": self.id,
            "uniq_id": self.uniq_id,
            "rank": options.rank,
            "exclusive": False,
            "unit": options.unit,
            "size": options.size,
            "paths": {SUBSYSTEM: self.path},
        }
        if options.divisible:
            found["divisible"] = True
        if options.node_properties:
            found["properties"] = dict(options.node_properties)
        return found


class JGFBuilder:
    """A graph under construction, and its writing as JGF."""

    def __init__(self) -> None:
        self._vertices: dict[str, Vertex] = {}
        self._children: dict[str, list[str]] = {}
        self._numbers: dict[str, dict[str, int]] = {}
        self._next_uniq_id = 0
        self._root = ""

    def __len__(self) -> int:
        return len(self._vertices)

    def __iter__(self) -> Iterator[Vertex]:
        return iter(self._vertices.values())

    def __getitem__(self, path: str) -> Vertex:
        try:
            return self._vertices[path]
        except KeyError:
            raise GraphError(f"{path}: is no vertex of the graph") from None

    def __contains__(self, path: str) -> bool:
        return path in self._vertices

    def add_root(self, vertex_type: str, basename: str = "", options: Options | None = None) -> Vertex:
        """Add the graph's root. Raises GraphError if it has one."""
        return self._add(None, vertex_type, basename or vertex_type, options or Options())

    def add_child(self, parent: Vertex, vertex_type: str, basename: str = "", options: Options | None = None) -> Vertex:
        """Add a vertex below `parent`, named `<basename><number>` (numbered under its parent) unless options name it.

        Raises GraphError if the path is taken, or the size negative.
        """
        if self._vertices.get(parent.path) != parent:
            raise GraphError(f"{parent.path}: is no vertex of this graph; add it first")
        return self._add(parent.path, vertex_type, basename or vertex_type, options or Options())

    def _add(self, parent: str | None, vertex_type: str, basename: str, options: Options) -> Vertex:
        number = options.id if options.id >= 0 else self._numbers.get(parent or "", {}).get(basename, 0)
        name = options.name or f"{basename}{number}"
        if "/" in name:
            raise GraphError(f"{parent or ''}/{name}: a vertex's name may not hold a slash; use another name")
        path = f"{parent or ''}/{name}"
        if options.name or options.id >= 0:  # the path and the vertex's id carry them from here on
            options = msgspec.structs.replace(options, name="", id=-1)
        if parent is None:
            if self._root:
                raise GraphError(f"{path}: a graph has one root, and it is {self._root}; hang this vertex below one")
            self._root = path
        if path in self._vertices:
            raise GraphError(f"{path}: two vertices have this path; give one another name")
        if options.size < 0:
            raise GraphError(f"{path}: size {options.size} is negative; use 0 or more")
        vertex = self._vertices[path] = Vertex(vertex_type, basename, number, self._next_uniq_id, path, parent, options)
        self._next_uniq_id += 1
        numbers = self._numbers.setdefault(parent or "", {})
        numbers[basename] = max(numbers.get(basename, 0), number + 1)
        if parent is not None:
            self._children.setdefault(parent, []).append(path)
        return vertex

    def next_name(self, parent: Vertex, basename: str) -> str:
        """Return the name that the next vertex below `parent` gets which has this basename, and no name of its own."""
        return f"{basename}{self._numbers.get(parent.path, {}).get(basename, 0)}"

    def children(self, path: str) -> list[Vertex]:
        """Return the vertices directly below a path, in the order in which they were added."""
        return [self._vertices[child] for child in self._children.get(path, ())]

    def subtree(self, path: str) -> Iterator[Vertex]:
        """Yield the vertex of a path and everything below it, parents first."""
        yield self[path]
        for child in self._children.get(path, ()):
            yield from self.subtree(child)

    def ancestors(self, path: str) -> list[Vertex]:
        """Return the vertices above a path, the root first."""
        found: list[Vertex] = []
        parent = self[path].parent
        while parent is not None:
            found.append(self._vertices[parent])
            parent = self._vertices[parent].parent
        return found[::-1]

    def remove(self, path: str) -> list[Vertex]:
        """Remove a vertex and everything below it, and return what was removed. Raises GraphError if it is unknown."""
        gone = list(self.subtree(path))
        for vertex in gone:
            del self._vertices[vertex.path]
            self._children.pop(vertex.path, None)
            self._numbers.pop(vertex.path, None)
        if gone[0].parent is None:
            self._root = ""
        else:
            self._children[gone[0].parent].remove(path)
        return gone

    def to_mapping(self) -> dict[str, Any]:
        """Return the whole graph as a JGF mapping."""
        return jgf_mapping(self)

    def subgraph(self, path: str) -> dict[str, Any]:
        """Return the JGF mapping of one subtree, with the path from the root, as growing a graph needs it."""
        return jgf_mapping([*self.ancestors(path), *self.subtree(path)])


def jgf_mapping(vertices: Iterable[Vertex]) -> dict[str, Any]:
    """Return the JGF mapping of some vertices of one graph; edges lead to those whose parent is among them."""
    listed = list(vertices)
    ids = {vertex.path: str(vertex.uniq_id) for vertex in listed}
    nodes = [{"id": ids[vertex.path], "metadata": vertex.metadata()} for vertex in listed]
    edges = [
        {"source": ids[vertex.parent], "target": ids[vertex.path], "metadata": {"subsystem": SUBSYSTEM}}
        for vertex in listed
        if vertex.parent in ids
    ]
    return {"graph": {"nodes": nodes, "edges": edges}}
