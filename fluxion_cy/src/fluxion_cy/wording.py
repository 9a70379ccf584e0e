"""The sentences of a shortage: what a request lacks, in the words and units of its user."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

_MIB = "MiB"
_MIB_IN_GIB = 1024


class Words:
    """How sentences name amounts. A subclass may choose other words; `unit` is the vertex's unit in the graph."""

    slot = "slot"
    """What a slot stands for."""
    filters = "the candidates"
    """What chose the candidates."""
    names_excluded = True
    """Whether a sentence says how many vertices have enough, but are not candidates."""
    graph = "the graph"
    whole_nodes = "the policy allocates whole nodes"
    """Why a node must be entirely free where the request does not ask for that."""

    def name(self, kind: str, unit: str) -> str:
        """A type in the plural: `cores`, `memory`."""
        return kind if unit else plural(kind)

    def amount(self, kind: str, number: int, unit: str, *, free: bool = False) -> str:
        """An amount of a type: `2 free cores`, `4 GiB of free memory`."""
        adjective = "free " if free else ""
        if unit:
            return f"{self.number(kind, number, number, unit)} of {adjective}{kind}"
        return f"{number} {adjective}{kind if number == 1 else self.name(kind, unit)}"

    def note(self, kind: str) -> str:  # noqa: ARG002 - for other words
        """A remark in brackets on how much of a type is requested, with a space before it."""
        return ""

    def number(self, kind: str, number: int, need: int, unit: str) -> str:  # noqa: ARG002 - for other words
        """An amount whose type the sentence has already named; `need`: how much of it is requested."""
        if unit == _MIB:
            return in_mib(number)
        return f"{number} {unit}{'s' * (unit == 'unit' and number != 1)}" if unit else str(number)


def in_mib(number: int) -> str:
    """MiB as GiB where that is a whole number."""
    if number and number % _MIB_IN_GIB == 0:
        return f"{number // _MIB_IN_GIB} GiB"
    return f"{number} MiB"


def plural(word: str) -> str:
    """The plural of a type; `memory`, and a type with characters other than letters, stays as it is."""
    if not word.isalpha() or word in ("memory", ""):
        return word
    return f"{word}es" if word.endswith(("s", "x", "ch", "sh")) else f"{word}s"


def joined(parts: Iterable[str], last: str = "and") -> str:
    """`a, b and c`."""
    words = list(parts)
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


@dataclass(frozen=True, slots=True)
class Shortage:
    """What keeps a request from matching now. Of `wanted` slots, or vertices, `fitting` fit."""

    reason: str
    wanted: int = 1
    fitting: int = 0
    noun: str = "slots"
    at_most: bool = False
    """Whether `fitting` is an upper bound."""

    def __str__(self) -> str:
        if self.wanted == 1:
            return self.reason
        return f"{'at most ' * self.at_most}{self.fitting} of {self.wanted} {self.noun} fit: {self.reason}"


@dataclass(frozen=True, slots=True)
class Places:
    """The vertices of one type that a sentence counts; `before` and `after` say which of them."""

    kind: str
    number: int
    before: str = ""
    after: str = ""
    """In the plural: `that are entirely free`."""
    small: int = 0
    """How many are too small even when empty."""

    def __str__(self) -> str:
        return f"the only {self.one}" if self.number == 1 else f"{self.number} {self.noun}"

    @property
    def all(self) -> str:
        """`all 4 nodes`, `both nodes` or `the only node`."""
        return {1: str(self), 2: f"both {self.noun}"}.get(self.number, f"all {self}")

    @property
    def one(self) -> str:
        """The noun in the singular: `candidate node`."""
        return self._words(self.kind, self.after.replace("that are", "that is"))

    @property
    def plain(self) -> str:
        """The same without the words that set these places apart from excluded ones."""
        return replace(self, before=self.before.replace("candidate", "").strip()).one

    @property
    def noun(self) -> str:
        """The noun as the number demands: `candidate nodes`."""
        return self.one if self.number == 1 else self._words(plural(self.kind), self.after)

    def _words(self, noun: str, after: str) -> str:
        return " ".join(word for word in (self.before, noun, after) if word)

    @property
    def too_small(self) -> str:
        """In brackets, how many are too small; nothing where none is."""
        if not self.small:
            return ""
        if self.small == self.number:
            return " (too small even when empty)"
        noun, verb = (self.kind, "is") if self.small == 1 else (plural(self.kind), "are")
        return f" ({self.small} {noun} {verb} too small even when empty)"


