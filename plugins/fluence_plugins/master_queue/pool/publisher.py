"""A pool's own side: `fluence pool publish` says below a NATS subject, again and again, what the pool has."""

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
"""Between two messages, whatever happens."""
CONFIRM_SECONDS: Final = 10.0
CLIENT_NAME: Final = "fluence-pool"

Quotas = Callable[[], Awaitable[Mapping[str, str]]]
"""What the pool has now. Raises ClusterError where that cannot be found out."""
Connect = Callable[..., Awaitable[NatsClient]]
"""As `client.open_connection`."""


def message(quotas: Mapping[str, Any], labels: Sequence[str] = (), taints: Sequence[str] = ()) -> bytes:
    """The message, as the controller reads it. Raises InputError, a line for each part that it would drop."""
    content = {"quotas": dict(quotas), "labels": list(labels), "taints": list(taints)}
    data = json.dumps(content, ensure_ascii=False).encode(errors="replace")  # what a shell hands on may be no text
    try:
        wrong = decoded(data).problems
    except MessageError as error:
        raise InputError(str(error)) from None
    if wrong:
        raise InputError(*wrong)
    return data


@dataclass(frozen=True, slots=True)
class Pool:
    """What is published, and where."""

    settings: ConnectorSettings
    subject: str
    """With the pool's name at its end."""
    quotas: Quotas
    labels: Sequence[str] = ()
    taints: Sequence[str] = ()

    async def message(self) -> bytes:
        """The message now. Raises ClusterError; InputError."""
        return message(await self.quotas(), self.labels, self.taints)


class _Session:
    """One connection, and why it ended or what it was refused."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.why: str | None = None

    def closed(self, why: str) -> None:
        self.why = self.why or why
        self.over.set()

    def error(self, error: FluenceError) -> None:
        self.closed(str(error))


class Publisher:
    """Publishes a pool. `every` is in seconds."""

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
        # nothing secret comes of the pauses
        self._backoff = Backoff(FIRST_SECONDS, LONGEST_SECONDS, chance or Random())  # noqa: S311
        self._sent: float | None = None
        self._problems: dict[str, str | None] = {"NATS": "", "cluster": None}
        """What was last said of each: None for well, and "" before anything was."""

    async def once(self) -> None:
        """Publish one message. Raises ConnectionFailedError, ClusterError, InputError."""
        data = await self._pool.message()
        session = _Session()
        client = await self._connected(session)
        try:
            await self._send(client, session, data)
        finally:
            await close_connection(client)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop` is set; a server or a cluster that is away is tried again. Raises InputError."""
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
        """Over one connection, to its end. Raises ConnectionFailedError."""
        while True:
            await self._rest()
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

    async def _rest(self) -> None:
        """Until a message may be sent again."""
        if self._sent is not None and (left := self._sent + LEAST_SECONDS - self._clock()) > 0:
            await self._sleep(left)

    async def _connected(self, session: _Session) -> NatsClient:
        return await self._connect(self._pool.settings, closed=session.closed, error=session.error, name=CLIENT_NAME)

    async def _send(self, client: NatsClient, session: _Session, data: bytes) -> None:
        """Send, and wait until the server has it. Raises ConnectionFailedError."""
        self._sent = self._clock()
        try:
            await client.publish(self._pool.subject, data)
            await client.confirm(CONFIRM_SECONDS)
        except (nats.errors.Error, TimeoutError):
            raise ConnectionFailedError(session.why or "the server does not confirm what it is sent") from None
        if session.why is not None:
            raise ConnectionFailedError(session.why)
        log.debug("[pool] %s: %s", self._pool.subject, data.decode())

    def _log_change(self, what: str, why: str | None) -> None:
        """Log what has changed."""
        before, self._problems[what] = self._problems[what], why
        if why is not None and why != before:
            log.warning("[pool] %s: %s; nothing is published until that is mended", what, why)
        elif why is None and before is not None:
            well = f"publishes to {plain(self._pool.subject)}" if what == "NATS" else "is read"
            log.info("[pool] %s: %s%s", what, well, " again" if before else "")
