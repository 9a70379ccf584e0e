"""A parser of the NATS client protocol with limits: bytes in, messages and lines out. No I/O.

Some subjects that any publisher may choose (with a vertical tab, or not in UTF-8) make nats-py's parser close the
connection or stop reading silently. It also buffers a line without a limit.
Source: the NATS client protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

LONGEST_LINE: Final = 1 << 20
"""In bytes; the longest line is the INFO of a large cluster."""
LARGEST_MESSAGE: Final = 64 << 20
"""In bytes; no server can be configured to allow a larger one."""
_END: Final = b"\r\n"


class WireError(Exception):
    """The data is not valid in the NATS protocol."""


class Arrived(NamedTuple):
    """A message to a subscription, without its headers."""

    subscription: int
    subject: bytes
    data: bytes


class Line(NamedTuple):
    """Any other line: INFO, PING, PONG, +OK or -ERR, and the text after it."""

    word: str
    rest: bytes


class Parser:
    """Buffers incomplete lines and messages."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        """The bytes that are known to contain no end of a line."""
        self._message: tuple[int, bytes, int, int] | None = None
        """A message whose payload is incomplete: subscription, subject, bytes of headers, and total bytes."""

    def feed(self, data: bytes) -> Iterator[Arrived | Line]:
        """Yield what is complete with these bytes; exhaust the iterator. Raises WireError, after which the parser is
        unusable.
        """
        self._rest += data
        start, complete = 0, True
        while complete:
            one, start, complete = self._next(start)
            if one is not None:
                yield one
        del self._rest[:start]

    def _next(self, start: int) -> tuple[Arrived | Line | None, int, bool]:
        """The item at `start`, the position of the next item, and whether the item was complete."""
        if self._message is not None:
            return self._payload(*self._message, start)
        end = self._rest.find(_END, start + self._searched)
        if max(end, len(self._rest) if end < 0 else 0) - start > LONGEST_LINE:
            raise WireError(f"a line has more than {LONGEST_LINE} bytes")
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
            raise WireError("a message is longer than declared")
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
                raise WireError("an unknown operation")
        return None

    def _begin(self, rest: bytes, *, headers: bool) -> None:
        words = [word for word in rest.split(b" ") if word]
        sizes = words[-2:] if headers else [b"0", *words[-1:]]
        if len(words) - headers not in (3, 4) or not all(_is_number(word) for word in (words[1], *sizes)):
            raise WireError("a message has an invalid first line")
        before, size = int(sizes[0]), int(sizes[1])
        if before > size or size > LARGEST_MESSAGE:
            raise WireError(
                f"a message has more than {LARGEST_MESSAGE} bytes, or its headers are larger than the message"
            )
        self._message = int(words[1]), words[0], before, size


def _is_number(word: bytes) -> bool:
    return len(word) <= 18 and word.isdigit()
