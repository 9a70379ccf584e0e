"""Where in a graph things of a type are: the first of them, what they lie in, whether that is a node."""

from fluxion_cy._select import Select

#: How many vertices above what a slot asks for are looked at.
_LOOKED_AT = 65


class Surroundings:
    """One pass over the vertices for all questions, and no further than an answer needs. Of one state of a graph."""

    def __init__(self, engine: Select) -> None:
        self._engine = engine
        self._rest = enumerate(engine.vertices())
        self._first: dict[str, int] = {}
        self._above: dict[str, dict[int, int]] = {}  # per type the first vertices above such, and when each came
        self._in_nodes: set[str] = set()
        self._below_node: dict[int, bool] = {}
        self._below: dict[int, frozenset[str]] = {}

    def first(self, kind: str) -> int | None:
        """The first vertex of a type."""
        while kind not in self._first and self._go_on():
            pass
        return self._first.get(kind)

    def around(self, kinds: dict[str, int]) -> str:
        """`node` where any of the types lies in nodes, else the root's type."""
        while self._in_nodes.isdisjoint(kinds):
            if not self._go_on():
                return self._engine.type_of(self._engine.root)
        return "node"

    def parent(self, kinds: dict[str, int]) -> str | None:
        """The type of the first vertex that has all these types as children, if it is among the first few."""
        while not any(len(self._above.get(kind, ())) >= _LOOKED_AT for kind in kinds) and self._go_on():
            pass
        came: dict[int, int] = {}
        for kind in kinds:
            for vertex, when in self._above.get(kind, {}).items():
                came[vertex] = min(when, came.get(vertex, when))
        for vertex in sorted(came, key=came.__getitem__)[:_LOOKED_AT]:
            if kinds.keys() <= self._children(vertex):
                return self._engine.type_of(vertex)
        return None

    def _go_on(self) -> bool:
        """Notes one more vertex; False at the end."""
        when, vertex = next(self._rest, (0, -1))
        if vertex < 0:
            return False
        kind, above = self._engine.type_of(vertex), self._engine.parent_of(vertex)
        self._first.setdefault(kind, vertex)
        if above >= 0:
            parents = self._above.setdefault(kind, {})
            if len(parents) < _LOOKED_AT:
                parents.setdefault(above, when)
            if kind not in self._in_nodes and self._is_below_node(above):
                self._in_nodes.add(kind)
        return True

    def _is_below_node(self, vertex: int) -> bool:
        """Whether it is a node, or is in one."""
        passed = []
        while vertex >= 0 and vertex not in self._below_node and self._engine.type_of(vertex) != "node":
            passed.append(vertex)
            vertex = self._engine.parent_of(vertex)
        found = vertex >= 0 and self._below_node.get(vertex, True)
        self._below_node.update(dict.fromkeys(passed, found))
        return found

    def _children(self, vertex: int) -> frozenset[str]:
        if vertex not in self._below:
            engine = self._engine
            self._below[vertex] = frozenset(engine.type_of(child) for child in engine.children(vertex))
        return self._below[vertex]
