"""The publisher of `fluence pool publish`: sends a pool's resources to a NATS subject, at an interval."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import nats.errors

from fluence_plugins.master_queue.errors import ConnectionFailedError, MessageError
from fluence_plugins.master_queue.messages import decoded
from fluence_plugins.master_queue.nats.client import NatsClient, close_connection, open_connection
from fluence_plugins.master_queue.nats.connection import FIRST_SECONDS, LONGEST_SECONDS, STEADY_SECONDS
from fluence_plugins.master_queue.nats.settings import ConnectorSettings
from session_scheduler.errors import FluenceError, InputError, plain
from session_scheduler.sdk.backoff import Backoff
from session_scheduler.sdk.dynamic_client import ClusterError
from session_scheduler.sdk.signals import first_of

log = logging.getLogger("fluence")

LEAST_SECONDS: Final = 1.0
"""The minimum interval between two messages."""
CONFIRM_SECONDS: Final = 10.0
CLIENT_NAME: Final = "fluence-pool"

Quotas = Callable[[], Awaitable[Mapping[str, str]]]
"""Returns the pool's current resources. Raises ClusterError if they cannot be determined."""
Connect = Callable[..., Awaitable[NatsClient]]
"""See `client.open_connection`."""


def message(quotas: Mapping[str, Any], labels: Sequence[str] = (), taints: Sequence[str] = ()) -> bytes:
    """Encode a message. Raises InputError with a line for each part that the controller would drop."""
    content = {"quotas": dict(quotas), "labels": list(labels), "taints": list(taints)}
    data = json.dumps(content, ensure_ascii=False).encode(
        errors="replace"
    )  # arguments from a shell may not be valid Unicode
    try:
        wrong = decoded(data).problems
    except MessageError as error:
        raise InputError(str(error)) from None
    if wrong:
        raise InputError(*wrong)
    return data


@dataclass(frozen=True, slots=True)
class Pool:
    """The message of a pool, and its destination."""

    settings: ConnectorSettings
    subject: str
    """Ends with the pool's name."""
    quotas: Quotas
    labels: Sequence[str] = ()
    taints: Sequence[str] = ()

    async def message(self) -> bytes:
        """The current message. Raises ClusterError or InputError."""
        return message(await self.quotas(), self.labels, self.taints)


class _Session:
    """A connection, and the error that ended it or that the server reported."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.why: str | None = None

    def closed(self, why: str) -> None:
        self.why = self.why or why
        self.over.set()

    def error(self, error: FluenceError) -> None:
        self.closed(str(error))


class Publisher:
    """Publishes a pool's messages. `every`: the interval in seconds."""

    def __init__(
        self,
        pool: Pool,
        every: float,
        *,
        connect: Connect = open_connection,
        chance: Random | None = None,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._pool = pool
        self._every = max(every, LEAST_SECONDS)
        self._connect = connect
        self._clock = clock or asyncio.get_running_loop().time
        self._sleep = sleep
        # jitter needs no secure random numbers
        self._backoff = Backoff(FIRST_SECONDS, LONGEST_SECONDS, chance or Random())  # noqa: S311
        self._sent: float | None = None
        self._problems: dict[str, str | None] = {"NATS": "", "cluster": None}
        """The last logged state of each: None if it is well, "" before the first log line."""

    async def once(self) -> None:
        """Publish one message. Raises ConnectionFailedError, ClusterError or InputError."""
        data = await self._pool.message()
        session = _Session()
        client = await self._connected(session)
        try:
            await self._send(client, session, data)
        finally:
            await close_connection(client)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop` is set; retries if a server or cluster is unavailable. Raises InputError."""
        await first_of(self._forever(), stop.wait())

    async def _forever(self) -> None:
        while True:
            began = self._clock()
            session = _Session()
            try:
                client = await self._connected(session)
                try:
                    await self._publish(client, session)
                finally:
                    await close_connection(client)
            except ConnectionFailedError as error:
                self._log_change("NATS", str(error))
            if self._clock() - began >= STEADY_SECONDS:
                self._backoff.reset()
            await self._sleep(self._backoff.next())

    async def _publish(self, client: NatsClient, session: _Session) -> None:
        """Publish over one connection until it ends. Raises ConnectionFailedError."""
        while True:
            await self._pause()
            try:
                data = await self._pool.message()
            except ClusterError as error:
                self._log_change("cluster", str(error))
            else:
                self._log_change("cluster", None)
                await self._send(client, session, data)
                self._log_change("NATS", None)
            await first_of(self._sleep(self._every), session.over.wait())
            if session.why is not None:
                raise ConnectionFailedError(session.why)

    async def _pause(self) -> None:
        """Wait until the next message may be sent."""
        if self._sent is not None and (left := self._sent + LEAST_SECONDS - self._clock()) > 0:
            await self._sleep(left)

    async def _connected(self, session: _Session) -> NatsClient:
        return await self._connect(self._pool.settings, closed=session.closed, error=session.error, name=CLIENT_NAME)

    async def _send(self, client: NatsClient, session: _Session, data: bytes) -> None:
        """Send, and wait for the server's confirmation. Raises ConnectionFailedError."""
        self._sent = self._clock()
        try:
            await client.publish(self._pool.subject, data)
            await client.confirm(CONFIRM_SECONDS)
        except (nats.errors.Error, TimeoutError):
            raise ConnectionFailedError(session.why or "the server does not confirm the message") from None
        if session.why is not None:
            raise ConnectionFailedError(session.why)
        log.debug("[pool] %s: %s", self._pool.subject, data.decode())

    def _log_change(self, what: str, why: str | None) -> None:
        """Log a change of state."""
        before, self._problems[what] = self._problems[what], why
        if why is not None and why != before:
            log.warning("[pool] %s: %s; publishing stops until this is fixed", what, why)
        elif why is None and before is not None:
            well = f"publishes to {plain(self._pool.subject)}" if what == "NATS" else "is read"
            log.info("[pool] %s: %s%s", what, well, " again" if before else "")
