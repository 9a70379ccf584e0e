"""A minimal HTTP/1.1 server for /metrics, /healthz, /livez and /readyz.

Each connection serves one request, with limits on bytes and time. Responses come from memory on the event loop, so a
probe without a response means a stuck loop. aiohttp would need a sixth of this process's memory limit (ADR 9).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qs

from session_scheduler.sdk.sockets import bound

CONNECTION_SECONDS: Final = 10.0
MOST_CONNECTIONS: Final = 32
_MOST_BYTES: Final = 8 << 10
"""The maximum size in bytes of request line and headers."""
_QUEUE: Final = 128
_TEXT: Final = "text/plain; charset=utf-8"
_REASONS: Final = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip

log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """A status, a body and its content type."""

    status: int
    body: bytes
    content_type: str = _TEXT


class Endpoints:
    """An HTTP server for three functions, called at each request; they must not block. Call `start`
    once, then `stop`.
    """

    def __init__(
        self,
        *,
        metrics: Callable[[str], tuple[bytes, str]],
        health: Callable[[], Mapping[str, str | None]],
        ready: Callable[[], Mapping[str, str | None]],
        connection_seconds: float = CONNECTION_SECONDS,
    ) -> None:
        """metrics: body and content type for an Accept header. health, ready: the problem of each check, or None."""
        self._metrics = metrics
        self._checks = {"/healthz": health, "/livez": health, "/readyz": ready}
        self._seconds = connection_seconds
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Open connections, the oldest first."""

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Serve. Returns the address that was bound. Raises InputError if it cannot be bound."""
        listening = bound(host, port, queue=_QUEUE)
        try:
            self._server = await asyncio.start_server(self._connected, sock=listening, limit=_MOST_BYTES)
        except BaseException:
            listening.close()
            raise
        address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        log.info("serving /metrics, /healthz, /livez and /readyz at %s:%d", *address)
        return address

    async def stop(self) -> None:
        """Close the server and its connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        for writer in self._connections.values():  # the event loop would log a cancelled task as an error
            writer.transport.abort()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._connections[task] = writer
        still_open = [each.transport for each in self._connections.values() if not each.transport.is_closing()]
        for transport in still_open[:-MOST_CONNECTIONS]:  # a client with many connections must not block probes
            transport.abort()
        try:
            async with asyncio.timeout(self._seconds):
                await self._serve(reader, writer)
        except (OSError, TimeoutError, EOFError):
            pass  # the client disconnected, or sent nothing
        finally:
            del self._connections[task]
            if writer.transport.get_write_buffer_size():  # the client does not read: close() would wait for it
                writer.transport.abort()
            else:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.LimitOverrunError:
            method, answer = "GET", _text(431, "too long")
        else:
            method, _, rest = head[0].partition(" ")
            answer = self._answer(method, rest, head[1:])
        writer.write(_encoded(answer, with_body=method != "HEAD"))
        await writer.drain()
        with suppress(OSError):  # the client may have disconnected
            writer.write_eof()
        while await reader.read(_MOST_BYTES):  # closing with unread bytes would lose the response
            pass

    def _answer(self, method: str, rest: str, headers: list[str]) -> Answer:
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1.") or not target.startswith("/"):
            return _text(400, "bad request")
        if method not in ("GET", "HEAD"):
            return _text(405, "read only")
        path, _, query = target.partition("?")
        try:
            if path == "/metrics":
                return Answer(200, *self._metrics(_header(headers, "accept")))
            if path in self._checks:
                return _checked(path[1:], self._checks[path](), verbose="verbose" in parse_qs(query, True))
        except Exception:  # no error may stop the server
            log.exception("a request failed: %s", path)
            return _text(500, "internal error: see the logs")
        return _text(404, "not found")


def _checked(name: str, checks: Mapping[str, str | None], *, verbose: bool) -> Answer:
    """A response in the API server's format: `ok`, or a line for each check if one fails or the
    client sets `?verbose`.
    """
    failed = any(problem is not None for problem in checks.values())
    if not failed and not verbose:
        return _text(200, "ok")
    lines = [
        f"[+]{check} ok" if problem is None else f"[-]{check} failed: {' '.join(problem.split())}"
        for check, problem in checks.items()
    ]
    return _text(503 if failed else 200, "\n".join([*lines, f"{name} check {'failed' if failed else 'passed'}"]))


def _header(headers: list[str], name: str) -> str:
    pairs = (line.partition(":") for line in headers)
    return next((value.strip() for key, _, value in pairs if key.strip().lower() == name), "")


def _text(status: int, text: str) -> Answer:
    return Answer(status, f"{text}\n".encode())


def _encoded(answer: Answer, *, with_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Connection: close",
        "Server: fluence",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
    ]
    if answer.status == 405:
        lines.append("Allow: GET, HEAD")
    return "\r\n".join([*lines, "", ""]).encode() + (answer.body if with_body else b"")
