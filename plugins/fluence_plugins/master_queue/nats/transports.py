"""The transports of a NATS connection, TCP and WebSocket, plain or with TLS; each can be dropped at once."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any, Final
from urllib.parse import ParseResult

import aiohttp
from nats.aio.transport import TcpTransport, WebSocketTransport

from fluence_plugins.master_queue.nats.parser import LARGEST_MESSAGE

_LINE: Final = 1 << 20
"""Bytes of the server's greeting."""


class TcpConnection(TcpTransport):
    """A TCP connection, with TLS once the server and the client have agreed on it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def is_tls(self) -> bool:
        """Whether TLS is on."""
        return self._io_writer is not None and self._io_writer.get_extra_info("ssl_object") is not None

    async def connect(self, uri: ParseResult, *_: Any, **__: Any) -> None:
        """Reach the server. Raises OSError."""
        reader, writer = await asyncio.open_connection(uri.hostname, uri.port, limit=_LINE)
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = writer

    async def drop(self, _seconds: float) -> None:
        """Close the socket now: a TLS connection would wait for the other end."""
        for writer in (self._io_writer, self._bare_io_writer):
            if writer is not None:
                writer.transport.abort()
        for _ in range(2):  # the loop closes sockets behind what it is doing
            await asyncio.sleep(0)


class WebSocketConnection(WebSocketTransport):
    """A WebSocket, with TLS if a context is given."""

    def __init__(self, context: ssl.SSLContext | None, server_name: str | None) -> None:
        super().__init__()
        self._context = context
        self._server_name = server_name

    @property
    def is_tls(self) -> bool:
        """Whether TLS is on."""
        return self._context is not None

    async def connect(self, uri: ParseResult, *_: Any, **__: Any) -> None:
        """Reach the server. Raises aiohttp.ClientError, OSError."""
        self._ws = await self._client.ws_connect(
            uri.geturl(),
            ssl=self._context if self._context is not None else True,
            server_hostname=self._server_name,
            max_msg_size=LARGEST_MESSAGE,
            timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
        )

    def at_eof(self) -> bool:
        """Whether nothing more comes."""
        return self._ws is None or self._ws.closed

    async def drop(self, seconds: float) -> None:
        """Close it, and the session of aiohttp."""
        with suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(seconds):
                if self._ws is not None:
                    await self._ws.close()
        await self._client.close()
