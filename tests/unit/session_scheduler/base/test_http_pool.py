"""Connections: what becomes of bytes that were sent when their request is given up, and how long each is kept."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Self

import pytest
import uvloop
from tests.unit.fluence_plugins.slurm_bridge.trusting import Trusted, server_certificate

from session_scheduler.base import http_pool
from session_scheduler.base.http_connection import Endpoint, NotConnectedError, Response, request_head
from session_scheduler.base.http_pool import HttpPool, probed_socket
from session_scheduler.cluster.kube_access import Access
from session_scheduler.cluster.kube_requests import ApiClient

SMALL = 4096
"""Bytes that the server's socket takes before its program reads: the rest stays with the client."""
BODY = b'"' + b"x" * 200_000 + b'"'
"""Less than the client's socket takes: when the server does not read, it has been sent as far as the program knows."""
PATIENCE = 10.0


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Listens, and reads nothing on its own."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(PATIENCE)
        yield listening


def client_of(server: socket.socket) -> socket.socket:
    address = server.getsockname()
    made = probed_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", address))
    made.connect(address)
    return made


def received(connection: socket.socket) -> tuple[bytes, bool]:
    """All that comes, and whether the connection was broken rather than ended."""
    connection.settimeout(PATIENCE)
    found = b""
    with contextlib.closing(connection):
        try:
            while more := connection.recv(65536):
                found += more
        except ConnectionResetError:
            return found, True
    return found, False


def test_what_was_not_received_when_a_connection_is_closed_is_lost_with_it(server: socket.socket) -> None:
    client = client_of(server)
    connection, _ = server.accept()
    client.setblocking(False)
    sent = client.send(BODY)
    assert sent > 10 * SMALL
    client.close()
    found, broken = received(connection)
    assert broken
    assert len(found) < sent


async def test_a_write_that_is_given_up_does_not_arrive_afterwards(server: socket.socket) -> None:
    client = ApiClient(Access(f"http://127.0.0.1:{server.getsockname()[1]}"))
    server.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        writing = asyncio.ensure_future(client.write("POST", "api/v1/pods", BODY, what="Pod ns/p"))
        connection, _ = await asyncio.wait_for(loop.sock_accept(server), PATIENCE)
        connection.setblocking(False)
        began = await asyncio.wait_for(loop.sock_recv(connection, 16), PATIENCE)
        assert began.startswith(b"POST /api/v1/pod")
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        connection.setblocking(True)
        rest, broken = await asyncio.to_thread(received, connection)
        assert broken
        assert len(rest) < len(BODY)
    finally:
        await client.close()


def test_a_connection_that_only_waits_is_probed_by_the_system(server: socket.socket) -> None:
    with client_of(server) as client:
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            probes = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            idle, between, count = (client.getsockopt(socket.IPPROTO_TCP, option) for option in probes)
            assert idle + between * count <= 30


# ---------------------------------------------------------------------- the pool

FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
REQUEST = request_head("GET", "/", "localhost", {}, None)
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[None, None, None]], None]


