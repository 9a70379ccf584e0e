"""Writes the status of Queue objects: their amounts and the condition Ready. It runs concurrently with scheduling.

It writes changes only: a queue's amounts every few seconds at most, its condition at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from session_scheduler.base.clock import Clock, utc_now
from session_scheduler.cluster.errors import ClusterError, Conflict, NotFound, NotLeading
from session_scheduler.cluster.port import Cluster
from session_scheduler.model.queue_objects import Queue, QueueCondition, QueueStatus
from session_scheduler.model.queues import shown_amounts
from session_scheduler.model.times import time_text
from session_scheduler.state.cache import Cache

_log = structlog.get_logger(__name__)
READY = "Ready"
_CHECK_SECONDS = 1.0
_REST_SECONDS = 5.0
"""The interval between two writes of a queue's amounts."""
_QUIET_SECONDS = 60.0
_EXPECTED = (Conflict, NotFound, NotLeading)
"""A concurrent write, a deleted queue, or another leader: the next check decides."""


class QueueStatusWriter:
    """Writes statuses while `run` runs. Changes of the cluster wait while `in_session` returns true."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        *,
        clock: Clock,
        in_session: Callable[[], bool] = lambda: False,
        now: Callable[[], datetime] = utc_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._clock = clock
        self._in_session = in_session
        self._now = now
        self._sleep = sleep
        self._written: dict[str, float] = {}
        """By uid: the time of the last write."""
        self._quiet_until = float("-inf")

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self.write()
            await self._sleep(_CHECK_SECONDS)

    async def write(self) -> None:
        """Write each status that has changed."""
        queues = dict(sorted(self._cache.objects.of(Queue).items()))
        if not queues:
            return
        if not self._in_session():
            self._cache.queues.reconcile()
        wanted = {name: self.status(queue) for name, queue in queues.items()}
        uids = {queue.metadata.uid for queue in queues.values()}
        self._written = {uid: when for uid, when in self._written.items() if uid in uids}
        for name, queue in queues.items():
            if wanted[name] != queue.status and self._due(queue, wanted[name]):
                await self._write(queue, wanted[name])

    def status(self, queue: Queue) -> QueueStatus:
        """The current status of a queue."""
        use = self._cache.queues
        known, now = queue.status.conditions, time_text(self._now())
        problem = use.problem(queue)
        if problem is not None:
            not_ready = QueueCondition(type=READY, status="False", reason=problem.reason, message=problem.message)
            return QueueStatus(conditions=(not_ready.since(known, now),))
        counts, shares = use.counts(queue.key), use.shares(self._cache.table)
        ready = QueueCondition(type=READY, status="True", reason="Ready", message="")
        return QueueStatus(
            allocated=shown_amounts(counts.allocated),
            pending=shown_amounts(counts.pending),
            fair_share=shown_amounts(shares.fair.get(queue.key, {})),
            conditions=(ready.since(known, now),),
        )

    def _due(self, queue: Queue, wanted: QueueStatus) -> bool:
        conditions = [(one.status, one.reason) for one in wanted.conditions]
        changed = conditions != [(one.status, one.reason) for one in queue.status.conditions]
        since = self._clock.now() - self._written.get(queue.metadata.uid, float("-inf"))
        return since >= (_CHECK_SECONDS if changed else _REST_SECONDS)

    async def _write(self, queue: Queue, status: QueueStatus) -> None:
        self._written[queue.metadata.uid] = self._clock.now()
        try:
            await self._cluster.write_queue_status(queue, status)
        except _EXPECTED:
            return
        except ClusterError as error:
            if self._clock.now() >= self._quiet_until:
                self._quiet_until = self._clock.now() + _QUIET_SECONDS
                _log.warning("writing a queue's status failed", queue=queue.key, why=str(error))
