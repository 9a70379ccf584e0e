"""What `why` says, taken at its word and counted again over the model."""

import re
from dataclasses import dataclass
from functools import cached_property

from .model import Ask, World

ENOUGH = "enough of each type is free, but not in the combination that the request needs"
NEVER = "the graph has enough of each type, but not in the combination that the request needs"
EMPTY = " even when empty"
NOUN = r"(?:other )?(?:candidate )?nodes?(?: that (?:is|are) entirely free)?"
PLACES = rf"(?:the only|both|(?:all )?(\d+)) ({NOUN})"
AMOUNTS = re.compile(r"(\d+)(?: units?(?: of)?)?(?: of)?(?: free)? (cores?|gpus?|memory|nodes?)")
SMALL = re.compile(r" \((?:(\d+) nodes? (?:is|are) )?too small even when empty\)$")


@dataclass
class Claims:
    """One answer about one request."""

    world: World
    ask: Ask
    now: int

    def wrong(self, text: str) -> str:
        """The first untrue part, or nothing."""
        fits, ever = self.world.fits(self.ask, self.now), self.world.fits(self.ask, 0, ever=True)
        if fits or text == "fits now":
            return "" if fits and text == "fits now" else "the verdict"
        parts = text.split("; ")
        if parts[-1].startswith("the request would fit at second "):
            at = int(parts.pop().rpartition(" ")[2])
            if self.world.earliest(self.ask, self.now) != at:
                return f"it would fit at {self.world.earliest(self.ask, self.now)}"
        self.ever = EMPTY in parts[0] or " and the graph has " in parts[0]
        if self.ever and ever:
            return "it is possible"
        head = re.match(r"(at most )?(\d+) of (\d+) (slots|nodes) fit: (.*)$", parts[0])
        if head:
            parts[0] = head[5]
            wanted = self.ask.slots if self.ask.shape == "slots" else self.wanted_nodes
            self.ever = self.ever or bool(head[1])
            counted_empty = self.ever and head[4] == "nodes"
            fitting = sum(self.held(place, ever=counted_empty) for place in self.places)
            if int(head[2]) != fitting or int(head[3]) != wanted:
                return "how many fit"
        while parts and (clause := self._clause(parts[-1])) is not None:
            if not clause:
                return parts[-1]
            parts.pop()
        said = "; ".join(parts)
        return "" if self._sentence(said) else said

    # ---- what there is -----------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        return self.now + self.ask.duration

    @property
    def wanted_nodes(self) -> int:
        return self.ask.nodes * self.ask.slots if self.ask.shape == "whole" else self.ask.nodes

    @cached_property
    def exclusive(self) -> bool:
        return self.ask.shape != "memory" and (self.ask.shape == "whole" or self.ask.exclusive or self.world.nodex)

    @cached_property
    def needs(self) -> dict[str, int]:
        """What one slot, or one node, needs."""
        if self.ask.shape == "memory":
            return {"memory": 1}
        if self.ask.shape == "whole":
            return {}
        times = self.ask.slots if self.ask.shape == "nodes" else 1
        return {kind: times * need for kind, need in self.ask.needs}

    @cached_property
    def there(self) -> list[str]:
        """The nodes that have any of the needed types."""
        nodes = self.world.nodes()
        return [node for node in nodes if not self.needs or any(self.amount(node, k, ever=True) for k in self.needs)]

    @cached_property
    def chosen(self) -> list[str]:
        loose = Ask(**{**vars(self.ask), "constraint": None})
        return [node for node in self.there if self.world.admitted(loose, node)]

    @cached_property
    def eligible(self) -> list[str]:
        return [node for node in self.chosen if self.meets(node)]

    @cached_property
    def up(self) -> list[str]:
        return [node for node in self.eligible if self.world.up(node)]

    def meets(self, node: str) -> bool:
        return self.world.admitted(Ask(**{**vars(self.ask), "candidates": None}), node)

    def leaves(self, node: str, kind: str) -> list[str]:
        return [p for p in self.world.below(node) if self.world.there[p]["type"] == kind]

    def units(self, leaf: str, *, ever: bool) -> int:
        if ever:
            return self.world.size(leaf)
        return self.world.free(leaf, self.now, self.end) if self.world.up(leaf) else 0

    def amount(self, node: str, kind: str, *, ever: bool) -> int:
        return sum(self.units(leaf, ever=ever) for leaf in self.leaves(node, kind))

    def untouched(self, node: str) -> bool:
        return not self.world.used(node, self.now, self.end, wholly=True)

    def usable(self, node: str, *, ever: bool) -> bool:
        return ever or not self.exclusive or self.untouched(node)

    def parts(self, node: str, kind: str, need: int, *, ever: bool) -> int:
        """How many slots could have what they need of a type."""
        leaves = [
            (self.units(leaf, ever=ever), self.world.there[leaf].get("divisible")) for leaf in self.leaves(node, kind)
        ]
        return (
            sum(free // need for free, pool in leaves if pool) + sum(free for free, pool in leaves if not pool) // need
        )

    def capacity(self, node: str, *, ever: bool) -> int:
        if not self.usable(node, ever=ever):
            return 0
        if self.ask.shape == "memory":
            return self.amount(node, "memory", ever=ever)
        if self.ask.shape == "slots":
            return min(self.parts(node, kind, need, ever=ever) for kind, need in self.needs.items())
        return int(all(self.amount(node, kind, ever=ever) >= need for kind, need in self.needs.items()))

    def cap(self, node: str) -> int | None:
        caps, rank = self.ask.candidates, self.world.there[node]["rank"]
        return caps[rank] if caps is not None and type(caps[0]) is int else None

    def held(self, node: str, *, ever: bool) -> int:
        """How many fit there, as far as the candidates allow."""
        capacity, cap = self.capacity(node, ever=ever), self.cap(node)
        if ever or cap is None or self.ask.shape in ("memory", "whole"):
            return capacity
        if self.ask.shape == "slots":
            return min(capacity, cap)
        return capacity if cap >= self.ask.slots else 0

    @property
    def places(self) -> list[str]:
        return self.eligible if self.ever else self.up

    @property
    def rest(self) -> list[str]:
        """The places that lack something for one more."""
        ever, one_each = self.ever, self.ask.shape not in ("slots", "memory")
        found = [
            p
            for p in self.places
            if self.usable(p, ever=ever) and self.held(p, ever=ever) == self.capacity(p, ever=ever)
        ]
        return [p for p in found if not (one_each and self.held(p, ever=ever))]

    def left(self, node: str, kind: str) -> int:
        held = self.held(node, ever=self.ever) if self.ask.shape == "slots" else 0
        return self.amount(node, kind, ever=self.ever) - held * self.needs[kind]

    def enough(self, node: str, kind: str) -> bool:
        """Whether there is enough of a type for one more."""
        need = self.needs[kind]
        if self.left(node, kind) < need or self.ask.shape != "slots":
            return self.left(node, kind) >= need
        return self.parts(node, kind, need, ever=self.ever) > self.held(node, ever=self.ever)

    def too_small(self, node: str) -> bool:
        return self.capacity(node, ever=True) < 1

    def counts(self, number: str | None, noun: str, places: list[str]) -> bool:
        """Whether such words are those for these places."""
        excluded = self.ask.candidates is not None and not all(self.ask.candidates[: len(self.world.nodes())])
        capped = self.ask.candidates is not None and type(self.ask.candidates[0]) is int
        candidate = excluded or capped or len(self.places) < len(self.there)
        known = int(number) if number else len(places) if len(places) in (1, 2) else -1
        return known == len(places) and ("candidate" in noun) == candidate

    # ---- one shape of answer each ------------------------------------------------------------------------------------

    def _clause(self, text: str) -> bool | None:
        """Whether a clause on further places is true; None: it is none."""
        if found := re.match(
            r"(\d+) other nodes? ha(?:s|ve) enough(?: for one)?, but the (\w+) exclude (?:it|them)$", text
        ):
            others = [p for p in self.there if (p in self.chosen) == (found[2] == "constraints")]
            others = [
                p for p in others if self.meets(p) == (found[2] == "candidates") and (self.ever or self.world.up(p))
            ]
            return int(found[1]) == sum(self.capacity(p, ever=self.ever) > 0 for p in others)
        if found := re.match(r"(\d+) more nodes? (?:is|are) down$", text):
            return int(found[1]) == sum(not self.world.up(p) and not self.too_small(p) for p in self.eligible)
        if found := re.match(r"the candidates allow no more slots on (\d+) candidate nodes?$", text):
            return int(found[1]) == sum(
                self.held(p, ever=self.ever) < self.capacity(p, ever=self.ever) for p in self.places
            )
        return None

    def _sentence(self, text: str) -> bool:
        small = SMALL.search(text)
        self.small = 0 if small is None else int(small[1]) if small[1] else -1
        text = SMALL.sub("", text)
        units, when = r"(?: units?)?", rf"(?: for the next)?(?:{EMPTY})?"
        for pattern, check in (
            (rf"the request needs (.+), and the graph has (\d+){units}$", self._in_graph),
            (rf"the request needs (.+), but the graph has only (\d+){units} of (\d+){units} free and up$", self._free),
            (rf"(?:the request needs|(\d+) slots request) (.+), and {PLACES} ha(?:s|ve) (.+?)(?: free|{EMPTY})$",
             self._total),
            (rf"no {NOUN} has (.+) at the same time{when}; of {PLACES}, (.+)$", self._apart),
            (rf"no {NOUN} is entirely free{when}; (.+), and {PLACES} (?:is|are) in use$", self._in_use),
            (rf"the candidates allow no more slots on {PLACES}$", self._no_more),
            (rf"no {NOUN} may have (\d+) slots?; the candidates allow at most (\d+) on (?:any of )?{PLACES}$",
             self._too_few),
            (rf"(?:the (candidates|constraints) exclude )?{PLACES}(?: (?:is|are) down)?$", self._none),
            (rf"no {NOUN} has (.+?) in one piece{when}$", self._in_pieces),
            (rf"no {NOUN} has (.+?){when}; (?:the most any of (\d+)|the only) ({NOUN}) has(?: left is| is)? (.+?)"
             r"(?: left)?$",
             self._short),
        ):  # fmt: skip
            found = re.match(pattern, text)
            if found:
                return check(*found.groups())
        if found := re.match(r"there (?:is|are) only (\d+) (?:candidate )?nodes?$", text):
            return not self.rest and int(found[1]) == len(self.places) < self.wanted_nodes
        if found := re.match(r"the candidates allow at most (\d+) slots? on rank (\d+)$", text):
            return self.ask.candidates is not None and self.ask.candidates[int(found[2])] == int(found[1])
        return text == (ENOUGH if self.world.fits(self.ask, 0, ever=True) else NEVER)

    def amounts(self, text: str) -> dict[str, int]:
        found = {kind: int(number) for number, kind in AMOUNTS.findall(text)}
        assert found, text
        return {
            {"cores": "core", "gpus": "gpu", "nodes": "node"}.get(kind, kind): number for kind, number in found.items()
        }

    def least(self) -> dict[str, int]:
        """What the whole request needs."""
        if self.ask.shape == "memory":
            return {"memory": self.ask.slots}
        if self.ask.shape == "whole":
            return {"node": self.wanted_nodes}
        times = self.ask.nodes if self.ask.shape == "nodes" else self.ask.slots
        return {kind: times * need for kind, need in self.needs.items()} | (
            {"node": self.ask.nodes} if self.ask.shape == "nodes" else {}
        )

    def all_of(self, kind: str) -> list[str]:
        return [p for p, fields in self.world.there.items() if fields["type"] == kind]

    def _in_graph(self, asked: str, there: str) -> bool:
        ((kind, number),) = self.amounts(asked).items()
        return number == self.least()[kind] > int(there) == sum(map(self.world.size, self.all_of(kind)))

    def _free(self, asked: str, free: str, there: str) -> bool:
        ((kind, number),) = self.amounts(asked).items()
        left = sum(self.world.free(p, self.now, self.end) for p in self.all_of(kind) if self.world.up(p))
        total = sum(map(self.world.size, self.all_of(kind)))
        return number == self.least()[kind] > int(free) == left and total == int(there)

    def _total(self, times: str | None, asked: str, number: str | None, noun: str, found: str) -> bool:
        wanted, places = self.amounts(asked), [p for p in self.places if self.usable(p, ever=self.ever)]
        if times is not None and int(times) != self.ask.slots:
            return False
        if not self.counts(number, noun, places) or not self._small_are(places):
            return False
        numbers = [int(one) for one in re.findall(r"\d+", found)]
        expected = []
        for kind, amount in wanted.items():
            free, total = (sum(self.amount(p, kind, ever=ever) for p in places) for ever in (False, True))
            if amount != self.least()[kind] or amount <= (total if self.ever else free):
                return False
            expected += [total] if self.ever else [free, total]
        return numbers == expected

    def _lacks(self, wanted: dict[str, int]) -> bool:
        """Whether no place has enough of any of these types."""
        rest = self.rest
        alone = all(need == self.needs[k] and not any(self.enough(p, k) for p in rest) for k, need in wanted.items())
        return bool(rest) and alone and self._small_are(rest)

    def _in_pieces(self, asked: str) -> bool:
        wanted = self.amounts(asked)
        return self._lacks(wanted) and any(max(self.left(p, k) for p in self.rest) >= wanted[k] for k in wanted)

    def _short(self, asked: str, number: str | None, noun: str, found: str) -> bool:
        wanted = self.amounts(asked)
        if not self._lacks(wanted) or not self.counts(number or "1", noun, self.rest):
            return False
        return [int(n) for n in re.findall(r"\d+", found)] == [max(self.left(p, k) for p in self.rest) for k in wanted]

    def _apart(self, asked: str, number: str | None, noun: str, counts: str) -> bool:
        rest, wanted = self.rest, self.amounts(asked)
        if not self.counts(number, noun, rest) or not self._small_are(rest):
            return False
        having = {kind: [p for p in rest if self.enough(p, kind)] for kind in wanted}
        together = [p for p in rest if all(p in having[kind] for kind in wanted)]
        numbers = [int(n) for n in re.findall(r"(\d+) ha", counts)]
        return all(having.values()) and not together and numbers == [len(found) for found in having.values()]

    def _in_use(self, why: str, number: str | None, noun: str) -> bool:
        in_use = [p for p in self.places if not self.untouched(p)]
        by_policy = why == "the policy allocates whole nodes"
        return self.exclusive and not self.rest and by_policy == self.world.nodex and self.counts(number, noun, in_use)

    def _full(self) -> list[str]:
        return [p for p in self.places if self.held(p, ever=self.ever) < self.capacity(p, ever=self.ever)]

    def _no_more(self, number: str | None, noun: str) -> bool:
        return not self.rest and self.counts(number, noun, self._full())

    def _too_few(self, slots: str, most: str, number: str | None, noun: str) -> bool:
        full = self._full()
        allowed = max(self.cap(node) or 0 for node in full)
        return int(slots) == self.ask.slots and self.counts(number, noun, full) and allowed == int(most)

    def _none(self, why: str | None, number: str | None, _: str) -> bool:
        before, after = {
            "candidates": (self.there, self.chosen),
            "constraints": (self.chosen, self.eligible),
            None: (self.eligible, self.up),
        }[why]
        return not after and len(before) == (int(number) if number else len(before)) and len(before) > 0

    def _small_are(self, places: list[str]) -> bool:
        """Whether the number of those that are too small is right."""
        number = 0 if self.ever else sum(map(self.too_small, places))
        return self.small == (-1 if number and number == len(places) else number)
