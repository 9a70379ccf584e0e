"""The JSON Graph Format document that the matcher loads, as a typed value that is built vertex by vertex.

Callers describe each vertex; the builder numbers vertices, forms their containment paths and adds the edges.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from fluence_plugins.fluence.errors import GraphError
from fluence_plugins.resources import documents

SUBSYSTEM = "containment"
_WRITTEN = {
    *("type", "basename", "name", "id", "uniq_id", "rank", "exclusive", "unit", "size", "paths", "divisible"),
    "properties",
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a vertex beyond its type.

    size: how many units the vertex stands for; unit: their name ("MiB"), empty for things that are counted. rank: the
    execution rank. Every `node` vertex needs its own, and shares it with everything that it contains; -1 is none.
    node_properties: RFC 31 properties, by key; constraints only test whether the key exists. properties: further
    metadata, which the matcher ignores; a key must not be the name of a field. divisible: many allocations may share
    the vertex, and each holds some of its units.
    """

    name: str = ""
    id: int = -1
    size: int = 1
    unit: str = ""
    exclusive: bool = False
    rank: int = -1
    node_properties: Mapping[str, str] = {}
    properties: Mapping[str, Any] = {}
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
            "exclusive": options.exclusive,
            "unit": options.unit,
            "size": options.size,
            "paths": {SUBSYSTEM: self.path},
        }
        if options.divisible:
            found["divisible"] = True
        if options.node_properties:
            found["properties"] = dict(options.node_properties)
        return found | dict(options.properties)


class JGFBuilder:
    """A graph that is built vertex by vertex, or read from JGF, and written as JGF. Equal graphs compare equal."""

    def __init__(self) -> None:
        self._vertices: dict[str, Vertex] = {}
        self._children: dict[str, list[str]] = {}
        self._numbers: dict[str, dict[str, int]] = {}
        self._next_uniq_id = 0
        self._root = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JGFBuilder) and self._vertices == other._vertices

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __len__(self) -> int:
        return len(self._vertices)

    def __iter__(self) -> Iterator[Vertex]:
        return iter(self._vertices.values())

    def __getitem__(self, path: str) -> Vertex:
        try:
            return self._vertices[path]
        except KeyError:
            raise GraphError(f"{path}: not in the graph") from None

    def __contains__(self, path: str) -> bool:
        return path in self._vertices

    def add_root(self, vertex_type: str, basename: str = "", options: Options | None = None) -> Vertex:
        """Add the graph's root. Raises GraphError if there is one."""
        return self._add(None, vertex_type, basename or vertex_type, options or Options())

    def add_child(self, parent: Vertex, vertex_type: str, basename: str = "", options: Options | None = None) -> Vertex:
        """Add a vertex below `parent`, named `<basename><number>` (numbered under its parent) unless options name it.

        Raises GraphError if the path is taken, the size is negative, or a property has the name of a field.
        """
        if self._vertices.get(parent.path) != parent:
            raise GraphError(f"{parent.path}: not in this graph; add it first")
        return self._add(parent.path, vertex_type, basename or vertex_type, options or Options())

    def _add(self, parent: str | None, vertex_type: str, basename: str, options: Options) -> Vertex:
        number = options.id if options.id >= 0 else self._numbers.get(parent or "", {}).get(basename, 0)
        name = options.name or f"{basename}{number}"
        if "/" in name:
            raise GraphError(f"{parent or ''}/{name}: the name of a vertex must not contain a slash; use another name")
        path = f"{parent or ''}/{name}"
        if options.name or options.id >= 0:  # the vertex's path and id have them
            options = msgspec.structs.replace(options, name="", id=-1)
        vertex = Vertex(vertex_type, basename, number, self._next_uniq_id, path, parent, options)
        self._insert(vertex)
        return vertex

    def _insert(self, vertex: Vertex) -> None:
        options, path = vertex.options, vertex.path
        if vertex.parent is None:
            if self._root:
                raise GraphError(f"{path}: the graph already has the root {self._root}; add this vertex below it")
            self._root = path
        if path in self._vertices:
            raise GraphError(f"{path}: two vertices have this path; rename one of them")
        if options.size < 0:
            raise GraphError(f"{path}: size {options.size} is negative; use 0 or more")
        clobbered = [key for key in options.properties if key in _WRITTEN]
        if clobbered:
            raise GraphError(f"{path}: property {clobbered[0]!r} has the name of a field; use another name")
        self._vertices[path] = vertex
        self._next_uniq_id = max(self._next_uniq_id, vertex.uniq_id + 1)
        numbers = self._numbers.setdefault(vertex.parent or "", {})
        numbers[vertex.basename] = max(numbers.get(vertex.basename, 0), vertex.id + 1)
        if vertex.parent is not None:
            self._children.setdefault(vertex.parent, []).append(path)

    def next_name(self, parent: Vertex, basename: str) -> str:
        """Return the name of the next unnamed vertex with this basename below `parent`."""
        return f"{basename}{self._numbers.get(parent.path, {}).get(basename, 0)}"

    def children(self, path: str) -> list[Vertex]:
        """Return the vertices directly below a path, in the order in which they were added."""
        return [self._vertices[child] for child in self._children.get(path, ())]

    def subtree(self, path: str) -> Iterator[Vertex]:
        """Yield the vertex at a path and all vertices below it, parents first."""
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
        """Remove and return a vertex and all vertices below it. Raises GraphError for an unknown path."""
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
        """Return the JGF mapping of one subtree with the path from the root, which adds it to a loaded graph."""
        return jgf_mapping([*self.ancestors(path), *self.subtree(path)])

    def to_json(self) -> str:
        """Return the graph as JSON text."""
        return json.dumps(self.to_mapping())

    def to_yaml(self) -> str:
        """Return the graph as YAML text."""
        return documents.dump_yaml(self.to_mapping())

    @classmethod
    def from_yaml(cls, text: str, source: str = "graph") -> "JGFBuilder":
        """Read JGF from YAML (or JSON) text. Raises DocumentError or GraphError, naming `source` or the vertex."""
        return cls.from_mapping(documents.load(text, source, limited=False), source)

    from_json = from_yaml

    @classmethod
    def from_mapping(cls, data: Any, source: str = "graph") -> "JGFBuilder":
        """Read a JGF mapping with one containment tree, its vertices in any order.

        Raises GraphError for a missing field, an edge to an unknown vertex, a second root or another subsystem.
        """
        try:
            document = msgspec.convert(data, _Document)
        except msgspec.ValidationError as error:
            raise GraphError(f"{source}: {error}") from None
        builder = cls()
        fields = {node.id: _read(node.metadata, _Fields, node, source) for node in document.graph.nodes}
        paths = {key: found.paths.get(SUBSYSTEM, "") for key, found in fields.items()}
        if len(paths) < len(document.graph.nodes):
            raise GraphError(f"{source}: two vertices have the same id; give each vertex its own id")
        parents: dict[str, str] = {}
        for edge in document.graph.edges:
            if edge.source not in paths or edge.target not in paths:
                unknown = edge.target if edge.source in paths else edge.source
                raise GraphError(f"{source}: edge {edge.source} to {edge.target}: unknown vertex {unknown}; add it")
            if edge.metadata.get("subsystem", SUBSYSTEM) != SUBSYSTEM:
                raise GraphError(f"{source}: edge {edge.source} to {edge.target}: not in {SUBSYSTEM}; remove it")
            parents[edge.target] = edge.source
        for node in document.graph.nodes:
            parent = parents.get(node.id)
            builder._insert(_vertex(node, fields[node.id], None if parent is None else paths[parent], source))
        if len({vertex.uniq_id for vertex in builder}) < len(builder):
            raise GraphError(f"{source}: two vertices have the same uniq_id; give each vertex its own uniq_id")
        return builder


