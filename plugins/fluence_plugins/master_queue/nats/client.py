"""A connection to a NATS server: the first server of a connector that accepts it. It does not reconnect."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

import aiohttp
import nats.errors
from nats.aio.client import Client

from fluence_plugins.master_queue.errors import ConnectionFailedError, DroppedMessagesError
from fluence_plugins.master_queue.nats.addresses import Server
from fluence_plugins.master_queue.nats.credentials import credentials_of, tls_of
from fluence_plugins.master_queue.nats.settings import ConnectorSettings
from fluence_plugins.master_queue.nats.transport import (
    CLOSED_AT_ONCE,
    EndedError,
    GuardedTransport,
    TcpTransport,
    WebSocketTransport,
    one_line,
)
from session_scheduler.errors import FluenceError, shown
from session_scheduler.sdk.signals import first_of

CONNECT_SECONDS: Final = 10.0
"""The limit for connecting, over all servers."""
PING_SECONDS: Final = 5.0
UNANSWERED_PINGS: Final = 2
"""After one more, the server counts as gone."""


class Events(NamedTuple):
    """The callbacks of a connection."""

    closed: Callable[[str], None]
    """Called once, with the reason why the connection ended."""
    error: Callable[[FluenceError], None]
    """Called with an error that does not end the connection."""


class NatsClient(Client):
    """nats-py's client on a guarded transport. nats-py has no option for a transport: `_transport` is private to it."""

    def __init__(self, transport: GuardedTransport, events: Events) -> None:
        super().__init__()
        self._transport = self.guard = transport
        self._events = events
        self._ended = asyncio.Event()

    async def start(self, server: Server, **options: Any) -> None:
        """Connect. Raises OSError, aiohttp.ClientError or an error of nats-py."""
        await self.connect(
            [server.url],
            error_cb=self._on_error,
            closed_cb=self._on_closed,
            allow_reconnect=False,
            max_outstanding_pings=UNANSWERED_PINGS,
            **options,
        )

    async def confirm(self, seconds: float) -> None:
        """Return when the server has received everything sent before. Raises TimeoutError or an error of nats-py."""
        await first_of(self.flush(math.ceil(seconds)), self._ended.wait())
        if self.is_closed:
            raise nats.errors.ConnectionClosedError

    async def finish(self) -> None:
        """Close the connection and its tasks immediately."""
        self._events = Events(lambda _: None, lambda _: None)
        self.guard.close()
        if self.is_connecting or self.is_connected:
            await self.close()
        elif self.is_closed:
            await self._ended.wait()
        await self.guard.wait_closed()

    async def _on_closed(self) -> None:
        self._ended.set()
        match self.last_error:
            case EndedError() as error:
                self._events.closed(str(error))
            case nats.errors.StaleConnectionError():
                self._events.closed("the server no longer responds")
            case error:
                self._events.closed(f"the connection was lost: {_reason(error)}")

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, nats.errors.SlowConsumerError):
            what = f"a message to {shown(error.subject)} was dropped: it is too large, or too many messages are waiting"
            self._events.error(DroppedMessagesError(what))
        elif not (self.is_connected or self.is_closed):
            raise error  # otherwise nats-py retries 60 times
        elif not isinstance(error, OSError | nats.errors.Error):
            what = "a bug in the handling of a message from NATS"  # in a subscription's callback
            asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})


async def open_connection(
    settings: ConnectorSettings,
    *,
    closed: Callable[[str], None],
    error: Callable[[FluenceError], None],
    name: str,
    within: float = CONNECT_SECONDS,
    ping_seconds: float = PING_SECONDS,
) -> NatsClient:
    """Connect to the first server that accepts; close the connection with `close_connection`. It does not reconnect.

    `closed` is called once, with one line, when the connection ends by itself. `error` is called when the server
    refuses a subject (`RefusedSubjectError`), when messages are dropped (`DroppedMessagesError`), and when the server
    will shut down (`LeavingError`). `name` is shown to the server's administrators; `within` is in seconds. Raises
    ConnectionFailedError: one line without secrets, with the problem of each server.
    """
    problems: list[str] = []
    deadline = asyncio.get_running_loop().time() + within
    servers, events = settings.addresses, Events(closed, error)
    for index, server in enumerate(servers):
        seconds = (deadline - asyncio.get_running_loop().time()) / (len(servers) - index)
        try:
            return await _open_connection(settings, server, events, name, max(seconds, 0.001), ping_seconds)
        except ConnectionFailedError as failed:
            problems.append(f"{server.url}: {failed}")
    raise ConnectionFailedError("; ".join(problems))


async def close_connection(client: NatsClient) -> None:
    """Close a connection within half a second, whatever the server does. Unsent data is lost: call confirm() first."""
    await client.finish()


async def _open_connection(
    settings: ConnectorSettings, server: Server, events: Events, name: str, seconds: float, ping_seconds: float
) -> NatsClient:
    needs_tls = server.scheme in ("tls", "wss") or settings.tls is not None
    server_name = settings.tls.server_name if settings.tls is not None else None
    kind = WebSocketTransport if server.scheme in ("ws", "wss") else TcpTransport
    transport = kind(credentials_of(settings, server), events.error, server_name, needs_tls=needs_tls)
    tls = tls_of(settings.tls) if needs_tls else None
    client = NatsClient(transport, events)
    connecting = client.start(server, name=name, tls=tls, connect_timeout=seconds, ping_interval=ping_seconds)
    try:
        await _within(seconds, connecting)
    except BaseException as error:
        await client.finish()
        if isinstance(error, OSError | aiohttp.ClientError | nats.errors.Error):
            raise ConnectionFailedError(_reason(error, at_start=True)) from None
        raise
    return client


async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine in a task of its own, and cancel the task until it ends.

    nats-py uses `asyncio.wait_for`, which may lose a cancellation before Python 3.12.
    """
    task = asyncio.create_task(work)
    try:
        if not (await asyncio.wait({task}, timeout=seconds))[0]:
            raise TimeoutError
        task.result()
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=0.1)
        if not task.cancelled():
            task.exception()  # retrieve it, or asyncio logs it


def _reason(error: BaseException | None, *, at_start: bool = False) -> str:
    """The reason in words why a connection failed or ended."""
    match error:
        case EndedError():
            return error.at_start
        case ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError() if at_start:
            return CLOSED_AT_ONCE
        case aiohttp.ClientConnectorCertificateError():
            return _reason(error.certificate_error)
        case aiohttp.ClientConnectorError():
            return _reason(error.os_error)
        case aiohttp.ClientResponseError():
            return f"expected a NATS WebSocket, got HTTP status {error.status}"
        case aiohttp.ClientError():
            return f"the connection was lost ({type(error).__name__})"
        case ssl.SSLCertVerificationError():
            return (
                f"the server's certificate is not trusted ({error.verify_message}); see tls.caFile and tls.serverName"
            )
        case ssl.SSLError():
            what = (error.reason or type(error).__name__).lower().replace("_", " ")
            return f"TLS failed: {what}; see tls.certFile and tls.caFile"
        case nats.errors.SecureConnWantedError():
            return (
                "the server offers no TLS, but TLS is required; write nats:// without tls, or enable TLS on the server"
            )
        case TimeoutError():
            return "no response in time"
        case socket.gaierror():
            return f"cannot resolve the host: {one_line(error.strerror or '')}"
        case OSError():
            return one_line(error.strerror or str(error) or type(error).__name__)
    return f"the connection was lost: {one_line(str(error))}"
