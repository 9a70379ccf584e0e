"""HTTP endpoints for probes, Prometheus and users: /metrics, /healthz, /livez, /readyz, /configz, /explain. Read only.

Public: every server that the command runs has these endpoints. Probes and metrics are open and answered from memory, so
a probe's timeout means a stuck event loop. `authorize` decides about every other path. Each path has a rate limit, so
that a flood of requests does not delay the scheduler, which runs on the same thread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Protocol, Self

import structlog

from session_scheduler.base.clock import Clock, SystemClock
from session_scheduler.base.rate_limits import RateLimit
from session_scheduler.config.settings import Serving
from session_scheduler.sdk.http_authorization import Denial
from session_scheduler.sdk.small_http_server import Request, Response, SmallHttpServer, checked, text_response

__all__ = ["Endpoints", "Exposition"]

_log = structlog.get_logger(__name__)

IDLE_SECONDS: Final = 15.0
"""How long a connection may take for the head of a request, or to read the response, before the server closes it."""
SHUTDOWN_SECONDS: Final = 1.0
"""How long responses in flight may take when the server stops."""
_MOST_CONNECTIONS: Final = 256
_MOST_BYTES: Final = 20 << 10
"""The limit of a request's first line and headers; a token with the user's groups may be long."""
_PROBES: Final = frozenset(("/healthz", "/livez", "/readyz"))
_OPEN: Final = _PROBES | {"/metrics"}
_JSON: Final = "application/json; charset=utf-8"


class Exposition(Protocol):
    """A source of metrics."""

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The body of a scrape and its content type, for the request's Accept header."""


class Endpoints:
    """An HTTP server for GET and HEAD. Call `start` once, then `stop`; or use `async with`."""

    def __init__(
        self,
        serving: Serving,
        *,
        metrics: Exposition,
        health: Callable[[], str | None],
        ready: Callable[[], Mapping[str, str | None]],
        config: Callable[[], Any] | None = None,
        plugins: Callable[[str, str, Mapping[str, str]], tuple[int, bytes, str]] | None = None,
        explain: Callable[[str, str], Awaitable[tuple[int, Any]]] | None = None,
        authorize: Callable[[str, str], Awaitable[Denial | None]] | None = None,
        clock: Clock | None = None,
        health_check: str = "scheduler",
        fields: tuple[str, str] = ("serving.host", "serving.port"),
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Each request calls a callable on the event loop's thread; only `explain` may wait.

        health: None while the server makes progress, else what is stuck; `health_check` is the check's name in the
        response. ready: by check, None or what is missing. config: the effective configuration as JSON values, without
        secrets; None disables /configz. plugins: maps plugin, path and query to the status, the body and the content
        type for /plugins/PLUGIN/PATH. explain: maps a pod's namespace and name to the status and the JSON for
        /explain/NS/POD. authorize: maps an Authorization header and a path other than probes and metrics to None if the
        path is allowed; None allows all paths. fields: the names of host and port in messages. The caller checks
        whether `serving` is enabled.
        """
        self._serving = serving
        self._metrics = metrics
        self._health = health
        self._ready = ready
        self._config = config or (lambda: None)
        self._plugins = plugins
        self._explain = explain
        self._authorize = authorize
        clock = clock or SystemClock()
        self._probe_limit = RateLimit(clock, serving.requests_per_second, spare_idle=True)
        self._limit = RateLimit(clock, serving.requests_per_second)
        self._health_check = health_check
        self._fields = fields
        self._paths: dict[str, Callable[[Request], Response]] = {
            "/metrics": self._get_metrics,
            "/healthz": self._get_health,
            "/livez": self._get_health,
            "/readyz": self._get_ready,
        }
        if config is not None:
            self._paths["/configz"] = self._get_config
        self._server = SmallHttpServer(
            self._respond,
            most_bytes=_MOST_BYTES,
            most_connections=_MOST_CONNECTIONS,
            seconds=idle_seconds,
            shutdown_seconds=SHUTDOWN_SECONDS,
            limit=self._limited,
        )
        self._address = (serving.host, serving.port)

    async def start(self) -> tuple[str, int]:
        """Serve. Returns the bound address. Raises InputError if it cannot be bound."""
        self._address = host, port = await self._server.start(self._serving.host, self._serving.port, self._fields)
        *paths, last = self._paths
        _log.info(f"serving {', '.join(paths)} and {last}", host=host, port=port)
        return host, port

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port, after `start`."""
        return self._address

    async def stop(self) -> None:
        """Close the server and its connections. Idempotent."""
        await self._server.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ------------------------------------------------------------------ limits and rights

    def _limited(self, client: str, path: str) -> Response | None:
        limit = self._probe_limit if path in _PROBES else self._limit
        if not (wait := limit.admit(client)):
            return None
        seconds = math.ceil(wait)
        retry = {"Retry-After": str(seconds)}
        return text_response(HTTPStatus.TOO_MANY_REQUESTS, f"too many requests; retry after {seconds} s", retry)

    async def _respond(self, request: Request) -> Response:
        if self._authorize is not None and request.path not in _OPEN:
            denial = await self._authorize(request.headers.get("authorization", ""), request.path)
            if denial is not None:
                unknown = denial.status == HTTPStatus.UNAUTHORIZED
                return text_response(denial.status, denial.text, {"WWW-Authenticate": "Bearer"} if unknown else {})
        if request.path in self._paths:
            return self._paths[request.path](request)
        match request.path.split("/"):
            case ["", "explain", namespace, name] if self._explain is not None and namespace and name:
                return _json(*await self._explain(namespace, name))
            case ["", "plugins", plugin, *parts] if self._plugins is not None and plugin and any(parts):
                return Response(*self._plugins(plugin, "/".join(parts), request.query))
        return text_response(HTTPStatus.NOT_FOUND, "not found")

    # ------------------------------------------------------------------ responses

    def _get_metrics(self, request: Request) -> Response:
        return Response(HTTPStatus.OK, *self._metrics.exposition(request.headers.get("accept", "")))

    def _get_health(self, request: Request) -> Response:
        return checked(request.path[1:], {self._health_check: self._health()}, request.query)

    def _get_ready(self, request: Request) -> Response:
        return checked("readyz", self._ready(), request.query)

    def _get_config(self, _request: Request) -> Response:
        return _json(HTTPStatus.OK, self._config())


def _json(status: int, value: object) -> Response:
    return Response(status, json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n", _JSON)
