"""The connection of one connector: connects, subscribes, and reconnects until its task is cancelled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fluence_plugins.master_queue.errors import (
    ConnectionFailedError,
    DroppedMessagesError,
    LeavingError,
    RefusedSubjectError,
)
from fluence_plugins.master_queue.metrics import MasterQueueMetrics
from fluence_plugins.master_queue.nats.client import NatsClient, close_connection, open_connection
from fluence_plugins.master_queue.nats.settings import ConnectorSettings
from session_scheduler.errors import FluenceError, plain
from session_scheduler.sdk.backoff import Backoff
from session_scheduler.sdk.signals import first_of

log = logging.getLogger("master-queue")

FIRST_SECONDS: Final = 0.25
LONGEST_SECONDS: Final = 15.0
STEADY_SECONDS: Final = 30.0
"""A connection that lasts this long resets the backoff."""
CONFIRM_SECONDS: Final = 10.0
"""For the server's response to subscriptions."""
MOST_WAITING: Final = 4096
"""The maximum number of unhandled messages per subject, and their maximum total size in bytes."""
MOST_WAITING_BYTES: Final = 8 << 20
CLIENT_NAME: Final = "fluence-master-queue"


class Listener(Protocol):
    """Receives the events and messages of connections. A connector has the name that the MasterQueue uses.

    All methods are called on the event loop and must return quickly. `lost` is also called if the first connection
    fails, and again when its reason changes; `connected` is called once in between.
    """

    def connected(self, connector: str) -> None:
        """The connector is connected, and the server has confirmed all subscriptions: silence now means that pools are
        silent.
        """

    def lost(self, connector: str, why: str, unheard: float) -> None:
        """The connector is not connected, or a subject is refused; `why` is one line without secrets. The connection
        may have been down for the last `unheard` seconds, in which the server sent nothing.
        """

    def message(self, connector: str, subject: str, message_subject: str, data: bytes) -> None:
        """A message to `subject`, as in `follow`; `message_subject` ends with the pool's name."""


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The dependencies that all connections share."""

    listener: Listener
    meter: MasterQueueMetrics
    sleep: Callable[[float], Awaitable[None]]
    clock: Callable[[], float]
    """Seconds, monotonic."""
    chance: Random


class Connection:
    """The connection of a connector, with its desired subjects."""

    def __init__(self, connector: str, label: str, settings: ConnectorSettings, context: ConnectionContext) -> None:
        self.problem: str | None = "not connected yet"
        self._connector = connector
        self._label = plain(label)
        self._settings = settings
        self._context = context
        self._subjects: frozenset[str] = frozenset()
        self._backoff = Backoff(FIRST_SECONDS, LONGEST_SECONDS, context.chance)
        self._been_there = False
        self._unheard = 0.0
        """Seconds without data from the server before the last connection ended."""
        self._session: _Session | None = None

    def subscribe_to(self, subjects: Collection[str]) -> None:
        """Subscribe to exactly these subjects, as soon as possible."""
        self._subjects = frozenset(subjects)
        if self._session is not None:
            self._session.changed.set()

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            began = self._context.clock()
            self._unheard = 0.0
            try:
                await self._once()
            except ConnectionFailedError as error:
                self._down(str(error))
            if self._context.clock() - began >= STEADY_SECONDS:
                self._backoff.reset()
            await self._context.sleep(self._backoff.next())

    async def _once(self) -> None:
        """Run one connection until it ends. Raises ConnectionFailedError."""
        session = _Session(self._label, self._context.meter)
        client = await open_connection(self._settings, closed=session.closed, error=session.error, name=CLIENT_NAME)
        try:
            if self._been_there:
                self._context.meter.reconnected(self._label)
            self._session = session
            await self._serve(client, session)
        except TimeoutError:
            raise ConnectionFailedError("the server does not confirm subscriptions in time") from None
        except nats.errors.Error as error:
            raise ConnectionFailedError(session.ended or str(error)) from None
        finally:
            self._session = None
            self._unheard = time.monotonic() - client.guard.heard_at
            await close_connection(client)

    async def _serve(self, client: NatsClient, session: _Session) -> None:
        """Keep the subscriptions up to date. Raises ConnectionFailedError if the connection ends, and errors of
        nats-py.
        """
        known: dict[str, Subscription] = {}
        retry = Backoff(FIRST_SECONDS, LONGEST_SECONDS, self._context.chance)
        while True:
            wanted = self._subjects
            await self._sync_subscriptions(client, known, wanted, session)
            session.changed.clear()  # before the checks below
            session.check(alternatives=len(self._settings.addresses) > 1)
            refused = session.refused_of(known)
            if refused and self._subjects == wanted:
                self._down("; ".join(refused.values()))
                for subject in refused:
                    await known.pop(subject).unsubscribe()
                await first_of(session.changed.wait(), self._context.sleep(retry.next()))
            elif self._subjects == wanted:
                retry.reset()
                self._up()
                await session.changed.wait()

    async def _sync_subscriptions(
        self, client: NatsClient, known: dict[str, Subscription], wanted: frozenset[str], session: _Session
    ) -> None:
        """Subscribe to the wanted subjects, unsubscribe from the others, and wait for the server's confirmation."""
        for subject in [one for one in known if one not in wanted]:
            await known.pop(subject).unsubscribe()
        fresh = sorted(wanted - set(known))
        for subject in fresh:
            session.allow(subject)
            known[subject] = await client.subscribe(
                f"{subject}.*",
                cb=self._handler(subject),
                pending_msgs_limit=MOST_WAITING,
                pending_bytes_limit=MOST_WAITING_BYTES,
            )
        if fresh:
            await client.confirm(CONFIRM_SECONDS)

    def _handler(self, subject: str) -> Callable[[Msg], Awaitable[None]]:
        async def handle(message: Msg) -> None:
            self._context.listener.message(self._connector, subject, message.subject, message.data)
            # Otherwise thousands of waiting messages would block everything else, even the renewal of the Lease.
            await asyncio.sleep(0)

        return handle

    def _up(self) -> None:
        if self.problem is None:
            return
        self.problem = None
        log.info("[master-queue] NATS %s: connected%s", self._label, " again" if self._been_there else "")
        self._been_there = True
        self._context.listener.connected(self._connector)

    def _down(self, why: str) -> None:
        if self.problem == why:
            return
        self.problem = why
        log.warning("[master-queue] NATS %s: %s", self._label, why)
        self._context.listener.lost(self._connector, why, self._unheard)


