"""One connection to one NATS server: nats-py's client, that neither reconnects nor closes itself, nor logs.

Of nats-py 2.16 it uses connecting with TLS, publishing, subscriptions with limits, and pings. It replaces its reading
(see `parser`), its CONNECT (which would send credentials in the clear to a tls:// server that offers no TLS), and its
ends: `Events` reports that a connection has ended, and the owner closes it.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import aiohttp
import nats.errors
from nats.aio.client import Client, Srv, __version__
from nats.aio.msg import Msg

from fluence_plugins.master_queue.errors import DroppedMessagesError, LeavingError, RefusedSubjectError
from fluence_plugins.master_queue.nats.credentials import Credentials
from fluence_plugins.master_queue.nats.parser import Arrived, Line, Parser, WireError
from fluence_plugins.master_queue.nats.transports import TcpConnection, WebSocketConnection
from session_scheduler.errors import FluenceError, shown

PING_SECONDS: Final = 5.0
UNANSWERED_PINGS: Final = 2
"""With one more, the server is taken for gone."""
_CHUNK: Final = 64 << 10
_CUT: Final = 200
_REFUSED: Final = re.compile(r'permissions violation for (subscription|publish) to "([^"]*)"', re.IGNORECASE)


class Events(NamedTuple):
    """The callbacks of a connection."""

    closed: Callable[[str], None]
    """Takes why the connection ended; called once."""
    error: Callable[[FluenceError], None]
    """Takes a problem that the connection outlives."""


class NatsClient(Client):
    """The connection; `transport` carries its bytes."""

    def __init__(
        self,
        transport: TcpConnection | WebSocketConnection,
        credentials: Credentials,
        events: Events,
        *,
        context: Callable[[], ssl.SSLContext],
        needs_tls: bool,
    ) -> None:
        super().__init__()
        self._context = context
        self._connection = transport
        self._credentials = credentials
        self._events = events
        self._needs_tls = needs_tls
        self._over = False
        self.heard_at = time.monotonic()
        """When the server last said something, in monotonic seconds."""

    async def finish(self, seconds: float) -> None:
        """Drop the connection and all its tasks at once; `seconds` are what a WebSocket may take."""
        self._over = True
        self._status = Client.CLOSED
        waiting = [sub._wait_for_msgs_task for sub in self._subs.values()]
        self._subs.clear()
        tasks = [self._reading_task, self._ping_interval_task, self._flusher_task, *waiting]
        left = [task for task in tasks if task is not None]
        for task in left:
            task.cancel()
        self._fail_pings()
        await self._connection.drop(seconds)
        await asyncio.gather(*left, return_exceptions=True)

    async def confirm(self, seconds: float) -> None:
        """Return when the server has taken all that was sent before. Raises TimeoutError, errors of nats-py.

        As `flush`, but that in its `wait_for` a cancellation may be lost before Python 3.12.
        """
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(seconds):
            await self._send_ping(pong)
            await pong

    def end(self, why: str) -> None:
        """Take the connection for over; what waits for the server is told so."""
        if not self._over:
            self._over = True
            self._status = Client.CLOSED
            self._fail_pings()
            self._events.closed(why)

    def _fail_pings(self) -> None:
        for pong in self._pongs or ():
            if not pong.done():
                pong.set_exception(nats.errors.ConnectionClosedError())
                pong.exception()  # not all are waited for

    # ---------------------------------------------------------------- connecting

    async def _select_next_server(self) -> None:
        self._current_server = self._server_pool[0]
        self._transport = self._connection
        await self._connect_to_server(self._current_server)

    async def _connect_to_server(self, s: Srv) -> None:
        await self._connection.connect(s.uri)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """INFO before CONNECT. Other servers that it names are left alone; TLS that is offered is taken."""
        if initial_connection and self._needs_tls and info.get("tls_available"):
            info["tls_required"] = True

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """Made where TLS begins: it takes its time."""
        return self._context()

    def _connect_command(self) -> bytes:
        if self._needs_tls and not self._connection.is_tls:
            raise nats.errors.SecureConnWantedError
        nonce = self._server_info.get("nonce")
        words = {
            "verbose": False,
            "pedantic": False,
            "lang": "python3",
            "version": __version__,
            "protocol": 1,
            "headers": False,
            "no_responders": False,
            "echo": True,
            "name": self.options["name"],
            **self._credentials.fields(nonce if isinstance(nonce, str) else None),
        }
        return f"CONNECT {json.dumps(words)}\r\n".encode()

    # ---------------------------------------------------------------- reading

    async def _read_loop(self) -> None:
        parser = Parser()
        try:
            while data := await self._connection.read(_CHUNK):
                self.heard_at = time.monotonic()
                for one in parser.feed(data):
                    await self._take(one)
            self.end("the server closed the connection")
        except WireError as error:
            self.end(f"the server sends what is no NATS: {error}")
        except (OSError, ssl.SSLError) as error:
            self.end(f"the connection was lost: {reason(error)}")

    async def _take(self, one: Arrived | Line) -> None:
        match one:
            case Arrived():
                await self._process_msg(one.subscription, one.subject, b"", one.data, None)  # type: ignore[arg-type]
            case Line(word="PING"):
                await self._process_ping()
            case Line(word="PONG"):
                self._pong()
            case Line(word="-ERR"):
                self._error(one.rest)
            case Line(word="INFO"):
                self._news(one.rest)

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Msg:
        """Whatever the subject is: a publisher may choose bytes that are no UTF-8."""
        return Msg(self, subject.decode(errors="backslashreplace"), reply.decode(), data, headers, _sid=sid)

    def _pong(self) -> None:
        self._pings_outstanding = 0
        if self._pongs:
            pong = self._pongs.pop(0)
            if not pong.done():
                pong.set_result(True)

    def _news(self, text: bytes) -> None:
        with suppress(ValueError):
            news = json.loads(text)
            if isinstance(news, dict) and news.get("ldm") is True:
                self._events.error(LeavingError("the server is about to shut down"))

    def _error(self, text: bytes) -> None:
        said = one_line(text.decode(errors="replace").strip("'"))
        refused = _REFUSED.search(said)
        if refused is None:
            self.end(f"the server ended the connection: {said}")
            return
        doing = "subscribing" if refused[1].lower() == "subscription" else "publishing"
        what = f"the server does not permit {doing} to {shown(refused[2])}: permit it there to this user"
        self._events.error(RefusedSubjectError(refused[2].lower(), what))

    # ---------------------------------------------------------------- what the library calls

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        """Behind all that waits to be sent: the library's own overtakes it, so that a PONG would confirm nothing."""
        waiting, self._pending, self._pending_data_size = self._pending, [], 0
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        try:
            self._connection.writelines([*waiting, b"PING\r\n"])  # type: ignore[no-untyped-call]
            await self._connection.drain()  # type: ignore[no-untyped-call]
        except (OSError, aiohttp.ClientError) as error:
            self.end(f"the connection was lost: {reason(error)}")

    async def _process_op_err(self, e: Exception) -> None:
        if isinstance(e, nats.errors.StaleConnectionError):
            self.end("the server does not answer any more")
        else:
            self.end(f"the connection was lost: {reason(e)}")

    async def told(self, error: Exception) -> None:
        """The library's `error_cb`."""
        if isinstance(error, nats.errors.SlowConsumerError):
            what = f"a message to {shown(error.subject)} was thrown away: it is too large, or too many wait"
            self._events.error(DroppedMessagesError(what))
        elif self.is_connected and not isinstance(error, OSError | nats.errors.Error):
            what = "a message from NATS met a bug"  # in a subscription's callback: logged as that of any callback
            asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})


