"""An API server's refusals as the port's errors.

Source: metav1.Status, and the codes in staging/src/k8s.io/apimachinery/pkg/api/errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
_NO_SUCH_API = "no such API is served here: is its CustomResourceDefinition installed?"
"""What it means that no server answers for a path: of an object that is not there the API server says so itself."""
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
    """metav1.Status: what the API server says instead of an object."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


class Resend(Enum):
    """What a failure means for sending the same request again."""

    NEVER = auto()
    READS = auto()
    """The failure may pass, but a write may have been done."""
    BUSY = auto()
    """Nothing was done: the server, or a disruption budget, asks to come later."""
    UNSENT = auto()
    """Nothing was done: the request never reached the server."""
    RENEWED = auto()
    """Nothing was done: with another token it may be."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that failed: the error to raise unless it is sent again."""

    error: ClusterError
    resend: Resend
    retry_after: float | None = None
    """Seconds that the server asks to wait."""


_decoder = msgspec.json.Decoder(Status)


def refusal(code: int, body: bytes, headers: Mapping[str, str], what: str) -> Refusal:
    """The refusal in an answer that is no success. `what` names the request's object."""
    try:
        status = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a proxy's page, or an old server's plain text
        said = body[:_MESSAGE_LIMIT].decode(errors="replace")
        status = Status(message=f"{said.strip()}: {_NO_SUCH_API}" if code == HTTPStatus.NOT_FOUND else said)
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
    """The port's error for an HTTP code (or the code in a watch's ERROR event) and its Status."""
    said = one_line(status.message)[:_MESSAGE_LIMIT] or status.reason or "no reason given"
    message = f"{what}: {code}: {said}"
    if code == HTTPStatus.TOO_MANY_REQUESTS:
        return TooManyRequests(message, 1.0 if wait is None else wait)
    if code == HTTPStatus.CONFLICT and status.reason == "AlreadyExists":
        return AlreadyExists(message)
    client_error = HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR
    return _KINDS.get(code, Invalid if client_error else Unavailable)(message)


def _wait(header: str, status: Status) -> float | None:
    """Seconds to wait, of the header, else of the Status. A date in the header is not used by API servers."""
    if header.isascii() and header.isdecimal():
        return float(header)
    seconds = status.details.retry_after_seconds if status.details else 0
    return float(seconds) if seconds > 0 else None