class Listening:
    """A server that answers each request with FINE, where it is not to be silent; counts connections."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(FINE)
        writer.transport.abort()


@contextlib.asynccontextmanager
async def a_pool(limit: int = 4, seconds: float = PATIENCE) -> AsyncIterator[HttpPool]:
    pool = HttpPool(limit, connect_seconds=seconds)
    try:
        yield pool
    finally:
        await pool.close()


async def exchanged(pool: HttpPool, endpoint: Endpoint) -> Response:
    connection = await pool.acquire(endpoint)
    try:
        return await connection.exchange(REQUEST)
    finally:
        pool.release(connection)


@LOOPS
def test_a_connection_is_kept_for_the_next_request_to_the_same_server(run: Run, tmp_path: Path) -> None:
    trusted = server_certificate(tmp_path, "localhost")

    async def check() -> None:
        async with Listening(trusted.context) as server, a_pool() as pool:
            endpoints = [Endpoint("127.0.0.1", server.port, context_of(trusted), "localhost") for _ in range(2)]
            for endpoint in (endpoints[0], endpoints[0], endpoints[1]):
                assert (await exchanged(pool, endpoint)).body == b"fine"
            assert server.connections == 2

    run(check())


@LOOPS
def test_a_server_of_another_signer_or_name_is_not_talked_to(run: Run, tmp_path: Path) -> None:
    trusted = server_certificate(tmp_path, "localhost")

    async def check() -> None:
        async with Listening(trusted.context) as server, a_pool() as pool:
            for endpoint in (
                Endpoint("127.0.0.1", server.port, context_of(trusted)),
                Endpoint("localhost", server.port, context_of(trusted), "other"),
                Endpoint("localhost", server.port, ssl.create_default_context()),
            ):
                with pytest.raises(NotConnectedError) as refused:
                    await pool.acquire(endpoint)
                assert isinstance(refused.value.__cause__, ssl.SSLCertVerificationError)
            assert (await exchanged(pool, Endpoint("localhost", server.port, context_of(trusted)))).status == 200

    run(check())
    gc.collect()


@LOOPS
def test_a_handshake_that_is_not_answered_ends_in_time(run: Run, server: socket.socket, tmp_path: Path) -> None:
    trusted = server_certificate(tmp_path, "localhost")

    async def check() -> None:
        async with a_pool(limit=1, seconds=0.05) as pool:
            for _ in range(2):
                with pytest.raises(NotConnectedError):
                    await pool.acquire(Endpoint("127.0.0.1", server.getsockname()[1], context_of(trusted), "localhost"))

    run(check())
    gc.collect()


@LOOPS
def test_where_no_server_listens_or_no_host_is_nothing_is_sent(run: Run) -> None:
    async def check() -> None:
        async with a_pool() as pool:
            for host in ("127.0.0.1", "x" * 64 + ".invalid"):
                with pytest.raises(NotConnectedError):
                    await pool.acquire(Endpoint(host, 1))

    run(check())


@LOOPS
def test_a_request_that_is_cancelled_at_any_turn_of_the_loop_leaves_no_socket(run: Run, tmp_path: Path) -> None:
    trusted = server_certificate(tmp_path, "localhost")
    tls = context_of(trusted)

    async def cancelled_after(turns: int) -> None:
        async with Listening(trusted.context) as server, a_pool() as pool:
            asking = asyncio.ensure_future(exchanged(pool, Endpoint("127.0.0.1", server.port, tls, "localhost")))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    for turns in range(30):
        run(cancelled_after(turns))
        gc.collect()  # what the loop left open says so now, and warnings are errors


async def test_requests_beyond_the_limit_wait_in_their_order() -> None:
    async with Listening() as server, a_pool(limit=1) as pool:
        endpoint = Endpoint("127.0.0.1", server.port)
        first = await pool.acquire(endpoint)
        order: list[int] = []

        async def ask(number: int) -> None:
            await exchanged(pool, endpoint)
            order.append(number)

        asking = [asyncio.ensure_future(ask(number)) for number in range(3)]
        await asyncio.sleep(0)
        asking[1].cancel()
        pool.release(first)
        await asyncio.gather(*asking, return_exceptions=True)
        assert order == [0, 2]
        assert server.connections == 1


async def test_a_connection_is_not_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pool, "_IDLE_SECONDS", 0.0)
    async with Listening() as server, a_pool() as pool:
        connection = await pool.acquire(Endpoint("127.0.0.1", server.port))
        await connection.exchange(REQUEST)
        pool.release(connection)
        await asyncio.wait_for(connection.wait_closed(), PATIENCE)


async def test_a_closed_pool_makes_no_connection_and_has_closed_those_in_use() -> None:
    async with Listening() as server:
        pool = HttpPool(2, connect_seconds=PATIENCE)
        used = await pool.acquire(Endpoint("127.0.0.1", server.port))
        await pool.close()
        assert not used.reusable
        pool.release(used)
        with pytest.raises(NotConnectedError, match="closed"):
            await pool.acquire(Endpoint("127.0.0.1", server.port))


def context_of(trusted: Trusted) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=trusted.ca_file)
