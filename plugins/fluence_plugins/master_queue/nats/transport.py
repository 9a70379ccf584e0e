"""The transports under nats-py, TCP and WebSocket: they guard nats-py against servers, publishers and its own faults.

nats-py's own transports send credentials unencrypted to a tls:// server that offers no TLS, and pass on subjects at
which its parser stops. `docs/reference/guards.md` lists the faults.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any, Final
from urllib.parse import ParseResult

import aiohttp
import nats.errors
from nats.aio.transport import Transport

from fluence_plugins.master_queue.errors import LeavingError, RefusedSubjectError
from fluence_plugins.master_queue.nats.credentials import Credentials
from fluence_plugins.master_queue.nats.parser import LARGEST_MESSAGE, Arrived, Line, Parser, WireError
from session_scheduler.errors import FluenceError, shown

CLOSE_SECONDS: Final = 0.5
CLOSED_AT_ONCE: Final = "the server closed the connection immediately: does it require credentials, or tls.certFile?"
_STRANGE: Final = "the server does not speak NATS"
_CUT: Final = 200
_PONG: Final = b"PONG\r\n"
_CONNECT: Final = b"CONNECT "
_UNREADABLE: Final = {0x0B: "\\x0b", 0x0C: "\\x0c"}
"""Characters of a subject that nats-py treats as its end."""
_REFUSED: Final = re.compile(r'permissions violation for (subscription|publish) to "([^"]*)"', re.IGNORECASE)


Report = Callable[[FluenceError], None]


class EndedError(ConnectionError):
    """Why a connection ended, in one line. `at_start`: the line to use if the server has not
    accepted this client yet.
    """

    def __init__(self, why: str, at_start: str) -> None:
        self.at_start = at_start
        super().__init__(why)


class GuardedTransport(Transport):
    """Reads messages and lines within limits, and adds the credentials to CONNECT.

    `report` receives errors that do not end the connection. `server_name` is the name in the certificate, if it is not
    the host.
    """

    def __init__(self, credentials: Credentials, report: Report, server_name: str | None, *, needs_tls: bool) -> None:
        self.heard_at = time.monotonic()
        """When the server last sent something, in monotonic seconds."""
        self._credentials = credentials
        self._report = report
        self._needs_tls = needs_tls
        self._server_name = server_name
        self._is_tls = False
        self._closed = False
        self._open = AsyncExitStack()
        self._info: dict[str, Any] = {}
        self._parser = Parser()
        self._arriving: Iterator[Arrived | Line] = iter(())
        self._lines: list[bytes] = []
        self._behind: list[bytes] = []

    @abstractmethod
    async def _receive(self) -> bytes:
        """The next bytes; empty at the end. Raises OSError."""

    @abstractmethod
    async def _send(self, data: bytes) -> None:
        """Send these bytes."""

    def _secured(self) -> None:
        """TLS is on: discard the data received without it."""
        self._is_tls = True
        self._parser, self._arriving = Parser(), iter(())

    async def _next(self) -> Arrived | Line:
        try:
            while (one := next(self._arriving, None)) is None:
                if not (data := await self._receive()):
                    raise EndedError("the server closed the connection", CLOSED_AT_ONCE if self._info else _STRANGE)
                self.heard_at = time.monotonic()
                self._arriving = self._parser.feed(data)
        except WireError as error:
            raise EndedError(f"the server does not follow the NATS protocol: {error}", _STRANGE) from None
        return one

    async def read(self, buffer_size: int = 0) -> bytes:  # noqa: ARG002
        """The next message or line for nats-py. Raises OSError at the end."""
        while not (data := self._guarded(await self._next())):
            pass
        return data

    async def readline(self) -> bytes:
        """First INFO, then the response to CONNECT. Raises OSError."""
        if self._info:
            while (line := await self.read()) != _PONG:
                pass
            return line
        one = await self._next()
        self._info = _json(one.rest) if isinstance(one, Line) and one.word == "INFO" else {}
        if not self._info:
            raise EndedError("the server sends no INFO", _STRANGE)
        offered = self._info.get("tls_required") or (self._needs_tls and self._info.get("tls_available"))
        info: dict[str, Any] = {"headers": False, "tls_required": bool(offered) and not self._is_tls}
        if isinstance(limit := self._info.get("max_payload"), int):
            info["max_payload"] = limit
        return b"INFO %s\r\n" % json.dumps(info).encode()

    def _guarded(self, one: Arrived | Line) -> bytes:
        """The part of it that nats-py can read."""
        match one:
            case Arrived(number, subject, data):
                readable = subject.decode(errors="backslashreplace").translate(_UNREADABLE).encode()
                return b"MSG %s %d %d\r\n%s\r\n" % (readable, number, len(data), data)
            case Line("PING" | "PONG"):
                return f"{one.word}\r\n".encode()
            case Line("-ERR"):
                self._error(one.rest)
            case Line("INFO") if _json(one.rest).get("ldm") is True:
                self._report(LeavingError("the server is about to shut down"))
        return b""

    def _error(self, text: bytes) -> None:
        said = one_line(text.decode(errors="replace").strip("'"))
        refused = _REFUSED.search(said)
        if refused is None:
            lets_in = "authorization violation" not in said.lower() and "authentication" not in said.lower()
            what = "the server says" if lets_in else "the server rejects these credentials, or requires credentials"
            raise EndedError(f"the server ended the connection: {said}", f"{what}: {said}")
        doing = "subscribing" if refused[1].lower() == "subscription" else "publishing"
        what = f"the server does not permit {doing} to {shown(refused[2])}"
        what += "; grant this user the permission on the server"
        self._report(RefusedSubjectError(refused[2].lower(), what))

    def at_eof(self) -> bool:
        """Return False, because `read` raises at the end."""
        return False

    def write(self, payload: bytes) -> None:
        """Write CONNECT, or a PING after the lines: a PONG must confirm them."""
        if payload.startswith(_CONNECT):
            if self._needs_tls and not self._is_tls:
                raise nats.errors.SecureConnWantedError
            nonce = self._info.get("nonce")
            fields = self._credentials.fields(nonce if isinstance(nonce, str) else None)
            fields = json.loads(payload.removeprefix(_CONNECT)) | fields
            payload = b"%s%s\r\n" % (_CONNECT, json.dumps(fields).encode())
        self._behind.append(payload)

    def writelines(self, payload: list[bytes]) -> None:
        """Write lines."""
        self._lines += payload

    async def drain(self) -> None:
        """Send everything written so far, a message together with its PING. If the connection is
        lost, `read` raises.
        """
        await asyncio.sleep(0)
        data = b"".join([*self._lines, *self._behind])
        self._lines, self._behind = [], []
        if data and not self._closed:
            with suppress(OSError, RuntimeError, aiohttp.ClientError):
                await self._send(data)

    def close(self) -> None:
        """Stop sending."""
        self._closed = True

    async def wait_closed(self) -> None:
        """Wait until everything is closed, for at most CLOSE_SECONDS."""
        with suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._open.aclose()
        for _ in range(2):  # the event loop closes sockets in a later iteration
            await asyncio.sleep(0)

    def __bool__(self) -> bool:
        return True


class TcpTransport(GuardedTransport):
    """TCP, with TLS once nats-py enables it."""

    _reader: asyncio.StreamReader
    _writers: tuple[asyncio.StreamWriter, ...] = ()
    """The last one writes. The one below TLS is kept, because its deletion would close the socket."""

    async def connect(self, uri: ParseResult, *_: Any, **__: Any) -> None:
        """Connect to the server. Raises OSError."""
        self._reader, writer = await asyncio.open_connection(uri.hostname, uri.port)
        self._writers = (writer,)

    async def connect_tls(self, uri: Any, ssl_context: ssl.SSLContext, *_: Any, **__: Any) -> None:
        """Enable TLS; `uri` is the server's name. Raises OSError."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        plain, name = self._writers[0].transport, self._server_name or uri
        secure = await loop.start_tls(plain, protocol, ssl_context, server_hostname=name)
        if secure is None:
            raise ConnectionResetError
        self._reader = reader
        self._writers += (asyncio.StreamWriter(secure, protocol, reader, loop),)
        self._secured()

    async def _receive(self) -> bytes:
        return await self._reader.read(1 << 16)

    async def _send(self, data: bytes) -> None:
        self._writers[-1].write(data)
        await self._writers[-1].drain()

    def close(self) -> None:
        """Close the socket immediately: TLS would wait for the server."""
        super().close()
        for writer in reversed(self._writers):
            writer.transport.abort()


