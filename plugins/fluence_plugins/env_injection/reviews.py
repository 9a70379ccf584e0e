"""The HTTP side of admission: `POST /mutate/<handler>`, within its limits.

A request's time counts from its headers on and includes its body. What clients send is answered 200 or 4xx, the latter
with one line of text; 503 says that too many requests are under way, 500 that a handler failed.
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
"""For a whole request; the configuration's timeoutSeconds is the same."""
MAX_BODY: Final = 3 << 20
"""Bytes of a review: twice the largest object that etcd stores by default, as there may be an old and a new one."""
SMALL_BODY: Final = 128 << 10
"""Bytes of a review that is read whatever else is under way: of nearly every one."""
MOST_REQUESTS: Final = 24
"""Larger requests that are read at once; further ones wait. With bodies of the largest size they are 72 MiB."""
_JSON: Final = "application/json"
_HEADERS: Final = {"Server": "fluence", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class _Outcome(NamedTuple):
    result: RequestResult
    response: web.Response


class Reviews:
    """Answers reviews. `application` is what an HTTP server serves."""

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
        """Whether connections are to be closed after their next answer."""
        self.answered = 0
        """How many requests have had an answer."""
        self.answered_at: WeakKeyDictionary[asyncio.BaseTransport, int] = WeakKeyDictionary()
        """By connection that has asked for something, how many requests had an answer when it last asked or got one."""
        for name in handlers:
            metrics.show_handler(name)

    def application(self) -> web.Application:
        """A new application, without logs."""
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
            return _line(404, f"there is no such handler: this webhook has {', '.join(self._handlers)}")
        if request.transport is not None:  # it has asked: what it waits for is bounded by the deadline
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
                return _decided(await request.read(), name, handler)
        except TimeoutError:
            if began:
                return _Outcome("late", _line(408, "the review did not arrive in time"))
            return _Outcome("busy", _line(503, "too many reviews are under way"))
        except web.HTTPRequestEntityTooLarge:
            return _too_large()
        except web.RequestPayloadError:
            return _Outcome("malformed", _line(400, "the body is broken off, or wrongly encoded"))

    def _slot(self, request: web.Request) -> AbstractAsyncContextManager[None]:
        """What a request must have to be read."""
        length = request.content_length
        return nullcontext() if length is not None and length <= SMALL_BODY else self._slots


def _refused(request: web.Request) -> _Outcome | None:
    """What can be said by the headers alone."""
    if request.content_type != _JSON or request.headers.get("Content-Encoding", "identity") != "identity":
        return _Outcome("malformed", _line(415, f"send {_JSON}, not compressed"))
    if (request.content_length or 0) > MAX_BODY:
        return _too_large()
    return None


def _too_large() -> _Outcome:
    response = _line(413, f"a review may have {MAX_BODY} bytes")
    response.force_close()
    return _Outcome("malformed", response)


def _decided(body: bytes, name: str, handler: Handler) -> _Outcome:
    try:
        decided = answer(body, handler)
    except MalformedError as error:
        return _Outcome("malformed", _line(400, str(error)))
    except Exception:  # noqa: BLE001 (it is logged; whatever it is, the API server goes by its failurePolicy)
        log.exception("handler %s failed", name)
        return _Outcome("failed", _line(500, "internal error: see the webhook's log"))
    return _Outcome(decided.result, web.Response(body=decided.body, content_type=_JSON))


def _line(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n")
