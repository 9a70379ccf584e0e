"""The dashboard's HTTP server: pages, their JSON, and their changes as server-sent events. Nothing changes the cluster.

A request passes `_guarded` (headers, errors, rate limit), then its handler asks `_reader` who sends it. Pages are
rendered here; the browser only replaces what changes. Everything that a page loads comes from this server.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import web
from jinja2 import Environment, PackageLoader

from fluence_lab import render
from fluence_lab.dashboard.access import MOST_TOKEN, Access, DeniedError, LocalAccess, Reader, Session, Sessions
from fluence_lab.dashboard.failures import Failures
from fluence_lab.dashboard.feeds import Feeds, FullError, Subject
from fluence_lab.dashboard.fetches import Fetches
from fluence_lab.dashboard.history import HistoryRecorder
from fluence_lab.dashboard.verdicts import Verdicts
from fluence_lab.panels import Panel, PanelContext
from fluence_lab.view import View
from session_scheduler.observation.observer import Observer
from session_scheduler.observation.values import Observed
from session_scheduler.sdk.access_reviews import User
from session_scheduler.sdk.rate_limits import RateLimit
from session_scheduler.sdk.signals import background

__all__ = ["Dashboard"]

_log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 1.0
REQUESTS_PER_SECOND: Final = 20.0
SIGN_INS_PER_SECOND: Final = 1.0
KEEP_ALIVE_SECONDS: Final = 15.0
"""How often an event stream without changes sends a comment, and its reader is reviewed again."""
WRITE_SECONDS: Final = 20.0
"""How long a client may take to read an event."""
STREAMS_PER_SESSION: Final = 16
PANELS_SECONDS: Final = 10.0
"""How often the server looks whether panels that had nothing to show have something now."""
MOST_SEEN: Final = 32
"""Of how many sets of namespaces the pods are kept."""
MOST_QUERY: Final = 8
MOST_VALUE: Final = 512
SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing from another host, and no inline scripts. BokehJS sets styles of its elements inline."""
HEADERS: Final = {
    "Content-Security-Policy": SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "fluence",
}
STATIC: Final = Path(__file__).parent / "static"
TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
PROBES: Final = ("/healthz", "/livez", "/readyz")