class WebSocketTransport(GuardedTransport):
    """A WebSocket, with TLS from the start or not at all."""

    _socket: aiohttp.ClientWebSocketResponse

    async def connect(self, uri: ParseResult, *_: Any, **options: Any) -> None:
        """Connect to the server. Raises OSError or aiohttp.ClientError."""
        session = await self._open.enter_async_context(aiohttp.ClientSession())
        connecting = session.ws_connect(
            uri.geturl(),
            ssl=options.get("ssl_context", True),
            server_hostname=self._server_name,
            max_msg_size=LARGEST_MESSAGE,
        )
        self._socket = await self._open.enter_async_context(connecting)

    async def connect_tls(self, uri: Any, ssl_context: ssl.SSLContext, *_: Any, **__: Any) -> None:
        """Connect to the server with TLS. Raises OSError or aiohttp.ClientError."""
        await self.connect(uri, ssl_context=ssl_context)
        self._secured()

    async def _receive(self) -> bytes:
        message = await self._socket.receive()
        if message.type is aiohttp.WSMsgType.ERROR:
            raise ConnectionResetError(str(message.data))
        return message.data if message.type is aiohttp.WSMsgType.BINARY else b""

    async def _send(self, data: bytes) -> None:
        await self._socket.send_bytes(data)


def one_line(text: str) -> str:
    """A server's text as one printable line of limited length."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * _CUT]).split())
    return words if len(words) <= _CUT else words[: _CUT - 1] + "…"


def _json(text: bytes) -> dict[str, Any]:
    """The JSON object in a string; empty if the string is not a JSON object."""
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(text), dict):
            return found
    return {}