def one_line(text: str) -> str:
    """What a server wrote, printable and cut."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * _CUT]).split())
    return words if len(words) <= _CUT else words[: _CUT - 1] + "…"


def reason(error: Exception) -> str:
    """What an operating system or a library says of a connection that does not come about, or breaks."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"the server's certificate is not trusted: {error.verify_message}: see tls.caFile and tls.serverName"
        case ssl.SSLError():
            said = (error.reason or type(error).__name__).lower().replace("_", " ")
            return f"no TLS with it: {said}: see tls.certFile and tls.caFile"
        case nats.errors.SecureConnWantedError():
            return "the server offers no TLS, which is demanded: write nats:// without tls, or let it offer TLS"
        case TimeoutError():
            return "no answer in time"
        case socket.gaierror():
            return f"there is no such host, or no answer about it: {one_line(error.strerror or '')}"
        case OSError():
            return one_line(error.strerror or str(error) or type(error).__name__)
    return _of_library(one_line(str(error)) if isinstance(error, nats.errors.Error) else type(error).__name__)


def _of_library(said: str) -> str:
    words = said.removeprefix("nats: ").strip("'")
    lower = words.lower()
    if "authorization violation" in lower or "authentication" in lower:
        return f"the server does not take these credentials, or wants some: {words}"
    if "expecting info" in lower or "json parse" in lower:
        return "what answers does not speak NATS"
    return f"the server says: {words}" if "nats" in said else f"what answers does not speak NATS ({words})"
