"""Hostlists (RFC 29) and idsets (RFC 22), to the extent that constraints and resource sets use them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_MARK = re.compile(r"[\[\], \t]")
MAX_HOSTS = 200_000
MAX_LETTERS = 8_000_000
_MAX_ID = 2**32 - 1
_MAX_DIGITS = 20  # of an unsigned 64-bit number


def idset(text: str) -> list[tuple[int, int]]:
    """The ranges (low, high) of an idset such as `0-3,7` or `[0-3,7]`. Raises ValueError if it is invalid."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    if not text:
        return []
    spans = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        first = _number(low)
        last = _number(high) if dash else first
        if last < first or last > _MAX_ID:
            raise ValueError(text)
        spans.append((first, last))
    return spans


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        raise ValueError(text)
    return int(text)


def idset_of(ranks: Iterable[int]) -> str:
    """An idset of RFC 22, such as `0-3,7`, without the numbers below 0."""
    spans: list[list[int]] = []
    for rank in sorted(rank for rank in set(ranks) if rank >= 0):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


@dataclass(slots=True)
class Limit:
    """How many hosts, and letters of their names, the hostlists of one text may still expand to."""

    hosts: int = field(default_factory=lambda: MAX_HOSTS)
    letters: int = field(default_factory=lambda: MAX_LETTERS)


def hostlist(text: str, limit: Limit | None = None) -> list[str]:
    """The hosts of a hostlist such as `node[0-3],login1`. Raises ValueError if it is invalid or exceeds the limit.

    Without `limit` it may name 200,000 hosts, with eight million letters in total.
    """
    limit = limit or Limit()
    hosts: list[str] = []
    for word in _words(text):
        found = _expand(word, limit)
        limit.hosts -= len(found)
        limit.letters -= len(found) * len(word)
        hosts.extend(found)
    return hosts


def _words(text: str) -> list[str]:
    """Splits at commas and spaces outside of brackets."""
    words, depth, start = [], 0, 0
    for mark in _MARK.finditer(text):
        char = mark[0]
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise ValueError(text)
        if char in ", \t" and depth == 0:
            words.append(text[start : mark.start()])
            start = mark.end()
    if depth:
        raise ValueError(text)
    words.append(text[start:])
    return [word for word in words if word]


def _expand(word: str, limit: Limit) -> list[str]:
    pieces = _BRACKET.split(word)
    hosts = [pieces[0]]
    most = min(limit.hosts, limit.letters // max(1, len(word)))  # no host's name is longer than its word
    for i in range(1, len(pieces), 2):
        numbers = _padded(pieces[i], most)
        if len(hosts) * len(numbers) > most:
            raise ValueError(f"{word[:40]} names too many hosts")
        hosts = [host + number + pieces[i + 1] for host in hosts for number in numbers]
    if len(hosts) > most:
        raise ValueError(f"{word[:40]} names too many hosts")
    return hosts


def _padded(text: str, most: int) -> list[str]:
    """The numbers of one bracket, padded as written."""
    numbers: list[str] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        first = _number(low)
        last = _number(high) if dash else first
        if last < first or len(numbers) + last - first >= most:
            raise ValueError(text)
        width = len(low) if low.startswith("0") else 0
        numbers.extend(str(n).zfill(width) for n in range(first, last + 1))
    return numbers
