"""Requests to an API server, with timeouts, safe retries and typed errors.

The client retries a read after 429, 5xx, a timeout or a broken connection. It retries a write only if the server
certainly did not execute it: after 429, after 401 with an expired token, or if no connection was made. If there is a
fence, it runs directly before each write, also before a retry.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Set
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import Protocol, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
import structlog

from session_scheduler.base.backoff import backoff
from session_scheduler.base.clock import Clock, SystemClock
from session_scheduler.base.http_connection import NotConnectedError, Response
from session_scheduler.cluster.errors import Unavailable, one_line
from session_scheduler.cluster.kube_access import Access
from session_scheduler.cluster.kube_direct import Direct, reached_directly
from session_scheduler.cluster.kube_errors import Refusal, Resend, refusal
from session_scheduler.config.settings import LeaderElection
from session_scheduler.errors import InputError

_log = structlog.get_logger(__name__)
_Got = TypeVar("_Got")
_JSON = "application/json"
_READ_AGAIN = frozenset({Resend.READS, Resend.BUSY, Resend.UNSENT})
_WRITE_AGAIN = frozenset({Resend.BUSY, Resend.UNSENT})
_SHARE = 0.8
"""Part of the time from the renew deadline to the lease's end that a write may take. The rest is for clock drift."""
_QUERY_SAFE = "!$'()*,/:?@"
"""Characters that need no quoting in a query. Source: RFC 3986, section 3.4."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class RequestSettings(msgspec.Struct, frozen=True):
    """Limits of every request; all times in seconds."""

    timeout: float = 15.0
    """Timeout of one request, and of the start of a watch."""
    write_timeout: float = 15.0
    """Timeout of one write. With leader election it must be shorter than the time between the leader's last write and
    its successor's first one: see `for_leader`."""
    connect_timeout: float = 5.0
    page_timeout: float = 60.0
    """Timeout of one page of a list."""
    watch_silence: float = 150.0
    """The client closes a watch after this long without an event. Bookmarks come about every minute, but not for a kind
    without changes since the API server started; such a watch costs one more request."""
    connections: int = 128
    """Maximum number of requests in flight, watches included; further requests wait."""
    tries: int = 6
    """Maximum number of times that a request is sent."""
    read_patience: float = 30.0
    """The client does not retry a read after this many seconds."""
    write_patience: float = 5.0
    """The same for a write, which is soon out of date."""
    first_pause: float = 0.1
    """Pause before the first retry, unless the server names one. Doubled each time, minus a random part up to half."""
    longest_pause: float = 5.0

    @classmethod
    def for_leader(cls, election: LeaderElection) -> RequestSettings:
        """Return settings with which each write that the fence allows ends before another replica can lead."""
        between = election.lease_seconds - election.renew_seconds
        return cls(write_timeout=min(cls().write_timeout, between * _SHARE))


class _Request(msgspec.Struct, frozen=True):
    method: str
    path: str
    what: str
    seconds: float
    query: Mapping[str, str] = {}
    body: bytes | None = None
    content: str = _JSON
    fenced: bool = False


