"""An HTTP extender in a thread of the test: it records requests, and answers as the test says, over HTTP or TLS."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

Body = dict[str, Any]
Handler = Callable[[Body], Any]
"""Returns the answer of a request; a number is an HTTP status, an awaitable is awaited."""


def names_in(body: Body) -> list[str]:
    """The names of the nodes in a request, sorted."""
    if "Node" in body:
        return [body["Node"]]
    if "NodeNameToVictims" in body:
        return sorted({**(body["NodeNameToVictims"] or {}), **(body["NodeNameToMetaVictims"] or {})})
    nodes = body["Nodes"]
    return sorted(body["NodeNames"] or [] if nodes is None else [item["metadata"]["name"] for item in nodes["items"]])


def passing(names: list[str], body: Body, failed: dict[str, str] | None = None, **more: Any) -> Body:
    """The answer of a filter that these nodes pass, in the form of the request."""
    nodes = body["Nodes"]
    if nodes is None:
        passed: Body = {"NodeNames": names}
    else:
        passed = {"Nodes": {"items": [item for item in nodes["items"] if item["metadata"]["name"] in names]}}
    return {**passed, "FailedNodes": failed or {}, **more}


@dataclass
class ExtenderServer:
    """Extenders at `url`/NAME. Without a handler a filter passes all nodes and no node gets a score."""

    tls: ssl.SSLContext | None = None
    handlers: dict[str, Handler] = field(default_factory=dict)
    """By path, such as names/filter."""
    requests: list[tuple[str, Body]] = field(default_factory=list)
    url: str = ""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> web.AppRunner:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self.tls)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{port}"
        return runner

    async def _answer(self, request: web.Request) -> web.Response:
        path, body = request.match_info["path"], await request.json()
        self.requests.append((path, body))
        handler = self.handlers.get(path, _default if path.endswith("filter") else _no_scores)
        answer = handler(body)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if isinstance(answer, int):
            return web.Response(status=answer)
        return web.json_response(answer)

    def clear(self) -> None:
        """Forget handlers and requests."""
        self.handlers.clear()
        self.requests.clear()


def _default(body: Body) -> Body:
    return passing(names_in(body), body)


def _no_scores(_: Body) -> list[Body]:
    return []
