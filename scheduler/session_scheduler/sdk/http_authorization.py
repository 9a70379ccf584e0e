"""Delegated authorization of HTTP requests: the API server reviews the token and the permission of each request.
Public.

The server asks the API server who a bearer token belongs to (TokenReview), then whether that user may `get` the path
(SubjectAccessReview for a nonResourceURL). kube-scheduler and other components of the control plane do the same. This
module caches both answers for ten seconds, by a hash of the token, and never logs or stores a token.
Source: k8s.io/apiserver, DelegatingAuthenticationOptions and DelegatingAuthorizationOptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog

from session_scheduler.base.clock import Clock
from session_scheduler.cluster.errors import ClusterError, one_line
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.config.settings import Serving
from session_scheduler.sdk.access_reviews import AccessReviews

__all__ = ["DelegatedAuthorization", "Denial", "authorization_of"]

_log = structlog.get_logger(__name__)
REVIEW_SECONDS: Final = 5.0
"""How long both reviews of a request may take together."""


class Denial(NamedTuple):
    """Why a request is denied: an HTTP status, and one line of text."""

    status: int
    text: str


NO_TOKEN: Final = Denial(401, "send a token for the cluster: `Authorization: Bearer TOKEN`")
WRONG_TOKEN: Final = Denial(401, "the API server does not accept this token: it is invalid or has expired")
NO_REVIEW: Final = Denial(503, "the API server did not review the request; retry, or see the scheduler's log")


def authorization_of(serving: Serving, client: ApiClient) -> DelegatedAuthorization | None:
    """The authorization that a configuration chooses; None if it chooses none."""
    if serving.authorization == "none":
        return None
    return DelegatedAuthorization(client, audiences=serving.audiences)


class DelegatedAuthorization:
    """Authorizes requests by the API server's reviews, for `Endpoints(authorize=…)`.

    The account needs `create` of tokenreviews.authentication.k8s.io and subjectaccessreviews.authorization.k8s.io.
    """

    def __init__(self, client: ApiClient, *, audiences: Sequence[str] = (), clock: Clock | None = None) -> None:
        """`audiences` of accepted tokens; empty for those of the API server."""
        self._reviews = AccessReviews(client, audiences=audiences, clock=clock)
        self._failed = False
        """Whether the last review failed, which is logged once."""

    async def __call__(self, authorization: str, path: str) -> Denial | None:
        """Review a GET of the path with this Authorization header. Returns None if it is allowed."""
        scheme, _, token = authorization.strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return NO_TOKEN
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                denial = await self._review(token, path)
        except (ClusterError, TimeoutError) as error:
            if not self._failed:
                why = one_line(str(error)) or f"no response within {REVIEW_SECONDS:g} s"
                _log.warning("the API server did not review a request for an endpoint", path=path, why=why)
            self._failed = True
            return NO_REVIEW
        self._failed = False
        return denial

    async def _review(self, token: str, path: str) -> Denial | None:
        user = await self._reviews.user(token)
        if user is None:
            return WRONG_TOKEN
        if await self._reviews.allowed(user, {"nonResourceAttributes": {"path": path, "verb": "get"}}):
            return None
        why = f"user {user.username} has no permission to get {path}"
        return Denial(403, one_line(f"{why}; bind the user to a ClusterRole such as fluence-reader"))
