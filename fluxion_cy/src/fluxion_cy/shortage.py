"""What ran short first, counted: totals of types, then the places for each level of a request."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from fluxion_cy._select import Select
from fluxion_cy.jobspec import Resource


@dataclass(slots=True)
class _Level:
    """`wanted` vertices of a type, each with `needs` below it; `slots`: the needs of one slot, many fit one place."""

    type: str
    wanted: int
    needs: dict[str, int]
    slots: bool = False
    exclusive: bool = False

    def room(self, amounts: dict[str, int]) -> int:
        """How many of the wanted this much gives: 0 or 1, or so many slots."""
        if self.slots:
            return min((amounts[kind] // need for kind, need in self.needs.items() if need), default=0)
        return int(all(amounts[kind] >= need for kind, need in self.needs.items()))


@dataclass(slots=True)
class _Place:
    """A vertex of a level's type; `slots`: at most that many may be taken there, -1: any number."""

    slots: int
    fit: bool
    up: bool
    untouched: bool
    total: dict[str, int]
    free: dict[str, int]


@dataclass(slots=True)
class _Stage:
    """The places that are left; `step`: what the last step asked of them, `name`: how they are called."""

    places: list[_Place]
    kind: str
    step: str = ""
    before: str = ""
    after: str = ""
    free: bool = False
    capped: bool = False
    room: int = 0
    amounts: list[dict[str, int]] = field(default_factory=list)

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

    engine: Select
    resources: list[Resource]
    constrained: bool
    candidates: bool
    start: int
    end: int
    possible: bool

    def first(self) -> str:
        """The first shortage in words; nothing where counting finds none."""
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
        rows = engine.survey(engine.type_ids[engine.type_of(root)], ids, self.start, self.end)
        ((up, total, free),) = [(row[3], row[5], row[6]) for row in rows if row[0] == root]
        there, left = dict(zip(kinds, total, strict=True)), dict(zip(kinds, free, strict=True))
        if engine.type_of(root) in there:
            there[engine.type_of(root)] += engine.size_of(root)
            left[engine.type_of(root)] += engine.free_at(root, self.start, self.end) if up else 0
        return there, left

    def _levels(self, resources: list[Resource], times: int, slot: bool) -> Iterator[_Level]:
        """Outermost first."""
        for resource in resources:
            count, inside = times * resource.low, _inside(resource)
            below = _wanted(inside, 1, {})
            if resource.slot:
                if times == 1 and resource in self.resources and not any(child.children for child in inside):
                    yield _Level(self._holder(below), resource.low, below, slots=True)
            elif inside or self._inner(resource.type):
                yield _Level(resource.type, count, below, exclusive=slot or resource.exclusive is True)
            yield from self._levels(inside, count, slot or resource.slot)

    def _inner(self, kind: str) -> bool:
        """Whether vertices of a type have something below them, or are nodes."""
        engine = self.engine
        return kind == "node" or any(
            engine.has_children(v) for v in islice((v for v in engine.vertices() if engine.type_of(v) == kind), 1)
        )

    def _holder(self, below: dict[str, int]) -> str:
        """What slots at the top level lie in: nodes, unless what they hold hangs elsewhere."""
        engine, other = self.engine, "node"
        for v in engine.vertices():
            if engine.type_of(v) in below:
                above = engine.parent_of(v)
                other = engine.type_of(above) if above >= 0 else other
                while above >= 0:
                    if engine.type_of(above) == "node":
                        return "node"
                    above = engine.parent_of(above)
        return other

    def _of_level(self, level: _Level) -> str:
        before: _Stage | None = None
        for stage in self._stages(level):
            for place in stage.places:
                amounts = place.free if stage.free else place.total
                room = level.room(amounts) if place.untouched or not (stage.free and level.exclusive) else 0
                capped = stage.capped and level.slots and place.slots >= 0
                stage.room += min(room, place.slots) if capped else room
                stage.amounts.append(amounts)
            if stage.room < level.wanted:
                return _told(level, stage, before)
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
        rows = engine.survey(type_ids[level.type], [type_ids[kind] for kind in kinds], self.start, self.end)
        return [
            _Place(slots, fit, up, untouched, dict(zip(kinds, total, strict=True)), dict(zip(kinds, free, strict=True)))
            for _, slots, fit, up, untouched, total, free in rows
            if not kinds or any(total)
        ]


def _told(level: _Level, stage: _Stage, before: _Stage | None) -> str:
    """In words; `before`: the stage that still had enough."""
    number = len(stage.places)
    each, free = _listed(level.needs), " free" * stage.free
    asked = (
        f"{level.wanted} slot{'s' * (level.wanted != 1)} of {each}" if level.slots else f"{level.wanted} {level.type}"
    )
    if before is not None and stage.step and not (number and level.slots) and stage.room == number:
        return f"asked {asked}, {number or 'none'} of {before.name} {'is' if number < 2 else 'are'} {stage.step}"
    for kind, need in level.needs.items():
        most = max((amounts[kind] for amounts in stage.amounts), default=0)
        if most < need:
            on = f"any of {stage.name}" if number > 1 else f"the {stage.name}"
            return f"asked {need} {kind} below {level.type}, {f'at most {most}' if most else 'none'}{free} on {on}"
    if level.slots:
        return f"asked {asked}, room for {stage.room} on {stage.name}"
    each = f" with {each} each" if each else ""
    if level.exclusive and stage.free:
        return f"asked {asked}{each}, whole; {stage.room} of {stage.name} wholly free"
    return f"asked {asked}{each}, {stage.room} of {stage.name}{' with that much' if each else ''}{free}"


def _listed(needs: dict[str, int]) -> str:
    words = [f"{need} {kind}" for kind, need in needs.items()]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _wanted(resources: list[Resource], times: int, totals: dict[str, int]) -> dict[str, int]:
    """The least of each type."""
    for resource in resources:
        count = times * resource.low
        if not resource.slot:
            totals[resource.type] = totals.get(resource.type, 0) + count
        _wanted(_inside(resource), count, totals)
    return totals


def _inside(resource: Resource) -> list[Resource]:
    """Its children; of a slot with alternatives, those of the first."""
    return resource.alternatives[0] if resource.alternatives else resource.children
