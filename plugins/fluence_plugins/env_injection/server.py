"""The HTTPS server: accepts connections, within limits, and serves an HTTP application on them.

asyncio's own server limits neither connections nor TLS handshakes in flight, so this module accepts connections itself.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, cast

from aiohttp import web

from fluence_plugins.env_injection.logs import SILENT, log
from fluence_plugins.env_injection.reviews import Reviews
from session_scheduler.sdk.addresses import host_and_port

GREETING_SECONDS: Final = 5.0
"""The limit for a TLS handshake, and then for the first request's headers."""
IDLE_SECONDS: Final = 100.0
"""How long an idle connection stays open. API servers close theirs after 90 s, and should be first."""
MOST_CONNECTIONS: Final = 256
"""The maximum number of connections, including handshakes. A further one replaces the one that has been idle longest,
so a client with many connections blocks no other, and an API server opens a new one.
"""
STOP_SECONDS: Final = 1.0
"""How long requests in flight may take at shutdown, and then how long their cancellation may take."""
_MAX_HEADER: Final = 8192
_QUEUE: Final = 128
_PAUSE: Final = 0.05
"""The pause before another attempt to accept, after the system refused one."""


def tls_context() -> ssl.SSLContext:
    """A TLS context for 1.2 and above, without a certificate yet. Sessions are not resumed, so each sees the current
    certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context


def load_chain(context: ssl.SSLContext, chain: bytes) -> None:
    """Serve this certificate and its key (PEM) from the next handshake on. The key is never written to a disk.

    Raises OSError (such as ssl.SSLError) if they do not match; then the old certificate stays in use. So the function
    first loads them into another context: OpenSSL replaces the certificate before it checks the key, and would lose the
    old pair.
    """
    file = os.memfd_create("chain", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(file), "wb") as writing:
            writing.write(chain)
        for loading in (tls_context(), context):
            # Without this, OpenSSL would ask for the passphrase of a key on the terminal. Now it refuses such a key.
            loading.load_cert_chain(f"/proc/self/fd/{file}", password=lambda: b"")
    finally:
        os.close(file)


class TlsServer:
    """Serves the application of `reviews` on a bound socket: `start`, then `stop`."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        reviews: Reviews,
        *,
        greeting: float = GREETING_SECONDS,
        most_connections: int = MOST_CONNECTIONS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`context` must have a certificate."""
        self._socket = listening
        self._context = context
        self._reviews = reviews
        self._greeting = greeting
        self._most_connections = most_connections
        self._sleep = sleep
        self._greeting_tasks: dict[asyncio.Task[None], None] = {}
        """Handshakes in flight, the oldest first."""
        self._open: dict[asyncio.Transport, int] = {}
        """Open connections, with the number of responses when each was established."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner = web.AppRunner(
            reviews.application(),
            access_log=None,
            logger=SILENT,
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=0,  # do not read bodies that are too large
            max_line_size=_MAX_HEADER,
            max_field_size=_MAX_HEADER,
            auto_decompress=False,
            shutdown_timeout=STOP_SECONDS,
        )

    async def start(self) -> None:
        """Start to accept connections."""
        await self._runner.setup()
        self._socket.listen(_QUEUE)
        self._own(asyncio.ensure_future(self._accept()))
        log.info("serving admission on https://%s", host_and_port(*self._socket.getsockname()[:2]))

    async def stop(self) -> None:
        """Stop accepting, let requests in flight finish for a moment, and close everything. Idempotent."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()
        await self._runner.cleanup()

    def _own(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError:  # the client is gone, or too many files are open
                await asyncio.sleep(_PAUSE)
                continue
            self._close_surplus()
            greeting = asyncio.ensure_future(self._greet(connection))
            self._greeting_tasks[greeting] = None
            self._own(greeting)

    def _close_surplus(self) -> None:
        """Close the connections that have been idle the longest, if the limit is reached."""
        self._open = {known: made for known, made in self._open.items() if not known.is_closing()}
        surplus = len(self._greeting_tasks) + len(self._open) + 1 - self._most_connections
        quiet = sorted(self._open, key=lambda known: self._reviews.answered_at.get(known, self._open[known]))
        for transport in quiet[: max(0, surplus)]:
            transport.abort()
            del self._open[transport]
        if len(self._greeting_tasks) >= self._most_connections:
            next(iter(self._greeting_tasks)).cancel()

    async def _greet(self, connection: socket.socket) -> None:
        """Do the TLS handshake; close the connection if no request follows in time."""
        try:
            transport = await self._transport(connection)
        finally:
            self._greeting_tasks.pop(cast("asyncio.Task[None]", asyncio.current_task()), None)
        if transport is not None:
            self._open[transport] = self._reviews.answered
            await self._sleep(self._greeting)
            if transport not in self._reviews.answered_at:
                transport.abort()

    async def _transport(self, connection: socket.socket) -> asyncio.Transport | None:
        loop, server = asyncio.get_running_loop(), self._runner.server
        if server is None:
            connection.close()
            return None
        try:
            transport, _ = await loop.connect_accepted_socket(
                server, connection, ssl=self._context, ssl_handshake_timeout=self._greeting,
                ssl_shutdown_timeout=STOP_SECONDS,
            )  # fmt: skip
        except OSError:  # no TLS, an unsupported version, or too late; the client knows
            connection.close()
            return None
        return transport
