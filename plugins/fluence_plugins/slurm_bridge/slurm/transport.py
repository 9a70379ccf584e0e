"""One request to slurmrestd: its token, TLS, the size of the answer, and what became of it where there is none."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field
from yarl import URL

from fluence_plugins.slurm_bridge.slurm.errors import TokenError, UnavailableError
from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.settings import Strict
from session_scheduler.errors import InputError, plain, shown
from session_scheduler.sdk.http_client import (
    BadResponseError,
    Endpoint,
    HttpPool,
    NotConnectedError,
    TooLongError,
    request_head,
)

Method = Literal["GET", "POST", "DELETE"]
LIST_BYTES: Final = 256 << 20
"""The largest list of jobs, nodes or partitions that is read."""
ANSWER_BYTES: Final = 1 << 20
"""The same for all else."""
_TOKEN_BYTES: Final = 64 << 10
_CONNECTIONS: Final = 16
_VARIABLE: Final = "SLURM_JWT="
"""What `scontrol token` prints before the token."""


def _base(url: str) -> str:
    try:
        parsed = URL(url)
    except ValueError:
        parsed = URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise wrong_value(f"{shown(url)} is no address of slurmrestd: write http://host:port or https://host:port")
    if parsed.user is not None or parsed.password is not None or parsed.query_string or parsed.fragment:
        raise wrong_value("the address of slurmrestd is to have no user, password, query or fragment: leave it away")
    return url.rstrip("/")


def _header(text: str) -> str:
    if not text.isprintable() or not text.isascii():
        raise wrong_value(f"{shown(text)} is no name of a user in Slurm: use printable ASCII")
    return text


class Connection(Strict):
    """How Slurm's REST API is reached.

    url: of slurmrestd, without /slurm/…. tokenFile: a file with a JWT, read again for every request. apiVersion: the
    version of the API that is spoken. timeoutSeconds: for a call with all its retries. user: sent as X-SLURM-USER-NAME,
    for a token that may stand for others. caFile: the certificates that are trusted (else the system's); of https, both
    certificate and name are always verified. retries: how often a call is tried again.
    """

    url: Annotated[str, AfterValidator(_base)]
    token_file: Annotated[str, Field(min_length=1)]
    api_version: Literal["v0.0.42", "v0.0.43", "v0.0.44"] = "v0.0.44"
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    user: Annotated[str, Field(min_length=1), AfterValidator(_header)] | None = None
    ca_file: Annotated[str, Field(min_length=1)] | None = None
    retries: Annotated[int, Field(ge=0, le=20)] = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whatever it says."""

    status: int
    body: bytes


@dataclass(slots=True)
class Sent:
    """Of one attempt: whether any of the request has left. Also whoever ends it for its time wants to know."""

    yes: bool = False


def read_token(path: str) -> str:
    """The token, as its file has it now. Raises: TokenError, which never has a part of the token in it."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_TOKEN_BYTES + 1)
    except OSError as why:
        raise TokenError(path, f"it cannot be read: {why.strerror or type(why).__name__}") from None
    text = data.decode("ascii", "replace").strip().removeprefix(_VARIABLE)
    if not text:
        raise TokenError(path, "it is empty")
    if len(data) > _TOKEN_BYTES or not text.isascii() or not text.isprintable() or " " in text:
        raise TokenError(path, "what is in it is no token")
    return text


class Transport:
    """Connections to slurmrestd, one for each request. To be entered before it is used.

    A kept connection that the other end closes just then leaves it open what became of a POST: none is kept. So it does
    not matter what slurmrestd 26.05 writes behind a response: a second one in plain text after each with an error, and
    its `Connection: Close`, where it was asked to close the connection.
    """

    def __init__(self, settings: Connection) -> None:
        self._settings = settings
        url = URL(settings.url)
        self._host = url.host_port_subcomponent or ""
        self._prefix = f"{url.raw_path.rstrip('/')}/slurm/{settings.api_version}"
        self._endpoint = Endpoint(url.raw_host or "", url.port or 0)
        self._pool: HttpPool | None = None

    async def __aenter__(self) -> Self:
        self._endpoint = replace(self._endpoint, tls=_tls(self._settings))
        self._pool = HttpPool(_CONNECTIONS, connect_seconds=self._settings.timeout_seconds)
        return self

    async def __aexit__(self, *_: object) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def exchange(self, method: Method, path: str, body: bytes | None, sent: Sent, *, limit: int) -> Answer:
        """Send one request and read its answer; who calls limits the time. Raises: UnavailableError, TokenError."""
        assert self._pool is not None, "enter the client before it is used"  # noqa: S101
        headers = {
            "X-SLURM-USER-TOKEN": read_token(self._settings.token_file),
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Connection": "close",
            "User-Agent": "fluence",
        }
        if self._settings.user is not None:
            headers["X-SLURM-USER-NAME"] = self._settings.user
        if body is not None:
            headers["Content-Type"] = "application/json"
        head = request_head(method, f"{self._prefix}/{path}", self._host, headers, None if body is None else len(body))
        try:
            connection = await self._pool.acquire(self._endpoint)
            try:
                sent.yes = True
                response = await connection.exchange(head + (body or b""), limit)
            finally:
                connection.abort()
                self._pool.release(connection)
        except TooLongError:
            raise UnavailableError(
                f"{method} {path}", f"the answer is longer than {limit} bytes: none of slurmrestd's is", sent=True
            ) from None
        except OSError as why:
            # Never the error's own text beyond its kind: headers may be in it.
            raise UnavailableError(f"{method} {path}", _lost(why), sent=sent.yes) from None
        return Answer(response.status, response.body)


def _lost(why: OSError) -> str:
    match why:
        case NotConnectedError(__cause__=ssl.SSLError()):
            return "slurmrestd is not trusted: its certificate is of another name or signer (caFile)"
        case NotConnectedError(__cause__=cause):
            return f"slurmrestd was not reached: {getattr(cause, 'strerror', None) or 'no connection'}"
        case BadResponseError():
            return "what answered does not speak HTTP as slurmrestd does"
        case ConnectionError():
            return "the connection was lost before the whole answer"
        case _:
            return f"the connection was lost ({type(why).__name__})"


def _tls(settings: Connection) -> ssl.SSLContext | None:
    if not settings.url.startswith("https:"):
        return None
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as why:
        what = getattr(why, "strerror", None) or type(why).__name__
        raise InputError(
            f"caFile {plain(settings.ca_file or '')}: no certificates can be read from it: {what}"
        ) from None
