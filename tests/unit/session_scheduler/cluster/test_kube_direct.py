"""Requests on pooled connections: reused after a complete exchange, closed after any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from session_scheduler.cluster.errors import Unavailable
from session_scheduler.cluster.kube_access import Access
from session_scheduler.cluster.kube_direct import reached_directly
from session_scheduler.cluster.kube_requests import ApiClient

from .fake_api import FakeApi, Hangs, breaks, says, streams

FINE = says({"fine": True})
SERVER = Access("https://api.example:6443")


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as fake:
        yield fake


async def write(client: ApiClient, path: str = "api/v1/pods", body: bytes = b"{}") -> bytes:
    return await client.write("POST", path, body, what="Pod ns/p")


class Connections:
    """Responds like FINE, and counts the connections of the requests."""

    def __init__(self) -> None:
        self.seen: set[object] = set()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.seen.add(request.transport)
        return await FINE(request)


async def test_writes_one_after_the_other_share_a_connection_with_reads(api: FakeApi) -> None:
    connections = Connections()
    api.replies = [connections]
    client = api.client()
    for _ in range(3):
        assert await write(client) == b'{"fine":true}'
        await client.read("api/v1/pods", what="pods")
    assert len(connections.seen) == 1


async def test_an_answer_in_chunks_is_read_to_its_end(api: FakeApi) -> None:
    api.replies = [streams(b'{"a":', b"1" * 100_000, b"}"), FINE]
    client = api.client()
    assert await write(client) == b'{"a":' + b"1" * 100_000 + b"}"
    assert await write(client) == b'{"fine":true}'


async def test_a_long_body_arrives_whole(api: FakeApi) -> None:
    api.replies = [FINE]
    await write(api.client(), body=b'"' + b"x" * 900_000 + b'"')
    assert api.seen[0].body == "x" * 900_000


async def test_an_incomplete_response_is_unavailable(api: FakeApi) -> None:
    api.replies = [streams(b'{"a":', broken=True), FINE]
    client = api.client()
    with pytest.raises(Unavailable, match="Pod ns/p"):
        await write(client)
    assert await write(client) == b'{"fine":true}'


async def test_a_response_that_is_not_http_is_unavailable() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"nonsense\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    client = ApiClient(Access(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    try:
        with pytest.raises(Unavailable, match="Pod ns/p"):
            await write(client)
    finally:
        await client.close()
        server.close()


async def test_a_write_that_is_cancelled_leaves_no_connection(api: FakeApi) -> None:
    hanging = Hangs(b"{")
    api.replies = [hanging, FINE]
    client = api.client()
    writing = asyncio.ensure_future(write(client))
    await asyncio.wait_for(hanging.reached.wait(), 10)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await asyncio.wait_for(hanging.left.wait(), 10)
    assert await write(client) == b'{"fine":true}'


async def test_a_connection_that_the_server_has_ended_is_not_used_again(api: FakeApi) -> None:
    api.replies = [says({"fine": True}, Connection="close"), FINE]
    client = api.client()
    await write(client)
    await write(client)
    api.replies = [breaks, FINE]
    with pytest.raises(Unavailable):
        await write(client)
    assert await write(client) == b'{"fine":true}'


async def test_many_writes_at_once_wait_for_a_connection(api: FakeApi) -> None:
    connections = Connections()
    api.replies = [connections]
    client = api.client(connections=2)
    await asyncio.gather(*(write(client) for _ in range(20)))
    assert len(api.seen) == 20
    assert len(connections.seen) <= 2


async def test_a_servers_own_path_and_our_headers_are_kept(api: FakeApi) -> None:
    async def authorization() -> str:
        return "Bearer secret"

    api.replies = [FINE]
    await write(api.client(Access(f"{api.url}/clusters/one", authorization=authorization)), "api/v1/pods/a%20b/binding")
    seen = api.seen[0]
    assert (seen.method, seen.path) == ("POST", "/clusters/one/api/v1/pods/a b/binding")
    assert seen.headers["Authorization"] == "Bearer secret"
    assert seen.headers["Content-Type"] == "application/json"
    assert seen.headers["Host"] == api.url.removeprefix("http://")


async def test_a_token_with_a_line_break_adds_no_header(api: FakeApi) -> None:
    async def authorization() -> str:
        return "Bearer secret\r\nX-Other: value"

    with pytest.raises(ValueError, match="line break"):
        await write(api.client(Access(api.url, authorization=authorization)))
    assert api.seen == []


async def test_a_configured_proxy_is_used(api: FakeApi) -> None:
    api.replies = [FINE]
    await write(api.client(Access("http://api.example", proxy=api.url)))
    assert api.seen[0].headers["Host"] == "api.example"


def test_proxies_of_the_environment_apply_except_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert reached_directly(SERVER, proxied=True)
    monkeypatch.setenv("no_proxy", "example")
    assert reached_directly(SERVER, proxied=True)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    assert not reached_directly(SERVER, proxied=True)
    assert reached_directly(SERVER, proxied=False)
    assert not reached_directly(Access("https://name:word@api.example"), proxied=False)
