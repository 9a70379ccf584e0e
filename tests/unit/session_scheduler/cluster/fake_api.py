"""An API server with scripted replies, and virtual time that passes only in `sleep`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from session_scheduler.cluster.kube_access import Access
from session_scheduler.cluster.kube_requests import ApiClient, RequestSettings

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SleptTime:
    """A clock that moves only in `sleep`, at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return sum(self.slept)

    def wall(self) -> float:
        return self.now()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@dataclass
class Seen:
    """A request that the server received."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass
class FakeApi:
    """Sends the n-th reply to the n-th request, and repeats the last one."""

    replies: list[Reply] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    time: SleptTime = field(default_factory=SleptTime)

    async def __aenter__(self) -> FakeApi:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._server = TestServer(application)
        await self._server.start_server(shutdown_timeout=0)
        self.url = str(self._server.make_url("")).rstrip("/")
        self._clients: list[ApiClient] = []
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        at: TracebackType | None) -> None:  # fmt: skip
        for client in self._clients:
            await client.close()
        await self._server.close()

    def client(self, access: Access | None = None, **settings: Any) -> ApiClient:
        """Return a client of this server. Its pauses take no time."""
        client = ApiClient(access or Access(self.url), RequestSettings(**settings), clock=self.time,
                           sleep=self.time.sleep, chance=random.Random(1))  # fmt: skip
        self._clients.append(client)
        return client

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        text = await request.read()
        body = msgspec.json.decode(text) if text else None
        self.seen.append(Seen(request.method, request.path, dict(request.query), request.headers.copy(), body))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return await reply(request)


# ---------------------------------------------------------------------- replies


def says(body: Any, status: int = 200, **headers: str) -> Reply:
    """Reply with JSON; write - as _ in the names of headers."""

    async def reply(request: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(
            body=msgspec.json.encode(body), status=status, headers=named, content_type="application/json"
        )

    return reply


def refuses(code: int, reason: str = "", message: str = "no", details: Any = None, **headers: str) -> Reply:
    """Reply with a Status."""
    body = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}
    return says(body | ({"details": details} if details else {}), code, **headers)


async def breaks(request: web.Request) -> web.StreamResponse:
    """Close the connection without a response."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


class Hangs:
    """Sends its content, then nothing. `reached` is set when a client connects, `left` when it disconnects."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks
        self.reached = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in self.chunks:
            await response.write(chunk)
        self.reached.set()
        try:
            await asyncio.Event().wait()  # cancelled when the client disconnects
        finally:
            self.left.set()
        return response


def streams(*chunks: bytes, broken: bool = False) -> Reply:
    """Send the chunks, then end the response, or break the connection in the middle of it."""

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if broken and request.transport is not None:
            request.transport.close()
        return response

    return reply
