"""Delegated authorization of HTTP requests: the API server reviews the token and the permission of each request.
Public.

The server asks the API server who a bearer token belongs to (TokenReview), then whether that user may `get` the path
(SubjectAccessReview for a nonResourceURL), as kube-scheduler and other components of the control plane do. It caches
both answers for ten seconds, by a hash of the token, and never logs or stores a token.
Source: k8s.io/apiserver, DelegatingAuthenticationOptions and DelegatingAuthorizationOptions.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import structlog

from session_scheduler.base.clock import Clock, SystemClock
from session_scheduler.cluster.errors import ClusterError, Unreadable, one_line
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.unreadable import UNREADABLE
from session_scheduler.config.settings import Serving

__all__ = ["DelegatedAuthorization", "Denial", "authorization_of"]

_log = structlog.get_logger(__name__)
CACHE_SECONDS: Final = 10.0
"""How long an answer is used again. How long a revoked token or permission still works."""
REVIEW_SECONDS: Final = 5.0
"""How long both reviews of a request may take together."""
MOST_CACHED: Final = 1024
_IN_FLIGHT: Final = 8
"""Reviews at once: the connections are shared with the scheduler."""
_Value = TypeVar("_Value")


class Denial(NamedTuple):
    """Why a request is denied: HTTP status, and one line."""

    status: int
    text: str


NO_TOKEN: Final = Denial(401, "send a token of the cluster: `Authorization: Bearer TOKEN`")
WRONG_TOKEN: Final = Denial(401, "the API server does not accept this token: it is wrong or has expired")
NO_REVIEW: Final = Denial(503, "the API server did not review the request: retry, or see the scheduler's log")


def authorization_of(serving: Serving, client: ApiClient) -> DelegatedAuthorization | None:
    """The authorization that a configuration chooses; None for none."""
    if serving.authorization == "none":
        return None
    return DelegatedAuthorization(client, audiences=serving.audiences)


class _User(msgspec.Struct, frozen=True):
    """A user as the API server knows it, in the spelling of both reviews."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] | None = None
    extra: Mapping[str, Sequence[str]] | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: tuple[str, ...] | None = None


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


class _Cache(Generic[_Value]):
    """Values that expire; the oldest make room for new ones."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[Hashable, tuple[float, _Value]] = {}

    def get(self, key: Hashable) -> tuple[_Value] | None:
        """The value in a tuple, as None is a value, too."""
        entry = self._entries.get(key)
        return (entry[1],) if entry is not None and self._clock.now() < entry[0] else None

    def put(self, key: Hashable, value: _Value) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (self._clock.now() + CACHE_SECONDS, value)
        if len(self._entries) > MOST_CACHED:
            del self._entries[next(iter(self._entries))]


class DelegatedAuthorization:
    """Authorizes requests by the API server's reviews, for `Endpoints(authorize=…)`.

    The account needs `create` of tokenreviews.authentication.k8s.io and subjectaccessreviews.authorization.k8s.io.
    """

    def __init__(self, client: ApiClient, *, audiences: Sequence[str] = (), clock: Clock | None = None) -> None:
        """`audiences` of accepted tokens; empty for those of the API server."""
        self._client = client
        self._audiences = tuple(audiences)
        clock = clock or SystemClock()
        self._users: _Cache[_User | None] = _Cache(clock)
        self._allowed: _Cache[bool] = _Cache(clock)
        self._places = asyncio.Semaphore(_IN_FLIGHT)
        self._failed = False
        """Whether the last review failed, which is logged once."""

    async def __call__(self, authorization: str, path: str) -> Denial | None:
        """Review a GET of the path with this Authorization header. Returns None if it is allowed."""
        scheme, _, token = authorization.strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return NO_TOKEN
        if not token.isascii():  # no token is: RFC 6750, section 2.1
            return WRONG_TOKEN
        key = hashlib.sha256(token.encode()).digest()
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                denial = await self._review(token, key, path)
        except (ClusterError, TimeoutError) as error:
            if not self._failed:
                why = one_line(str(error)) or f"no response within {REVIEW_SECONDS:g} s"
                _log.warning("the API server did not review a request for an endpoint", path=path, why=why)
            self._failed = True
            return NO_REVIEW
        self._failed = False
        return denial

    async def _review(self, token: str, key: bytes, path: str) -> Denial | None:
        known = self._users.get(key)
        user = known[0] if known is not None else await self._user_of(token, key)
        if user is None:
            return WRONG_TOKEN
        allowed = self._allowed.get((key, path))
        if allowed[0] if allowed is not None else await self._may(user, key, path):
            return None
        text = f"user {user.username} may not get {path}: bind the user to a ClusterRole such as fluence-reader"
        return Denial(403, one_line(text))

    async def _user_of(self, token: str, key: bytes) -> _User | None:
        spec: dict[str, Any] = {"token": token}
        if self._audiences:
            spec["audiences"] = self._audiences
        status = (await self._create("authentication.k8s.io/v1", "TokenReview", spec, _TokenReview)).status
        # a server that does not know audiences leaves them out of its answer
        fits = not self._audiences or not set(self._audiences).isdisjoint(status.audiences or ())
        user = status.user if status.authenticated and fits else None
        self._users.put(key, user)
        return user

    async def _may(self, user: _User, key: bytes, path: str) -> bool:
        spec = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra,
                "nonResourceAttributes": {"path": path, "verb": "get"}}  # fmt: skip
        status = (await self._create("authorization.k8s.io/v1", "SubjectAccessReview", spec, _AccessReview)).status
        allowed = status.allowed and not status.denied
        self._allowed.put((key, path), allowed)
        return allowed

    async def _create(self, api: str, kind: str, spec: Mapping[str, Any], type_: type[_Value]) -> _Value:
        """Create a review. It changes nothing, so a replica that does not lead may create it, too."""
        body = msgspec.json.encode({"apiVersion": api, "kind": kind, "spec": spec})
        async with self._places:
            answer = await self._client.write("POST", f"apis/{api}/{kind.lower()}s", body, what=kind, fenced=False)
        try:
            return msgspec.json.decode(answer, type=type_)
        except UNREADABLE:
            raise Unreadable(f"{kind}: the response is not a review") from None  # its text may repeat the token
