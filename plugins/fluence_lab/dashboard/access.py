"""Who may read the dashboard, and which namespaces: the API server reviews tokens and permissions.

A session keeps the user that the API server found for a token, not the token. Every 30 s the server reviews again what
the user may read; the session itself ends when the token expires, after 12 hours at the latest, or when the user signs
out.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import math
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import msgspec

from session_scheduler.errors import FluenceError
from session_scheduler.sdk.access_reviews import AccessReviews, User
from session_scheduler.sdk.rate_limits import RateLimit

__all__ = ["Access", "DeniedError", "LocalAccess", "Reader", "ReviewedAccess", "Session", "Sessions", "admit"]

SESSION_SECONDS: Final = 12 * 3600.0
MOST_SESSIONS: Final = 1024
MOST_OF_USER: Final = 32
"""How many sessions a user may have: the next one ends the oldest."""
REVIEW_SECONDS: Final = 30.0
"""How long a review is reused."""
READER_SECONDS: Final = 1.0
"""How long the list of a user's namespaces is reused without a check of each: every open page asks every second."""
MOST_READERS: Final = 1024
PATH: Final = "/dashboard"
"""The nonResourceURL that a user must be allowed to `get`, as for the ClusterRole fluence-reader."""
_WAIT_SECONDS: Final = 10.0
"""How long all reviews for one request may take."""
MOST_TOKEN: Final = 16 << 10


class Reader(msgspec.Struct, frozen=True):
    """A user of the dashboard, with the namespaces that it may read at one point in time."""

    name: str
    namespaces: frozenset[str] | None
    """The namespaces whose pods the user may list; None for all."""


class DeniedError(Exception):
    """The request is denied: HTTP status and one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def admit(limit: RateLimit, client: str, what: str) -> None:
    """Count a request of a client. Raises DeniedError."""
    if wait := limit.admit(client):
        raise DeniedError(429, f"too many {what}; retry after {math.ceil(wait)} s")


class Access(Protocol):
    """How users sign in, and what they may read."""

    hint: str
    """Which token the login page asks for."""

    async def user(self, token: str) -> User:
        """The user of a token. Raises DeniedError."""

    async def reader(self, user: User, namespaces: Iterable[str]) -> Reader:
        """What the user may read of these namespaces. Raises DeniedError."""


class LocalAccess:
    """One random token, which works once; then the command prints the next one. Its user reads everything."""

    hint = "Open the address that `fluence dashboard` printed last, or paste its token."

    def __init__(self) -> None:
        self.show: Callable[[str], None] = lambda _: None
        """Receives each new token."""
        self._token = ""

    def renew(self) -> None:
        """Replace the token."""
        self._token = secrets.token_urlsafe(24)
        self.show(self._token)

    async def user(self, token: str) -> User:
        """The one user, if the token is the current one. Raises DeniedError."""
        if not self._token or not hmac.compare_digest(token.encode(), self._token.encode()):
            raise DeniedError(
                401, "this token is wrong, or was used before; use the newest one that the command printed"
            )
        self.renew()
        return User("local")

    async def reader(self, user: User, _namespaces: Iterable[str]) -> Reader:
        """Everything."""
        return Reader(user.username, None)


class ReviewedAccess:
    """Tokens of the cluster."""

    hint = "A token for the cluster, for example from: kubectl create token NAME"

    def __init__(self, reviews: AccessReviews, now: Callable[[], float] = time.monotonic) -> None:
        """`now`: monotonic seconds."""
        self._reviews = reviews
        self._now = now
        self._readers: dict[bytes, tuple[float, frozenset[str], Reader]] = {}
        """By user: until when the reader is reused, the namespaces that it was computed for, and the reader."""

    async def user(self, token: str) -> User:
        """The user of a token. Raises DeniedError."""
        if not token or len(token) > MOST_TOKEN:
            raise DeniedError(401, "enter a token for the cluster")
        user: User | None = await self._reviewed(self._reviews.user(token))
        if user is None:
            raise DeniedError(401, "the API server does not accept this token: it is invalid or has expired")
        return user

    async def reader(self, user: User, namespaces: Iterable[str]) -> Reader:
        """What the user may read. Raises DeniedError."""
        key, names = msgspec.json.encode(user, order="deterministic"), frozenset(namespaces)
        until, of, known = self._readers.get(key, (0.0, names, None))
        if known is not None and of == names and self._now() < until:
            return known
        found = await self._reader(user, names)
        self._readers.pop(key, None)
        self._readers[key] = self._now() + READER_SECONDS, names, found
        if len(self._readers) > MOST_READERS:
            del self._readers[next(iter(self._readers))]
        return found

    async def _reader(self, user: User, namespaces: frozenset[str]) -> Reader:
        if not await self._reviewed(self._may(user, nonResourceAttributes={"path": PATH, "verb": "get"})):
            why = f"user {user.username} has no permission to get {PATH}"
            raise DeniedError(403, " ".join(f"{why}; bind the user to a ClusterRole such as fluence-reader".split()))
        if await self._reviewed(self._may(user, resourceAttributes={"resource": "pods", "verb": "list"})):
            return Reader(user.username, None)
        names = sorted(namespaces)
        reviews = (
            self._may(user, resourceAttributes={"resource": "pods", "verb": "list", "namespace": name})
            for name in names
        )
        allowed = await self._reviewed(asyncio.gather(*reviews))
        found = frozenset(name for name, may in zip(names, allowed, strict=True) if may)
        return Reader(user.username, found)

    async def _may(self, user: User, **attributes: Any) -> bool:
        return await self._reviews.allowed(user, attributes)

    async def _reviewed(self, review: Any) -> Any:
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                return await review
        except (FluenceError, TimeoutError) as error:
            raise DeniedError(503, "the API server did not review the request; retry in a few seconds") from error


class Session(msgspec.Struct, frozen=True):
    """A signed-in user."""

    user: User
    until: float
    """In seconds of the clock."""
    name: str
    """Identifies the session in this process's memory; it is not its secret."""


class Sessions:
    """Sessions by the secret of their cookie, in memory."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float]) -> None:
        """`now`: monotonic seconds; `wall`: seconds since 1970."""
        self._now = now
        self._wall = wall
        self._sessions: dict[str, Session] = {}

    def begin(self, user: User, token: str) -> str:
        """A session for the user of this token. Returns the cookie's value."""
        secret = secrets.token_urlsafe(32)
        left = expiry(token) - self._wall()
        until = self._now() + min(SESSION_SECONDS, max(0.0, left))
        own = [secret for secret, session in self._sessions.items() if session.user.username == user.username]
        if len(own) >= MOST_OF_USER:
            self.end(own[0])
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[secret] = Session(user, until, secrets.token_hex(8))
        return secret

    def get(self, secret: str) -> Session | None:
        """The session, unless it has ended."""
        session = self._sessions.get(secret)
        if session is not None and session.until <= self._now():
            del self._sessions[secret]
            return None
        return session

    def end(self, secret: str) -> None:
        """End a session. Idempotent."""
        self._sessions.pop(secret, None)


def expiry(token: str) -> float:
    """When a JSON web token expires, in seconds since 1970; infinity for any other. The API server has verified it."""
    parts = token.split(".")
    if len(parts) != 3:
        return float("inf")
    try:
        payload = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return float("inf")
    expires = payload.get("exp") if isinstance(payload, dict) else None
    return float(expires) if isinstance(expires, int | float) else float("inf")
