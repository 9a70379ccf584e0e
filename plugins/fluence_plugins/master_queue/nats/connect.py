"""How a NATS server is reached: what a connector is, and one connection to it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Annotated, Any, Final, Self

import aiohttp
import nats.errors
from pydantic import BeforeValidator, Field, model_validator

from fluence_plugins.master_queue.errors import ConnectionFailedError
from fluence_plugins.master_queue.nats.addresses import Server, server_of
from fluence_plugins.master_queue.nats.client import PING_SECONDS, UNANSWERED_PINGS, NatsClient, reason
from fluence_plugins.master_queue.nats.credentials import credentials_of, tls_of
from fluence_plugins.master_queue.nats.transports import TcpLink, WebSocketLink
from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.settings import Strict
from session_scheduler.errors import FluenceError, InputError, shown

CONNECT_SECONDS: Final = 10.0
"""For a connection, with all its servers."""
SHUT_SECONDS: Final = 0.5
MOST_SERVERS: Final = 16
_CLOSED: Final = "it closed the connection at once: does it want credentials, or tls.certFile?"
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")
_WAYS: Final = (
    ("user_file", "userFile"),
    ("token_file", "tokenFile"),
    ("nkey_seed_file", "nkeySeedFile"),
    ("credentials_file", "credentialsFile"),
)


def _servers(value: Any) -> Any:
    """Before pydantic looks: its own messages would show what an address holds."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise wrong_value("is no list of addresses: write [nats://host:port]")
    if not 1 <= len(value) <= MOST_SERVERS:
        raise wrong_value(f"has {len(value)}: list 1 to {MOST_SERVERS} addresses")
    for index, one in enumerate(value):
        found = server_of(one)
        if isinstance(found, str):
            raise wrong_value(found, at=(index,))
    return tuple(value)


_File = Annotated[str, Field(min_length=1)]


class Tls(Strict):
    """TLS of a connector, which is then demanded. Certificate and name are always verified.

    caFile: the certificates that are trusted (else the system's). certFile, keyFile: the client's own. serverName: the
    name in the server's certificate, where it is not the address's host.
    """

    ca_file: _File | None = None
    cert_file: _File | None = None
    key_file: _File | None = None
    server_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            missing = "certFile" if self.cert_file is None else "keyFile"
            raise wrong_value("is missing: write certFile and keyFile, or neither", at=(missing,))
        return self


class ConnectorSettings(Strict):
    """How the servers of one connector are reached. Its representation shows no password and no token.

    servers: 1 to 16 addresses, nats://, tls://, ws:// or wss://, tried in this order; each may hold user:password@ or
    token@, percent-encoded. At most one of: userFile with passwordFile, tokenFile, nkeySeedFile, credentialsFile (a
    .creds file with JWT and seed), addresses with a user or token. Files are read anew for every connection.
    """

    servers: Annotated[tuple[str, ...], BeforeValidator(_servers), Field(repr=False)]
    user_file: _File | None = None
    password_file: _File | None = None
    token_file: _File | None = None
    nkey_seed_file: _File | None = None
    credentials_file: _File | None = None
    tls: Tls | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.user_file is None) != (self.password_file is None):
            missing = "userFile" if self.user_file is None else "passwordFile"
            raise wrong_value("is missing: write userFile and passwordFile, or neither", at=(missing,))
        ways = [name for field, name in _WAYS if getattr(self, field) is not None]
        if any(server.has_user for server in self.addresses):
            ways.append("a user or token in servers")
        if len(ways) > 1:
            raise wrong_value(f"{', '.join(ways)}: keep one way to authenticate")
        for index, server in enumerate(self.addresses):
            if server.scheme == "ws" and self.tls is not None:
                raise wrong_value("has no TLS, and there is tls: write wss:// or remove tls", at=("servers", index))
        return self

    @property
    def addresses(self) -> tuple[Server, ...]:
        """The servers."""
        return tuple(found for found in map(server_of, self.servers) if isinstance(found, Server))


def settings_of(connector: str, configured: Mapping[str, ConnectorSettings]) -> ConnectorSettings:
    """What a MasterQueue's natsConnector means: the name of a configured connector, or URLs with commas between.

    Files come from the configuration alone: who edits a MasterQueue does not choose what the controller reads.
    Raises InputError, one line without password or token, that goes on from the field's name.
    """
    if connector in configured:
        return configured[connector]
    if "://" not in connector:
        name = f"{shown(connector)} is no" if _NAME.fullmatch(connector) else "it is neither an address nor a"
        raise InputError(f"{name} configured connector: configure it, or write nats://host:port")
    urls = [url.strip() for url in connector.split(",")]
    if len(urls) > MOST_SERVERS:
        raise InputError(f"has {len(urls)} addresses: write at most {MOST_SERVERS}, with commas between")
    for number, url in enumerate(urls, 1):
        found = server_of(url)
        if isinstance(found, str):
            which = "the address" if len(urls) == 1 else f"address {number} of {len(urls)}"
            raise InputError(f"{which} {found}" + ("; a comma there is %2C" if len(urls) > 1 else ""))
    return ConnectorSettings(servers=tuple(urls))


