"""Generates graphs from Fluxion's recipes (GRUG): short GraphML texts with the number of vertices below each vertex.

An edge of a recipe multiplies its target below every vertex of its source, or associates existing vertices with those
of another subsystem. Ids, names, ranks and paths are Fluxion's.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fluxion_cy.base.arguments import MAX_SIZE
from fluxion_cy.errors import InvalidGraph
from fluxion_cy.formats.graphml import Item, read_graphml
from fluxion_cy.formats.jgf import Builder

_METHODS = ("MULTIPLY", "ASSOCIATE_IN", "ASSOCIATE_BY_PATH_IN")
_VERTEX = {"root": "0", "type": "", "basename": "", "size": "1", "unit": "", "subsystem": "containment"}
_EDGE = {
    "e_subsystem": "containment", "relation": "contains", "rrelation": "in", "gen_method": "MULTIPLY",
    "id_scope": "0", "id_start": "0", "id_stride": "1", "multi_scale": "1",
    "as_tgt_subsystem": "containment", "as_tgt_uplvl": "1", "as_src_uplvl": "1",
}  # fmt: skip
_INT = 2**31 - 1


@dataclass(slots=True)
class Pool:
    """A node of the recipe, with its outgoing edges and the vertices that it generated."""

    name: str
    root: bool
    type: str
    basename: str
    size: int
    unit: str
    subsystem: str
    edges: list["Relation"] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    seen: bool = False


@dataclass(slots=True)
class Relation:
    """An edge of the recipe."""

    name: str
    target: Pool
    method: str
    subsystem: str
    relation: str
    scope: int
    start: int
    stride: int
    scale: int
    by_subsystem: str
    target_up: int
    source_up: int


def read_grug(text: object) -> dict[str, Any]:
    """The JGF document of a recipe. Raises InvalidGraph (EPROTO), which names the node or edge and its key."""
    nodes, edges = read_graphml(text)
    pools: dict[str, Pool] = {}
    for item in nodes:
        if item.name in pools:
            raise InvalidGraph(f"grug: node {item.name[:40]!r}: the id is used twice")
        pools[item.name] = _pool(item)
    for item in edges:
        for end in (item.source, item.target):
            if end not in pools:
                raise InvalidGraph(f"grug: edge {item.name[:40]!r}: the recipe has no node {end[:40]!r}")
        pools[item.source].edges.append(_relation(item, pools[item.target]))
    return _Generator().generate(list(pools.values()))


def _known(item: Item, defaults: dict[str, str], what: str) -> dict[str, str]:
    for key in item.data:
        if key not in defaults:
            raise InvalidGraph(
                f"grug: {what} {item.name[:40]!r}: {key[:40]!r} is unknown; use one of {', '.join(defaults)}"
            )
    return {**defaults, **item.data}


def _number(data: dict[str, str], key: str, where: str, low: int, high: int = _INT) -> int:
    text = data[key]
    try:
        value = int(text) if len(text) <= 20 and text.isascii() and "_" not in text else low - 1
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise InvalidGraph(f"grug: {where}: {key}: expected a number from {low} to {high}, got {text[:40]!r}")
    return value


def _pool(item: Item) -> Pool:
    data = _known(item, _VERTEX, "node")
    where = f"node {item.name[:40]!r}"
    if not data["type"]:
        raise InvalidGraph(f"grug: {where}: has no type")
    root = _number(data, "root", where, -_INT) != 0
    size = _number(data, "size", where, 0, MAX_SIZE)
    return Pool(item.name, root, data["type"], data["basename"] or data["type"], size, data["unit"], data["subsystem"])


def _relation(item: Item, target: Pool) -> Relation:
    data = _known(item, _EDGE, "edge")
    where = f"edge {item.name[:40]!r}"
    if data["gen_method"] not in _METHODS:
        raise InvalidGraph(
            f"grug: {where}: gen_method: expected {', '.join(_METHODS)}, got {data['gen_method'][:40]!r}"
        )
    return Relation(
        item.name,
        target,
        data["gen_method"],
        data["e_subsystem"],
        data["relation"],
        _number(data, "id_scope", where, -_INT),
        _number(data, "id_start", where, -_INT),
        _number(data, "id_stride", where, -_INT),
        _number(data, "multi_scale", where, 0),
        data["as_tgt_subsystem"],
        _number(data, "as_tgt_uplvl", where, -_INT),
        _number(data, "as_src_uplvl", where, -_INT),
    )


class _Generator:
    """Walks a recipe depth first and generates its vertices."""

    def __init__(self) -> None:
        self._out = Builder()
        self._by_type: dict[str, list[int]] = {}
        self._roots: dict[str, int] = {}
        self._scales: deque[int] = deque()
        self._nodes = 0

    def generate(self, pools: list[Pool]) -> dict[str, Any]:
        for pool in pools:
            if pool.root and not pool.seen:
                self._walk(pool)
        missed = next((pool for pool in pools if not pool.seen), None)
        if missed is not None:
            raise InvalidGraph(f"grug: node {missed.name[:40]!r}: no edge leads to it from a node with root 1")
        return self._out.document()

    def _walk(self, top: Pool) -> None:
        """Walk without recursion. As in Fluxion, each node of the recipe drops a scale once it is done."""
        top.seen = True
        stack: list[tuple[Pool, Iterator[Relation]]] = [(top, iter(top.edges))]
        self._plant(top)
        while stack:
            pool, edges = stack[-1]
            edge = next(edges, None)
            if edge is None:
                stack.pop()
                if self._scales:
                    self._scales.popleft()
                continue
            if edge.target.seen:
                raise InvalidGraph(
                    f"grug: edge {edge.name[:40]!r}: node {edge.target.name[:40]!r} already has another edge; "
                    "give this one a node of its own"
                )
            edge.target.seen = True
            self._plant(pool)
            self._follow(pool, edge)
            stack.append((edge.target, iter(edge.target.edges)))

    def _plant(self, pool: Pool) -> None:
        """Adds the root of a subsystem, once."""
        if not pool.root or pool.made:
            return
        if pool.subsystem not in self._roots:
            self._roots[pool.subsystem] = self._make(pool, "", 0)
        pool.made.append(self._roots[pool.subsystem])

    def _follow(self, pool: Pool, edge: Relation) -> None:
        if edge.method == "MULTIPLY":
            self._multiply(pool, edge)
        elif edge.method == "ASSOCIATE_IN":
            self._associate(edge, [(vertex, self._by_type.get(edge.target.type, [])) for vertex in pool.made])
        else:
            self._associate(edge, list(self._by_path(pool, edge)))

    def _multiply(self, pool: Pool, edge: Relation) -> None:
        fresh = len(pool.made) * edge.scale
        self._out.check_limits(fresh, f"grug: edge {edge.name[:40]!r}: multi_scale {edge.scale}", fresh)
        for turn, source in enumerate(pool.made):
            above = self._out.metadata(source)["paths"].get(edge.target.subsystem, "")
            for i in range(edge.scale):
                vertex = self._make(edge.target, above, self._id(edge, i, turn))
                self._link(edge, source, vertex)
                edge.target.made.append(vertex)
        self._scales.appendleft(edge.scale)

    def _id(self, edge: Relation, i: int, turn: int) -> int:
        """-1 for none, else a number within the parent, or across as many levels as the scope."""
        if edge.scope < 0:
            return -1
        if edge.scope == 0:
            return edge.start + i
        wrap = 1
        for level in range(min(edge.scope, len(self._scales))):
            wrap *= self._scales[level]
        return edge.start + (turn % max(wrap, 1) * edge.scale + i) * edge.stride

    def _make(self, pool: Pool, above: str, number: int) -> int:
        name = pool.basename + (str(number) if number != -1 else "")
        rank = -1
        if pool.type == "node":
            rank, self._nodes = self._nodes, self._nodes + 1
        metadata = {
            "type": pool.type,
            "basename": pool.basename,
            "name": name,
            "id": number,
            "rank": rank,
            "size": pool.size,
            "unit": pool.unit,
            "paths": {pool.subsystem: f"{above}/{name}"},
        }
        vertex = self._out.vertex(metadata)
        self._by_type.setdefault(pool.type, []).append(vertex)
        return vertex

    def _link(self, edge: Relation, source: int, target: int) -> None:
        plain = edge.subsystem == "containment" and edge.relation == "contains"  # the default of an edge
        metadata = None if plain else {"subsystem": edge.subsystem, "relationship": edge.relation}
        self._out.edge(source, target, metadata)

    def _associate(self, edge: Relation, pairs: list[tuple[int, list[int]]]) -> None:
        fresh = sum(len(targets) for _, targets in pairs)
        self._out.check_limits(0, f"grug: edge {edge.name[:40]!r}: {edge.method}", fresh)
        for source, targets in pairs:
            above = self._out.metadata(source)["paths"].get(edge.subsystem, "")
            for target in targets:
                metadata = self._out.metadata(target)
                metadata["paths"][edge.subsystem] = f"{above}/{metadata['name']}"
                self._link(edge, source, target)
                edge.target.made.append(target)

    def _by_path(self, pool: Pool, edge: Relation) -> Iterator[tuple[int, list[int]]]:
        """For each source the targets with the same path prefix, as many levels up as the edge says."""
        places: dict[str, list[int]] = {}
        for target in self._by_type.get(edge.target.type, []):
            places.setdefault(self._prefix(target, edge.by_subsystem, edge.target_up), []).append(target)
        for source in pool.made:
            yield source, places.get(self._prefix(source, edge.by_subsystem, edge.source_up), [])

    def _prefix(self, vertex: int, subsystem: str, up: int) -> str:
        path = self._out.metadata(vertex)["paths"].get(subsystem, "")
        parts = path.split("/")
        slashes = len(parts) - 1
        if up >= slashes:
            return ""
        return "/".join(parts[: slashes - up + 1]) + "/"
