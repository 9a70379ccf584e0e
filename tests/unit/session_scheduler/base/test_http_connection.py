"""What a connection makes of the bytes that a server sends, however they are cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import pytest

from session_scheduler.base import http_connection
from session_scheduler.base.http_connection import (
    BadResponseError,
    Endpoint,
    HttpConnection,
    Response,
    TooLongError,
    request_head,
)

REQUEST = request_head("GET", "/path", "server", {"Accept": "text/plain"}, None)
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nRetry-After: 7\r\n\r\nfine"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nfin\r\n1\r\ne\r\n0\r\nSum: 1\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and whose server says what a test gives it to say."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.open = True
        self.connection = HttpConnection(Endpoint("server", 80))
        self.connection.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return not self.open

    def abort(self) -> None:
        if self.open:
            self.open = False
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def say(self, *parts: bytes) -> None:
        for part in parts:
            self.connection.data_received(part)

    def end(self) -> None:
        self.open = False
        self.connection.connection_lost(None)


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    made = Wire()
    yield made
    made.connection.abort()
    await asyncio.sleep(0)


async def asked(wire: Wire, *said: bytes, limit: int | None = None, end: bool = False) -> Response:
    exchanging = asyncio.ensure_future(wire.connection.exchange(REQUEST, limit))
    await asyncio.sleep(0)
    wire.say(*said)
    if end:
        wire.end()
    return await exchanging


@pytest.mark.parametrize("response", [FINE, CHUNKED])
async def test_a_response_is_the_same_however_its_bytes_are_cut(wire: Wire, response: bytes) -> None:
    for cut in range(len(response) + 1):
        parts = [part for part in (response[:cut], response[cut:]) if part]
        assert (await asked(wire, *parts)).body == b"fine"
        assert wire.connection.reusable
    one_by_one = [response[number : number + 1] for number in range(len(response))]
    assert (await asked(wire, *one_by_one)).body == b"fine"
    assert wire.written == REQUEST * (len(response) + 2)


async def test_a_header_is_found_by_its_name_in_any_case(wire: Wire) -> None:
    response = await asked(wire, FINE)
    assert (response.header("retry-after"), response.header("Missing")) == ("7", "")


async def test_what_announces_another_response_is_none(wire: Wire) -> None:
    response = await asked(
        wire, b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" + FINE
    )
    assert (response.status, response.body, response.header("Link")) == (200, b"fine", "")


async def test_a_response_without_a_body_is_complete(wire: Wire) -> None:
    assert (await asked(wire, b"HTTP/1.1 204 No Content\r\n\r\n")).body == b""
    assert wire.connection.reusable


async def test_a_response_without_a_length_ends_with_its_connection(wire: Wire) -> None:
    assert (await asked(wire, b"HTTP/1.1 200 OK\r\n\r\n", b"all", end=True)).body == b"all"
    assert not wire.connection.reusable


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200", FINE[:-1], CHUNKED[:-2], b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_half_a_response_is_lost_with_its_connection(wire: Wire, said: bytes) -> None:
    with pytest.raises(ConnectionResetError, match="closed the connection"):
        await asked(wire, *[said] if said else [], end=True)


@pytest.mark.parametrize("behind", [FINE, b"Connection: Close\r\n\r\n", b"\0"])
async def test_bytes_behind_a_response_are_ignored_and_end_the_connection(wire: Wire, behind: bytes) -> None:
    """As slurmrestd 26.05 writes them."""
    assert (await asked(wire, FINE + behind)).body == b"fine"
    assert not wire.connection.reusable
    with pytest.raises(ConnectionResetError):
        await wire.connection.exchange(REQUEST)
    assert wire.written == REQUEST


async def test_bytes_that_come_later_than_the_response_end_the_connection(wire: Wire) -> None:
    await asked(wire, FINE)
    wire.say(FINE)
    assert not wire.connection.reusable


@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
                                  b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"])  # fmt: skip
async def test_a_connection_that_the_server_will_close_is_not_used_again(wire: Wire, said: bytes) -> None:
    await asked(wire, said)
    assert not wire.connection.reusable


@pytest.mark.parametrize("said", [
    b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
])  # fmt: skip
async def test_what_is_no_response_is_refused(wire: Wire, said: bytes) -> None:
    with pytest.raises(BadResponseError):
        await asked(wire, said)
    assert not wire.open


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nA: ", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                                   b"1\r\nx\r\n0\r\nA: "])  # fmt: skip
async def test_a_head_or_a_trailer_without_end_is_refused(wire: Wire, begin: bytes) -> None:
    with pytest.raises(BadResponseError, match="head exceeds"):
        await asked(wire, begin, *[b"x" * 1024] * 65)


@pytest.mark.parametrize("said", [
    [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"],
    [b"HTTP/1.1 200 OK\r\n\r\n", b"1234", b"5"],
    [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n123\r\n", b"2\r\n45\r\n"],
])  # fmt: skip
async def test_a_body_is_read_up_to_its_limit(wire: Wire, said: list[bytes]) -> None:
    with pytest.raises(TooLongError, match="exceeds 4 bytes"):
        await asked(wire, *said, limit=4)
    assert not wire.open


async def test_a_body_of_the_limit_is_read(wire: Wire) -> None:
    assert (await asked(wire, FINE, limit=4)).body == b"fine"


async def test_a_request_that_is_given_up_leaves_no_use_of_the_connection(wire: Wire) -> None:
    exchanging = asyncio.ensure_future(wire.connection.exchange(REQUEST))
    await asyncio.sleep(0)
    exchanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchanging
    assert not wire.connection.reusable


@pytest.mark.parametrize("headers", [{"A": "b\r\nC: d"}, {"A\n": "b"}])
def test_a_line_break_adds_no_header(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="line break"):
        request_head("GET", "/", "server", headers, None)


# ---------------------------------------------------------------------- input in pieces


async def opened(wire: Wire, *said: bytes) -> Response:
    opening = asyncio.ensure_future(wire.connection.open(REQUEST))
    await asyncio.sleep(0)
    wire.say(*said)
    return await opening


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_body_is_given_as_it_comes(wire: Wire) -> None:
    assert (await opened(wire, HEAD)).status == 200
    async with aclosing(wire.connection.chunks(60.0)) as chunks:
        for part in (b"1\r\na\r\n", b"2\r\nbc\r\n"):
            waiting = asyncio.ensure_future(anext(chunks))
            await asyncio.sleep(0)
            wire.say(part)
            assert await waiting == part.split(b"\r\n")[1]
        wire.say(b"0\r\n\r\n")
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)
    assert wire.connection.reusable


async def test_what_came_before_a_loss_is_given_and_then_the_loss(wire: Wire) -> None:
    await opened(wire, HEAD + b"1\r\na\r\n")
    wire.end()
    async with aclosing(wire.connection.chunks(60.0)) as chunks:
        assert await anext(chunks) == b"a"
        with pytest.raises(ConnectionResetError):
            await anext(chunks)


async def test_silence_is_a_time_out(wire: Wire) -> None:
    await opened(wire, HEAD)
    async with aclosing(wire.connection.chunks(0.001)) as chunks:
        with pytest.raises(TimeoutError):
            await anext(chunks)


async def test_of_what_is_not_read_only_so_much_is_received(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "_BUFFER_BYTES", 4)
    await opened(wire, HEAD, b"4\r\nfour\r\n")
    assert wire.reading
    wire.say(b"1\r\n5\r\n")
    assert not wire.reading
    async with aclosing(wire.connection.chunks(60.0)) as chunks:
        assert await anext(chunks) == b"four5"
    assert wire.reading


async def test_a_refusal_is_read_whole(wire: Wire) -> None:
    head = await opened(wire, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nn")
    assert head.status == 403
    rest = asyncio.ensure_future(wire.connection.rest())
    await asyncio.sleep(0)
    wire.say(b"o")
    assert (await rest).body == b"no"


@pytest.mark.parametrize("ask", [HttpConnection.exchange, HttpConnection.open])
async def test_on_a_connection_that_has_ended_nothing_is_sent(
    wire: Wire, ask: Callable[[HttpConnection, bytes], Awaitable[Response]]
) -> None:
    wire.end()
    with pytest.raises(ConnectionResetError):
        await ask(wire.connection, REQUEST)
    assert wire.written == b""