@dataclass(frozen=True, slots=True)
class Sentences:
    """Words a shortage of `needs` on some places. `ever`: counted as if all were empty."""

    words: Words
    units: Mapping[str, str]
    needs: Mapping[str, int]
    ever: bool = False
    filled: bool = False
    """Whether some slots fit, and the places lack something for the next one."""
    others: Sequence[str] = ()
    """Clauses on places that have enough and are excluded."""

    def short(self, places: Places, most: Mapping[str, int], pieces: Collection[str]) -> str:
        """No place has enough of these types; `pieces`: those that it has enough of, but not in one vertex."""
        wanted = joined((self._requested(kind) for kind in most), "or")
        subject = f"{self._subject(places)} has {wanted}"
        if any(kind in pieces for kind in most):
            return self._ended(f"{subject} in one piece{self._when}{self._notes(most)}{places.too_small}")
        left = " left" * self.filled
        if len(most) == 1:
            ((kind, amount),) = most.items()
            found = self._number(kind, amount)
        else:
            found = joined(self.words.amount(kind, amount, self.units[kind]) for kind, amount in most.items())
        has = f"{places} has {found}{left}" if places.number == 1 else f"the most any of {places} has{left} is {found}"
        return self._ended(f"{subject}{self._when}{self._notes(most)}; {has}{places.too_small}")

    def apart(self, places: Places, having: Mapping[str, int]) -> str:
        """No place has enough of all these types; `having`: how many have enough of each."""
        wanted = joined(map(self._requested, having))
        counts = [
            f"{number} {'has' if number == 1 else 'have'} enough {self.words.name(kind, self.units[kind])}"
            for kind, number in having.items()
        ]
        text = f"{self._subject(places)} has {wanted} at the same time{self._when}{self._notes(having)}"
        return self._ended(f"{text}; of {places}, {joined(counts)}{places.too_small}")

    def total(self, places: Places, amounts: Mapping[str, tuple[int, int]], times: int, who: str) -> str:
        """All places together have too little; `amounts`: by type what is free, and what there is."""
        wanted = joined(
            f"{self.words.amount(kind, times * self.needs[kind], self.units[kind])}{self.words.note(kind)}"
            for kind in amounts
        )
        have = f"{places} {'has' if places.number == 1 else 'have'}"
        there = {
            kind: self._number(kind, number) if len(amounts) == 1 else self.words.amount(kind, number, self.units[kind])
            for kind, (_, number) in amounts.items()
        }
        if self.ever:
            return self._ended(f"{who} {wanted}, and {have} {joined(there.values())} even when empty")
        found = joined(f"{self._number(kind, free)} of {there[kind]}" for kind, (free, _) in amounts.items())
        return self._ended(f"{who} {wanted}, and {have} {found} free{places.too_small}")

    def in_use(self, places: Places, by_policy: bool) -> str:
        """A place must be entirely free, and none is."""
        why = self.words.whole_nodes if by_policy else f"the request needs whole {plural(places.kind)}"
        verb = "is" if places.number == 1 else "are"
        text = f"{self._subject(places)} is entirely free{self._when}"
        return self._ended(f"{text}; {why}, and {places.all} {verb} in use{places.too_small}")

    def no_more_slots(self, places: Places) -> str:
        """The candidates allow no further slot."""
        return self._ended(f"{self.words.filters} allow no more {plural(self.words.slot)} on {places}")

    def too_few_slots(self, places: Places, inside: int, most: int) -> str:
        """On no place do the candidates allow as many slots as it needs."""
        slots = f"{inside} {self.words.slot if inside == 1 else plural(self.words.slot)}"
        on = places if places.number == 1 else f"any of {places}"
        return self._ended(
            f"{self._subject(places)} may have {slots}; {self.words.filters} allow at most {most} on {on}"
        )

    def too_few(self, places: Places) -> str:
        """All places are taken, and more are needed."""
        return self._ended(f"there {'is' if places.number == 1 else 'are'} only {places.number} {places.noun}")

    @property
    def _when(self) -> str:
        return " for the next" * self.filled + " even when empty" * self.ever

    def _subject(self, places: Places) -> str:
        return f"no {places.one if self.others else places.plain}"

    def _requested(self, kind: str) -> str:
        return self.words.amount(kind, self.needs[kind], self.units[kind], free=not self.ever)

    def _notes(self, kinds: Iterable[str]) -> str:
        return "".join(map(self.words.note, kinds))

    def _number(self, kind: str, number: int) -> str:
        return self.words.number(kind, number, self.needs[kind], self.units[kind])

    def _ended(self, text: str) -> str:
        return "; ".join((text, *self.others))
