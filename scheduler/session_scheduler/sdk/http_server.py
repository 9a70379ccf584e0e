"""HTTP endpoints for probes, Prometheus and users: /metrics, /healthz, /livez, /readyz, /configz, /explain. Read only.

Public: every server of the command has them. Probes and metrics are open and answered from memory, so a probe's
time-out means a stuck event loop. `authorize` decides about every other path. Each path has a rate limit, so that a
flood of requests does not delay the scheduler, which runs on the same thread.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Protocol, Self

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from session_scheduler.base.clock import Clock, SystemClock
from session_scheduler.base.rate_limits import RateLimit
from session_scheduler.base.sockets import bound
from session_scheduler.config.settings import Serving
from session_scheduler.sdk.http_authorization import Denial

__all__ = ["Endpoints", "Exposition"]

_log = structlog.get_logger(__name__)

IDLE_SECONDS: Final = 15.0
"""How long a connection may be idle, or take for the headers of a request, before the server closes it."""
SHUTDOWN_SECONDS: Final = 1.0
"""How long responses in flight may take when the server stops."""
_QUEUE: Final = 128
_MAX_LINE: Final = 4096
"""Bytes: the limit of a request's first line."""
_MAX_HEADER: Final = 16384
"""Bytes: the limit of each header; a token with the user's groups may be long."""
_PROBES: Final = frozenset(("/healthz", "/livez", "/readyz"))
_OPEN: Final = _PROBES | {"/metrics"}
_SILENT: Final = logging.Logger("endpoints", logging.CRITICAL)
"""aiohttp would log a traceback for each malformed request: any client could fill the logs."""
_HEADERS: Final = {"Server": "fluence", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


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
        self._plugins = plugins or (lambda *_: (404, b"", "text/plain"))
        self._explain = explain
        self._authorize = authorize
        clock = clock or SystemClock()
        self._probe_limit = RateLimit(clock, serving.requests_per_second, spare_idle=True)
        self._limit = RateLimit(clock, serving.requests_per_second)
        self._health_check = health_check
        self._fields = fields
        application = web.Application(middlewares=[_log_errors, self._limited, self._authorized])
        handlers: dict[str, Handler] = {
            "/metrics": self._get_metrics,
            "/healthz": self._get_health,
            "/livez": self._get_health,
            "/readyz": self._get_ready,
        }
        if config is not None:
            handlers["/configz"] = self._get_config
        self._paths = list(handlers)
        if explain is not None:
            handlers["/explain/{namespace}/{name}"] = self._get_explanation
        if plugins is not None:
            handlers["/plugins/{plugin}/{path:.+}"] = self._get_plugin
        for path, handler in handlers.items():
            application.router.add_get(path, handler)
        application.on_response_prepare.append(_with_headers)
        self._runner = web.AppRunner(
            application,
            access_log=None,  # every probe would be a line
            logger=_SILENT,
            shutdown_timeout=SHUTDOWN_SECONDS,
            keepalive_timeout=idle_seconds,
            lingering_time=0,  # never read a request's body
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_HEADER,
        )

    async def start(self) -> tuple[str, int]:
        """Serve. Returns the bound address. Raises InputError if it cannot be bound."""
        listening = bound(self._serving.host, self._serving.port, self._fields, queue=_QUEUE)
        try:
            await self._runner.setup()
            await web.SockSite(self._runner, listening).start()
        except BaseException:
            listening.close()
            await self._runner.cleanup()
            raise
        host, port = self.address
        _log.info(f"serving {', '.join(self._paths[:-1])} and {self._paths[-1]}", host=host, port=port)
        return host, port

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port, after `start`."""
        host, port = self._runner.addresses[0][:2]
        return host, port

    async def stop(self) -> None:
        """Close the server and its connections. Idempotent."""
        await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ------------------------------------------------------------------ limits and rights

    @web.middleware
    async def _limited(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        limit = self._probe_limit if request.path in _PROBES else self._limit
        wait = limit.admit(request.remote or "")
        if not wait:
            return await handler(request)
        seconds = math.ceil(wait)
        text = f"too many requests: retry after {seconds} s\n"
        return web.Response(status=429, text=text, headers={"Retry-After": str(seconds)})

    @web.middleware
    async def _authorized(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._authorize is None or request.path in _OPEN:
            return await handler(request)
        denial = await self._authorize(request.headers.get("Authorization", ""), request.path)
        if denial is None:
            return await handler(request)
        headers = {"WWW-Authenticate": "Bearer"} if denial.status == HTTPStatus.UNAUTHORIZED else {}
        return web.Response(status=denial.status, text=denial.text + "\n", headers=headers)

    # ------------------------------------------------------------------ responses

    async def _get_metrics(self, request: web.Request) -> web.Response:
        body, content_type = self._metrics.exposition(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _get_health(self, request: web.Request) -> web.Response:
        return _checked(request.path[1:], {self._health_check: self._health()}, request)

    async def _get_ready(self, request: web.Request) -> web.Response:
        return _checked("readyz", self._ready(), request)

    async def _get_config(self, _request: web.Request) -> web.Response:
        return web.json_response(text=json.dumps(self._config(), indent=2, ensure_ascii=False) + "\n")

    async def _get_explanation(self, request: web.Request) -> web.Response:
        where = request.match_info
        assert self._explain is not None  # noqa: S101 (the path exists only then)
        status, answer = await self._explain(where["namespace"], where["name"])
        return web.json_response(text=json.dumps(answer, indent=2, ensure_ascii=False) + "\n", status=status)

    async def _get_plugin(self, request: web.Request) -> web.Response:
        where = request.match_info
        status, body, kind = self._plugins(where["plugin"], where["path"], dict(request.query))
        return web.Response(status=status, body=body, headers={"Content-Type": kind})


def _checked(name: str, checks: Mapping[str, str | None], request: web.Request) -> web.Response:
    """Like the API server: `ok`, or a line for each check if one fails or `?verbose` is set."""
    failed = any(problem is not None for problem in checks.values())
    if not failed and "verbose" not in request.query:
        return web.Response(text="ok")
    lines = [
        f"[+]{check} ok" if problem is None else f"[-]{check} failed: {' '.join(problem.split())}"
        for check, problem in checks.items()
    ]
    lines.append(f"{name} check {'failed' if failed else 'passed'}")
    return web.Response(text="\n".join(lines) + "\n", status=503 if failed else 200)


@web.middleware
async def _log_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Log the exception of a handler; respond 500 without its text."""
    try:
        return await handler(request)
    except web.HTTPException:
        raise
    except Exception:  # noqa: BLE001 (logged; the server goes on)
        _log.exception("a request failed", path=request.path)
        return web.Response(text="internal error: see the logs\n", status=500)


async def _with_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
