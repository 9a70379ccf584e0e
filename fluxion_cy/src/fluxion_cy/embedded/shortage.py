"""What ran short first, counted: totals of types, then the places for each level of a request."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from fluxion_cy.engine.engine import Engine
from fluxion_cy.jobspec.reader import Resource

#: How many vertices above what a slot asks for are looked at.
_MOST_EXAMINED = 65


class TypeIndex:
    """Where vertices of each type are: the first of them, what they lie in, whether that is a node.

    For one state of a graph: one pass over its vertices, which goes no further than the questions need.
    """

    def __init__(self, engine: Engine) -> None:
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
        while not any(len(self._above.get(kind, ())) >= _MOST_EXAMINED for kind in kinds) and self._go_on():
            pass
        came: dict[int, int] = {}
        for kind in kinds:
            for vertex, when in self._above.get(kind, {}).items():
                came[vertex] = min(when, came.get(vertex, when))
        for vertex in sorted(came, key=came.__getitem__)[:_MOST_EXAMINED]:
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
            if len(parents) < _MOST_EXAMINED:
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


@dataclass(slots=True)
class _Level:
    """`wanted` vertices of a type, each with `needs` below it.

    `slots`: the needs of one slot, many fit one place; `units`: single units of the one type in `needs`; `inside`: so
    many slots below each vertex.
    """

    type: str
    wanted: int
    needs: dict[str, int]
    slots: bool = False
    exclusive: bool = False
    units: bool = False
    inside: int = 0

    def capacity(self, amounts: dict[str, int], parts: dict[str, int]) -> int:
        """How many of the wanted this much gives: 0 or 1, or so many slots, or units."""
        if self.units:
            return sum(amounts.values())
        if self.slots:
            counts = [min(amounts[kind] // need, parts[kind]) for kind, need in self.needs.items() if need]
            return min(counts, default=0)
        return int(all(amounts[kind] >= need for kind, need in self.needs.items()))


@dataclass(slots=True)
class _Place:
    """A vertex of a level's type; `slots`: at most that many may be taken on its `rank`, -1: any number.

    `parts` and `free_parts`: so many times what a slot needs of a type; `loose`: at the most.
    """

    slots: int
    rank: int
    fit: bool
    up: bool
    untouched: bool
    loose: bool
    total: dict[str, int]
    free: dict[str, int]
    parts: dict[str, int]
    free_parts: dict[str, int]


@dataclass(slots=True)
class _Stage:
    """The places that are left; `step`: what the last step asked of them, `name`: how they are called.

    `allowed`: where the candidates allow fewer slots than are asked, how many.
    """

    places: list[_Place]
    kind: str
    step: str = ""
    before: str = ""
    after: str = ""
    free: bool = False
    capped: bool = False
    capacity: int = 0
    loose: bool = False
    amounts: list[dict[str, int]] = field(default_factory=list)
    allowed: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Such as `2 candidate nodes allowed by the constraints`."""
        one = len(self.places) == 1
        after = self.after.replace("that are", "that is") if one else self.after
        words = (str(len(self.places)), self.before, self.kind + "s" * (not one), after)
        return " ".join(word for word in words if word)


