"""The connections of all MasterQueues to their NATS servers, kept up and in step with what is wanted."""

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
    """A connection for each connector that is wanted."""

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
        self._kept: dict[str, Connection] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    def follow(self, wanted: Mapping[str, Collection[str]]) -> None:
        """Want these natsSubjects of these connectors, spelt as in the MasterQueue, and nothing else.

        To be called at any time; connections that are still wanted stay, whatever becomes of their subjects. What
        is not wanted any more may be heard for another moment.
        """
        self._wanted = {connector: frozenset(subjects) for connector, subjects in wanted.items() if subjects}
        for connector in [one for one in self._unusable if one not in self._wanted]:
            del self._unusable[connector]
        for connector, kept in list(self._kept.items()):
            if connector in self._wanted:
                kept.want(self._wanted[connector])
            else:
                self._drop(connector)
        self._changed.set()

    def problem(self, connector: str) -> str | None:
        """Why a connector is not connected now, in one line; None where it is."""
        if connector in self._unusable:
            return self._unusable[connector]
        kept = self._kept.get(connector)
        return kept.problem if kept is not None else "not connected yet"

    def states(self) -> dict[str, bool]:
        """Of each wanted connector, by its label, whether it is connected; all, where several users have one label."""
        found: dict[str, bool] = {}
        for one in self._wanted:
            label = label_of(one, self._configured)
            found[label] = found.get(label, True) and self.problem(one) is None
        return found

    async def run(self) -> None:
        """Keep the connections until cancelled; then end them all within a second."""
        try:
            while True:
                self._changed.clear()
                await self._in_step()
                await self._changed.wait()
        finally:
            for connector in list(self._kept):
                self._drop(connector)
            await self._end()

    async def _in_step(self) -> None:
        for task in self._tasks.values():
            if task.done():
                task.result()  # a bug ended it
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
        kept = self._kept[connector] = Connection(connector, label, settings, self._context)
        kept.want(subjects)
        self._tasks[connector] = asyncio.create_task(kept.run(), name=f"NATS {label}")
        self._tasks[connector].add_done_callback(lambda _: self._changed.set())

    def _drop(self, connector: str) -> None:
        """Nothing is told of it any more; wanted again it is another connection."""
        del self._kept[connector]
        task = self._tasks.pop(connector)
        task.cancel()
        self._ending.append(task)

    async def _end(self) -> None:
        ending, self._ending = self._ending, []
        await asyncio.gather(*ending, return_exceptions=True)
