"""A client's pool of HTTP connections: limited in number, reused, probed by TCP keepalive, closed without leaks.

A request may be cancelled at any moment. asyncio leaks the socket of a TLS connection that is cancelled before its
handshake begins (seen with Python 3.11). So the pool always completes a connection, and drops it if no request waits
for it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import Final

from aiohappyeyeballs import AddrInfoType, addr_to_addr_infos, start_connection

from session_scheduler.base.addresses import host_and_port
from session_scheduler.base.http_connection import Endpoint, HttpConnection, NotConnectedError

_PROBES: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""They close a connection whose peer has vanished after half a minute, even when it is idle."""
_IDLE_SECONDS: Final = 15.0
"""How long the pool keeps an idle connection: less than servers do, so that few requests use a closed one."""
_CLOSE_SECONDS: Final = 1.0
"""How long `close` waits for connections in progress, and again for sockets."""
_NEXT_FAMILY_SECONDS: Final = 0.25
"""How long an address may take before one of the other IP version is tried as well. Source: RFC 8305, section 8."""


class HttpPool:
    """At most `limit` connections; further requests wait in FIFO order. Create it in a running event loop."""

    def __init__(self, limit: int, *, connect_seconds: float) -> None:
        self._free = asyncio.Semaphore(limit)
        self._connect_seconds = connect_seconds
        self._making: set[asyncio.Task[HttpConnection]] = set()
        self._used: set[HttpConnection] = set()
        self._idle: deque[tuple[HttpConnection, float]] = deque()
        """Each with the time since it has been idle, the oldest first."""
        self._loop = asyncio.get_running_loop()
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False

    async def acquire(self, endpoint: Endpoint) -> HttpConnection:
        """A connection for one request; call `release` after it. Raises NotConnectedError."""
        await self._free.acquire()
        try:
            connection = self._kept(endpoint) or await self._made(endpoint)
        except BaseException:
            self._free.release()
            raise
        self._used.add(connection)
        return connection

    def release(self, connection: HttpConnection) -> None:
        """Keep the connection for other requests, or drop it if its request or response is incomplete."""
        self._used.discard(connection)
        self._free.release()
        if self._closed or not connection.reusable:
            connection.abort()
            return
        self._idle.append((connection, self._loop.time()))
        if self._expiry is None:
            self._expiry = self._loop.call_later(_IDLE_SECONDS, self._expire)

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        dropped = [*self._used, *(connection for connection, _ in self._idle)]
        if self._making:
            made, _ = await asyncio.wait(self._making, timeout=_CLOSE_SECONDS)
            dropped += [one.result() for one in made if not one.cancelled() and one.exception() is None]
        self._idle.clear()
        for connection in dropped:
            connection.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                for connection in dropped:
                    await connection.wait_closed()

    def _kept(self, endpoint: Endpoint) -> HttpConnection | None:
        """The connection that was used last, so that the others can expire."""
        oldest = self._loop.time() - _IDLE_SECONDS
        while self._idle:
            connection, since = self._idle.pop()
            if connection.reusable and connection.endpoint == endpoint and since >= oldest:
                return connection
            connection.abort()
        return None

    def _expire(self) -> None:
        self._expiry = None
        oldest = self._loop.time() - _IDLE_SECONDS
        while self._idle and (self._idle[0][1] <= oldest or not self._idle[0][0].reusable):
            self._idle.popleft()[0].abort()
        if self._idle:
            self._expiry = self._loop.call_at(self._idle[0][1] + _IDLE_SECONDS, self._expire)

    async def _made(self, endpoint: Endpoint) -> HttpConnection:
        if self._closed:
            raise NotConnectedError("the client is closed")
        making = asyncio.ensure_future(self._make(endpoint))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_drop)
            raise

    async def _make(self, endpoint: Endpoint) -> HttpConnection:
        where = host_and_port(endpoint.host, endpoint.port)
        began = self._loop.time()
        try:
            async with asyncio.timeout(self._connect_seconds):
                connected = await start_connection(
                    await _addresses(endpoint),
                    happy_eyeballs_delay=_NEXT_FAMILY_SECONDS,
                    socket_factory=probed_socket,
                )
            try:
                # asyncio itself times the handshake out, without a leak: cancelling it would leak.
                _, connection = await self._loop.create_connection(
                    lambda: HttpConnection(endpoint),
                    sock=connected,
                    ssl=endpoint.tls,
                    server_hostname=(endpoint.server_name or endpoint.host) if endpoint.tls is not None else None,
                    ssl_handshake_timeout=self._left(began) if endpoint.tls is not None else None,
                )
            except BaseException:
                connected.close()
                raise
        except TimeoutError as error:
            raise NotConnectedError(f"timed out connecting to {where}") from error
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: uvloop; ValueError: an invalid name
            raise NotConnectedError(f"failed to connect to {where}") from error
        return connection

    def _left(self, began: float) -> float:
        return max(0.001, self._connect_seconds - (self._loop.time() - began))


async def _addresses(endpoint: Endpoint) -> list[AddrInfoType]:
    with suppress(ValueError):
        ipaddress.ip_address(endpoint.host)
        return addr_to_addr_infos((endpoint.host, endpoint.port)) or []
    found = await asyncio.get_running_loop().getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    return list(found)


def _drop(made: asyncio.Task[HttpConnection]) -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().abort()


def probed_socket(address: AddrInfoType) -> socket.socket:
    """A socket for the address, with TCP keepalive."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Discard unsent bytes on close: an abandoned request must not arrive later.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for option, value in _PROBES.items():
        if hasattr(socket, option):  # other systems name it differently; their default is two hours
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
