"""The watch history of the in-memory cluster: a bounded number of changes, so that watches can start in the past."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator
from typing import Generic

from session_scheduler.cluster.errors import Gone
from session_scheduler.cluster.port import Kube, WatchEvent


class WatchHistory(Generic[Kube]):
    """The last changes of one kind, and the watches that wait for the next. Versions only increase."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: list[WatchEvent[Kube]] = []
        self._versions: list[int] = []
        self._dropped = 0
        """Number of forgotten events, and so the number of the first one that is kept."""
        self._forgotten = 0
        """The version of the last forgotten event; a watch may start at it or later."""
        self._waiting: set[asyncio.Future[None]] = set()
        self._ended = 0

    def add(self, version: int, event: WatchEvent[Kube]) -> None:
        """Remember a change and notify the watchers."""
        self._events.append(event)
        self._versions.append(version)
        if len(self._events) > 2 * self._limit:  # dropping many at once keeps the cost per event low
            self.forget(self._limit)
        self._notify()

    def forget(self, keep: int = 0) -> None:
        """Drop all but the last `keep` changes. Watches from before them, and slow watches, raise Gone."""
        drop = len(self._events) - keep
        if drop > 0:
            self._forgotten = self._versions[drop - 1]
            self._dropped += drop
            del self._events[:drop], self._versions[:drop]

    def end_watches(self) -> None:
        """End all watches, as broken connections do."""
        self._ended += 1
        self._notify()

    def _notify(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def since(self, version: int) -> AsyncGenerator[WatchEvent[Kube], None]:
        """Yield every change after the version. Raises Gone if one of them is forgotten."""
        if version < self._forgotten:
            raise Gone(f"too old resource version: {version} ({self._forgotten}); list again")
        at = self._dropped + bisect_right(self._versions, version)
        ended = self._ended
        while self._ended == ended:
            if at < self._dropped:
                raise Gone("the watch fell too far behind; list again")
            if at < self._dropped + len(self._events):
                at += 1
                yield self._events[at - 1 - self._dropped]
            else:
                await self._next()

    async def _next(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)
