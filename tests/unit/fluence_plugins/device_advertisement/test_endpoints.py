"""The endpoints' small HTTP server: what it answers, and what it bounds."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import pytest

from fluence_plugins.device_advertisement.endpoints import MOST_CONNECTIONS, Endpoints
from session_scheduler.errors import InputError

FINE: Mapping[str, str | None] = {"loop": None}


@asynccontextmanager
async def serving(
    ready: Mapping[str, str | None] = FINE,
    *,
    seconds: float = 10,
    health: Mapping[str, str | None] | None = FINE,
    host: str = "127.0.0.1",
) -> AsyncIterator[int]:
    def asked() -> Mapping[str, str | None]:
        if health is None:
            raise RuntimeError("a secret")
        return health

    endpoints = Endpoints(
        metrics=lambda accept: (f"for {accept}".encode(), "text/x"),
        health=asked,
        ready=lambda: ready,
        connection_seconds=seconds,
    )
    _, port = await endpoints.start(host, 0)
    try:
        yield port
    finally:
        await endpoints.stop()


async def answer(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Head and body; both empty where the connection is closed without an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
    except ConnectionError:
        return b"", b""
    finally:
        writer.close()
    return head, body


async def test_checks_are_answered_as_the_api_server_answers_them() -> None:
    async with serving({"qpu": None, "qubit": "not\nregistered"}) as port:
        head, body = await answer(port, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert body == b"[+]qpu ok\n[-]qubit failed: not registered\nreadyz check failed\n"
        assert await answer(port, b"GET /healthz HTTP/1.0\r\n\r\n") == (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 2\r\nConnection: close\r\n"
            b"Server: fluence\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff",
            b"ok",
        )
        assert (await answer(port, b"GET /healthz?verbose HTTP/1.1\r\n\r\n"))[
            1
        ] == b"[+]loop ok\nhealthz check passed\n"
        assert (await answer(port, b"GET /livez HTTP/1.1\r\n\r\n"))[1] == b"ok"


async def test_a_scrape_says_what_it_accepts_and_head_has_no_body() -> None:
    async with serving() as port:
        head, body = await answer(port, b"GET /metrics HTTP/1.1\r\naccept: a/b;q=1\r\n\r\n")
        assert (b"Content-Type: text/x" in head, body) == (True, b"for a/b;q=1")
        head, body = await answer(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert (b"Content-Length: 4" in head, body) == (True, b"")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", b"405"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET http://x/metrics HTTP/1.1\r\n\r\n", b"400"),
        (b"\x16\x03\x01\xff\x00 \r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", b"431"),
    ],
)
async def test_what_is_no_question_is_told_so(request_: bytes, status: bytes) -> None:
    async with serving() as port:
        head, _ = await answer(port, request_)
        assert head.split(b" ")[:2] == [b"HTTP/1.1", status]


async def test_a_fault_is_answered_without_its_text() -> None:
    async with serving(health=None) as port:
        head, body = await answer(port, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert b"500" in head
        assert body == b"internal error; see the logs\n"
        assert (await answer(port, b"GET /readyz HTTP/1.1\r\n\r\n"))[1] == b"ok"


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with serving(seconds=0.05) as port:
        assert await answer(port, b"") == (b"", b"")
        assert await answer(port, b"GET /metr") == (b"", b"")


async def test_whoever_holds_many_connections_keeps_no_probe_out() -> None:
    async with serving() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * MOST_CONNECTIONS)]
        assert (await answer(port, b"GET /healthz HTTP/1.1\r\n\r\n"))[1] == b"ok"
        for _, writer in silent:
            writer.transport.abort()


async def test_no_more_are_held_open_where_many_come_at_once() -> None:
    loop, many = asyncio.get_running_loop(), 3 * MOST_CONNECTIONS
    async with serving(seconds=60) as port, asyncio.timeout(20):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(many)]  # before the server accepts any
        for each in silent[: many - MOST_CONNECTIONS]:
            each.setblocking(False)
            with suppress(ConnectionResetError):
                assert await loop.sock_recv(each, 1) == b""
        for each in silent:
            each.close()


async def test_a_server_with_silent_connections_stops_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await answer(port, b"GET /healthz HTTP/1.1\r\n\r\n")
    for _, writer in silent:
        writer.transport.abort()
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_one_that_serves_every_ipv6_address_answers_ipv4_too() -> None:
    async with serving(host="::") as port:
        assert (await answer(port, b"GET /healthz HTTP/1.1\r\n\r\n"))[1] == b"ok"


async def test_an_address_that_is_taken_is_told_with_the_options_that_change_it() -> None:
    async with serving() as port:
        other = Endpoints(metrics=lambda _: (b"", ""), health=dict, ready=dict)
        with pytest.raises(InputError, match=rf"^--port: 127\.0\.0\.1:{port} is in use; choose another port [^\n]*$"):
            await other.start("127.0.0.1", port)
        await other.stop()
