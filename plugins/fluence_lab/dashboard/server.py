"""The dashboard's HTTP server: pages, their JSON, and their changes as server-sent events. Nothing changes the cluster.

A request passes `_guarded` (errors, rate limit), then its handler asks `signing_in` who sends it and `pages` what that
user may see. Pages are rendered here; the browser only replaces what changes, which it follows through `streams`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import structlog
from aiohttp import web

from fluence_lab import render
from fluence_lab.dashboard.access import MOST_TOKEN, Access, DeniedError, Reader, Sessions, admit
from fluence_lab.dashboard.feeds import Subject
from fluence_lab.dashboard.pages import Observes, Pages
from fluence_lab.dashboard.responses import HEADERS, Responses, json_response, see_other
from fluence_lab.dashboard.signing_in import SigningIn
from fluence_lab.dashboard.streams import Streams
from fluence_lab.panels import Panel
from fluence_lab.view import View
from session_scheduler.observation.values import Observed
from session_scheduler.sdk.rate_limits import RateLimit

__all__ = ["Dashboard"]

_log = structlog.get_logger(__name__)

REQUESTS_PER_SECOND: Final = 20.0
SIGN_INS_PER_SECOND: Final = 1.0
MOST_QUERY: Final = 8
MOST_VALUE: Final = 512
PROBES: Final = ("/healthz", "/livez", "/readyz")


class _Clock(NamedTuple):
    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class Dashboard:
    """Pages about what an observer sees. `application` is served; `pages.run` keeps what clients follow up to date."""

    def __init__(
        self,
        observer: Observes,
        access: Access,
        panels: list[Panel],
        *,
        live: bool,
        note: str = "",
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`live`: whether the state changes, and pages follow it. `note`: a sentence that every page shows."""
        self.pages = Pages(observer, panels, live=live, note=note, now=now, wall=wall)
        clock = _Clock(now, wall)
        self._limit = RateLimit(clock, REQUESTS_PER_SECOND)
        self._responses = Responses()
        self._signing_in = SigningIn(
            access, Sessions(now, wall), RateLimit(clock, SIGN_INS_PER_SECOND), self.pages, self._responses
        )
        self._streams = Streams(self.pages.feeds, self._signing_in)

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[self._guarded], client_max_size=MOST_TOKEN + 4096)
        for path in PROBES:
            app.router.add_get(path, self._health)
        app.router.add_get("/", self._root)
        app.router.add_get("/login", self._signing_in.login_page)
        app.router.add_post("/login", self._signing_in.login)
        app.router.add_post("/logout", self._signing_in.logout)
        app.router.add_get("/static/{version}/{name}", self._responses.static)
        app.router.add_get("/api/{page}", self._json)
        app.router.add_get("/events/{page}", self._events, allow_head=False)
        app.router.add_get("/{page}", self._page)
        return app

    # ------------------------------------------------------------------ requests

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            if request.path not in PROBES:
                admit(self._limit, request.remote or "", "requests")
            return await handler(request)
        except DeniedError as denied:
            return self._denied(request, denied.status, denied.text)
        except web.HTTPException as answer:
            if answer.status < 400:
                raise
            texts = {404: "this page does not exist", 405: "read only; use GET", 413: "the request is too long"}
            return self._denied(request, answer.status, texts.get(answer.status, answer.reason.lower()))
        except Exception:  # noqa: BLE001  # no error may stop the server
            _log.exception("a request failed", path=request.path)
            return self._denied(request, 500, "internal error; see the dashboard's log")

    def _denied(self, request: web.Request, status: int, text: str) -> web.Response:
        """One line: as JSON for programs, as a page for people; the login page for those who have not signed in."""
        headers = {"Retry-After": "1"} if status in (429, 503) else {}
        if _wants_json(request):
            if status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            return json_response({"error": text}, status, headers)
        if status == 401:
            return self._signing_in.form(request, text, status)
        phrase = HTTPStatus(status).phrase
        return self._responses.html("message.html", status, title=phrase, text=text, headers=headers)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok", headers=HEADERS)

    # ------------------------------------------------------------------ pages

    async def _root(self, request: web.Request) -> web.Response:
        token = request.query.get("token")
        if token is not None:
            return await self._signing_in.by_address(request, token)
        await self._signing_in.reader(request)
        return see_other(self.pages.first)

    def _panel(self, request: web.Request) -> Panel:
        panel = self.pages.panels.get(request.match_info["page"])
        if panel is None:
            raise web.HTTPNotFound
        return panel

    def _subject(self, request: web.Request, panel: Panel, reader: Reader) -> Subject:
        query = [(name, value) for name, value in request.query.items() if name not in ("format", "since", "token")]
        if len(query) > MOST_QUERY or any(len(name) + len(value) > MOST_VALUE for name, value in query):
            raise DeniedError(400, "the query is too long")
        return Subject(panel.name, reader.namespaces, tuple(sorted(query)))

    async def _page(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("format") == "json":
            return await self._json(request)
        reader, _ = await self._signing_in.reader(request)
        panel = self._panel(request)
        feed = await self.pages.shown(self._subject(request, panel, reader))
        view, number = feed.view, feed.number
        if view is None:
            raise web.HTTPNotFound
        parts = render.fragments(view)
        drawn = {name: each["item"] for name, each in parts.figures.items() if each["item"] is not None}
        answer = self._responses.html(
            "page.html", title=view.title, panel=panel, panels=await self.pages.listed(), view=view, parts=parts,
            items=render.embedded_json(drawn), element_id=render.element_id, reader=reader, number=number,
            live=self.pages.live, notes=self.pages.notes(feed.subject), style=render.FIGURE_STYLE,
            query=dict(feed.subject.query),
        )  # fmt: skip
        answer.enable_compression()
        return answer

    async def _json(self, request: web.Request) -> web.StreamResponse:
        reader, _ = await self._signing_in.reader(request)
        feed = await self.pages.shown(self._subject(request, self._panel(request), reader))
        if feed.view is None:
            raise web.HTTPNotFound
        answer = json_response(_plain(feed.view, self.pages.observed()))
        answer.enable_compression()
        return answer

    async def _events(self, request: web.Request) -> web.StreamResponse:
        reader, session = await self._signing_in.reader(request)
        subject = self._subject(request, self._panel(request), reader)
        return await self._streams.serve(request, subject, reader, session)


def _wants_json(request: web.Request) -> bool:
    return (
        request.path.startswith(("/api/", "/events/"))
        or request.query.get("format") == "json"
        or "Authorization" in request.headers
    )


def _plain(view: View, observed: Observed) -> dict[str, Any]:
    """A view as JSON."""
    return {
        "name": view.name,
        "title": view.title,
        "time": observed.time,
        "source": observed.source,
        "summary": view.summary,
        "tables": {
            table.name: {
                "title": table.title,
                "columns": [column.title for column in table.columns],
                "rows": [[render.plain(value) for value in row] for row in table.rows],
                "leftOut": table.left_out,
            }
            for table in view.tables
        },
        "figures": {
            figure.name: {
                "title": figure.title,
                "text": figure.text,
                "sources": {name: render.plain_columns(source) for name, source in figure.sources.items()},
            }
            for figure in view.figures
        },
    }