class _Node(msgspec.Struct):
    id: str
    metadata: dict[str, Any]


class _Edge(msgspec.Struct):
    source: str
    target: str
    metadata: dict[str, Any] = {}


class _Graph(msgspec.Struct):
    nodes: list[_Node]
    edges: list[_Edge] = []


class _Fields(msgspec.Struct):
    type: str
    paths: dict[str, str]
    basename: str = ""
    name: str = ""
    id: int | None = None
    uniq_id: int | None = None


class _Document(msgspec.Struct):
    graph: _Graph


_Kind = TypeVar("_Kind")


def _read(data: Mapping[str, Any], kind: type[_Kind], node: _Node, source: str) -> _Kind:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise GraphError(f"{source}: vertex {node.id}: {error}") from None


def _vertex(node: _Node, fields: _Fields, parent: str | None, source: str) -> Vertex:
    data = node.metadata
    number = int(node.id) if node.id.isdecimal() else 0
    extra = {key: value for key, value in data.items() if key not in _WRITTEN}
    chosen = {name: data[key] for name, key in _OPTION_FIELDS.items() if key in data}
    options = _read(chosen | {"properties": extra}, Options, node, source)
    path = fields.paths.get(SUBSYSTEM, "")
    name = path.rpartition("/")[2]
    if not name or path != f"{parent or ''}/{name}" or (fields.name or name) != name:
        raise GraphError(
            f"{source}: vertex {node.id} has path {path!r}, name {fields.name or name!r} and parent path "
            f"{parent!r}; its path must be the parent's path, a slash and its name"
        )
    uniq_id = number if fields.uniq_id is None else fields.uniq_id
    index = uniq_id if fields.id is None else fields.id
    return Vertex(fields.type, fields.basename or fields.type, index, uniq_id, path, parent, options)


def jgf_mapping(vertices: Iterable[Vertex]) -> dict[str, Any]:
    """Return the JGF mapping of some vertices of one graph, with the edges between them."""
    listed = list(vertices)
    ids = {vertex.path: str(vertex.uniq_id) for vertex in listed}
    nodes = [{"id": ids[vertex.path], "metadata": vertex.metadata()} for vertex in listed]
    edges = [
        {"source": ids[vertex.parent], "target": ids[vertex.path], "metadata": {"subsystem": SUBSYSTEM}}
        for vertex in listed
        if vertex.parent in ids
    ]
    return {"graph": {"nodes": nodes, "edges": edges}}


_OPTION_FIELDS = {
    "size": "size", "unit": "unit", "exclusive": "exclusive", "rank": "rank", "divisible": "divisible",
    "node_properties": "properties",
}  # fmt: skip
