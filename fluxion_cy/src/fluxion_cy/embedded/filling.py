"""Fills the places of one level of a request, and finds what they lack for one more.

A place is a vertex that may hold slots, or one that the request names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Level:
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
        """For how many of the wanted vertices, slots or units these amounts suffice; they have the order of `needs`."""
        if self.units:
            return sum(amounts)
        needs = self.needs.values()
        if self.slots:
            counts = [min(have // need, part) for have, need, part in zip(amounts, needs, parts, strict=True) if need]
            return min(counts, default=0)
        return int(all(have >= need for have, need in zip(amounts, needs, strict=True)))


@dataclass(slots=True)
class Place:
    """Equal vertices of a level's type.

    `slots`: the most slots that may be taken on each vertex, or on their `rank` together; -1 if unlimited. Amounts are
    those of one vertex, in the order of the level's needs. `parts` and `free_parts`: for how many slots the vertex has
    what one needs of a type; `loose`: whether these numbers are upper bounds.
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
class Rest:
    """What a place has left in addition to what fits there; `parts` as in `Place`."""

    place: Place
    amounts: Sequence[int]
    parts: Sequence[int]

    def enough(self, which: int, need: int, *, in_parts: bool) -> bool:
        """Whether the place has what one more slot or vertex needs of a type, by its place in the order."""
        return self.amounts[which] >= need and (not in_parts or not need or self.parts[which] > 0)


@dataclass(slots=True)
class Filling:
    """A level placed on some vertices as far as it fits: on all that they have (`ever`), or on what is free."""

    level: Level
    places: list[Place]
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

    def usable(self, place: Place) -> bool:
        """Whether the place is entirely free, if it must be."""
        return self.ever or place.untouched or not self.level.exclusive

    def _amounts(self, place: Place) -> tuple[Sequence[int], Sequence[int]]:
        return (place.total, place.parts) if self.ever else (place.free, place.free_parts)

    def rest(self) -> list[Rest]:
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
                found.append(Rest(place, amounts, parts))
        return found

    def full(self) -> list[Place]:
        """The places on which the candidates allow fewer than fit."""
        return [place for place, (capacity, held) in zip(self.places, self.held, strict=True) if held < capacity]
