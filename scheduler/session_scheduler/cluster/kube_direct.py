"""HTTP connections to an API server without a proxy. `kube_requests` uses them; `kube_proxied` is the other way."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies

import msgspec
from yarl import URL

from session_scheduler.base.http_connection import Endpoint, HttpConnection, Response, request_head
from session_scheduler.base.http_pool import HttpPool
from session_scheduler.cluster.kube_access import Access

_NO_PROXY = "no"
_OK = 200


def reached_directly(access: Access, *, proxied: bool) -> bool:
    """Whether requests need no proxy; `proxied` says whether the environment's proxies apply."""
    named = access.proxy is not None or (proxied and bool(getproxies().keys() - {_NO_PROXY}))
    return not named and urlsplit(access.server).username is None


class Place(msgspec.Struct, frozen=True):
    """The parsed address of an access."""

    access: Access
    endpoint: Endpoint
    host: str
    prefix: str

    @classmethod
    def of(cls, access: Access) -> Place:
        """Parse the URL of the access."""
        url = URL(access.server)
        tls = access.tls if url.scheme == "https" else False
        if tls is True:
            tls = ssl.create_default_context()
        endpoint = Endpoint(url.raw_host or "", url.port or 0, tls or None, access.server_name)
        return cls(access, endpoint, url.host_port_subcomponent or "", url.raw_path.rstrip("/"))


class Direct:
    """Sends requests on pooled connections. Call `close` at the end."""

    def __init__(self, connections: int, connect_seconds: float) -> None:
        self._pool = HttpPool(connections, connect_seconds=connect_seconds)
        self._place: Place | None = None

    # more than five parameters: the parts of an HTTP request
    async def exchange(
        self, access: Access, method: str, target: str, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> Response:
        """Send once, and read the response. `target` is quoted and has no leading slash. Raises OSError."""
        place = self._place_of(access)
        request = _request(place, method, target, headers, body)
        async with asyncio.timeout(seconds):
            connection = await self._pool.acquire(place.endpoint)
            try:
                return await connection.exchange(request)
            finally:
                self._pool.release(connection)

    async def open(
        self, access: Access, target: str, headers: Mapping[str, str], silence: float
    ) -> Response | OpenStream:
        """GET a stream; if the server refuses it, return the whole response. Raises OSError."""
        place = self._place_of(access)
        connection = await self._pool.acquire(place.endpoint)
        stream = OpenStream(self._pool, connection, silence)
        try:
            head = await connection.open(_request(place, "GET", target, headers, None))
            if head.status == _OK:
                return stream
            refused = await connection.rest()
        except BaseException:
            stream.close()
            raise
        stream.close()
        return refused

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    def _place_of(self, access: Access) -> Place:
        if self._place is None or self._place.access is not access:
            self._place = Place.of(access)
        return self._place


class OpenStream:
    """A response that arrives in pieces. Call `close` at the end."""

    def __init__(self, pool: HttpPool, connection: HttpConnection, silence: float) -> None:
        self._pool = pool
        self._connection = connection
        self._silence = silence

    def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body in pieces. Raises OSError."""
        return self._connection.chunks(self._silence)

    def close(self) -> None:
        """Return the connection to the pool, which drops it unless the response is complete."""
        self._pool.release(self._connection)


def _request(place: Place, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    length = None if body is None else len(body)
    return request_head(method, f"{place.prefix}/{target}", place.host, headers, length) + (body or b"")