@dataclass(slots=True)
class Shortages:
    """A request held against the graph over [start, end), for the question that the engine was asked last."""

    engine: Engine
    resources: list[Resource]
    constrained: bool
    candidates: bool
    start: int
    end: int
    possible: bool
    gathers: bool
    """Slots at the top level take their children from anywhere below a node."""
    whole_nodes: bool
    """The policy takes nodes whole."""
    types: TypeIndex

    def first(self) -> str:
        """The first shortage in words; nothing where counting finds none."""
        none = None if self.possible else _none_asked(self.resources)
        if none is not None:
            what = f"slots of {_listed(_wanted(none.children, 1, {}))}" if none.slot else none.type
            return f"asked 0 {what}, and a count of 0 never matches"
        wanted = _wanted(self.resources, 1, {})
        there, free = self._everything(list(wanted))
        for kind, count in wanted.items():
            if count > there[kind]:
                return f"asked {count} {kind}, {there[kind]} in the graph"
        for level in self._levels(self.resources, 1, False):
            found = self._of_level(level)
            if found:
                return found
        for kind, count in wanted.items() if self.possible else ():
            if count > free[kind]:
                return f"asked {count} {kind}, {free[kind]} of {there[kind]} free and up"
        return ""

    def _everything(self, kinds: list[str]) -> tuple[dict[str, int], dict[str, int]]:
        """Of each type, what there is and what of it is free and up."""
        engine = self.engine
        root = engine.root
        ids = [engine.type_ids[kind] for kind in kinds]
        rows = engine.survey(engine.type_ids[engine.type_of(root)], ids, [1] * len(ids), self.start, self.end)
        ((up, total, free),) = [(row[4], row[6], row[7]) for row in rows if row[0] == root]
        there, left = dict(zip(kinds, total, strict=True)), dict(zip(kinds, free, strict=True))
        if engine.type_of(root) in there:
            there[engine.type_of(root)] += engine.size_of(root)
            left[engine.type_of(root)] += engine.free_at(root, self.start, self.end) if up else 0
        return there, left

    def _levels(self, resources: list[Resource], times: int, slot: bool) -> Iterator[_Level]:
        """Outermost first."""
        for resource in resources:
            count, inside = times * resource.low, resource.children
            below = _wanted(inside, 1, {})
            if resource.slot:
                if any(resource is top for top in self.resources) and not any(map(self._has_level, inside)):
                    holder = self._holder(below)
                    yield _Level(holder, resource.low, below, slots=True, exclusive=self._whole(holder))
            elif self._has_level(resource):
                exclusive = slot or resource.exclusive is True or self._whole(resource.type)
                yield _Level(resource.type, count, below, exclusive=exclusive, inside=_slots_in(resource))
            elif any(resource is top for top in self.resources):
                needs = {resource.type: 1}
                yield _Level(self.types.around(needs), count, needs, units=True)
            yield from self._levels(inside, count, slot or resource.slot)

    def _has_level(self, resource: Resource) -> bool:
        """Whether something is wanted or can be below such a vertex, or it is a node."""
        if resource.slot or resource.children or resource.type == "node":
            return True
        first = self.types.first(resource.type)
        return first is not None and self.engine.has_children(first)

    def _whole(self, kind: str) -> bool:
        return self.whole_nodes and kind == "node"

    def _holder(self, below: dict[str, int]) -> str:
        """What slots at the top level lie in: the type that has all they hold as children, or what they gather from."""
        found = None if self.gathers else self.types.parent(below)
        return found or self.types.around(below)

    def _of_level(self, level: _Level) -> str:
        before: _Stage | None = None
        for stage in self._stages(level):
            counts: dict[int, int] = {}
            for place in stage.places:
                amounts = place.free if stage.free else place.total
                parts = place.free_parts if stage.free else place.parts
                usable = place.untouched or not (stage.free and level.exclusive)
                capacity = level.capacity(amounts, parts) if usable else 0
                limited = stage.capped and place.slots >= 0
                if limited and place.slots < level.inside:
                    capacity = 0
                    stage.allowed.append(place.slots)
                stage.loose = stage.loose or place.loose
                if limited and level.slots:
                    counts[place.rank] = min(counts.get(place.rank, 0) + capacity, place.slots)
                else:
                    stage.capacity += capacity
                stage.amounts.append(amounts)
            stage.capacity += sum(counts.values())
            if stage.capacity < level.wanted:
                return _shortage_text(level, stage, before)
            before = stage
        return ""

    def _stages(self, level: _Level) -> Iterator[_Stage]:
        """All places that have anything of what is asked; what candidates, constraints and status leave; the free."""
        places, kind = self._places(level), level.type
        yield _Stage(places, kind)
        before, after = "", ""
        if self.candidates:
            places, before = [place for place in places if place.slots != 0], "candidate"
            yield _Stage(places, kind, "among the candidates", before, capped=True)
        if self.constrained:
            places, after = [place for place in places if place.fit], "allowed by the constraints"
            yield _Stage(places, kind, "allowed by the constraints", before, after, capped=self.candidates)
        if self.possible:
            up = [place for place in places if place.up]
            if len(up) < len(places):
                places, after = up, f"{after} and up" if after else "that are up"
                yield _Stage(places, kind, "up", before, after, capped=self.candidates)
            yield _Stage(places, kind, "", before, after, free=True, capped=self.candidates)

    def _places(self, level: _Level) -> list[_Place]:
        engine, kinds = self.engine, list(level.needs)
        type_ids = engine.type_ids
        if level.type not in type_ids:
            return []
        ids, needs = [type_ids[kind] for kind in kinds], list(level.needs.values())
        rows = engine.survey(type_ids[level.type], ids, needs, self.start, self.end)
        return [
            _Place(slots, rank, fit, up, untouched, loose, *(dict(zip(kinds, row, strict=True)) for row in amounts))
            for _, slots, rank, fit, up, untouched, *amounts, loose in rows
            if not kinds or any(amounts[0])
        ]


