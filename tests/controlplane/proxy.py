"""An HTTP proxy between a scheduler and the API server that applies a fault to the n-th write.

    with Proxy(plane.server, plane.ca_file) as proxy:
        fault = proxy.at(3, Fault.DROP_AFTER)
        ...                                            # a client speaks to proxy.url, in plain HTTP
        assert fault.struck.wait(10)

It runs in its own thread; all methods are thread-safe. Watches pass chunk by chunk. It counts every POST, PUT, PATCH
and DELETE except those of leases and events, which do not belong to a gang's life.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from aiohttp import web
from yarl import URL

from session_scheduler.base.http_connection import Endpoint, HttpConnection, Response, request_head
from session_scheduler.base.http_pool import HttpPool

_T = TypeVar("_T")
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "upgrade"})
_PATIENCE = 30.0
_SILENCE = 3600.0
_CONNECTIONS = 10_000
_LARGEST = 1 << 26
_BRIEF = 160
"""Characters of a body in the log."""
_TURNS_TO_ACCEPT = 5
"""Turns of the event loop until a connection that a client made before the server closed is accepted, and aborted."""


class Fault(Enum):
    """A fault for a write."""

    HOLD = "hold"
    """Hold the request until `Rule.release`, then forward it, like a request that was in flight for long."""
    HOLD_AFTER = "hold_after"
    """Forward it; hold the response until `Rule.release`."""
    DROP_BEFORE = "drop_before"
    """Break the connection without forwarding it."""
    DROP_AFTER = "drop_after"
    """Forward it; break the connection instead of a response."""
    DUPLICATE = "duplicate"
    """Forward it twice; return the second response."""
    DUPLICATE_FIRST = "duplicate_first"
    """Forward it twice; return the first response."""
    ERROR = "error"
    """Respond with `Rule.status` without forwarding it."""
    ERROR_AFTER = "error_after"
    """Forward it, and respond with `Rule.status`."""
    CALL_BEFORE = "call_before"
    """Call `Rule.call`, then cut the client off: nothing more from it is forwarded.
    With `Rule.cut` False it continues instead."""
    CALL_AFTER = "call_after"
    """The same after this write was forwarded and the API server has responded."""


@dataclass(eq=False)
class Rule:
    """One fault, applied once."""

    number: int
    fault: Fault
    status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    call: Callable[[], None] = lambda: None
    cut: bool = True
    where: Callable[[str, str], bool] = lambda method, path: True
    """Selects the writes that count for `number`, by method and path, among the counted ones."""
    struck: threading.Event = field(default_factory=threading.Event)
    """Set once the fault has been applied; for a held write, once it is held."""
    done: threading.Event = field(default_factory=threading.Event)
    """Set once the fault has no further effect, for example after a held write was forwarded."""
    seen: int = 0
    _released: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Write:
    """A client's write."""

    number: int
    """Its number among the counted writes, from 1; 0 if it is not counted."""
    method: str
    path: str
    body: str
    seconds: float
    """Seconds since the proxy's start."""
    outcome: str = "in flight"
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.seconds:8.3f} {self.number or '':>4} {self.method:6} {self.path} {self.outcome} {self.body}"


def counted(method: str, path: str) -> bool:
    """The default predicate: no leases, no events."""
    parts = path.split("/")
    return "leases" not in parts and "events" not in parts


