"""Counts what a request lacks: totals of types, and the places for each level of the request.

Each level takes one pass over the graph.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from fluxion_cy.embedded.filling import Filling, Level, Place, Rest
from fluxion_cy.embedded.type_index import TypeIndex
from fluxion_cy.engine.engine import Engine
from fluxion_cy.jobspec.reader import Resource
from fluxion_cy.wording import Places, Sentences, Shortage, Words, plural

#: How many levels of a request are counted.
_MOST_LEVELS = 16


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
                return Shortage(f"{needs}, but {words.graph} has only {number} of {total} free and up")
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

    def _levels(self, resources: list[Resource], times: int, slot: bool) -> Iterator[Level]:
        """Outermost first."""
        for resource in resources:
            count, inside = times * resource.low, resource.children
            below = _wanted(inside, 1, {})
            if resource.slot:
                if any(resource is top for top in self.resources) and not any(map(self._has_level, inside)):
                    yield self._slots(resource.low, below)
            elif self._has_level(resource):
                exclusive = slot or resource.exclusive is True or self._whole(resource.type)
                yield Level(resource.type, count, below, exclusive=exclusive, inside=_slots_in(resource))
            elif any(resource is top for top in self.resources):
                needs = {resource.type: 1}
                yield Level(self.types.around(needs), count, needs, units=True)
            yield from self._levels(inside, count, slot or resource.slot)

    def _slots(self, wanted: int, below: dict[str, int]) -> Level:
        """Slots at the top level: in vertices with all needed children, or in those that they gather from."""
        holder = self.types.parent(below)
        if holder is not None and self.gathers:
            level = Level(holder, wanted, below, slots=True)
            eligible = [place for place in self._places(level) if place.slots != 0 and place.fit]
            if Filling(level, eligible, ever=True).fitting < wanted:
                holder = None
        holder = holder or self.types.around(below)
        return Level(holder, wanted, below, slots=True, exclusive=self._whole(holder))

    def _has_level(self, resource: Resource) -> bool:
        """Whether the request, or the graph, has anything below such a vertex, or it is a node."""
        if resource.slot or resource.children or resource.type == "node":
            return True
        first = self.types.first(resource.type)
        return first is not None and self.engine.has_children(first)

    def _whole(self, kind: str) -> bool:
        return self.whole_nodes and kind == "node"

    def _places(self, level: Level) -> list[Place]:
        """The vertices of the level's type that have any of the needed types."""
        engine, kinds = self.engine, list(level.needs)
        type_ids = engine.type_ids
        if level.type not in type_ids:
            return []
        ids, needs = [type_ids[kind] for kind in kinds], list(level.needs.values())
        rows = engine.survey(type_ids[level.type], ids, needs, self.start, self.end)
        rows = [row for row in rows if not kinds or any(row[6])]
        if level.slots and len({row[2] for row in rows}) < len(rows):  # those of one rank share its slots
            return [Place(1, *row[1:]) for row in rows]
        numbers: Counter[tuple[Any, ...]] = Counter(
            (row[1], *row[3:6], *map(tuple, row[6:10]), row[10]) for row in rows
        )
        return [Place(number, key[0], -1, *key[1:]) for key, number in numbers.items()]

    def _of_level(self, level: Level) -> Shortage | None:
        there = self._places(level)
        chosen = [place for place in there if place.slots != 0]
        eligible = [place for place in chosen if place.fit]
        up = [place for place in eligible if place.up]
        now = Filling(level, up, ever=False)
        if not there or now.fitting >= level.wanted:
            return None
        ever = Filling(level, eligible, ever=True, capped=False)
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

    def _candidates(self, level: Level, number: int) -> Places:
        return Places(level.type, number, "candidate" * self.candidates)


@dataclass(slots=True)
class _Account:
    """Words a filling that falls short."""

    request: Shortages
    filling: Filling
    there: list[Place]
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

    def _short(self, sentences: Sentences, places: Places, rest: list[Rest]) -> str:
        needs = self.filling.level.needs
        short = [which for which, kind in enumerate(needs) if not any(self._enough(rest, kind))]
        kinds = list(needs)
        most = {kinds[which]: max(left.amounts[which] for left in rest) for which in short}
        pieces = [kind for kind, amount in most.items() if amount >= needs[kind]]
        return sentences.short(places, most, pieces) if short else ""

    def _apart(self, sentences: Sentences, places: Places, rest: list[Rest]) -> str:
        """The fewest types such that no place has enough of each."""
        kinds = [kind for kind, need in self.filling.level.needs.items() if need]
        enough = {kind: {n for n, has in enumerate(self._enough(rest, kind)) if has} for kind in kinds}
        pairs = (pair for pair in combinations(kinds, 2) if enough[pair[0]].isdisjoint(enough[pair[1]]))
        counts = {kind: sum(rest[n].place.number for n in enough[kind]) for kind in kinds}
        return sentences.apart(places, {kind: counts[kind] for kind in next(pairs, kinds)})

    def _enough(self, rest: list[Rest], kind: str) -> Iterator[bool]:
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
            place for place, (capacity, _) in zip(others, Filling(level, others, ever).held, strict=True) if capacity
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

    def _is_only_down(self, place: Place) -> bool:
        return place.slots != 0 and place.fit and not place.up and not self._is_too_small(place)

    def _is_too_small(self, place: Place) -> bool:
        return self.filling.level.capacity(place.total, place.parts) < 1

    @property
    def _excluded(self) -> bool:
        """Whether anything excludes places."""
        return self.request.candidates or len(self.filling.places) < len(self.there)

    def _noun(self, places: list[Place], *, other: bool = False, in_use: bool = False) -> Places:
        """These places, as candidates where any is excluded, and as others where some of them fit."""
        filling, level = self.filling, self.filling.level
        before = " ".join(["other"] * other + ["candidate"] * self._excluded)
        free = not filling.ever and not in_use and not all(map(filling.usable, filling.places))
        small = 0 if filling.ever else _count(filter(self._is_too_small, places))
        return Places(level.type, _count(places), before, "that are entirely free" * free, small)


def _count(places: Iterable[Place]) -> int:
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
    """The smallest number of slots below each of these; slots in slots do not count."""
    return sum(child.low * (1 if child.slot else _slots_in(child)) for child in resource.children)


def _none_asked(resources: list[Resource]) -> Resource | None:
    """The first entry with a count of 0."""
    for resource in resources:
        found = resource if not resource.low else _none_asked(resource.children)
        if found is not None:
            return found
    return None
