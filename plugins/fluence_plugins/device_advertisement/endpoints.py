"""The endpoints of the device plugin: /metrics, /healthz, /livez and /readyz."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from session_scheduler.sdk.small_http_server import Request, Response, SmallHttpServer, checked, text_response

CONNECTION_SECONDS: Final = 10.0
MOST_CONNECTIONS: Final = 32
_MOST_BYTES: Final = 8 << 10
"""The maximum size in bytes of request line and headers."""

log = logging.getLogger(__name__)


class Endpoints:
    """Serves three functions, called at each request; they must not block. Call `start` once, then `stop`."""

    def __init__(
        self,
        *,
        metrics: Callable[[str], tuple[bytes, str]],
        health: Callable[[], Mapping[str, str | None]],
        ready: Callable[[], Mapping[str, str | None]],
        connection_seconds: float = CONNECTION_SECONDS,
    ) -> None:
        """metrics: body and content type for an Accept header. health, ready: the problem of each check, or None."""
        self._metrics = metrics
        self._checks = {"/healthz": health, "/livez": health, "/readyz": ready}
        self._server = SmallHttpServer(
            self._respond,
            most_bytes=_MOST_BYTES,
            most_connections=MOST_CONNECTIONS,
            seconds=connection_seconds,
        )

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Serve. Returns the address that was bound. Raises InputError if it cannot be bound."""
        address = await self._server.start(host, port)
        log.info("serving /metrics, /healthz, /livez and /readyz at %s:%d", *address)
        return address

    async def stop(self) -> None:
        """Close the server and its connections. Idempotent."""
        await self._server.stop()

    async def _respond(self, request: Request) -> Response:
        if request.path == "/metrics":
            return Response(200, *self._metrics(request.headers.get("accept", "")))
        if request.path in self._checks:
            return checked(request.path[1:], self._checks[request.path](), request.query)
        return text_response(404, "not found")
