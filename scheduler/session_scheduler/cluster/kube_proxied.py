"""HTTP requests through a proxy, with aiohttp. `kube_requests` imports it only if there is a proxy, which is rare."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager

import aiohttp

from session_scheduler.base.http_connection import BadResponseError, NotConnectedError, Response
from session_scheduler.base.http_pool import probed_socket
from session_scheduler.cluster.kube_access import Access

_OK = 200


class Proxied:
    """Sends requests through the proxy of an access, or of the environment. Call `close` at the end."""

    def __init__(self, connections: int, connect_seconds: float, *, environment: bool) -> None:
        """`environment` says whether the environment's proxies apply."""
        self._connect_seconds = connect_seconds
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, socket_factory=probed_socket),
            trust_env=environment,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    # more than five parameters: the parts of an HTTP request
    async def exchange(
        self, access: Access, method: str, target: str, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> Response:
        """Send once, and read the response. `target` is quoted and has no leading slash. Raises OSError."""
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=self._connect_seconds)
        with _own_errors():
            async with await self._send(access, method, target, headers, body, limits) as response:
                return Response(response.status, response.raw_headers, await response.read())

    async def open(
        self, access: Access, target: str, headers: Mapping[str, str], silence: float
    ) -> Response | ProxiedStream:
        """GET a stream; if the server refuses it, return the whole response. Raises OSError."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds, sock_read=silence)
        with _own_errors():
            response = await self._send(access, "GET", target, headers, None, limits)
            if response.status == _OK:
                return ProxiedStream(response)
            async with response:
                return Response(response.status, response.raw_headers, await response.read())

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    # more than five parameters: the parts of an HTTP request
    async def _send(
        self,
        access: Access,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        return await self._session.request(
            method,
            f"{access.server}/{target}",
            data=body,
            headers=headers,
            timeout=limits,
            allow_redirects=False,
            ssl=access.tls,
            server_hostname=access.server_name,
            proxy=access.proxy,
        )


class ProxiedStream:
    """A response that arrives in pieces. Call `close` at the end."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body in pieces. Raises OSError."""
        with _own_errors():
            async for chunk in self._response.content.iter_any():
                yield chunk

    def close(self) -> None:
        """Close the connection."""
        self._response.close()


@contextmanager
def _own_errors() -> Iterator[None]:
    """Convert aiohttp's errors to those of `http_connection`."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise NotConnectedError("connecting timed out") from TimeoutError(str(error))
    except aiohttp.ClientConnectorCertificateError as error:
        raise NotConnectedError("no connection") from error.certificate_error
    except aiohttp.ClientConnectorError as error:
        raise NotConnectedError("no connection") from error.os_error
    except TimeoutError:
        raise
    except aiohttp.ClientError as error:
        raise BadResponseError(str(error) or type(error).__name__) from error