class Proxy:
    """Forwards requests to `server`, verified with the certificates in `ca_file`; a context manager."""

    def __init__(self, server: str, ca_file: Path, counts: Callable[[str, str], bool] = counted) -> None:
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the API server's own CA has no key identifier
        url = URL(server)
        self._host = url.host_port_subcomponent or ""
        self._endpoint = Endpoint(url.raw_host or "", url.port or 0, self._tls)
        self._counts = counts
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._began = time.monotonic()
        self._rules: list[Rule] = []
        self._watches: set[asyncio.Transport] = set()
        self._chaos: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[web.StreamResponse]] = set()
        self._number = self._epoch = 0
        self.writes: list[Write] = []
        self.watches_cut = 0
        self.port = 0
        self.in_order = False
        """Whether counted writes are forwarded one at a time: then exactly n - 1 writes precede the n-th fault."""
        self.latency: Callable[[], float] = lambda: 0.0
        """Returns the delay of the next request in seconds: requests with different delays overtake each other."""

    # ------------------------------------------------------------------ life

    def __enter__(self) -> Proxy:
        self._thread.start()
        try:
            self._ask(self._start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._ask(self._stop())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _ask(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

    async def _start(self) -> None:
        self._order = asyncio.Lock()
        self._pool = HttpPool(_CONNECTIONS, connect_seconds=_PATIENCE)
        self._http = web.Server(self._serve, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(self._http, shutdown_timeout=0.1)
        await self._runner.setup()
        await self._listen()

    async def _listen(self) -> None:
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await self._site.start()
        if not self.port:
            self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._stop_chaos()
        self._release_all()
        self._sever()
        await self._runner.cleanup()
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._pool.close()
        for _ in range(_TURNS_TO_ACCEPT):
            await asyncio.sleep(0)
            self._sever()

    # ------------------------------------------------------------------ for tests

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def count(self) -> int:
        """The number of counted writes so far."""
        return self._number

    def at(self, number: int, fault: Fault, **details: Any) -> Rule:
        """Apply a fault to the `number`th counted write from now on (with `where` of the selected ones); see `Rule`."""
        rule = Rule(number, fault, **details)
        self._ask(_run(lambda: self._rules.append(rule)))
        return rule

    def release(self, rule: Rule) -> None:
        """Release a held write or response."""
        self._ask(_run(rule._released.set))

    def forget(self) -> None:
        """Drop all rules; release what is held."""
        self._ask(_run(self._release_all))

    def _release_all(self) -> None:
        for rule in self._rules:
            rule._released.set()
        self._rules.clear()

    def sever(self) -> None:
        """Break all connections; nothing more from them is forwarded, except held writes."""
        self._ask(_run(self._sever))

    def _sever(self) -> None:
        self._epoch += 1
        for connection in self._http.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def refuse(self) -> None:
        """Break all connections, and refuse new ones until `accept`."""
        self._ask(self._refuse())

    async def _refuse(self) -> None:
        await self._site.stop()
        self._sever()

    def accept(self) -> None:
        """Accept connections again, on the same port."""
        self._ask(self._listen())

    def cut_watches(self) -> int:
        """Break all watches; return their number."""
        return self._ask(_run(lambda: self._cut(list(self._watches))))

    def _cut(self, watches: list[asyncio.Transport]) -> int:
        for transport in watches:
            transport.abort()
        self.watches_cut += len(watches)
        return len(watches)

    def cut_watches_at_random(self, seed: int, mean_seconds: float) -> None:
        """Break random watches, on average every `mean_seconds`, until `stop_cutting`."""
        self._ask(self._begin_chaos(random.Random(seed), mean_seconds))

    async def _begin_chaos(self, chance: random.Random, mean: float) -> None:
        async def cut() -> None:
            while True:
                await asyncio.sleep(chance.expovariate(1 / mean))
                if self._watches:
                    self._cut([chance.choice(sorted(self._watches, key=id))])

        await self._stop_chaos()
        self._chaos = self._loop.create_task(cut())

    def stop_cutting(self) -> None:
        """Stop breaking watches."""
        self._ask(self._stop_chaos())

    async def _stop_chaos(self) -> None:
        if self._chaos is not None:
            self._chaos.cancel()
            await asyncio.gather(self._chaos, return_exceptions=True)
            self._chaos = None

    def report(self, last: int = 60) -> str:
        """Return the last writes, a line each: seconds, number, method, path, outcome, beginning of the body."""
        return "\n".join(map(str, self.writes[-last:]))

    # ------------------------------------------------------------------ one request

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read(_LARGEST)
        while more := await request.content.read(_LARGEST):
            body += more
        seconds = self.latency()
        if seconds:
            await asyncio.sleep(seconds)
        if request.method in _WRITES:
            # A received write is forwarded even if its client disconnects.
            task = self._loop.create_task(self._serve_write(request, body))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            return await asyncio.shield(task)
        if "watch" in request.query:
            return await self._serve_watch(request)
        try:
            return await self._forward(request, body)
        except OSError:
            return _broken(request)

    async def _serve_write(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        counts = self._counts(request.method, request.path)
        if counts:
            self._number += 1
        brief = body[:_BRIEF].decode(errors="replace")
        write = Write(self._number if counts else 0, request.method, request.path, brief,
                      time.monotonic() - self._began, epoch=self._epoch)  # fmt: skip
        self.writes.append(write)
        rule = self._rule(request) if counts else None
        try:
            if counts and self.in_order and (rule is None or rule.fault not in (Fault.HOLD, Fault.HOLD_AFTER)):
                async with self._order:
                    response = await self._written(request, body, write, rule)
            else:
                response = await self._written(request, body, write, rule)
        except OSError as error:
            write.outcome += f" ({type(error).__name__})"
            return _broken(request)
        return response or _broken(request)

    def _rule(self, request: web.BaseRequest) -> Rule | None:
        """Return the rule that applies now; each rule counts for itself."""
        found = None
        for rule in self._rules:
            if rule.where(request.method, request.path):
                rule.seen += 1
                found = rule if rule.seen == rule.number else found
        return found

    async def _written(
        self, request: web.BaseRequest, body: bytes, write: Write, rule: Rule | None
    ) -> web.StreamResponse | None:
        """Forward a write, or apply the rule; None for no response."""
        if write.epoch != self._epoch:
            write.outcome = "lost with its sender"
            return None
        if rule is None:
            response = await self._forward(request, body)
            write.outcome = str(response.status)
            return response
        write.outcome = rule.fault.value
        try:
            return await self._faulty(request, body, write, rule)
        finally:
            rule.struck.set()
            rule.done.set()

    async def _faulty(
        self, request: web.BaseRequest, body: bytes, write: Write, rule: Rule
    ) -> web.StreamResponse | None:
        fault = rule.fault
        if fault is Fault.HOLD:
            rule.struck.set()
            await rule._released.wait()
        if fault is Fault.CALL_BEFORE:
            await self._call(rule)
            return None if rule.cut else await self._forward(request, body)
        response: web.StreamResponse | None = None
        if fault not in (Fault.DROP_BEFORE, Fault.ERROR):
            response = await self._forward(request, body)
            write.outcome += f" {response.status}"
        if fault in (Fault.DUPLICATE, Fault.DUPLICATE_FIRST):
            second = await self._forward(request, body)
            write.outcome += f" {second.status}"
            return second if fault is Fault.DUPLICATE else response
        if fault in (Fault.ERROR, Fault.ERROR_AFTER):
            return _refusal(rule.status)
        if fault is Fault.HOLD_AFTER:
            rule.struck.set()
            await rule._released.wait()
        if fault is Fault.CALL_AFTER:
            await self._call(rule)
            return None if rule.cut else response
        return response if fault in (Fault.HOLD, Fault.HOLD_AFTER) else None

    async def _call(self, rule: Rule) -> None:
        await self._loop.run_in_executor(None, rule.call)
        if rule.cut:
            self._sever()

    async def _forward(self, request: web.BaseRequest, body: bytes) -> web.Response:
        async with self._asked(request, body) as answer:
            content = await answer.read()
            return web.Response(status=answer.status, body=content, headers=answer.headers)

    async def _serve_watch(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        assert isinstance(transport, asyncio.Transport)
        self._watches.add(transport)
        try:
            async with self._asked(request, b"") as answer:
                response = web.StreamResponse(status=answer.status, headers=answer.headers)
                await response.prepare(request)
                async for chunk in answer.chunks():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except OSError:
            return _broken(request)
        finally:
            self._watches.discard(transport)

    @asynccontextmanager
    async def _asked(self, request: web.BaseRequest, body: bytes) -> AsyncIterator[Answer]:
        headers = _passed_on(request.headers)
        head = request_head(request.method, request.raw_path, self._host, headers, len(body) or None)
        connection = await self._pool.acquire(self._endpoint)
        try:
            yield Answer(connection, await connection.open(head + body))
        finally:
            self._pool.release(connection)


class Answer:
    """The API server's response."""

    def __init__(self, connection: HttpConnection, head: Response) -> None:
        self._connection = connection
        self.status = head.status
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        self.headers = _passed_on(named)

    async def read(self) -> bytes:
        """The whole body."""
        return (await self._connection.rest()).body

    def chunks(self) -> AsyncIterator[bytes]:
        """The body in chunks."""
        return self._connection.chunks(_SILENCE)


def _passed_on(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


def _broken(request: web.BaseRequest) -> web.StreamResponse:
    """No response: the connection broke before."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _refusal(status: int) -> web.Response:
    """Respond like an API server with an error."""
    reasons = {409: "Conflict", 429: "TooManyRequests", 503: "ServiceUnavailable"}
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status,
            "reason": reasons.get(status, "InternalError"), "message": "made by a test"}  # fmt: skip
    headers = {"Retry-After": "1"} if status == HTTPStatus.TOO_MANY_REQUESTS else {}
    return web.Response(status=status, body=json.dumps(body).encode(), content_type="application/json", headers=headers)


async def _run(work: Callable[[], _T]) -> _T:
    return work()
