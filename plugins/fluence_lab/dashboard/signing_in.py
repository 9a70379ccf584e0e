"""Signing in and out, and which user sends a request: by a session's cookie, or by a bearer token.

Who may read what is decided in `access`.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from fluence_lab.dashboard.access import Access, DeniedError, LocalAccess, Reader, Session, Sessions, admit
from fluence_lab.dashboard.pages import Pages
from fluence_lab.dashboard.responses import HEADERS, Responses, see_other
from session_scheduler.sdk.access_reviews import User
from session_scheduler.sdk.rate_limits import RateLimit

__all__ = ["SigningIn"]


class SigningIn:
    """The users of requests, and the pages for signing in and out."""

    def __init__(
        self, access: Access, sessions: Sessions, limit: RateLimit, pages: Pages, responses: Responses
    ) -> None:
        """`limit`: of attempts to sign in."""
        self._access = access
        self._sessions = sessions
        self._limit = limit
        self._pages = pages
        self._responses = responses

    async def reader(self, request: web.Request) -> tuple[Reader, Session | None]:
        """Who sends the request. Raises DeniedError."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and not isinstance(self._access, LocalAccess):
            return await self._access.reader(await self._access.user(token.strip()), self._pages.namespaces()), None
        session = self._sessions.get(request.cookies.get(_cookie(request), ""))
        if session is None:
            raise DeniedError(401, "sign in")
        return await self._access.reader(session.user, self._pages.namespaces()), session

    async def by_address(self, request: web.Request, token: str) -> web.Response:
        """Sign in with the token in an address, which only `fluence dashboard` on this machine prints."""
        if request.method == "HEAD":  # a preview of the address must not use the token up
            return web.Response(headers=HEADERS)
        user = await self._access.user(token) if isinstance(self._access, LocalAccess) else None
        if user is None:
            raise DeniedError(401, "enter the token here, not in an address")
        return self._signed_in(request, user, token)

    async def login_page(self, request: web.Request) -> web.Response:
        """The page to sign in."""
        return self.form(request, "", 200)

    def form(self, request: web.Request, text: str, status: int) -> web.Response:
        """The page to sign in, in place of the requested one."""
        target = request.path.lstrip("/") if request.method == "GET" and request.path != "/login" else ""
        target = request.query.get("next", target)
        return self._responses.html(
            "login.html", status, title="Sign in", text="" if text == "sign in" else text, hint=self._access.hint,
            next=target if target in self._pages.panels else "",
        )  # fmt: skip

    async def login(self, request: web.Request) -> web.Response:
        """Begin a session. Raises DeniedError."""
        _check_same_origin(request)
        admit(self._limit, request.remote or "", "attempts to sign in")
        form = await request.post()
        token, target = form.get("token"), form.get("next")
        if not isinstance(token, str) or not token.strip():
            raise DeniedError(401, "enter a token")
        user = await self._access.user(token.strip())
        await self._access.reader(user, ())
        return self._signed_in(request, user, token.strip(), target if isinstance(target, str) else "")

    def _signed_in(self, request: web.Request, user: User, token: str, target: str = "") -> web.Response:
        answer = see_other(target if target in self._pages.panels else self._pages.first)
        # Any client can send the header; it only keeps the client's own cookie off plain HTTP.
        secure = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
        secret = self._sessions.begin(user, token)
        answer.set_cookie(_cookie(request), secret, httponly=True, samesite="Strict", secure=secure, path="/")
        return answer

    async def logout(self, request: web.Request) -> web.Response:
        """End the session. Raises DeniedError."""
        _check_same_origin(request)
        self._sessions.end(request.cookies.get(_cookie(request), ""))
        answer = see_other("login")
        answer.del_cookie(_cookie(request), path="/")
        return answer


def _cookie(request: web.Request) -> str:
    """The cookie's name. Browsers share cookies between the ports of a host, so it has the port."""
    try:
        port = urlsplit(f"//{request.host}").port
    except ValueError:
        raise DeniedError(400, "the Host header is wrong") from None
    return f"fluence-dashboard-{port or 'default'}"


def _check_same_origin(request: web.Request) -> None:
    """Forms of other sites are refused. Raises DeniedError."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site != "same-origin":
        raise DeniedError(403, "this form is from another site")
    if origin is None or urlsplit(origin).netloc != request.host:
        raise DeniedError(403, "this form is from another site")
