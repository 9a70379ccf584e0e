"""What a NATS server sends, taken apart within limits: bytes in, messages and lines out. No I/O.

The library's own parser gives up the connection, or stops reading without a word, at subjects that any publisher may
choose (with a vertical tab, or not in UTF-8), and collects a line without end. Source: the NATS client protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

LONGEST_LINE: Final = 1 << 20
"""Bytes; the longest is INFO of a large cluster."""
LARGEST_MESSAGE: Final = 64 << 20
"""Bytes; no server can be told to let a larger one pass."""
_END: Final = b"\r\n"


class WireError(Exception):
    """What a NATS server never sends."""


class Arrived(NamedTuple):
    """A message to a subscription, without its headers."""

    subscription: int
    subject: bytes
    data: bytes


class Line(NamedTuple):
    """All else: INFO, PING, PONG, +OK or -ERR, and what is behind it."""

    word: str
    rest: bytes


class Parser:
    """Keeps what has come of a line or message that is not whole yet."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        """Bytes in which there is no end of a line."""
        self._message: tuple[int, bytes, int, int] | None = None
        """Subscription, subject, bytes of headers and of all, of a message whose bytes are to come."""

    def feed(self, data: bytes) -> Iterator[Arrived | Line]:
        """What is whole with these bytes, to be taken to the end. Raises WireError; then nothing more can be read."""
        self._rest += data
        start, whole = 0, True
        while whole:
            one, start, whole = self._next(start)
            if one is not None:
                yield one
        del self._rest[:start]

    def _next(self, start: int) -> tuple[Arrived | Line | None, int, bool]:
        """What begins at `start`, where the next begins, and whether it was all there."""
        if self._message is not None:
            return self._payload(*self._message, start)
        end = self._rest.find(_END, start + self._searched)
        if max(end, len(self._rest) if end < 0 else 0) - start > LONGEST_LINE:
            raise WireError(f"a line of more than {LONGEST_LINE} bytes")
        if end < 0:
            self._searched = max(0, len(self._rest) - start - 1)
            return None, start, False
        self._searched = 0
        return self._line(bytes(self._rest[start:end])), end + len(_END), True

    def _payload(
        self, subscription: int, subject: bytes, headers: int, size: int, start: int
    ) -> tuple[Arrived | None, int, bool]:
        end = start + size
        if len(self._rest) < end + len(_END):
            return None, start, False
        if self._rest[end : end + len(_END)] != _END:
            raise WireError("a message that is longer than it says")
        self._message = None
        return Arrived(subscription, subject, bytes(self._rest[start + headers : end])), end + len(_END), True

    def _line(self, line: bytes) -> Line | None:
        word, _, rest = line.replace(b"\t", b" ").partition(b" ")
        match word.upper():
            case b"MSG":
                self._begin(rest, headers=False)
            case b"HMSG":
                self._begin(rest, headers=True)
            case b"INFO" | b"PING" | b"PONG" | b"+OK" | b"-ERR":
                return Line(word.upper().decode(), rest.strip())
            case _:
                raise WireError("a word that is none of NATS")
        return None

    def _begin(self, rest: bytes, *, headers: bool) -> None:
        words = [word for word in rest.split(b" ") if word]
        sizes = words[-2:] if headers else [b"0", *words[-1:]]
        if len(words) - headers not in (3, 4) or not all(_is_number(word) for word in (words[1], *sizes)):
            raise WireError("a message whose first line is none")
        before, size = int(sizes[0]), int(sizes[1])
        if before > size or size > LARGEST_MESSAGE:
            raise WireError(f"a message of more than {LARGEST_MESSAGE} bytes, or with more headers than it has bytes")
        self._message = int(words[1]), words[0], before, size


def _is_number(word: bytes) -> bool:
    return len(word) <= 18 and word.isdigit()
