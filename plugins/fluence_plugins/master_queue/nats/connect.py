"""One connection to a NATS server of a connector: to the first that accepts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import aiohttp
import nats.errors

from fluence_plugins.master_queue.errors import ConnectionFailedError
from fluence_plugins.master_queue.nats.addresses import Server
from fluence_plugins.master_queue.nats.client import PING_SECONDS, UNANSWERED_PINGS, Events, NatsClient, reason
from fluence_plugins.master_queue.nats.credentials import credentials_of, tls_of
from fluence_plugins.master_queue.nats.settings import ConnectorSettings
from fluence_plugins.master_queue.nats.transports import TcpConnection, WebSocketConnection
from session_scheduler.errors import FluenceError

CONNECT_SECONDS: Final = 10.0
"""For a connection, with all its servers."""
CLOSE_SECONDS: Final = 0.5
_CLOSED: Final = "it closed the connection at once: does it want credentials, or tls.certFile?"


async def open_connection(
    settings: ConnectorSettings,
    *,
    closed: Callable[[str], None],
    error: Callable[[FluenceError], None],
    name: str,
    within: float = CONNECT_SECONDS,
    ping_seconds: float = PING_SECONDS,
) -> NatsClient:
    """A connection to the first server that accepts one. It does not reconnect; end it with `close_connection`.

    `closed` is called, once, with one line when it ends by itself; `error` when the server refuses a subject
    (`RefusedSubjectError`), throws messages away (`DroppedMessagesError`) or will soon end (`LeavingError`). `name` is
    shown to the server's administrators; `within` are seconds. Raises ConnectionFailedError, one line without secrets;
    what is in the way is said of each server.
    """
    problems: list[str] = []
    deadline = asyncio.get_running_loop().time() + within
    servers, events = settings.addresses, Events(closed, error)
    for index, server in enumerate(servers):
        seconds = (deadline - asyncio.get_running_loop().time()) / (len(servers) - index)
        try:
            return await _open_connection(settings, server, events, name, max(seconds, 0.001), ping_seconds)
        except ConnectionFailedError as failed:
            problems.append(f"{server.url}: {failed}")
    raise ConnectionFailedError("; ".join(problems))


async def _open_connection(
    settings: ConnectorSettings, server: Server, events: Events, name: str, seconds: float, ping_seconds: float
) -> NatsClient:
    credentials = credentials_of(settings, server)
    needs_tls = server.scheme in ("tls", "wss") or settings.tls is not None
    server_name = settings.tls.server_name if settings.tls is not None else None
    web = server.scheme in ("ws", "wss")
    context = partial(tls_of, settings.tls)
    tls = context() if server.scheme == "wss" else None
    transport = WebSocketConnection(tls, server_name) if web else TcpConnection()
    client = NatsClient(transport, credentials, events, context=context, needs_tls=needs_tls)
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
            await client.finish(CLOSE_SECONDS)


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


async def close_connection(client: NatsClient) -> None:
    """End a connection within half a second, whatever the other end does. What is to be sent: flush() it before."""
    await client.finish(CLOSE_SECONDS)
