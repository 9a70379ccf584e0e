"""Idsets (RFC 22) and hostlists (RFC 29) written, the other way round than in `ranges`."""

import re
from collections.abc import Iterable
from functools import lru_cache

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
        stem, number, width = _split(name)
        if not (runs and runs[-1].takes(stem, number, width)):
            runs.append(_Run(stem, number, width))
    words: list[str] = []
    first = 0
    while first < len(runs):
        last = first + 1
        while last < len(runs) and runs[first].numbered and runs[last].numbered and runs[last].stem == runs[first].stem:
            last += 1
        words.append(_word(runs[first:last]))
        first = last
    return ",".join(words)


@lru_cache(maxsize=1 << 16)
def _split(name: str) -> tuple[str, int, int]:
    """Stem, number at the end and its width; width 0: a host without a number."""
    found = _SUFFIX.search(name)
    return (name[: found.start()], int(found.group()), len(found.group())) if found else (name, 0, 0)


class _Run:
    """Hosts of one stem with consecutive numbers of one width; `width` 0: one host without a number."""

    __slots__ = ("high", "low", "stem", "width")

    def __init__(self, stem: str, low: int, width: int) -> None:
        self.stem, self.low, self.high, self.width = stem, low, low, width

    @property
    def numbered(self) -> bool:
        return self.width > 0

    def takes(self, stem: str, number: int, width: int) -> bool:
        """Whether a host goes on where this ends, written with as many leading zeros; it belongs to the run then."""
        if number != self.high + 1 or stem != self.stem or not (self.width and width):
            return False
        longer = width > self.width and number >= 10 ** (width - 1)  # the plain way from node9 to node10
        if width != self.width and not longer and not self._same_width(number, width):
            return False
        self.high = number
        return True

    def _same_width(self, number: int, width: int) -> bool:
        if _zeros(self.low, self.width) == _zeros(self.low, width):
            self.width = width
            return True
        return _zeros(number, width) == _zeros(number, self.width)

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
