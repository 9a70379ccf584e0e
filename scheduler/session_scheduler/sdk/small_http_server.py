"""A minimal HTTP/1.1 server for GET and HEAD: one request for each connection, with limits on bytes and time. Public.

It serves probes, metrics and small responses from memory on the event loop, so a probe without a response means a stuck
loop. asyncio carries the bytes, and httptools (llhttp) parses them. aiohttp would take a sixth of the scheduler's
imports, and of the memory limit of the device plugin (ADR 9).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qsl, unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from session_scheduler.base.sockets import bound

__all__ = ["Request", "Response", "SmallHttpServer", "checked", "text_response"]

_log = logging.getLogger(__name__)

TEXT: Final = "text/plain; charset=utf-8"
_QUEUE: Final = 128
_LINGER_BYTES: Final = 1 << 16
_LINGER_SECONDS: Final = 1.0
"""How many further bytes the server reads after a response, and for how long it waits for the client to close."""
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_HEADERS: Final = {"Server": "fluence", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Request(NamedTuple):
    """A GET or HEAD request. `path` is decoded. The keys of `headers` are in lower case."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    client: str
    """The client's address."""


class Response(NamedTuple):
    """A response to send."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = {}


def text_response(status: int, text: str, headers: Mapping[str, str] = {}) -> Response:
    """A response of one line of text."""
    return Response(status, f"{text}\n".encode(), headers=headers)


def checked(name: str, checks: Mapping[str, str | None], query: Mapping[str, str]) -> Response:
    """A response in the API server's form: `ok`, or a line for each check if one fails or `?verbose` is set.

    A check is None or its problem.
    """
    failed = any(problem is not None for problem in checks.values())
    if not failed and "verbose" not in query:
        return Response(HTTPStatus.OK, b"ok")
    lines = [
        f"[+]{check} ok" if problem is None else f"[-]{check} failed: {' '.join(problem.split())}"
        for check, problem in checks.items()
    ]
    lines.append(f"{name} check {'failed' if failed else 'passed'}")
    return text_response(HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK, "\n".join(lines))


class SmallHttpServer:
    """Calls `respond` for each request. Call `start` once, then `stop`."""

    def __init__(
        self,
        respond: Callable[[Request], Awaitable[Response]],
        *,
        most_bytes: int,
        most_connections: int,
        seconds: float,
        shutdown_seconds: float = 0.0,
        limit: Callable[[str, str], Response | None] = lambda *_: None,
    ) -> None:
        """`most_bytes` limits a request's first line and headers, `seconds` the time in which they must arrive.

        A further connection closes the oldest one, so that a client with many connections does not block probes; those
        with a response in flight come last. Responses in flight may take `shutdown_seconds` when the server stops.
        `limit` is called first, with the client's address and the path ("" if the request is invalid); a response of
        it is the answer.
        """
        self._respond = respond
        self._most_bytes = most_bytes
        self._most_connections = most_connections
        self._seconds = seconds
        self._shutdown_seconds = shutdown_seconds
        self._limit = limit
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Open connections, the oldest first."""
        self._responding: dict[asyncio.Task[None], asyncio.Timeout] = {}
        """The connections whose response is not sent yet, with their limits of time."""

    async def start(self, host: str, port: int, fields: tuple[str, str] = ("--host", "--port")) -> tuple[str, int]:
        """Serve. Returns the bound address. Raises InputError, with the names of the `fields`, if it is unusable."""
        listening = bound(host, port, fields, queue=_QUEUE)
        try:
            self._server = await asyncio.start_server(self._connected, sock=listening, limit=self._most_bytes)
        except BaseException:
            listening.close()
            raise
        address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return address

    async def stop(self) -> None:
        """Close the server and its connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        if self._responding:
            await asyncio.wait(list(self._responding), timeout=self._shutdown_seconds)
        still_open = list(self._connections)
        for limit in self._responding.values():
            with suppress(RuntimeError):  # it expires at this moment
                limit.reschedule(0.0)
        for writer in self._connections.values():  # the event loop would log a cancelled task as an error
            writer.transport.abort()
        await asyncio.gather(*still_open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._connections[task] = writer
        still_open = [each for each, writer in self._connections.items() if not writer.transport.is_closing()]
        still_open.sort(key=self._responding.__contains__)
        for each in still_open[: -self._most_connections]:
            self._connections[each].transport.abort()
        try:
            async with asyncio.timeout(self._seconds) as limit:
                method, request = await self._read(reader)
                limit.reschedule(None)  # a response may wait
                self._responding[task] = limit
                peer = writer.get_extra_info("peername")
                response = await self._response(method, request, peer[0] if isinstance(peer, tuple) else "")
                limit.reschedule(asyncio.get_running_loop().time() + self._seconds)
                writer.write(_encoded(response, with_body=method != "HEAD"))
                await writer.drain()
                del self._responding[task]
                await _client_closed(reader, writer)
        except (OSError, TimeoutError, EOFError):
            pass  # the client disconnected, or sent nothing
        finally:
            self._responding.pop(task, None)
            del self._connections[task]
            if writer.transport.get_write_buffer_size():  # the client does not read: close() would wait for it
                writer.transport.abort()
            else:
                writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> tuple[str, _Target | HTTPStatus]:
        """The method, and the target or why there is none. Raises EOFError."""
        head, size = _Head(), 0
        while not head.complete:
            if size >= self._most_bytes:
                return "", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            part = await reader.read(self._most_bytes - size)
            if not part:
                raise EOFError
            size += len(part)
            if not head.feed(part):
                return "", HTTPStatus.BAD_REQUEST
        path, _, query = head.target.decode("latin-1").partition("?")
        if not path.startswith("/") or head.version not in ("1.0", "1.1"):
            return head.method, HTTPStatus.BAD_REQUEST
        if "%2f" in path.lower():  # not a separator, so no path is served that has it
            return head.method, HTTPStatus.NOT_FOUND
        return head.method, _Target(unquote(path), _first_values(query), head.headers)

    async def _response(self, method: str, target: _Target | HTTPStatus, client: str) -> Response:
        limited = self._limit(client, "" if isinstance(target, HTTPStatus) else target.path)
        if limited is not None:
            return limited
        if isinstance(target, HTTPStatus):
            return text_response(target, target.phrase.lower())
        if method not in ("GET", "HEAD"):
            return text_response(HTTPStatus.METHOD_NOT_ALLOWED, "read only", {"Allow": "GET, HEAD"})
        try:
            return await self._respond(Request(*target, client))
        except Exception:  # noqa: BLE001 (no error may stop the server)
            _log.exception("a request failed: %s", target.path)
            return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the logs")


class _Target(NamedTuple):
    """What a request asks for."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


