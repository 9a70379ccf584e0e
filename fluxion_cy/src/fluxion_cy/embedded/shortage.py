"""Counts what a request lacks: totals of types, and the places for each level of the request.

A place is a vertex that may hold slots, or one that the request names. Each level takes one pass over the graph.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Any

from fluxion_cy.engine.engine import Engine
from fluxion_cy.jobspec.reader import Resource
from fluxion_cy.wording import Places, Sentences, Shortage, Words, plural

#: How many vertices are searched for one that has all that a slot requests as children.
_MOST_EXAMINED = 65
#: How many levels of a request are counted.
_MOST_LEVELS = 16


class TypeIndex:
    """Where vertices of each type are: the first of them, what they lie in, whether that is a node.

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
        """`node` where any of the types lies in nodes, else the root's type."""
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


@dataclass(slots=True)
class _Level:
    """`wanted` vertices of a type, each with `needs` below it.

    `slots`: the needs of one slot, and a place may hold many; `units`: single units of the one type in `needs`;
    `inside`: as many slots are below each vertex.
    """

    type: str
    wanted: int
    needs: dict[str, int]
    slots: bool = False
    exclusive: bool = False
    units: bool = False
    inside: int = 0

    def capacity(self, amounts: Sequence[int], parts: Sequence[int]) -> int:
        """How many of the wanted these amounts give, in the order of `needs`: 0 or 1, or a number of slots or units."""
        if self.units:
            return sum(amounts)
        needs = self.needs.values()
        if self.slots:
            counts = [min(have // need, part) for have, need, part in zip(amounts, needs, parts, strict=True) if need]
            return min(counts, default=0)
        return int(all(have >= need for have, need in zip(amounts, needs, strict=True)))


@dataclass(slots=True)
class _Place:
    """Equal vertices of a level's type.

    `slots`: the most that may be taken on each, or on their `rank` together; -1: any number. Amounts are of one vertex,
    in the order of the level's needs. `parts` and `free_parts`: how many times it has what a slot needs of a type;
    `loose`: at most so many times.
    """

    number: int
    slots: int
    rank: int
    fit: bool
    up: bool
    untouched: bool
    total: Sequence[int]
    free: Sequence[int]
    parts: Sequence[int]
    free_parts: Sequence[int]
    loose: bool


@dataclass(slots=True)
class _Rest:
    """What a place has left beside what fits there; `parts` as in `_Place`."""

    place: _Place
    amounts: Sequence[int]
    parts: Sequence[int]

    def enough(self, which: int, need: int, *, in_parts: bool) -> bool:
        """Whether it has what one more slot or vertex needs of a type, by its place in the order."""
        return self.amounts[which] >= need and (not in_parts or not need or self.parts[which] > 0)


@dataclass(slots=True)
class _Filling:
    """A level placed on some vertices as far as it fits: on all that they have (`ever`), or on what is free."""

    level: _Level
    places: list[_Place]
    ever: bool
    capped: bool = True
    """Whether the numbers of slots that the candidates allow are limits."""
    held: list[tuple[int, int]] = field(init=False)
    """By place: how many it can hold, and how many of these the candidates allow."""
    fitting: int = field(init=False)

    def __post_init__(self) -> None:
        self.held = list(self._count())
        self.fitting = sum(place.number * held for place, (_, held) in zip(self.places, self.held, strict=True))

    def _count(self) -> Iterator[tuple[int, int]]:
        level, left = self.level, dict[int, int]()
        for place in self.places:
            capacity = level.capacity(*self._amounts(place)) if self.usable(place) else 0
            held = capacity
            if self.capped and place.slots >= 0:
                if level.slots and place.rank >= 0:
                    held = min(capacity, left.setdefault(place.rank, place.slots))
                    left[place.rank] -= held
                elif level.slots:
                    held = min(capacity, place.slots)
                elif place.slots < level.inside:
                    held = 0
            yield capacity, held

    def usable(self, place: _Place) -> bool:
        """Whether it is entirely free, where it must be."""
        return self.ever or place.untouched or not self.level.exclusive

    def _amounts(self, place: _Place) -> tuple[Sequence[int], Sequence[int]]:
        return (place.total, place.parts) if self.ever else (place.free, place.free_parts)

    def rest(self) -> list[_Rest]:
        """The places that lack something for one more."""
        found = []
        for place, (capacity, held) in zip(self.places, self.held, strict=True):
            if self.usable(place) and held == capacity and (self.level.slots or self.level.units or not held):
                amounts, parts = self._amounts(place)
                if held:
                    amounts = [
                        have - held * need for have, need in zip(amounts, self.level.needs.values(), strict=True)
                    ]
                    parts = [number - held for number in parts]
                found.append(_Rest(place, amounts, parts))
        return found

    def full(self) -> list[_Place]:
        """The places on which the candidates allow fewer than fit."""
        return [place for place, (capacity, held) in zip(self.places, self.held, strict=True) if held < capacity]


@dataclass(slots=True)
class Shortages:
    """Counts a request on the graph over [start, end), within the candidates and constraint that the engine has."""

    engine: Engine
    words: Words
    types: TypeIndex
    resources: list[Resource]
    candidates: bool
    """Whether candidates exclude anything."""
    gathers: bool
    """Slots at the top level may take their children from anywhere below a node."""
    whole_nodes: bool
    """The policy takes nodes whole."""
    start: int
    end: int

    def first(self) -> Shortage | None:
        """The first shortage; None where counting finds none."""
        none = _none_asked(self.resources)
        if none is not None or not self.resources:  # no slots that may be any of several: an empty form
            what = self.words.slot if none is None or none.slot else none.type
            return Shortage(f"the request needs 0 {plural(what)}, and a count of 0 never matches")
        wanted = _wanted(self.resources, 1, {})
        first, *others = self.resources
        slots_alone = first.slot and not others and not any(map(self._has_level, first.children))
        if not slots_alone and (found := self._in_graph(wanted)):
            return found
        for level in islice(self._levels(self.resources, 1, False), _MOST_LEVELS):
            if found := self._of_level(level):
                return found
        return self._in_graph(wanted, free=True)

    def _in_graph(self, wanted: dict[str, int], *, free: bool = False) -> Shortage | None:
        """The first type that the whole graph has too little of, or too little that is free and up."""
        there, left = self._everything(list(wanted))
        words = self.words
        for kind, count in wanted.items():
            unit = self.types.unit(kind)
            needs = f"the request needs {words.amount(kind, count, unit)}"
            total = words.number(kind, there[kind], count, unit)
            if count > there[kind]:
                return Shortage(f"{needs}, and {words.graph} has {total}")
            if free and count > left[kind]:
                number = words.number(kind, left[kind], count, unit)
                return Shortage(f"{needs}, and {number} of {total} in {words.graph} is free and up")
        return None

    def _everything(self, kinds: list[str]) -> tuple[dict[str, int], dict[str, int]]:
        """For each type, the amount in the graph, and how much of it is free and up."""
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
                    yield self._slots(resource.low, below)
            elif self._has_level(resource):
                exclusive = slot or resource.exclusive is True or self._whole(resource.type)
                yield _Level(resource.type, count, below, exclusive=exclusive, inside=_slots_in(resource))
            elif any(resource is top for top in self.resources):
                needs = {resource.type: 1}
                yield _Level(self.types.around(needs), count, needs, units=True)
            yield from self._levels(inside, count, slot or resource.slot)

    def _slots(self, wanted: int, below: dict[str, int]) -> _Level:
        """Slots at the top level: in vertices with all they need as children, or in those that they gather from."""
        holder = self.types.parent(below)
        if holder is not None and self.gathers:
            level = _Level(holder, wanted, below, slots=True)
            eligible = [place for place in self._places(level) if place.slots != 0 and place.fit]
            if _Filling(level, eligible, ever=True).fitting < wanted:
                holder = None
        holder = holder or self.types.around(below)
        return _Level(holder, wanted, below, slots=True, exclusive=self._whole(holder))

    def _has_level(self, resource: Resource) -> bool:
        """Whether the request, or the graph, has anything below such a vertex, or it is a node."""
        if resource.slot or resource.children or resource.type == "node":
            return True
        first = self.types.first(resource.type)
        return first is not None and self.engine.has_children(first)

    def _whole(self, kind: str) -> bool:
        return self.whole_nodes and kind == "node"

    def _places(self, level: _Level) -> list[_Place]:
        """The vertices of the level's type that have any of the needed types."""
        engine, kinds = self.engine, list(level.needs)
        type_ids = engine.type_ids
        if level.type not in type_ids:
            return []
        ids, needs = [type_ids[kind] for kind in kinds], list(level.needs.values())
        rows = engine.survey(type_ids[level.type], ids, needs, self.start, self.end)
        rows = [row for row in rows if not kinds or any(row[6])]
        if level.slots and len({row[2] for row in rows}) < len(rows):  # those of one rank share its slots
            return [_Place(1, *row[1:]) for row in rows]
        numbers: Counter[tuple[Any, ...]] = Counter(
            (row[1], *row[3:6], *map(tuple, row[6:10]), row[10]) for row in rows
        )
        return [_Place(number, key[0], -1, *key[1:]) for key, number in numbers.items()]

    def _of_level(self, level: _Level) -> Shortage | None:
        there = self._places(level)
        chosen = [place for place in there if place.slots != 0]
        eligible = [place for place in chosen if place.fit]
        up = [place for place in eligible if place.up]
        now = _Filling(level, up, ever=False)
        if not there or now.fitting >= level.wanted:
            return None
        ever = _Filling(level, eligible, ever=True, capped=False)
        filling = ever if ever.fitting < level.wanted else now
        if not chosen:
            reason = f"{self.words.filters} exclude {Places(level.type, _count(there)).all}"
        elif not eligible:
            reason = f"the constraints exclude {self._candidates(level, _count(chosen)).all}"
        elif not up and filling is now:
            down = self._candidates(level, _count(eligible))
            reason = f"{down.all} {'is' if down.number == 1 else 'are'} down"
        else:
            reason = _Account(self, filling, there).reason()
        if level.units:
            return Shortage(reason)
        if level.slots:
            at_most = any(place.loose for place in up)
            return Shortage(reason, level.wanted, now.fitting, plural(self.words.slot), at_most)
        return Shortage(reason, level.wanted, filling.fitting, plural(level.type), filling is ever and ever.fitting > 0)

    def _candidates(self, level: _Level, number: int) -> Places:
        return Places(level.type, number, "candidate" * self.candidates)


@dataclass(slots=True)
class _Account:
    """Words a filling that falls short."""

    request: Shortages
    filling: _Filling
    there: list[_Place]
    """All places, those that candidates, constraints and status exclude included."""

    def reason(self) -> str:
        """The first of: too little in all, too little on each, not together, in use, not allowed, no place left."""
        filling, level = self.filling, self.filling.level
        rest, usable = filling.rest(), list(filter(filling.usable, filling.places))
        sentences = self._sentences()
        if (level.units or (level.slots and level.wanted > 1)) and usable:
            amounts = {
                kind: (
                    sum(place.number * place.free[which] for place in usable),
                    sum(place.number * place.total[which] for place in usable),
                )
                for which, kind in enumerate(level.needs)
            }
            short = {k: v for k, v in amounts.items() if v[filling.ever] < level.wanted * level.needs[k]}
            if short:
                slots = f"{level.wanted} {plural(self.request.words.slot)} request"
                who = "the request needs" if level.units else slots
                return sentences.total(self._noun(usable), short, level.wanted, who)
        full, each = filling.full(), not level.slots and not level.units
        other = each and filling.fitting > 0
        if rest:
            places = self._noun([left.place for left in rest], other=other or bool(full and level.slots))
            return self._short(sentences, places, rest) or self._apart(sentences, places, rest)
        if len(usable) < len(filling.places):
            in_use = [place for place in filling.places if not filling.usable(place)]
            return sentences.in_use(self._noun(in_use, other=other, in_use=True), self.request.whole_nodes)
        if full and level.slots:
            return sentences.no_more_slots(self._noun(full))
        if full:
            most = max(place.slots for place in full)
            return sentences.too_few_slots(self._noun(full, other=other), level.inside, most)
        return sentences.too_few(self._noun(filling.places))

    def _short(self, sentences: Sentences, places: Places, rest: list[_Rest]) -> str:
        needs = self.filling.level.needs
        short = [which for which, kind in enumerate(needs) if not any(self._enough(rest, kind))]
        kinds = list(needs)
        most = {kinds[which]: max(left.amounts[which] for left in rest) for which in short}
        pieces = [kind for kind, amount in most.items() if amount >= needs[kind]]
        return sentences.short(places, most, pieces) if short else ""

    def _apart(self, sentences: Sentences, places: Places, rest: list[_Rest]) -> str:
        """The fewest types such that no place has enough of each."""
        kinds = [kind for kind, need in self.filling.level.needs.items() if need]
        enough = {kind: {n for n, has in enumerate(self._enough(rest, kind)) if has} for kind in kinds}
        pairs = (pair for pair in combinations(kinds, 2) if enough[pair[0]].isdisjoint(enough[pair[1]]))
        counts = {kind: sum(rest[n].place.number for n in enough[kind]) for kind in kinds}
        return sentences.apart(places, {kind: counts[kind] for kind in next(pairs, kinds)})

    def _enough(self, rest: list[_Rest], kind: str) -> Iterator[bool]:
        """By place: whether it has enough of a type for one more."""
        level = self.filling.level
        which, need = list(level.needs).index(kind), level.needs[kind]
        return (left.enough(which, need, in_parts=level.slots) for left in rest)

    def _sentences(self) -> Sentences:
        level, request = self.filling.level, self.request
        units = {kind: request.types.unit(kind) for kind in level.needs}
        filled = level.slots and self.filling.fitting > 0
        return Sentences(request.words, units, level.needs, self.filling.ever, filled, list(self._others()))

    def _others(self) -> Iterator[str]:
        """Which further places would fit, and why they are excluded."""
        level, ever, words = self.filling.level, self.filling.ever, self.request.words
        others = [place for place in self.there if (place.slots == 0) is place.fit and (ever or place.up)]
        able = [
            place for place, (capacity, _) in zip(others, _Filling(level, others, ever).held, strict=True) if capacity
        ]
        for why, excluded in (
            (words.filters, _count(place for place in able if place.fit)),
            ("the constraints", _count(place for place in able if not place.fit)),
        ):
            if excluded and (words.names_excluded or why != words.filters):
                have = f"{level.type} has" if excluded == 1 else f"{plural(level.type)} have"
                for_one = " for one" * (level.wanted > 1)
                them = "it" if excluded == 1 else "them"
                yield f"{excluded} other {have} enough{for_one}, but {why} exclude {them}"
        full = self.filling.full()
        if full and level.slots and len(full) < len(self.filling.places):
            noun = Places(level.type, _count(full), "candidate")
            yield f"{words.filters} allow no more {plural(words.slot)} on {noun.number} {noun.noun}"
        down = Places(level.type, _count(place for place in self.there if self._is_only_down(place)))
        if down.number and not ever:
            yield f"{down.number} more {down.noun} {'is' if down.number == 1 else 'are'} down"

    def _is_only_down(self, place: _Place) -> bool:
        return place.slots != 0 and place.fit and not place.up and not self._is_too_small(place)

    def _is_too_small(self, place: _Place) -> bool:
        return self.filling.level.capacity(place.total, place.parts) < 1

    @property
    def _excluded(self) -> bool:
        """Whether anything excludes places."""
        return self.request.candidates or len(self.filling.places) < len(self.there)

    def _noun(self, places: list[_Place], *, other: bool = False, in_use: bool = False) -> Places:
        """These places, as candidates where any is excluded, and as others where some of them fit."""
        filling, level = self.filling, self.filling.level
        before = " ".join(["other"] * other + ["candidate"] * self._excluded)
        free = not filling.ever and not in_use and not all(map(filling.usable, filling.places))
        small = 0 if filling.ever else _count(filter(self._is_too_small, places))
        return Places(level.type, _count(places), before, "that are entirely free" * free, small)


def _count(places: Iterable[_Place]) -> int:
    """How many vertices these are."""
    return sum(place.number for place in places)


def _wanted(resources: list[Resource], times: int, totals: dict[str, int]) -> dict[str, int]:
    """The least of each type."""
    for resource in resources:
        count = times * resource.low
        if not resource.slot:
            totals[resource.type] = totals.get(resource.type, 0) + count
        _wanted(resource.children, count, totals)
    return totals


def _slots_in(resource: Resource) -> int:
    """The least number of slots below each of these; slots in slots do not count."""
    return sum(child.low * (1 if child.slot else _slots_in(child)) for child in resource.children)


def _none_asked(resources: list[Resource]) -> Resource | None:
    """The first entry with a count of 0."""
    for resource in resources:
        found = resource if not resource.low else _none_asked(resource.children)
        if found is not None:
            return found
    return None
