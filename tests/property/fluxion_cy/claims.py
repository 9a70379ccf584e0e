"""What `why` says, taken at its word and counted again over the model."""

import re
from dataclasses import dataclass

from .model import Ask, World

NEVER = "the graph could not hold it even if it were empty and all up"
BUSY = "no match now, but the graph could hold it"
ENOUGH = "enough is there of each type, but not where the request wants it together"
PLACES = (
    r"(?P<number>\d+|none) (of )?(?P<rest>(candidate )?(node|rack|cluster)s?"
    r"( allowed by the constraints)?( (and|that are|that is) up)?)"
)
COUNTED = re.compile(
    r"(\d+) (candidate )?(node|rack|cluster)s?( allowed by the constraints)?( (?:and|that are|that is) up)?$"
)


@dataclass
class Claims:
    """One answer about one request."""

    world: World
    ask: Ask
    now: int

    def wrong(self, text: str) -> str:
        """The first untrue part, or nothing."""
        parts = text.replace(", whole; ", ", whole, ").split("; ")
        problem = self._verdict(parts)
        if problem or text == "fits now":
            return problem
        if parts[-1].startswith("it would fit at second "):
            at = int(parts.pop().rpartition(" ")[2])
            if self.world.earliest(self.ask, self.now) != at:
                return f"it would fit at {self.world.earliest(self.ask, self.now)}"
        return "" if self._short(parts[-1]) else parts[-1]

    def _verdict(self, parts: list[str]) -> str:
        world, ask, free = self.world, self.ask, Ask(**{**vars(self.ask), "candidates": None})
        fits, ever = world.fits(ask, self.now), world.fits(ask, 0, ever=True)
        if fits or parts[0] == "fits now":
            return "" if fits and parts[0] == "fits now" else "the verdict"
        if parts[0] == NEVER:
            return "it is possible" if ever or world.fits(free, 0, ever=True) else ""
        if parts[0] == BUSY:
            return "" if ever else "it is not possible"
        found = re.match(r"no match( now)? on (\d+) candidate nodes?, (.*)$", parts[0])
        if not found or ask.candidates is None:
            return "the verdict's words"
        candidates = [
            world.there[n] for n in world.nodes() if world.admitted(Ask(**{**vars(ask), "constraint": None}), n)
        ]
        if int(found[2]) != len(candidates):
            return f"{len(candidates)} candidates"
        words = "but they could hold it" if ever else "even if they were empty and all up, but the graph could hold it"
        without = "it fits now without the candidates" in parts
        if found[3] != words or bool(found[1]) != ever or not world.fits(free, 0, ever=True):
            return "the verdict within candidates"
        return "" if without == world.fits(free, self.now) else "what would be without them"

    def _short(self, text: str) -> bool:
        for pattern, check in (
            (r"asked (\d+) (\w+), (\d+) in the graph$", self._graph),
            (r"asked (\d+) (\w+), (\d+) of (\d+) free and up$", self._free),
            (
                r"asked (.+), (\d+|none) of (.+) (?:is|are) (among the candidates|allowed by the constraints|up)$",
                self._gone,
            ),
            (r"asked (\d+) (\w+) below (\w+), (?:none|at most (\d+))( free)? on (?:any of|the) (.+)$", self._most),
            (r"asked (\d+) slots? below node, at most (\d+) allowed on (?:any of|the) (.+)$", self._allowed),
            (r"the candidates allow at most (\d+) slots? on rank (\d+)$", self._cap),
            (r"asked (\d+) slots? of (.+), room for (at most )?(\d+) on (.+)$", self._room),
            (r"asked (\d+) node(?: with .*)?, whole, (\d+) of (.+) wholly free$", self._whole),
            (r"asked (\d+) node(?: with .*)?, (\d+) of (.+?)( with that much)?( free)?$", self._with),
            (r"asked (\d+) memory, (\d+|none)( free)? on (.+)$", self._units),
        ):
            found = re.match(pattern, text)
            if found:
                return check(*found.groups())
        return text == ENOUGH

    # ---- what is there -----------------------------------------------------------------------------------------------

    def total(self, kind: str) -> int:
        return sum(self.world.size(p) for p, fields in self.world.there.items() if fields["type"] == kind)

    def least(self) -> dict[str, int]:
        ask = self.ask
        if ask.shape == "memory":
            return {"memory": ask.slots}
        if ask.shape == "whole":
            return {"node": ask.slots * ask.nodes}
        nodes = ask.nodes if ask.shape == "nodes" else 1
        found = {kind: nodes * ask.slots * need for kind, need in ask.needs}
        return found | ({"node": nodes} if ask.shape == "nodes" else {})

    def below(self, place: str) -> dict[str, int]:
        """What one place is to have of each type."""
        ask = self.ask
        if ask.shape == "nodes":
            return {kind: ask.slots * need for kind, need in ask.needs}
        if ask.shape == "slots":
            return dict(ask.needs)
        return {"memory": 1} if ask.shape == "memory" else {}

    def amount(self, place: str, kind: str, free: bool) -> int:
        end = self.now + self.ask.duration
        leaves = [p for p in self.world.below(place) if self.world.there[p]["type"] == kind]
        if not free:
            return sum(map(self.world.size, leaves))
        return sum(self.world.free(p, self.now, end) for p in leaves if self.world.up(p))

    def places(self, words: str) -> list[str] | None:
        """The vertices that such words count; None if the number in them is wrong."""
        found = COUNTED.match(words)
        assert found, words
        number, candidate, kind, allowed, up = found.groups()
        there = [p for p, fields in self.world.there.items() if fields["type"] == kind]
        wanted = self.below(kind)
        there = [p for p in there if not wanted or any(self.amount(p, k, False) for k in wanted)]
        bare = Ask(**{**vars(self.ask), "candidates": None})
        loose = Ask(**{**vars(self.ask), "constraint": None})
        if candidate:
            there = [p for p in there if kind != "node" or self.world.admitted(loose, p)]
        if allowed:
            there = [p for p in there if kind != "node" or self.world.admitted(bare, p)]
        if up:
            there = [p for p in there if self.world.up(p)]
        return there if len(there) == int(number) else None

    # ---- one shape of answer each ------------------------------------------------------------------------------------

    def _graph(self, asked: str, kind: str, there: str) -> bool:
        return int(asked) == self.least()[kind] > int(there) == self.total(kind)

    def _free(self, asked: str, kind: str, free: str, there: str) -> bool:
        end = self.now + self.ask.duration
        vertices = [p for p, fields in self.world.there.items() if fields["type"] == kind and self.world.up(p)]
        left = sum(self.world.free(p, self.now, end) for p in vertices)
        return int(asked) == self.least()[kind] > int(free) == left and self.total(kind) == int(there)

    def _gone(self, asked: str, left: str, before: str, step: str) -> bool:
        there = self.places(before)
        if there is None:
            return False
        bare = Ask(**{**vars(self.ask), "candidates": None})
        loose = Ask(**{**vars(self.ask), "constraint": None})
        tests = {
            "up": self.world.up,
            "allowed by the constraints": lambda p: self.world.admitted(bare, p),
            "among the candidates": lambda p: self.world.admitted(loose, p),
        }
        number = 0 if left == "none" else int(left)
        return sum(map(tests[step], there)) == number < int(asked.split()[0])

    def _most(self, asked: str, kind: str, place: str, most: str | None, free: str | None, words: str) -> bool:
        there = self.places(words)
        if there is None or int(asked) != self.below(place)[kind]:
            return False
        return max(self.amount(p, kind, bool(free)) for p in there) == int(most or 0) < int(asked)

    def _allowed(self, asked: str, most: str, words: str) -> bool:
        there, caps = self.places(words), self.ask.candidates
        if there is None or caps is None or int(asked) != self.ask.slots:
            return False
        return max(caps[self.world.there[p]["rank"]] for p in there) == int(most) < int(asked)

    def _cap(self, most: str, rank: str) -> bool:
        return self.ask.candidates is not None and self.ask.candidates[int(rank)] == int(most)

    def _room(self, asked: str, each: str, loose: str | None, room: str, words: str) -> bool:
        there = self.places(words)
        if there is None or int(asked) != self.ask.slots or loose:  # no vertex of the model is larger than a unit
            return False
        for kind, need in self.ask.needs:
            if f"{need} {kind}" not in each:
                return False
        up_to, least, bare = 0, 0, Ask(**{**vars(self.ask), "constraint": None, "candidates": None})
        for p in there:
            least += self.world.room(self.ask, p, self.now, self.now + self.ask.duration, ever=False)
            up_to += self.world.room(bare, p, 0, 1, ever=True)
        return least <= int(room) <= up_to and int(room) < int(asked)

    def _whole(self, asked: str, free: str, words: str) -> bool:
        there = self.places(words)
        if there is None:
            return False
        end = self.now + self.ask.duration
        wanted = self.below("node")
        idle = [p for p in there if not self.world.used(p, self.now, end, wholly=True)]
        number = sum(all(self.amount(p, kind, True) >= need for kind, need in wanted.items()) for p in idle)
        return int(asked) == self.least().get("node") and number == int(free) < int(asked)

    def _with(self, asked: str, number: str, words: str, much: str | None, free: str | None) -> bool:
        there = self.places(words)
        if there is None:
            return False
        wanted = self.below("node")
        having = [p for p in there if all(self.amount(p, kind, bool(free)) >= need for kind, need in wanted.items())]
        return int(asked) == self.least().get("node") and int(number) == len(having) < int(asked)

    def _units(self, asked: str, number: str, free: str | None, words: str) -> bool:
        there = self.places(words)
        if there is None:
            return False
        units = sum(self.amount(p, "memory", bool(free)) for p in there)
        return units == (0 if number == "none" else int(number)) < int(asked) == self.ask.slots