def _shortage_text(level: _Level, stage: _Stage, before: _Stage | None) -> str:
    """In words; `before`: the stage that still had enough."""
    number = len(stage.places)
    each, free = _listed(level.needs), " free" * stage.free
    asked = f"{level.wanted} {level.type}"
    if level.slots:
        asked = f"{level.wanted} slot{'s' * (level.wanted != 1)} of {each}"
    if level.units:
        asked = f"{level.wanted} {next(iter(level.needs))}"
    if before is not None and stage.step and not (number and (level.slots or level.units)) and stage.capacity == number:
        return f"asked {asked}, {number or 'none'} of {before.name} {'is' if number < 2 else 'are'} {stage.step}"
    if level.units:
        return f"asked {asked}, {stage.capacity or 'none'}{free} on {stage.name}"
    for kind, need in level.needs.items():
        most = max((amounts[kind] for amounts in stage.amounts), default=0)
        if most < need:
            on = f"any of {stage.name}" if number > 1 else f"the {stage.name}"
            return f"asked {need} {kind} below {level.type}, {f'at most {most}' if most else 'none'}{free} on {on}"
    if stage.allowed and len(stage.allowed) == number:
        slots, most = f"{level.inside} slot{'s' * (level.inside != 1)}", max(stage.allowed)
        on = f"any of {stage.name}" if number > 1 else f"the {stage.name}"
        return f"asked {slots} below {level.type}, at most {most} allowed on {on}"
    if level.slots:
        at_most = "at most " if stage.loose and stage.capacity else ""
        return f"asked {asked}, room for {at_most}{stage.capacity} on {stage.name}"
    each = f" with {each} each" if each else ""
    if level.exclusive and stage.free:
        return f"asked {asked}{each}, whole; {stage.capacity} of {stage.name} wholly free"
    return f"asked {asked}{each}, {stage.capacity} of {stage.name}{' with that much' if each else ''}{free}"


def _listed(needs: dict[str, int]) -> str:
    words = [f"{need} {kind}" for kind, need in needs.items()]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _wanted(resources: list[Resource], times: int, totals: dict[str, int]) -> dict[str, int]:
    """The least of each type."""
    for resource in resources:
        count = times * resource.low
        if not resource.slot:
            totals[resource.type] = totals.get(resource.type, 0) + count
        _wanted(resource.children, count, totals)
    return totals


def _slots_in(resource: Resource) -> int:
    """The least that is asked for below each of these, slots in slots aside."""
    return sum(child.low * (1 if child.slot else _slots_in(child)) for child in resource.children)


def _none_asked(resources: list[Resource]) -> Resource | None:
    """The first entry that asks for none."""
    for resource in resources:
        found = resource if not resource.low else _none_asked(resource.children)
        if found is not None:
            return found
    return None
