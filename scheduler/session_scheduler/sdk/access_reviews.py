"""The API server's reviews of tokens and permissions, for servers whose users have tokens of the cluster. Public.

A TokenReview finds the user of a bearer token; a SubjectAccessReview decides whether the user may do something. The
answers are cached, those about tokens by a hash; a token is neither logged nor stored.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from session_scheduler.base.clock import Clock, SystemClock
from session_scheduler.cluster.errors import Unreadable
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.unreadable import UNREADABLE

__all__ = ["CACHE_SECONDS", "AccessReviews", "User"]

CACHE_SECONDS: Final = 10.0
"""How long an answer is reused, and therefore how long a revoked token or permission still works."""
MOST_CACHED: Final = 1024
_IN_FLIGHT: Final = 8
"""Reviews at once: the connections are shared with the scheduler."""
_Value = TypeVar("_Value")


class User(msgspec.Struct, frozen=True):
    """A user as the API server knows it, with the field names of both reviews."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] | None = None
    extra: Mapping[str, Sequence[str]] | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: User = User()
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

    def __init__(self, clock: Clock, seconds: float, most: int) -> None:
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._entries: dict[Hashable, tuple[float, _Value]] = {}

    def get(self, key: Hashable) -> tuple[_Value] | None:
        """The value in a tuple, as None is a value, too."""
        entry = self._entries.get(key)
        return (entry[1],) if entry is not None and self._clock.now() < entry[0] else None

    def put(self, key: Hashable, value: _Value) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (self._clock.now() + self._seconds, value)
        if len(self._entries) > self._most:
            del self._entries[next(iter(self._entries))]


class AccessReviews:
    """Creates TokenReviews and SubjectAccessReviews at the API server, and caches the answers.

    The account needs `create` of tokenreviews.authentication.k8s.io and subjectaccessreviews.authorization.k8s.io.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        audiences: Sequence[str] = (),
        clock: Clock | None = None,
        seconds: float = CACHE_SECONDS,
        most_cached: int = MOST_CACHED,
    ) -> None:
        """`audiences` of accepted tokens; empty for those of the API server. Answers are cached for `seconds`."""
        self._client = client
        self._audiences = tuple(audiences)
        clock = clock or SystemClock()
        self._users: _Cache[User | None] = _Cache(clock, seconds, most_cached)
        self._allowed: _Cache[bool] = _Cache(clock, seconds, most_cached)
        self._places = asyncio.Semaphore(_IN_FLIGHT)

    async def user(self, token: str) -> User | None:
        """The user of a token; None if the API server does not accept it. Raises ClusterError."""
        if not token.isascii():  # no token is: RFC 6750, section 2.1
            return None
        key = hashlib.sha256(token.encode()).digest()
        known = self._users.get(key)
        if known is not None:
            return known[0]
        spec: dict[str, Any] = {"token": token}
        if self._audiences:
            spec["audiences"] = self._audiences
        status = (await self._create("authentication.k8s.io/v1", "TokenReview", spec, _TokenReview)).status
        # a server that does not know audiences leaves them out of its answer
        fits = not self._audiences or not set(self._audiences).isdisjoint(status.audiences or ())
        user = status.user if status.authenticated and fits else None
        self._users.put(key, user)
        return user

    async def allowed(self, user: User, attributes: Mapping[str, Any]) -> bool:
        """Whether a user has a permission. Raises ClusterError.

        `attributes` are fields of a SubjectAccessReview's spec, such as
        {"nonResourceAttributes": {"path": "/explain", "verb": "get"}}.
        """
        spec = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra, **attributes}
        key = msgspec.json.encode(spec)
        known = self._allowed.get(key)
        if known is not None:
            return known[0]
        status = (await self._create("authorization.k8s.io/v1", "SubjectAccessReview", spec, _AccessReview)).status
        allowed = status.allowed and not status.denied
        self._allowed.put(key, allowed)
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
