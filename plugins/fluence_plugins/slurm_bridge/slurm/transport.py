"""One request to slurmrestd: its token, TLS, the size of the answer, and what became of it where there is none."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Final, Literal, Self

import aiohttp
from pydantic import AfterValidator, Field
from yarl import URL

from fluence_plugins.slurm_bridge.slurm.errors import TokenError, UnavailableError
from fluence_plugins.slurm_bridge.slurm.first_response import FirstAnswer
from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.settings import Strict
from session_scheduler.errors import InputError, plain, shown

Method = Literal["GET", "POST", "DELETE"]
LIST_BYTES: Final = 256 << 20
"""The largest list of jobs, nodes or partitions that is read."""
ANSWER_BYTES: Final = 1 << 20
"""The same for all else."""
_TOKEN_BYTES: Final = 64 << 10
_CHUNK: Final = 256 << 10
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
    """A session with slurmrestd. To be entered before it is used."""

    def __init__(self, settings: Connection) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        tracing = aiohttp.TraceConfig()
        tracing.on_request_headers_sent.append(_note_sent)
        # A kept connection that the other end closes just then leaves it open what became of a POST: none is kept.
        connector = aiohttp.TCPConnector(force_close=True, limit=16, ssl=_tls(self._settings))
        connector._factory = FirstAnswer.made_by(asyncio.get_running_loop())
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            trace_configs=[tracing],
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def exchange(self, method: Method, path: str, body: bytes | None, sent: Sent, *, limit: int) -> Answer:
        """Send one request and read its answer; who calls limits the time. Raises: UnavailableError, TokenError."""
        assert self._session is not None, "enter the client before it is used"  # noqa: S101
        headers = {
            "X-SLURM-USER-TOKEN": read_token(self._settings.token_file),
            "Accept": "application/json",
            "Accept-Encoding": "identity",
        }
        if self._settings.user is not None:
            headers["X-SLURM-USER-NAME"] = self._settings.user
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = URL(f"{self._settings.url}/slurm/{self._settings.api_version}/{path}", encoded=True)
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=sent
            ) as answer:
                return Answer(answer.status, await _bounded(answer, limit))
        except _TooLongError:
            raise UnavailableError(
                f"{method} {path}", f"the answer is longer than {limit} bytes: none of slurmrestd's is", sent=True
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as why:
            # Never the error's own text beyond its kind: headers may be in it.
            raise UnavailableError(f"{method} {path}", _lost(why), sent=sent.yes) from None


async def _note_sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    context.trace_request_ctx.yes = True


class _TooLongError(Exception):
    pass


async def _bounded(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    if (answer.content_length or 0) > limit:
        raise _TooLongError
    chunks: list[bytes] = []
    size = 0
    async for chunk in answer.content.iter_chunked(_CHUNK):
        size += len(chunk)
        if size > limit:
            raise _TooLongError
        chunks.append(chunk)
    return b"".join(chunks)


def _lost(why: Exception) -> str:
    match why:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return "slurmrestd is not trusted: its certificate is of another name or signer (caFile)"
        case aiohttp.ClientConnectorError():
            return f"slurmrestd was not reached: {why.os_error.strerror or 'no connection'}"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | ConnectionError():
            return "the connection was lost before the whole answer"
        case aiohttp.ClientResponseError():
            return "what answered does not speak HTTP as slurmrestd does"
        case _:
            return f"the connection was lost ({type(why).__name__})"


def _tls(settings: Connection) -> ssl.SSLContext | bool:
    if not settings.url.startswith("https:"):
        return True
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as why:
        what = getattr(why, "strerror", None) or type(why).__name__
        raise InputError(
            f"caFile {plain(settings.ca_file or '')}: no certificates can be read from it: {what}"
        ) from None
