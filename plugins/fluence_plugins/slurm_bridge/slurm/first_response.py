"""The first answer on a connection, where slurmrestd writes more than one.

slurmrestd 26.05 follows each answer with an error by a second one, in plain text; asked to close the connection, it
writes its `Connection: Close` behind the body. aiohttp refuses the whole for what follows the end, if it comes in time.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Final

from aiohttp.client_proto import ResponseHandler

_HEAD_BYTES: Final = 64 << 10
"""A longer head is the parser's to refuse."""
_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n", re.IGNORECASE)


class Cut:
    """Of the bytes that come, those of the first answer. One without a length ends with its connection, uncut."""

    def __init__(self) -> None:
        self._head = b""
        self._left: int | None = None
        self._within = False

    def wanted(self, data: bytes) -> bytes:
        """What of the next bytes belongs to it. Its head is held back until it is whole."""
        if not self._within:
            self._head += data
            end = self._head.find(_END)
            if end < 0 and len(self._head) <= _HEAD_BYTES:
                return b""
            data, self._head, self._within = self._head, b"", True
            length = _LENGTH.search(data, 0, end + len(_END)) if end >= 0 else None
            if length is not None:
                self._left = end + len(_END) + int(length[1])
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        return data


class FirstAnswer(ResponseHandler):
    """The protocol of a connection that serves one request."""

    @classmethod
    def made_by(cls, loop: asyncio.AbstractEventLoop) -> partial[ResponseHandler]:
        """What a connector is to make its connections' protocols with. Its `_factory` is not promised by aiohttp."""
        kind: type[ResponseHandler] = cls
        return partial(kind, loop=loop)

    def connection_made(self, transport: object) -> None:
        """Begin anew."""
        self._cut = Cut()
        super().connection_made(transport)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Give the parser what is the answer's."""
        if wanted := self._cut.wanted(data):
            super().data_received(wanted)