class Stream(Protocol):
    """A response that arrives in pieces."""

    def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body in pieces. Raises OSError."""

    def close(self) -> None:
        """Close the stream."""


class Route(Protocol):
    """A transport to an API server."""

    # more than five parameters: the parts of an HTTP request
    async def exchange(
        self, access: Access, method: str, target: str, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> Response:
        """Send once, and read the response. `target` is quoted and has no leading slash. Raises OSError."""

    async def open(self, access: Access, target: str, headers: Mapping[str, str], silence: float) -> Response | Stream:
        """GET a stream; if the server refuses it, return the whole response. Raises OSError."""

    async def close(self) -> None:
        """Close all connections."""


class ApiClient:
    """Sends requests. Create it in a running event loop, and call `close` at the end."""

    def __init__(
        self,
        access: Access,
        settings: RequestSettings | None = None,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: random.Random | None = None,
    ) -> None:
        self.settings = settings or RequestSettings()
        self._access = access
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._chance = chance or random.Random()  # noqa: S311 (spreads retries in time, not for security)
        self._renewing = asyncio.Lock()
        self._fence: Callable[[], None] | None = None
        # Like other clients, ignore the environment's proxies for an API server on this machine.
        self._proxied = urlsplit(access.server).hostname not in _LOOPBACK
        self._routes: dict[bool, Route] = {}
        """The transports that were needed so far, by whether they are direct."""
        self._chosen: tuple[Access, Route] | None = None

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._access.server

    def fence_writes(self, check: Callable[[], None]) -> None:
        """Call `check` directly before each fenced write and retry; it raises to stop the write."""
        self._fence = check

    async def close(self) -> None:
        """Close all connections."""
        for route in self._routes.values():
            await route.close()

    # -------------------------------------------------------------- three kinds of requests

    async def read(self, path: str, query: Mapping[str, str] | None = None, *, what: str, page: bool = False) -> bytes:
        """GET. `what` names the object in error messages. Raises ClusterError."""
        seconds = self.settings.page_timeout if page else self.settings.timeout
        request = _Request("GET", path, what, seconds, query=query or {})
        return await self._persist(lambda: self._exchange(request), _READ_AGAIN, self.settings.read_patience)

    # more than five parameters: a request's parts and options, most with a default
    async def write(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        what: str,
        content: str = _JSON,
        when_busy: bool = True,
        fenced: bool = True,
    ) -> bytes:
        """POST, PUT, PATCH or DELETE. Raises ClusterError.

        Without `when_busy` a 429 is raised at once; without `fenced` the write does not run the fence.
        """
        request = _Request(method, path, what, self.settings.write_timeout, body=body, content=content, fenced=fenced)
        when = _WRITE_AGAIN if when_busy else _WRITE_AGAIN - {Resend.BUSY}
        return await self._persist(lambda: self._exchange(request), when, self.settings.write_patience)

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], *, what: str) -> AsyncGenerator[AsyncGenerator[bytes]]:
        """GET a response that arrives in pieces; leaving the context closes the connection. Raises ClusterError.

        The yielded iterator raises OSError if the connection breaks.
        """
        request = _Request("GET", path, what, self.settings.timeout, query=query)
        stream = await self._persist(lambda: self._open(request), _READ_AGAIN, self.settings.read_patience)
        try:
            async with aclosing(stream.chunks()) as chunks:
                yield chunks
        finally:
            stream.close()

    # -------------------------------------------------------------- retries

    async def _persist(self, send: Callable[[], Awaitable[_Got | Refusal]], when: Set[Resend], patience: float) -> _Got:
        """Send until the request succeeds, fails for good, or has been retried for long enough."""
        latest = self._clock.now() + patience
        renewed = False
        tried = 0
        while True:
            access = self._access
            got = await send()
            tried += 1
            if not isinstance(got, Refusal):
                return got
            if got.resend is Resend.RENEWED and not renewed:
                renewed = await self._renewed(access)
                if renewed:
                    continue
            pause = self._pause(tried, got.retry_after)
            if got.resend not in when or tried >= self.settings.tries or self._clock.now() + pause > latest:
                try:
                    raise got.error
                finally:
                    del got  # breaks a reference cycle: frame, error, its traceback, frame
            _log.debug("retrying a request", after=round(pause, 3), why=str(got.error))
            await self._sleep(pause)

    def _pause(self, tried: int, retry_after: float | None) -> float:
        """Return the seconds until the next try. A random part spreads requests that failed at the same time."""
        settings = self.settings
        if retry_after is not None:
            return retry_after + self._chance.uniform(0.0, settings.first_pause)
        return backoff(settings.first_pause, tried - 1, settings.longest_pause, self._chance)

    async def _renewed(self, used: Access) -> bool:
        """Read the configuration again, unless another request just did. Return whether there is a new access."""
        async with self._renewing:
            if self._access is not used:
                return True
            if used.renew is None:
                return False
            try:
                self._access = await used.renew()
            except InputError as error:
                _log.warning("the API server rejects the credentials, and they cannot be renewed", why=str(error))
                return False
            return True

    # -------------------------------------------------------------- one request

    async def _exchange(self, request: _Request) -> bytes | Refusal:
        """Send once. Return the response's body, or the failure."""
        access = self._access
        try:
            headers = await self._headers(access, request)
            route = self._route(access)
            self._check_fence(request)
            answer = await route.exchange(
                access, request.method, _target(request), headers, request.body, request.seconds
            )
        except OSError as error:
            return _lost(error, request.what)
        if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            return answer.body
        return _refused(answer, request.what)

    async def _open(self, request: _Request) -> Stream | Refusal:
        """Send once. Return the response before its body is read, or the failure."""
        access = self._access
        try:
            async with asyncio.timeout(request.seconds):
                headers = await self._headers(access, request)
                got = await self._route(access).open(access, _target(request), headers, self.settings.watch_silence)
        except OSError as error:
            return _lost(error, request.what)
        return _refused(got, request.what) if isinstance(got, Response) else got

    def _route(self, access: Access) -> Route:
        """Return the transport for the access."""
        if self._chosen is None or self._chosen[0] is not access:
            direct = reached_directly(access, proxied=self._proxied)
            if direct not in self._routes:
                self._routes[direct] = self._made(direct=direct)
            self._chosen = (access, self._routes[direct])
        return self._chosen[1]

    def _made(self, *, direct: bool) -> Route:
        settings = self.settings
        if direct:
            return Direct(settings.connections, settings.connect_timeout)
        from session_scheduler.cluster.kube_proxied import Proxied

        return Proxied(settings.connections, settings.connect_timeout, environment=self._proxied)

    async def _headers(self, access: Access, request: _Request) -> dict[str, str]:
        # Compression costs the API server more time than the network saves; API servers never compress watches.
        headers = {"Accept": _JSON, "Accept-Encoding": "identity", "User-Agent": "fluence"}
        authorization = await access.authorization()
        if authorization:
            headers["Authorization"] = authorization
        if request.body is not None:
            headers["Content-Type"] = request.content
        return headers

    def _check_fence(self, request: _Request) -> None:
        if request.fenced and self._fence is not None:
            self._fence()  # no await may come between this and the request, because its timeout begins there


def _target(request: _Request) -> str:
    return f"{request.path}?{urlencode(request.query, safe=_QUERY_SAFE)}" if request.query else request.path


def _refused(answer: Response, what: str) -> Refusal:
    return refusal(answer.status, answer.body, {"Retry-After": answer.header("Retry-After")}, what)


def _lost(error: OSError, what: str) -> Refusal:
    """Return the failure for a request without a response."""
    unsent = isinstance(error, NotConnectedError)
    cause = (error.__cause__ or error) if unsent else error
    if isinstance(cause, ssl.SSLCertVerificationError):  # a retry would fail in the same way
        return Refusal(Unavailable(f"{what}: {one_line(str(cause))}"), Resend.NEVER)
    problem = "no response in time" if isinstance(cause, TimeoutError) else one_line(str(cause)) or type(cause).__name__
    return Refusal(Unavailable(f"{what}: {problem}"), Resend.UNSENT if unsent else Resend.READS)