class _Clock(NamedTuple):
    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class Dashboard:
    """Pages about what an observer sees. `application` is served; `run` keeps what clients follow up to date."""

    def __init__(
        self,
        observer: Observer,
        access: Access,
        panels: list[Panel],
        *,
        live: bool,
        note: str = "",
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`live`: whether the state changes, and pages follow it. `note`: a sentence that every page shows."""
        self._observer = observer
        self._access = access
        self._panels = {panel.name: panel for panel in panels}
        self._live = live
        self._note = f" {note}" if note else ""
        self._now = now
        self._wall = wall
        self._sessions = Sessions(now, wall)
        self.recorder = HistoryRecorder()
        self._files = _static_files()
        self._feeds = Feeds(self._computed, self._version, now)
        clock = _Clock(now, wall)
        self._limit = RateLimit(clock, REQUESTS_PER_SECOND)
        self._sign_ins = RateLimit(clock, SIGN_INS_PER_SECOND)
        self._failures = Failures()
        self._seen: tuple[Observed | None, dict[frozenset[str], Observed]] = (None, {})
        self._streams: dict[str, int] = {}
        self._verdicts = Verdicts(observer.verdicts, now)
        self.fetches = Fetches(panels, observer.plugin)
        self._known_namespaces: tuple[object, object, set[str]] | None = None
        self._shown: set[str] = set()
        self._looked_at = -math.inf
        self._templates = Environment(
            loader=PackageLoader("fluence_lab.dashboard"), autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        if live:
            self.recorder.record(self._at_present(observer.observe()))

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[self._guarded], client_max_size=MOST_TOKEN + 4096)
        for path in PROBES:
            app.router.add_get(path, self._health)
        app.router.add_get("/", self._root)
        app.router.add_get("/login", self._login_page)
        app.router.add_post("/login", self._login)
        app.router.add_post("/logout", self._logout)
        app.router.add_get("/static/{version}/{name}", self._static)
        app.router.add_get("/api/{page}", self._json)
        app.router.add_get("/events/{page}", self._events, allow_head=False)
        app.router.add_get("/{page}", self._page)
        return app

    async def run(self) -> None:
        """Record and compute each second, until it is cancelled."""
        async with background(self._verdicts.run()):
            await self._follow()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.update()

    async def update(self) -> None:
        """Record what is observed now, and compute what clients follow. Raises what ends the observer."""
        observed = self._observer.observe()
        with self._failures.logged("an update failed"):
            if self._live:
                self.recorder.record(self._at_present(observed))
            await self._feeds.tick()

    # ------------------------------------------------------------------ requests

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            if request.path not in PROBES:
                self._admit(self._limit, request, "requests")
            return await handler(request)
        except DeniedError as denied:
            return self._denied(request, denied.status, denied.text)
        except web.HTTPException as answer:
            if answer.status < 400:
                raise
            texts = {404: "this page does not exist", 405: "read only: use GET", 413: "the request is too long"}
            return self._denied(request, answer.status, texts.get(answer.status, answer.reason.lower()))
        except Exception:  # noqa: BLE001  # no error may stop the server
            _log.exception("a request failed", path=request.path)
            return self._denied(request, 500, "internal error: see the dashboard's log")

    @staticmethod
    def _admit(limit: RateLimit, request: web.Request, what: str) -> None:
        """Count a request. Raises DeniedError."""
        if wait := limit.admit(request.remote or ""):
            raise DeniedError(429, f"too many {what}: retry after {math.ceil(wait)} s")

    def _denied(self, request: web.Request, status: int, text: str) -> web.Response:
        """One line: as JSON for programs, as a page for people; the login page for those who have not signed in."""
        headers = {"Retry-After": "1"} if status in (429, 503) else {}
        if _wants_json(request):
            if status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            return _json_response({"error": text}, status, headers)
        if status == 401:
            return self._login_form(request, text, status)
        phrase = HTTPStatus(status).phrase
        return self._html("message.html", status, title=phrase, text=text, headers=headers, signed_in=False)

    async def _reader(self, request: web.Request) -> tuple[Reader, Session | None]:
        """Who sends the request. Raises DeniedError."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and not isinstance(self._access, LocalAccess):
            return await self._access.reader(await self._access.user(token.strip()), self._namespaces()), None
        session = self._sessions.get(request.cookies.get(self._cookie(request), ""))
        if session is None:
            raise DeniedError(401, "sign in")
        return await self._access.reader(session.user, self._namespaces()), session

    def _namespaces(self) -> set[str]:
        """The namespaces with pods or gangs."""
        observed = self._observer.observe()
        known = self._known_namespaces
        if known is None or known[0] is not observed.pods or known[1] is not observed.gangs:
            names = {key.partition("/")[0] for key in observed.pods.keys} | {gang.namespace for gang in observed.gangs}
            known = self._known_namespaces = (observed.pods, observed.gangs, names)
        return known[2]

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok", headers=HEADERS)

    async def _root(self, request: web.Request) -> web.Response:
        token = request.query.get("token")
        if token is not None:
            if request.method == "HEAD":  # a preview of the address must not use the token up
                return web.Response(headers=HEADERS)
            user = await self._access.user(token) if isinstance(self._access, LocalAccess) else None
            if user is None:
                raise DeniedError(401, "enter the token here, not in an address")
            return self._signed_in(request, user, "")
        await self._reader(request)
        return _see_other(self._first_page())

    async def _login_page(self, request: web.Request) -> web.Response:
        return self._login_form(request, "", 200)

    def _login_form(self, request: web.Request, text: str, status: int) -> web.Response:
        target = request.path.lstrip("/") if request.method == "GET" and request.path != "/login" else ""
        target = request.query.get("next", target)
        return self._html(
            "login.html", status, title="Sign in", text="" if text == "sign in" else text, hint=self._access.hint,
            next=target if target in self._panels else "", signed_in=False,
        )  # fmt: skip

    async def _login(self, request: web.Request) -> web.Response:
        _check_same_origin(request)
        self._admit(self._sign_ins, request, "attempts to sign in")
        form = await request.post()
        token, target = form.get("token"), form.get("next")
        if not isinstance(token, str) or not token.strip():
            raise DeniedError(401, "enter a token")
        user = await self._access.user(token.strip())
        await self._access.reader(user, ())
        return self._signed_in(request, user, token.strip(), target if isinstance(target, str) else "")

    def _signed_in(self, request: web.Request, user: User, token: str, target: str = "") -> web.Response:
        answer = _see_other(target if target in self._panels else self._first_page())
        secure = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
        secret = self._sessions.begin(user, token)
        answer.set_cookie(self._cookie(request), secret, httponly=True, samesite="Strict", secure=secure, path="/")
        return answer

    async def _logout(self, request: web.Request) -> web.Response:
        _check_same_origin(request)
        self._sessions.end(request.cookies.get(self._cookie(request), ""))
        answer = _see_other("login")
        answer.del_cookie(self._cookie(request), path="/")
        return answer

    @staticmethod
    def _cookie(request: web.Request) -> str:
        """The cookie's name. Browsers share cookies between the ports of a host, so it has the port."""
        try:
            port = urlsplit(f"//{request.host}").port
        except ValueError:
            raise DeniedError(400, "the header Host is wrong") from None
        return f"fluence-dashboard-{port or 'default'}"

    async def _static(self, request: web.Request) -> web.StreamResponse:
        file = self._files.get(request.match_info["name"])
        if file is None or request.match_info["version"] != file.version:
            raise web.HTTPNotFound
        headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
        answer = web.Response(
            body=file.body, content_type=TYPES[Path(file.name).suffix], charset="utf-8", headers=headers
        )
        answer.enable_compression()
        return answer

    # ------------------------------------------------------------------ pages

    def _panel(self, request: web.Request) -> Panel:
        panel = self._panels.get(request.match_info["page"])
        if panel is None:
            raise web.HTTPNotFound
        return panel

    def _subject(self, request: web.Request, panel: Panel, reader: Reader) -> Subject:
        query = [(name, value) for name, value in request.query.items() if name not in ("format", "since", "token")]
        if len(query) > MOST_QUERY or any(len(name) + len(value) > MOST_VALUE for name, value in query):
            raise DeniedError(400, "the query is too long")
        return Subject(panel.name, reader.namespaces, tuple(sorted(query)))

    async def _page(self, request: web.Request) -> web.StreamResponse:
        reader, _ = await self._reader(request)
        panel = self._panel(request)
        if request.query.get("format") == "json":
            return await self._json(request)
        feed = await self._feeds.current(self._subject(request, panel, reader))
        view, number = feed.view, feed.number
        if view is None:
            raise web.HTTPNotFound
        self._shown.add(panel.name)
        parts = render.fragments(view)
        drawn = {name: each["item"] for name, each in parts.figures.items() if each["item"] is not None}
        query = dict(feed.subject.query)
        answer = self._html(
            "page.html", 200, title=view.title, panel=panel, panels=await self._listed_panels(), view=view, parts=parts,
            items=render.embedded_json(drawn),
            element_id=render.element_id, query=query, reader=reader, number=number, live=self._live,
            notes=self._notes(feed.subject), style=render.FIGURE_STYLE,
            signed_in=True, search=query.get("pod", ""),
        )  # fmt: skip
        answer.enable_compression()
        return answer

    async def _json(self, request: web.Request) -> web.StreamResponse:
        reader, _ = await self._reader(request)
        feed = await self._feeds.current(self._subject(request, self._panel(request), reader))
        view = feed.view
        if view is None:
            raise web.HTTPNotFound
        answer = _json_response(_plain(view, self._observer.observe()))
        answer.enable_compression()
        return answer

    async def _events(self, request: web.Request) -> web.StreamResponse:
        reader, session = await self._reader(request)
        panel = self._panel(request)
        name = session.name if session is not None else request.remote or ""
        if self._streams.get(name, 0) >= STREAMS_PER_SESSION:
            raise DeniedError(429, f"more than {STREAMS_PER_SESSION} pages are open: close some")
        since = request.headers.get("Last-Event-ID", request.query.get("since", ""))
        number = int(since) if since.isdecimal() and len(since) < 16 else 0
        self._streams[name] = self._streams.get(name, 0) + 1
        try:
            return await self._stream(request, panel, reader, number)
        except FullError:
            raise DeniedError(503, "too many pages are open: retry later") from None
        finally:
            self._streams[name] -= 1
            if not self._streams[name]:
                del self._streams[name]

    async def _stream(self, request: web.Request, panel: Panel, reader: Reader, number: int) -> web.StreamResponse:
        subject = self._subject(request, panel, reader)
        async with self._feeds.followed(subject) as feed:
            answer = web.StreamResponse(
                headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
            )
            await answer.prepare(request)
            try:
                while True:
                    if await feed.change(number, KEEP_ALIVE_SECONDS):
                        text = b"id: %d\ndata: %b\n\n" % (feed.number, feed.since(number))
                        number = feed.number
                    else:
                        text = b": nothing changed\n\n"
                    async with asyncio.timeout(WRITE_SECONDS):
                        await answer.write(text)
                    if await self._lost(request, reader):
                        await answer.write(b"event: end\ndata: {}\n\n")
                        break
            except (ConnectionError, TimeoutError):
                pass  # the client is gone, or does not read
            return answer

    async def _lost(self, request: web.Request, before: Reader) -> bool:
        """Whether the reader may no longer see the same: the browser then loads the page again."""
        try:
            reader, _ = await self._reader(request)
        except DeniedError as denied:
            return denied.status != 503
        return reader != before

    # ------------------------------------------------------------------ views

    def _version(self) -> Any:
        return self._observer.observe().version, self._verdicts.number, self.fetches.number

    def _context(self, subject: Subject) -> PanelContext:
        namespaces = subject.namespaces

        def verdicts(key: str) -> Mapping[str, Any] | None:
            return self._verdicts.get(key) if may_read(namespaces, key) else None

        return PanelContext(
            observed=self._at_present(self._observed(namespaces)),
            history=self.recorder.history(namespaces),
            query=dict(subject.query),
            namespaces=namespaces,
            plugin=self._observer.plugin,
            verdicts=verdicts,
            fetched=self.fetches.get(subject.page),
            pods=lambda: {key: pod for key, pod in self._observer.pods().items() if may_read(namespaces, key)},
        )

    def _at_present(self, observed: Observed) -> Observed:
        """With the present time, as ages grow while nothing changes."""
        return msgspec.structs.replace(observed, time=self._wall()) if self._live else observed

    def _observed(self, namespaces: frozenset[str] | None) -> Observed:
        """What is observed, as a reader of these namespaces sees it: computed once for all pages and readers."""
        observed = self._observer.observe()
        if namespaces is None:
            return observed
        if self._seen[0] is not observed:
            self._seen = observed, {}
        known = self._seen[1]
        if namespaces not in known:
            if len(known) >= MOST_SEEN:
                del known[next(iter(known))]
            known[namespaces] = observed.seen_by(namespaces)
        return known[namespaces]

    async def _computed(self, subject: Subject) -> tuple[View | None, Mapping[str, Any]]:
        panel = self._panels[subject.page]
        try:
            pod = dict(subject.query).get("pod", "")
            if pod and may_read(subject.namespaces, pod):
                await self._verdicts.fetch(pod)
            view = panel.view(self._context(subject))
            update = render.update(view) if view is not None else {}
        except Exception as error:  # noqa: BLE001  # the page shows it, and the other pages continue
            view = self._failed(panel, error, subject.namespaces)
            update = render.update(view)
        if view is None:
            return None, {}
        return view, {**update, "notes": self._notes(subject)}

    def _failed(self, panel: Panel, error: Exception, namespaces: frozenset[str] | None) -> View:
        """The view of an error. Its text may name pods, so only readers of all namespaces see it."""
        text = f"{type(error).__name__}: {error}"
        self._failures.report("a panel failed", error, panel=panel.name)
        shown = f": {text}" if namespaces is None else ""
        return View(panel.name, panel.title, f"This page failed{shown}: see the dashboard's log.")

    def _notes(self, subject: Subject) -> str:
        """Where the numbers come from, their time, and what the reader has no permission to see."""
        observed = self._observed(subject.namespaces)
        hidden = [f"{what} {count:,}" for what, count in observed.hidden.items() if count]
        when = time.strftime(", %Y-%m-%d %H:%M:%S UTC", time.gmtime(observed.time)) if self._live else ""
        text = f"{observed.source}{when}.{self._note}"
        return f"{text} In namespaces that you have no permission to read: {', '.join(hidden)}." if hidden else text

    async def _listed_panels(self) -> list[Panel]:
        """The panels that have, or had, something to show."""
        if self._looked_at + PANELS_SECONDS <= self._now():
            self._looked_at = self._now()  # requests meanwhile do not look, too
            for name in self._panels:
                if name not in self._shown and (await self._feeds.current(Subject(name, None, ()))).view is not None:
                    self._shown.add(name)
        return [panel for name, panel in self._panels.items() if name in self._shown]

    def _first_page(self) -> str:
        return next(iter(self._panels), "login")

    def _html(self, template: str, status: int, *, headers: Mapping[str, str] = {}, **values: Any) -> web.Response:
        files = {name: f"static/{file.version}/{name}" for name, file in self._files.items()}
        text = self._templates.get_template(template).render(files=files, **values)
        return web.Response(text=text, status=status, content_type="text/html", headers={**HEADERS, **headers})


# ------------------------------------------------------------------ helpers


def may_read(namespaces: frozenset[str] | None, key: str) -> bool:
    """Whether these namespaces (None: all) contain a pod (NAMESPACE/NAME)."""
    return namespaces is None or key.partition("/")[0] in namespaces


class _File(NamedTuple):
    name: str
    body: bytes
    version: str


def _static_files() -> dict[str, _File]:
    """By name: the dashboard's own files, and BokehJS from Bokeh's wheel."""
    bodies = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in TYPES}
    bodies["bokeh.min.js"] = render.bokeh_script().encode()
    bodies["figures.js"] = render.FIGURE_SCRIPT.encode()
    return {name: _File(name, body, hashlib.sha256(body).hexdigest()[:16]) for name, body in bodies.items()}


def _wants_json(request: web.Request) -> bool:
    return (
        request.path.startswith(("/api/", "/events/"))
        or request.query.get("format") == "json"
        or "Authorization" in request.headers
    )


def _check_same_origin(request: web.Request) -> None:
    """Forms of other sites are refused. Raises DeniedError."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site != "same-origin":
        raise DeniedError(403, "this form is of another site")
    if origin is None or urlsplit(origin).netloc != request.host:
        raise DeniedError(403, "this form is of another site")


def _see_other(page: str) -> web.Response:
    return web.Response(status=303, headers={**HEADERS, "Location": page})


def _json_response(value: Any, status: int = 200, headers: Mapping[str, str] = {}) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type="application/json", headers={**HEADERS, **headers})


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
