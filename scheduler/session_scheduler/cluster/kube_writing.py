"""Small writes on aiohttp's connections, without its session, which costs three times as much for each of them.

The pool, TLS and the parsing of answers are aiohttp's own. What its session adds is not needed here: redirects,
cookies, compression, bodies that are streams, proxies. Where a proxy is configured the session is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies

import aiohttp
import msgspec
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from session_scheduler.cluster.kube_access import Access
from session_scheduler.cluster.kube_connections import Connector

_NO_PROXY = "no"
_FIRST_FINAL = 200
"""Statuses below it announce another answer."""


class Answer(msgspec.Struct, frozen=True):
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def reached_directly(access: Access, *, proxied: bool) -> bool:
    """Whether no proxy is between; `proxied`: whether those of the environment would be."""
    named = access.proxy is not None or (proxied and bool(getproxies().keys() - {_NO_PROXY}))
    return not named and urlsplit(access.server).username is None


class Writer:
    """Sends requests with a body to one API server."""

    def __init__(self, connector: Connector, access: Access) -> None:
        self.access = access
        self._connector = connector
        url = URL(access.server)
        loop = asyncio.get_running_loop()
        # Never sent: it only says to the pool where connections go, as the session's requests do.
        self._place = ClientRequest("GET", url, loop=loop, ssl=access.tls, server_hostname=access.server_name)
        self._prefix = url.raw_path.rstrip("/")
        self._host = self._place.headers["Host"]

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, limits: aiohttp.ClientTimeout
    ) -> Answer:
        """Send once, without a time limit but that for connecting. Raises aiohttp.ClientError, OSError.

        `path` is quoted and has no slash at its start.
        """
        head = self._head(method, path, headers, len(body))
        try:
            connection = await self._connector.connect(self._place, [], limits)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"no connection to {self._host} in time") from error
        try:
            answer = await _exchanged(connection, head + body)
        except BaseException:  # half an exchange: no other request can use this connection
            connection.close()
            raise
        connection.release()
        return answer

    def _head(self, method: str, path: str, headers: Mapping[str, str], length: int) -> bytes:
        lines = [f"{method} {self._prefix}/{path} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines)
        if not head.count("\r") == head.count("\n") == len(lines) - 1:
            raise ValueError("a line break in a request's head")
        return f"{head}\r\n\r\n".encode()


async def _exchanged(connection: Connection, request: bytes) -> Answer:
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None or transport.is_closing():
        raise aiohttp.ServerDisconnectedError
    protocol.set_response_params(read_until_eof=True)
    transport.write(request)
    try:
        message, content = await protocol.read()
        while message.code < _FIRST_FINAL:
            message, content = await protocol.read()
    except HttpProcessingError as error:
        raise aiohttp.ClientPayloadError(f"the answer is no HTTP: {error.message}") from error
    return Answer(message.code, message.headers, await content.read())
