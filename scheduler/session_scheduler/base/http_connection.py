"""A client's HTTP/1.1 connection: one request at a time, its response read whole or streamed.

asyncio carries the bytes, and httptools (llhttp) parses them. Bytes after a complete response are ignored, and the
connection is not reused. A connection never follows redirects, decompresses or retries.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final, cast

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_HEAD_BYTES: Final = 64 << 10
"""The limit of a response's head, and of the bytes between two parts of its body."""
_BUFFER_BYTES: Final = 256 << 10
"""With more unread bytes of a streamed response than this, the connection stops receiving."""
_FIRST_FINAL: Final = 200
"""Lower statuses are interim: another response follows."""
_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})


class NotConnectedError(ConnectionError):
    """No connection was established, so nothing was sent; `__cause__` is the reason."""


class BadResponseError(ConnectionError):
    """The server sent an invalid HTTP response, or one that exceeds a limit."""


class TooLongError(BadResponseError):
    """The response's body exceeds the caller's limit."""


class Endpoint(msgspec.Struct, frozen=True):
    """A server. Connections with equal endpoints are interchangeable."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    """The name in the certificate, if it differs from the host."""


class Response(msgspec.Struct, frozen=True):
    """A whole response."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: str) -> str:
        """The first value of a header; empty if the response does not have it."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), "")


def request_head(method: str, target: str, host: str, headers: Mapping[str, str], length: int | None) -> bytes:
    """A request's first line and headers; no `length` means no body. Raises ValueError for a line break."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines)
    if not head.count("\r") == head.count("\n") == len(lines) - 1:
        raise ValueError("a value in the request head contains a line break")
    return f"{head}\r\n\r\n".encode()


class HttpConnection(asyncio.Protocol):
    """One connection. For each request, call `exchange`, or `open` and then `chunks` or `rest`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._error: OSError | None = None
        self._in_flight = False
        """Whether a response is incomplete."""
        self._keep = True
        self._streaming = self._paused = False
        self._limit: int | None = None
        self._status = 0
        """0 until the response's head is complete."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._size = 0
        self._unparsed = 0
        """Bytes received since the body's last part."""

    # ------------------------------------------------------------------ requests

    @property
    def reusable(self) -> bool:
        """Whether the next request may be sent."""
        return self._keep and not self._in_flight and self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, limit: int | None = None) -> Response:
        """Send a request and read its whole response, with a body of at most `limit` bytes. Raises OSError."""
        self._send(request, limit, streaming=False)
        return await self.rest()

    async def open(self, request: bytes) -> Response:
        """Send a request and return its response without the body. Raises OSError."""
        self._send(request, None, streaming=True)
        await self._wait()
        if not self._status:
            self._raise()
        return Response(self._status, self._headers, b"")

    async def rest(self) -> Response:
        """The response with the unread part of its body. Raises OSError."""
        self._streaming = False
        self._resume()
        while self._in_flight:
            await self._wait()
        self._raise()
        return Response(self._status, self._headers, b"".join(self._body))

    async def chunks(self, silence: float) -> AsyncGenerator[bytes]:
        """Stream the body. Raises OSError, or TimeoutError if no byte arrives for `silence` seconds."""
        while True:
            if self._body:
                chunk = b"".join(self._body)
                self._body.clear()
                self._size = 0
                self._resume()
                yield chunk
            elif self._in_flight:
                async with asyncio.timeout(silence):
                    await self._wait()
            else:
                self._raise()
                return

    def abort(self) -> None:
        """Close the socket now, without the TLS closing handshake: the server may be gone."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        await asyncio.shield(self._closed)

    def _send(self, request: bytes, limit: int | None, *, streaming: bool) -> None:
        if self._transport is None or not self.reusable:
            raise ConnectionResetError("the server closed the connection")
        self._in_flight, self._keep, self._streaming, self._limit = True, False, streaming, limit
        self._error = None
        self._status = self._size = self._unparsed = 0
        self._transport.write(request)

    async def _wait(self) -> None:
        """Wait until the response is complete or has failed, or a streamed one has its head or another part."""
        self._waiter = self._loop.create_future()
        await self._waiter

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _raise(self) -> None:
        """Raise the response's error once. Keep no reference to it: its frames would stay in memory."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _fail(self, error: OSError) -> None:
        """Fail the response unless it is complete, and close the connection."""
        if self._in_flight:
            self._in_flight, self._error = False, error
            self._notify()
        self._keep = False
        self.abort()

    # ------------------------------------------------------------------ called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's TLS transport only has its methods

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        if not self._in_flight or self._parser is None:
            self._fail(BadResponseError("the server sent a response that the client did not request"))
            return
        self._unparsed += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._fail(BadResponseError("the server switched protocols"))
        except HttpParserError as error:
            self._fail(BadResponseError(f"the server sent an invalid HTTP response: {error}"))
        else:
            if self._in_flight and self._unparsed > _HEAD_BYTES:
                self._fail(BadResponseError(f"the response head exceeds {_HEAD_BYTES} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection closed: this completes a response without a length, and fails any other."""
        self._transport = self._parser = None  # breaks a reference cycle
        ended = exc is None and self._status >= _FIRST_FINAL
        if self._in_flight and ended and not any(name.lower() in _LENGTHS for name, _ in self._headers):
            self._in_flight = False
            self._notify()
        self._fail(exc if isinstance(exc, OSError) else ConnectionResetError("the server closed the connection"))
        if not self._closed.done():
            self._closed.set_result(None)

    # ------------------------------------------------------------------ called by the parser

    def on_message_begin(self) -> None:
        """A response begins. Only one is expected for each request."""
        if self._in_flight:
            self._headers, self._body = [], []
        else:
            self._fail(BadResponseError("the server sent a response that the client did not request"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; ignore a trailer."""
        if self._in_flight and not self._status:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        if not self._in_flight or self._parser is None:
            return
        self._status = self._parser.get_status_code()
        if self._status < _FIRST_FINAL:
            return
        if self._limit is not None:
            lengths = [value for name, value in self._headers if name.lower() == b"content-length"]
            if lengths and int(lengths[0]) > self._limit:
                self._fail(TooLongError(f"the response exceeds {self._limit} bytes"))
        if self._streaming:
            self._notify()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._unparsed = 0
        if not self._in_flight:
            return
        self._body.append(body)
        self._size += len(body)
        if self._limit is not None and self._size > self._limit:
            self._fail(TooLongError(f"the response exceeds {self._limit} bytes"))
        elif self._streaming:
            if self._size > _BUFFER_BYTES and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
            self._notify()

    def on_message_complete(self) -> None:
        """The response is complete."""
        if self._in_flight and self._parser is not None:
            if self._status < _FIRST_FINAL:
                self._status = 0
                return
            self._in_flight, self._keep = False, self._parser.should_keep_alive()
            self._notify()
