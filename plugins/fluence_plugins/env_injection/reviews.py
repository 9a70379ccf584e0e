"""The HTTP side of admission: serves `POST /mutate/<handler>`, within limits.

The deadline of a request starts with its headers and includes its body. The status is 200, or 4xx with one line of text
for invalid requests, 503 if too many requests are in flight, and 500 if a handler failed.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from time import perf_counter
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from aiohttp import web

from fluence_plugins.env_injection.admission import MalformedError, answer
from fluence_plugins.env_injection.handlers import Handler
from fluence_plugins.env_injection.logs import log
from fluence_plugins.env_injection.metrics import RequestResult, WebhookMetrics

DEADLINE_SECONDS: Final = 5.0
"""The deadline of a request; equal to the configuration's timeoutSeconds."""
MAX_BODY: Final = 3 << 20
"""The maximum size of a review in bytes: for the old and the new object, each as large as etcd stores by default."""
SMALL_BODY: Final = 128 << 10
"""A review of at most this many bytes is read at once, however many requests are in flight; nearly all are smaller."""
MOST_REQUESTS: Final = 24
"""The maximum number of larger requests that are read concurrently; others wait. The largest bodies need 72 MiB."""
_JSON: Final = "application/json"
_HEADERS: Final = {"Server": "fluence", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class _Outcome(NamedTuple):
    result: RequestResult
    response: web.Response


class Reviews:
    """Answers reviews. An HTTP server serves its `application`."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        metrics: WebhookMetrics,
        *,
        deadline: float = DEADLINE_SECONDS,
        most_requests: int = MOST_REQUESTS,
    ) -> None:
        self._handlers = handlers
        self._metrics = metrics
        self._deadline = deadline
        self._slots = asyncio.Semaphore(most_requests)
        self.draining = False
        """Whether connections are closed after their next response."""
        self.answered = 0
        """The number of responses so far."""
        self.answered_at: WeakKeyDictionary[asyncio.BaseTransport, int] = WeakKeyDictionary()
        """By connection with a request: the number of responses when it last sent a request or got a response."""
        for name in handlers:
            metrics.show_handler(name)

    def application(self) -> web.Application:
        """A new application, without access logs."""
        application = web.Application(client_max_size=MAX_BODY)
        application.router.add_post("/mutate/{handler}", self._post)
        application.on_response_prepare.append(self._prepare)
        return application

    async def _prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(_HEADERS)
        self.answered += 1
        if request.transport is not None:
            self.answered_at[request.transport] = self.answered

    async def _post(self, request: web.Request) -> web.Response:
        name = request.match_info["handler"]
        handler = self._handlers.get(name)
        if handler is None:
            return _line(404, f"unknown handler: this webhook has {', '.join(self._handlers)}")
        if request.transport is not None:  # the deadline limits how long it waits
            self.answered_at[request.transport] = self.answered
        started = perf_counter()
        outcome = await self._outcome(request, name, handler)
        self._metrics.request(name, outcome.result, perf_counter() - started)
        if self.draining:
            outcome.response.force_close()
        return outcome.response

    async def _outcome(self, request: web.Request, name: str, handler: Handler) -> _Outcome:
        refused = _refused(request)
        if refused is not None:
            return refused
        began = False
        try:
            async with asyncio.timeout(self._deadline), self._slot(request):
                began = True
                return await _decided(await request.read(), name, handler)
        except TimeoutError:
            if began:
                return _Outcome("late", _line(408, "the review was not answered in time"))
            return _Outcome("busy", _line(503, "too many reviews are in flight"))
        except web.HTTPRequestEntityTooLarge:
            return _too_large()
        except web.RequestPayloadError:
            return _Outcome("malformed", _line(400, "the body is incomplete, or wrongly encoded"))

    def _slot(self, request: web.Request) -> AbstractAsyncContextManager[None]:
        """The slot that a request needs before its body is read."""
        length = request.content_length
        return nullcontext() if length is not None and length <= SMALL_BODY else self._slots


def _refused(request: web.Request) -> _Outcome | None:
    """The response to a request that is invalid by its headers alone; None if they are valid."""
    if request.content_type != _JSON or request.headers.get("Content-Encoding", "identity") != "identity":
        return _Outcome("malformed", _line(415, f"send uncompressed {_JSON}"))
    if (request.content_length or 0) > MAX_BODY:
        return _too_large()
    return None


def _too_large() -> _Outcome:
    response = _line(413, f"a review may have at most {MAX_BODY} bytes")
    response.force_close()
    return _Outcome("malformed", response)


async def _decided(body: bytes, name: str, handler: Handler) -> _Outcome:
    try:
        decided = await answer(body, handler)
    except MalformedError as error:
        return _Outcome("malformed", _line(400, str(error)))
    except Exception:  # noqa: BLE001 (after any error the API server applies its failurePolicy)
        log.exception("handler %s failed", name)
        return _Outcome("failed", _line(500, "internal error; see the webhook's log"))
    return _Outcome(decided.result, web.Response(body=decided.body, content_type=_JSON))


def _line(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n")
