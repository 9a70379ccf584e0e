"""The connections of all MasterQueues to their NATS servers: starts and ends them as the desired subjects change."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from fluence_plugins.master_queue.metrics import MasterQueueMetrics
from fluence_plugins.master_queue.nats.connection import Connection, ConnectionContext, Listener
from fluence_plugins.master_queue.nats.settings import ConnectorSettings, label_of, settings_of
from session_scheduler.errors import InputError

log = logging.getLogger("master-queue")


class Connections:
    """Maintains a connection for each desired connector."""

    def __init__(
        self,
        configured: Mapping[str, ConnectorSettings],
        listener: Listener,
        *,
        meter: MasterQueueMetrics,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        self._configured = configured
        self._context = ConnectionContext(listener, meter, sleep, clock, chance or random.Random())  # noqa: S311 (jitter)
        self._wanted: dict[str, frozenset[str]] = {}
        self._unusable: dict[str, str] = {}
        self._connections: dict[str, Connection] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    def follow(self, wanted: Mapping[str, Collection[str]]) -> None:
        """Set the desired natsSubjects of each connector, which has the name that the MasterQueue uses.

        May be called at any time. Connections that are still desired stay, whatever happens to their subjects. Messages
        of removed subjects may still arrive for a moment.
        """
        self._wanted = {connector: frozenset(subjects) for connector, subjects in wanted.items() if subjects}
        for connector in [one for one in self._unusable if one not in self._wanted]:
            del self._unusable[connector]
        for connector, connection in list(self._connections.items()):
            if connector in self._wanted:
                connection.subscribe_to(self._wanted[connector])
            else:
                self._drop(connector)
        self._changed.set()

    def problem(self, connector: str) -> str | None:
        """Why a connector is not connected, in one line; None if it is."""
        if connector in self._unusable:
            return self._unusable[connector]
        connection = self._connections.get(connector)
        return connection.problem if connection is not None else "not connected yet"

    def states(self) -> dict[str, bool]:
        """Whether each desired connector is connected, by its label; if several share a label,
        whether all of them are.
        """
        found: dict[str, bool] = {}
        for one in self._wanted:
            label = label_of(one, self._configured)
            found[label] = found.get(label, True) and self.problem(one) is None
        return found

    async def run(self) -> None:
        """Maintain the connections until cancelled; then close them within a second."""
        try:
            while True:
                self._changed.clear()
                await self._sync()
                await self._changed.wait()
        finally:
            for connector in list(self._connections):
                self._drop(connector)
            await self._end()

    async def _sync(self) -> None:
        for task in self._tasks.values():
            if task.done():
                task.result()  # raises the bug that ended it
        await self._end()
        for connector, subjects in self._wanted.items():
            if connector not in self._tasks and connector not in self._unusable:
                self._begin(connector, subjects)

    def _begin(self, connector: str, subjects: Collection[str]) -> None:
        label = label_of(connector, self._configured)
        try:
            settings = settings_of(connector, self._configured)
        except InputError as error:
            self._unusable[connector] = str(error)
            log.warning("[master-queue] natsConnector %s: %s", label, error)
            self._context.listener.lost(connector, str(error), 0.0)
            return
        connection = self._connections[connector] = Connection(connector, label, settings, self._context)
        connection.subscribe_to(subjects)
        self._tasks[connector] = asyncio.create_task(connection.run(), name=f"NATS {label}")
        self._tasks[connector].add_done_callback(lambda _: self._changed.set())

    def _drop(self, connector: str) -> None:
        """End a connection without further events; a later one is a new connection."""
        del self._connections[connector]
        task = self._tasks.pop(connector)
        task.cancel()
        self._ending.append(task)

    async def _end(self) -> None:
        ending, self._ending = self._ending, []
        await asyncio.gather(*ending, return_exceptions=True)
