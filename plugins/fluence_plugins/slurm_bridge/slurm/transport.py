"""Sends one request to slurmrestd: token, TLS, a limit for the response, and an error that shows the outcome."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from msgspec.structs import replace
from pydantic import AfterValidator, Field, model_validator
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
"""The maximum size in bytes of a list of jobs, nodes or partitions."""
ANSWER_BYTES: Final = 1 << 20
"""The maximum size in bytes of any other response."""
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
        raise wrong_value(f"expected http://host:port or https://host:port of slurmrestd, got {shown(url)}")
    if parsed.user is not None or parsed.password is not None or parsed.query_string or parsed.fragment:
        raise wrong_value("the address of slurmrestd must not have a user, password, query or fragment; remove it")
    return url.rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _header(text: str) -> str:
    if not text.isprintable() or not text.isascii():
        raise wrong_value(f"{shown(text)} is not a valid user name in Slurm; use printable ASCII")
    return text


class Connection(Strict):
    """The connection to Slurm's REST API.

    url: of slurmrestd, without /slurm/…. tokenFile: a file with a JWT; the client reads it for every request.
    apiVersion: of the REST API. timeoutSeconds: for a call, including its retries. user: sent as X-SLURM-USER-NAME, for
    a token that may act for other users. caFile: the trusted certificates (default: the system's); with https, the
    client always verifies certificate and host name. retries: how often a call is retried. allowHttp: whether the token
    may leave the machine unencrypted, by http. Loopback addresses never need it.
    """

    url: Annotated[str, AfterValidator(_base)]
    token_file: Annotated[str, Field(min_length=1)]
    api_version: Literal["v0.0.42", "v0.0.43", "v0.0.44"] = "v0.0.44"
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    user: Annotated[str, Field(min_length=1), AfterValidator(_header)] | None = None
    ca_file: Annotated[str, Field(min_length=1)] | None = None
    retries: Annotated[int, Field(ge=0, le=20)] = 4
    allow_http: bool = False

    @model_validator(mode="after")
    def _encrypts(self) -> Self:
        url = URL(self.url)
        if url.scheme == "http" and not self.allow_http and not _is_loopback(url.host or ""):
            raise wrong_value("http sends the token unencrypted; use https, or set allowHttp: true", ("url",))
        return self


@dataclass(frozen=True, slots=True)
class Answer:
    """A response with any status."""

    status: int
    body: bytes


@dataclass(slots=True)
class Sent:
    """Whether part of an attempt's request was sent; the caller also reads it after a timeout."""

    yes: bool = False


def read_token(path: str) -> str:
    """Read the token from its file. Raises TokenError, which never contains part of the token."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_TOKEN_BYTES + 1)
    except OSError as why:
        raise TokenError(path, f"the file cannot be read: {why.strerror or type(why).__name__}") from None
    text = data.decode("ascii", "replace").strip().removeprefix(_VARIABLE)
    if not text:
        raise TokenError(path, "the file is empty")
    if len(data) > _TOKEN_BYTES or not text.isascii() or not text.isprintable() or " " in text:
        raise TokenError(path, "the file does not contain a valid token")
    return text


class Transport:
    """Connections to slurmrestd, one for each request; an async context manager.

    If the server closes a reused connection at that moment, the outcome of a POST is unknown, so connections are not
    reused. So two oddities of slurmrestd 26.05 do not matter: after a response with an error it sends a second one in
    plain text, and it writes `Connection: Close` if the client asked it to close the connection.
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
        """Send one request and read its response; the caller limits the time. Raises UnavailableError or TokenError."""
        if self._pool is None:
            raise RuntimeError("enter the client (async with) before you use it")
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
                f"{method} {path}", f"the response is longer than {limit} bytes", sent=True
            ) from None
        except OSError as why:
            # Only the error's type: its text may contain headers.
            raise UnavailableError(f"{method} {path}", _lost(why), sent=sent.yes) from None
        return Answer(response.status, response.body)


def _lost(why: OSError) -> str:
    match why:
        case NotConnectedError(__cause__=ssl.SSLError()):
            return "the certificate of slurmrestd is not trusted: it has another name or issuer (see caFile)"
        case NotConnectedError(__cause__=cause):
            return f"cannot connect to slurmrestd: {getattr(cause, 'strerror', None) or 'no connection'}"
        case BadResponseError():
            return "the response is not valid HTTP"
        case ConnectionError():
            return "the connection was lost before the response was complete"
        case _:
            return f"the connection was lost ({type(why).__name__})"


def _tls(settings: Connection) -> ssl.SSLContext | None:
    if not settings.url.startswith("https:"):
        return None
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as why:
        what = getattr(why, "strerror", None) or type(why).__name__
        raise InputError(f"caFile {plain(settings.ca_file or '')}: cannot read certificates: {what}") from None