class _Head:
    """The first line and the headers of a request, as httptools reads them. It ignores what follows."""

    def __init__(self) -> None:
        self._parser = HttpRequestParser(self)
        self.method = self.version = ""
        self.target = b""
        self.headers: dict[str, str] = {}
        self.complete = False

    def feed(self, part: bytes) -> bool:
        """Parse the next bytes. Returns whether they are HTTP."""
        try:
            self._parser.feed_data(part)
        except HttpParserUpgrade:
            pass  # the response to a request for another protocol is HTTP, too
        except HttpParserError:
            return self.complete
        return True

    def on_url(self, part: bytes) -> None:
        if not self.complete:
            self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if not self.complete:
            self.method, self.version = self._parser.get_method().decode(), self._parser.get_http_version()
        self.complete = True


def _first_values(query: str) -> dict[str, str]:
    """The values of a query; the first of each name."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        found.setdefault(name, value)
    return found


async def _client_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read until the client closes the connection: closing it with unread bytes would lose the response.

    A client that sends much more, or waits, loses it.
    """
    with suppress(OSError):  # the client may have disconnected
        writer.write_eof()
    left = _LINGER_BYTES
    async with asyncio.timeout(_LINGER_SECONDS):
        while left > 0 and (part := await reader.read(left)):
            left -= len(part)


def _encoded(response: Response, *, with_body: bool) -> bytes:
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        "Connection": "close",
        **_HEADERS,
        **response.headers,
    }
    lines = [f"HTTP/1.1 {response.status} {_PHRASES.get(response.status, '')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + (response.body if with_body else b"")