class _Session:
    """The errors that the server and nats-py report for one connection."""

    def __init__(self, label: str, meter: MasterQueueMetrics) -> None:
        self.ended: str | None = None
        self.changed = asyncio.Event()
        self._label = label
        self._meter = meter
        self._refused: dict[str, str] = {}
        self._leaving = False
        self._dropped = False

    def closed(self, why: str) -> None:
        """The connection has ended."""
        self.ended = why
        self.changed.set()

    def error(self, error: FluenceError) -> None:
        """An error that does not end the connection."""
        match error:
            case RefusedSubjectError():
                self._refused[error.subject] = str(error)
                self.changed.set()
            case LeavingError():
                self._leaving = True
                self.changed.set()
            case DroppedMessagesError():
                self._meter.dropped(self._label)
                if not self._dropped:
                    self._dropped = True
                    log.warning("[master-queue] NATS %s: %s; further ones are only counted", self._label, error)

    def check(self, *, alternatives: bool) -> None:
        """Raise ConnectionFailedError if the connection has ended, or its server will shut down and
        there are others.
        """
        if self.ended is not None:
            raise ConnectionFailedError(self.ended)
        if self._leaving and alternatives:
            raise ConnectionFailedError("the server is about to shut down: trying another server")

    def allow(self, subject: str) -> None:
        """Forget a refusal of this subject, because it is retried."""
        self._refused.pop(_key(subject), None)

    def refused_of(self, subjects: Collection[str]) -> dict[str, str]:
        """The refused ones of these subjects, with the server's reasons."""
        return {one: self._refused[_key(one)] for one in sorted(subjects) if _key(one) in self._refused}


def _key(subject: str) -> str:
    """The subject as errors name it."""
    return f"{subject}.*".lower()