def label_of(connector: str, configured: Mapping[str, ConnectorSettings]) -> str:
    """What a connector is called in logs and metrics: its name, or host:port of its servers. Never a secret."""
    if connector in configured:
        return connector
    try:
        return ",".join(server.place for server in settings_of(connector, configured).addresses)
    except InputError:
        return connector if _NAME.fullmatch(connector) else "(no address)"


class _Events:
    """Hands on what becomes of a connection."""

    def __init__(self, closed: Callable[[str], None], error: Callable[[FluenceError], None]) -> None:
        self.ended = closed
        self.problem = error

    def fault(self, error: Exception) -> None:
        """A bug of whoever takes the messages: it is to be seen, as that of any callback."""
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "a message from NATS met a bug", "exception": error})


async def opened(
    settings: ConnectorSettings,
    *,
    closed: Callable[[str], None],
    error: Callable[[FluenceError], None],
    name: str,
    within: float = CONNECT_SECONDS,
    ping_seconds: float = PING_SECONDS,
) -> NatsClient:
    """A connection to the first of the servers that takes one; it does not reconnect. To be ended with `shut`.

    `closed` is called, once, with one line when it ends by itself; `error` when the server refuses a subject
    (`RefusedSubjectError`), throws messages away (`DroppedMessagesError`) or will soon end (`LeavingError`). `name` is
    shown to the server's administrators; `within` are seconds. Raises ConnectionFailedError, one line without secrets;
    what is in the way is said of each server.
    """
    problems: list[str] = []
    deadline = asyncio.get_running_loop().time() + within
    servers = settings.addresses
    for index, server in enumerate(servers):
        seconds = (deadline - asyncio.get_running_loop().time()) / (len(servers) - index)
        try:
            return await _opened(settings, server, _Events(closed, error), name, max(seconds, 0.001), ping_seconds)
        except ConnectionFailedError as failed:
            problems.append(f"{server.url}: {failed}")
    raise ConnectionFailedError("; ".join(problems))


async def _opened(
    settings: ConnectorSettings, server: Server, events: _Events, name: str, seconds: float, ping_seconds: float
) -> NatsClient:
    credentials = credentials_of(settings, server)
    needs_tls = server.scheme in ("tls", "wss") or settings.tls is not None
    server_name = settings.tls.server_name if settings.tls is not None else None
    web = server.scheme in ("ws", "wss")
    context = partial(tls_of, settings.tls)
    link = WebSocketLink(context() if server.scheme == "wss" else None, server_name) if web else TcpLink()
    client = NatsClient(link, credentials, events, context=context, needs_tls=needs_tls)
    kept = False
    try:
        connecting = client.connect(
            servers=[server.url],
            name=name,
            error_cb=client.told,
            allow_reconnect=False,
            connect_timeout=seconds,  # type: ignore[arg-type]
            ping_interval=ping_seconds,  # type: ignore[arg-type]
            max_outstanding_pings=UNANSWERED_PINGS,
            tls_hostname=server_name,
        )
        await _within(seconds, connecting)
        if client.is_connected:
            kept = True
            return client
        raise ConnectionFailedError(_CLOSED)
    except TimeoutError:
        raise ConnectionFailedError("no answer in time") from None
    except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError):
        raise ConnectionFailedError(_CLOSED) from None
    except aiohttp.ClientError as why:  # some are OSErrors too
        raise ConnectionFailedError(_of_web(why)) from None
    except (OSError, nats.errors.Error) as why:
        raise ConnectionFailedError(reason(why)) from None
    except (ValueError, TypeError, AttributeError, KeyError, AssertionError):
        # What the library makes of a greeting that is none.
        raise ConnectionFailedError("what answers does not speak NATS") from None
    finally:
        if not kept:
            await client.finish(SHUT_SECONDS)


async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Do it in a task of its own, which is cancelled until it ends.

    The library waits with `asyncio.wait_for`, in which one cancellation may be lost before Python 3.12.
    """
    task = asyncio.create_task(work)
    try:
        if not (await asyncio.wait({task}, timeout=seconds))[0]:
            raise TimeoutError
        task.result()
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=0.1)
        if not task.cancelled():
            task.exception()  # is known, or nobody's any more


def _of_web(error: aiohttp.ClientError) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return reason(error.certificate_error)
        case aiohttp.ClientConnectorError():
            return reason(error.os_error)
        case aiohttp.ClientResponseError():
            return f"what answers is no WebSocket of NATS (HTTP {error.status})"
        case _:
            return f"the connection was lost ({type(error).__name__})"


async def shut(client: NatsClient) -> None:
    """End a connection within half a second, whatever the other end does. What is to be sent: flush() it before."""
    await client.finish(SHUT_SECONDS)
