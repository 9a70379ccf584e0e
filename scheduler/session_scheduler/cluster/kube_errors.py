"""Conversion of an API server's error responses to the errors of `errors`.

Source: metav1.Status, and the codes in staging/src/k8s.io/apimachinery/pkg/api/errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from http import HTTPStatus

import msgspec

from session_scheduler.cluster.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooManyRequests,
    Unavailable,
    one_line,
)

_MESSAGE_LIMIT = 1024
_NO_SUCH_API = "the API server does not serve this API; is its CustomResourceDefinition installed?"
"""Explains a 404 that has no Status. For a missing object of a known API the API server sends one."""
_KINDS: dict[int, type[ClusterError]] = {
    HTTPStatus.UNAUTHORIZED: Forbidden,
    HTTPStatus.FORBIDDEN: Forbidden,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.REQUEST_TIMEOUT: Unavailable,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.GONE: Gone,
}


class _Details(msgspec.Struct, rename="camel", frozen=True):
    retry_after_seconds: int = 0


class Status(msgspec.Struct, tag_field="kind", tag="Status", frozen=True):
    """metav1.Status: the API server's response to a failed request."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


class Resend(Enum):
    """Whether the same request may be sent again after a failure."""

    NEVER = auto()
    READS = auto()
    """Reads only: the failure is temporary, but the server may have executed a write."""
    BUSY = auto()
    """Always, later: the server or a disruption budget rejected the request for now."""
    UNSENT = auto()
    """Always: the request did not reach the server."""
    RENEWED = auto()
    """With a new token: the server rejected the credentials."""


class Refusal(msgspec.Struct, frozen=True):
    """A failed request, and the error to raise if it is not sent again."""

    error: ClusterError
    resend: Resend
    retry_after: float | None = None
    """Seconds to wait, as the server asks."""


_decoder = msgspec.json.Decoder(Status)


def refusal(code: int, body: bytes, headers: Mapping[str, str], what: str) -> Refusal:
    """Convert an error response. `what` names the request's object in the message."""
    try:
        status = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a proxy's page, or an old server's plain text
        text = body[:_MESSAGE_LIMIT].decode(errors="replace")
        status = Status(message=f"{text.strip()}: {_NO_SUCH_API}" if code == HTTPStatus.NOT_FOUND else text)
    wait = _wait(headers.get("Retry-After", ""), status)
    error = error_of(code, status, what, wait)
    if code == HTTPStatus.UNAUTHORIZED:
        resend = Resend.RENEWED
    elif isinstance(error, TooManyRequests):
        resend = Resend.BUSY
    else:
        resend = Resend.READS if isinstance(error, Unavailable) else Resend.NEVER
    return Refusal(error, resend, wait)


def error_of(code: int, status: Status, what: str, wait: float | None = None) -> ClusterError:
    """Return the error for an HTTP code (or the code in a watch's ERROR event) and its Status."""
    text = one_line(status.message)[:_MESSAGE_LIMIT] or status.reason or "no reason given"
    message = f"{what}: {code}: {text}"
    if code == HTTPStatus.TOO_MANY_REQUESTS:
        return TooManyRequests(message, 1.0 if wait is None else wait)
    if code == HTTPStatus.CONFLICT and status.reason == "AlreadyExists":
        return AlreadyExists(message)
    client_error = HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR
    return _KINDS.get(code, Invalid if client_error else Unavailable)(message)


def _wait(header: str, status: Status) -> float | None:
    """Return the seconds to wait from the header, else from the Status. API servers send no date in the header."""
    if header.isascii() and header.isdecimal():
        return float(header)
    seconds = status.details.retry_after_seconds if status.details else 0
    return float(seconds) if seconds > 0 else None
