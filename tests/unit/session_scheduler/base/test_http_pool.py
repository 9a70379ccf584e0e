"""What becomes of bytes that were sent and not yet received when their request is given up: they never arrive."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from session_scheduler.base.http_pool import probed_socket
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
