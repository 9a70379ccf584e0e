"""One connector's connection: opened, watched, and opened again when it is lost, until its task is cancelled."""

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
"""After a connection of this length its loss is the first one again."""
CONFIRM_SECONDS: Final = 10.0
"""For the server's answer to subscriptions."""
MOST_WAITING: Final = 4096
"""Messages of a subject that may wait to be handed on, and their bytes."""
MOST_WAITING_BYTES: Final = 8 << 20
CLIENT_NAME: Final = "fluence-master-queue"


class Listener(Protocol):
    """Who hears of connections and messages. A connector is named as the MasterQueue spells it.

    All are called on the loop, and are to return soon. `lost` comes before the first connection too, if that fails,
    and again whenever its reason changes; `connected` comes once between.
    """

    def connected(self, connector: str) -> None:
        """It is connected, and the server has confirmed every subject: from now on silence is a pool's."""

    def lost(self, connector: str, why: str, unheard: float) -> None:
        """It is not connected, or a subject is refused; one line, without secrets. For the last `unheard` seconds it
        may have been so already: nothing came from the server.
        """

    def message(self, connector: str, subject: str, message_subject: str, data: bytes) -> None:
        """One message to `subject`, as in `follow`; `message_subject` ends with the pool's name."""


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """What all connections share."""

    listener: Listener
    meter: MasterQueueMetrics
    sleep: Callable[[float], Awaitable[None]]
    clock: Callable[[], float]
    """Seconds, monotonic."""
    chance: Random


class Connection:
    """The connection of one connector, with the subjects that are wanted of it."""

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
        """For how long nothing had come when the last connection ended, in seconds."""
        self._session: _Session | None = None

    def subscribe_to(self, subjects: Collection[str]) -> None:
        """Subscribe to these subjects and no others, as soon as may be."""
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
        """One connection, to its end. Raises ConnectionFailedError."""
        session = _Session(self._label, self._context.meter)
        client = await open_connection(self._settings, closed=session.closed, error=session.error, name=CLIENT_NAME)
        try:
            if self._been_there:
                self._context.meter.reconnected(self._label)
            self._session = session
            await self._serve(client, session)
        except TimeoutError:
            raise ConnectionFailedError("the server does not answer subscriptions in time") from None
        except nats.errors.Error as error:
            raise ConnectionFailedError(session.ended or str(error)) from None
        finally:
            self._session = None
            self._unheard = time.monotonic() - client.guard.heard_at
            await close_connection(client)

    async def _serve(self, client: NatsClient, session: _Session) -> None:
        """Keep subjects in step. Raises ConnectionFailedError where it ends, errors of nats-py."""
        known: dict[str, Subscription] = {}
        retry = Backoff(FIRST_SECONDS, LONGEST_SECONDS, self._context.chance)
        while True:
            wanted = self._subjects
            await self._in_step(client, known, wanted, session)
            session.changed.clear()  # for what is looked at here
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

    async def _in_step(
        self, client: NatsClient, known: dict[str, Subscription], wanted: frozenset[str], session: _Session
    ) -> None:
        """Subscribe to what is wanted, and to nothing else, and let the server confirm it."""
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
            await asyncio.sleep(0)  # else thousands that wait would hold up all else, the lease's renewal too

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
    """What the server and the library say of one connection."""

    def __init__(self, label: str, meter: MasterQueueMetrics) -> None:
        self.ended: str | None = None
        self.changed = asyncio.Event()
        self._label = label
        self._meter = meter
        self._refused: dict[str, str] = {}
        self._leaving = False
        self._dropped = False

    def closed(self, why: str) -> None:
        """It is over."""
        self.ended = why
        self.changed.set()

    def error(self, error: FluenceError) -> None:
        """Something that it outlives."""
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
                    log.warning("[master-queue] NATS %s: %s; more of these are counted only", self._label, error)

    def check(self, *, alternatives: bool) -> None:
        """Raises ConnectionFailedError where the connection is over, or its server leaves and there are others."""
        if self.ended is not None:
            raise ConnectionFailedError(self.ended)
        if self._leaving and alternatives:
            raise ConnectionFailedError("the server is about to shut down: another one is tried")

    def allow(self, subject: str) -> None:
        """Forget that it was refused: it is tried again."""
        self._refused.pop(_key(subject), None)

    def refused_of(self, subjects: Collection[str]) -> dict[str, str]:
        """Of these subjects those that were refused, with the server's reasons."""
        return {one: self._refused[_key(one)] for one in sorted(subjects) if _key(one) in self._refused}


def _key(subject: str) -> str:
    """A subject as an error names it."""
    return f"{subject}.*".lower()
