"""Indexes where vertices of each type are, as far as the questions about a shortage need it."""

from array import array
from collections.abc import Iterator, Mapping

from fluxion_cy.engine.engine import Engine

#: How many vertices are searched for one that has all that a slot requests as children.
_MOST_EXAMINED = 65


class TypeIndex:
    """Where vertices of each type are: the first of them, what contains them, whether that is a node.

    For one shape of a graph: one pass over its vertices, which goes no further than the questions need.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._version = engine.version
        self._rest = self._numbered()
        self._first: dict[str, int] = {}
        self._above: dict[str, dict[int, int]] = {}  # per type: its first parents, and when each of them came
        self._in_nodes: set[str] = set()
        self._below_node: dict[int, bool] = {}
        self._below: dict[int, frozenset[str]] = {}

    def current(self) -> "TypeIndex":
        """This index, or a new one if the shape of the graph has changed since."""
        return self if self._version == self.engine.version else TypeIndex(self.engine)

    def _numbered(self) -> Iterator[tuple[int, int]]:
        yield from enumerate(array("i", self.engine.vertices()))  # in little memory: it may be kept for long

    def first(self, kind: str) -> int | None:
        """The first vertex of a type."""
        while kind not in self._first and self._go_on() >= 0:
            pass
        return self._first.get(kind)

    def unit(self, kind: str) -> str:
        """The unit of a type, `unit` for a pool without one, empty for vertices that count as one each."""
        first = self.first(kind)
        if first is None:
            return ""
        return self.engine.unit_of(first) or "unit" * self.engine.is_pool(first)

    def around(self, kinds: Mapping[str, int]) -> str:
        """`node` if vertices of any of the types are inside nodes, else the root's type."""
        while self._in_nodes.isdisjoint(kinds):
            if self._go_on() < 0:
                return self.engine.type_of(self.engine.root)
        return "node"

    def parent(self, kinds: Mapping[str, int]) -> str | None:
        """The type of the first vertex that has all these types as children, if it is among the first few."""
        examined: set[int] = set()
        while len(examined) < _MOST_EXAMINED:
            vertex = self._next_parent(kinds, examined)
            if vertex is None:
                return None
            if kinds.keys() <= self._children(vertex):
                return self.engine.type_of(vertex)
            examined.add(vertex)
        return None

    def _next_parent(self, kinds: Mapping[str, int], examined: set[int]) -> int | None:
        """The first parent of a vertex of these types that was not examined."""
        came: dict[int, int] = {}
        for kind in kinds:
            for vertex, when in self._above.get(kind, {}).items():
                if vertex not in examined:
                    came[vertex] = min(when, came.get(vertex, when))
        if came:
            return min(came, key=came.__getitem__)
        while (vertex := self._go_on()) >= 0:
            above = self.engine.parent_of(vertex)
            if above >= 0 and above not in examined and self.engine.type_of(vertex) in kinds:
                return above
        return None

    def _go_on(self) -> int:
        """Notes one more vertex and returns it; -1 at the end."""
        when, vertex = next(self._rest, (0, -1))
        if vertex < 0:
            return -1
        kind, above = self.engine.type_of(vertex), self.engine.parent_of(vertex)
        self._first.setdefault(kind, vertex)
        if above >= 0:
            parents = self._above.setdefault(kind, {})
            if len(parents) < _MOST_EXAMINED:
                parents.setdefault(above, when)
            if kind not in self._in_nodes and self._is_below_node(above):
                self._in_nodes.add(kind)
        return vertex

    def _is_below_node(self, vertex: int) -> bool:
        """Whether it is a node, or is in one."""
        passed = []
        while vertex >= 0 and vertex not in self._below_node and self.engine.type_of(vertex) != "node":
            passed.append(vertex)
            vertex = self.engine.parent_of(vertex)
        found = vertex >= 0 and self._below_node.get(vertex, True)
        self._below_node.update(dict.fromkeys(passed, found))
        return found

    def _children(self, vertex: int) -> frozenset[str]:
        if vertex not in self._below:
            engine = self.engine
            self._below[vertex] = frozenset(engine.type_of(child) for child in engine.children(vertex))
        return self._below[vertex]
