"""Idsets (RFC 22) and hostlists (RFC 29) written, the other way round than in `ranges`."""

import re
from collections.abc import Iterable

_SUFFIX = re.compile(r"[0-9]{1,18}$")


def idset_text(numbers: Iterable[int]) -> str:
    """`0-3,7` for the numbers 7, 0, 1, 2, 3; each once, ascending."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(_span(low, high) for low, high in spans)


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def hostlist_text(names: Iterable[str]) -> str:
    """`node[0-3],login` for hosts in this order; only neighbours in the order are joined."""
    runs: list[_Run] = []
    for name in names:
        run = _Run.of(name)
        if runs and runs[-1].takes(run):
            runs[-1].high = run.high
        else:
            runs.append(run)
    words: list[str] = []
    first = 0
    while first < len(runs):
        last = first + 1
        while last < len(runs) and runs[first].numbered and runs[last].numbered and runs[last].stem == runs[first].stem:
            last += 1
        words.append(_word(runs[first:last]))
        first = last
    return ",".join(words)


class _Run:
    """Hosts of one stem with consecutive numbers of one width; `numbered` false: one host without a number."""

    __slots__ = ("high", "low", "numbered", "stem", "width")

    def __init__(self, stem: str, low: int, width: int, numbered: bool) -> None:
        self.stem, self.low, self.high, self.width, self.numbered = stem, low, low, width, numbered

    @classmethod
    def of(cls, name: str) -> "_Run":
        found = _SUFFIX.search(name)
        if found is None:
            return cls(name, 0, 0, False)
        digits = found.group()
        return cls(name[: found.start()], int(digits), len(digits), True)

    def takes(self, run: "_Run") -> bool:
        """Whether `run` goes on where this ends, written with as many leading zeros."""
        if not (self.numbered and run.numbered) or self.stem != run.stem or run.low != self.high + 1:
            return False
        return self._same_width(run)

    def _same_width(self, run: "_Run") -> bool:
        if _zeros(self.low, self.width) == _zeros(self.low, run.width):
            self.width = run.width
            return True
        return _zeros(run.low, run.width) == _zeros(run.low, self.width)

    def __str__(self) -> str:
        low, high = str(self.low).zfill(self.width), str(self.high).zfill(self.width)
        return low if low == high else f"{low}-{high}"


def _zeros(number: int, width: int) -> int:
    return max(0, width - len(str(number)))


def _word(runs: list[_Run]) -> str:
    first = runs[0]
    if not first.numbered:
        return first.stem
    numbers = ",".join(map(str, runs))
    return first.stem + (f"[{numbers}]" if len(runs) > 1 or first.low != first.high else numbers)
