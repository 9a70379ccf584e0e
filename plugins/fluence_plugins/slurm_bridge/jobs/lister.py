"""The lister: reads Slurm's jobs into the job table, often while jobs are pending, with backoff while Slurm is down."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fluence_plugins.slurm_bridge.batches import in_batches
from fluence_plugins.slurm_bridge.jobs.job_table import JobTable
from fluence_plugins.slurm_bridge.jobs.reconciler import FIRST_BACKOFF_SECONDS
from fluence_plugins.slurm_bridge.metrics import BridgeMetrics
from fluence_plugins.slurm_bridge.slurm.client import SlurmClient
from session_scheduler.sdk.backoff import backoff

log = logging.getLogger("slurm-bridge")

_QUIET_TICKS: Final = 10
"""Ticks between two lists while no job is pending."""
_FULL_LIST_SECONDS: Final = 30.0
"""Seconds between two full lists; a list between them asks Slurm only for changes."""
MAX_DOWN_SECONDS: Final = 15.0
"""The longest backoff while Slurm is down."""


@dataclass(eq=False)
class JobLister:
    """Keeps the job table up to date. `tick`: seconds between two lists while a job is pending."""

    client: SlurmClient
    table: JobTable
    metrics: BridgeMetrics
    tick: float
    now: Callable[[], float]

    def __post_init__(self) -> None:
        self.down = ""
        """Why the last list failed; empty if it succeeded."""
        self.listed_at = -math.inf
        """When the last list began."""
        self.due = 0.0
        """When the next list is due."""
        self._last_update = 0
        self._full_due = 0.0
        self._failures = 0

    def reset(self) -> None:
        """Make the next list a full one: another replica may create and change jobs."""
        self.due = self._full_due = 0.0

    def expect_change(self) -> None:
        """List again in at most one tick."""
        self.due = min(self.due, self.now() + self.tick)

    async def list(self) -> bool:
        """List jobs, and read each job that only a pod's label names. Returns whether the list was full and had
        changes.

        Raises FluenceError.
        """
        begun = self.now()
        full = begun >= self._full_due
        with self.metrics.request("jobs"):
            listing = await self.client.jobs(0 if full else self._last_update)
        self.listed_at = begun
        if listing.changed:
            self._last_update = listing.last_update
            self.table.replace_jobs(listing.jobs, (one.key for one in listing.unreadable if isinstance(one.key, int)))
            if full:
                self._full_due = begun + _FULL_LIST_SECONDS
        await in_batches(self.table.missing_jobs(), self._read_missing)
        self._failures = 0
        if self.down:
            log.info("[slurm-bridge] Slurm is available again")
            self.down = ""
        self.due = self.now() + self.tick * (1 if self.table.has_pending_jobs() else _QUIET_TICKS)
        return full and listing.changed

    def failed(self, text: str) -> None:
        """Record a failed list: the backoff doubles with each failure."""
        self.due = self.now() + backoff(FIRST_BACKOFF_SECONDS, self._failures, MAX_DOWN_SECONDS)
        self._failures += 1
        if self.down != text:
            log.warning("[slurm-bridge] Slurm is unavailable: %s", text)
            self.down = text

    async def read(self, number: int) -> None:
        """Read one job right after a write; if that fails, the next list contains it. Raises FluenceError."""
        self.expect_change()
        with self.metrics.request("job"):
            job = await self.client.job(number)
        if job is not None:
            self.table.put_job(job)

    async def _read_missing(self, number: int) -> None:
        with self.metrics.request("job"):
            job = await self.client.job(number)
        if job is None:
            self.table.mark_unknown(number)
        else:
            self.table.put_job(job)
