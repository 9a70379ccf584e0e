"""Connections to an API server: probed while they only wait, and dropped cleanly at any moment."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import aiohttp

_PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A connection whose other side is gone without a word is broken after half a minute, also while it only waits."""


class Connector(aiohttp.TCPConnector):
    """aiohttp's pool of connections, `limit` of them at most, fit for requests that are cancelled at any moment.

    asyncio leaks the socket of a TLS connection whose making is cancelled before its handshake has begun (seen with
    Python 3.11). So a connection is always made to its end, and dropped then if no request waits for it. One that
    is not used again is dropped without TLS's farewell, which would wait for the answer of a server that may be gone.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit, socket_factory=probed_socket)
        self._making: set[asyncio.Future[Any]] = set()

    async def _create_connection(self, *request: Any) -> Any:
        making = asyncio.ensure_future(super()._create_connection(*request))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_drop)
            raise

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        should_close = should_close or protocol.should_close
        if should_close:
            protocol.abort()
        super()._release(key, protocol, should_close=should_close)

    @property
    def making(self) -> frozenset[asyncio.Future[Any]]:
        """The tasks that make connections now; whoever cancels them leaks sockets."""
        return frozenset(self._making)

    async def finish(self, seconds: float) -> None:
        """Wait until no connection is half made, at most so long."""
        if self._making:
            await asyncio.wait(self._making, timeout=seconds)


def _drop(made: asyncio.Future[Any]) -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().abort()


def probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket for the address, whose connection the system probes."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A request that was given up is not to arrive later: what was not acknowledged goes with its connection.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for option, value in _PROBES.items():
        if hasattr(socket, option):  # named differently on some systems, whose default is two hours
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
