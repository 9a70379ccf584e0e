"""Expands Slurm's host lists, `k8s-[0-3,7],a[01-03]b`, into node names.

A server writes these strings, and a few bytes can expand to any number of names, so all sizes are limited.
Source: the man pages of slurm.conf (NodeName) and scontrol (show hostnames).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Final

from session_scheduler.errors import FluenceError, shown

NAMES: Final = 100_000
"""The maximum number of names that a string may expand to."""
_CHARACTERS: Final = 4 << 20
_PIECES: Final = 16
"""The maximum number of pieces of a name, in brackets and between them."""
_DIGITS: Final = 18
_PIECE: Final = re.compile(r"\[([^\[\]]*)\]|([^\[\],\s]+)")
_RANGE: Final = re.compile(r"([0-9]+)(?:-([0-9]+))?")


class HostlistError(FluenceError):
    """A string is not a valid host list, or expands to too many names."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__(f"list of nodes {shown(text)}: {what}")


def expand(text: str, *, limit: int = NAMES) -> tuple[str, ...]:
    """The names in Slurm's order: with several brackets in a name, the last one varies fastest.
    Raises HostlistError.
    """
    if len(text) > _CHARACTERS:
        raise HostlistError(text, f"the list has {len(text)} characters; the limit is {_CHARACTERS}")
    names: list[str] = []
    for pieces in _words(text):
        ranges = [_ranges(piece, text) for piece in pieces]
        if len(names) + prod(sum(len(numbers) for numbers, _ in piece) for piece in ranges) > limit:
            raise HostlistError(text, f"the list expands to more than {limit} names")
        names.extend(map("".join, product(*map(_texts, ranges))))
    return tuple(names)


_Ranges = Sequence[tuple[range, int | str]]
"""Numbers and the width to which they are padded with zeros; or a single number, and the literal text of a piece."""


def _words(text: str) -> Iterator[list[re.Match[str]]]:
    """Each name of the list, split into its pieces in brackets and between them."""
    at = 0
    while at < len(text):
        pieces: list[re.Match[str]] = []
        while piece := _PIECE.match(text, at):
            pieces.append(piece)
            at = piece.end()
        if at < len(text) and text[at] != ",":
            raise HostlistError(text, f"expected a name or a bracket at character {at + 1}, got {shown(text[at])}")
        if not pieces or (at + 1 == len(text)):
            raise HostlistError(text, f"a name is missing at character {at + 1}")
        if len(pieces) > _PIECES:
            raise HostlistError(text, f"a name has more than {_PIECES} parts")
        yield pieces
        at += 1


def _ranges(piece: re.Match[str], text: str) -> _Ranges:
    bracket, plain = piece.groups()
    if bracket is None:
        return [(range(1), plain)]
    return [_range(part, text) for part in bracket.split(",")]


def _range(part: str, text: str) -> tuple[range, int]:
    found = _RANGE.fullmatch(part)
    if found is None:
        raise HostlistError(text, f"expected a number or a range in brackets, got {shown(part)}")
    first, last = found[1], found[2] or found[1]
    if max(len(first), len(last)) > _DIGITS:
        raise HostlistError(text, f"{shown(part)} has more than {_DIGITS} digits")
    if int(last) < int(first):
        raise HostlistError(text, f"the range {shown(part)} ends before it begins")
    return range(int(first), int(last) + 1), len(first)


def _texts(ranges: _Ranges) -> list[str]:
    return [
        width if isinstance(width, str) else str(number).zfill(width) for numbers, width in ranges for number in numbers
    ]
