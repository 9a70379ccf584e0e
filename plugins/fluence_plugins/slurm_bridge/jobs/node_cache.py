"""A cache of Slurm's nodes and of the share that each job has of a node. Concurrent readers share one request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Container, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

from fluence_plugins.slurm_bridge.metrics import BridgeMetrics
from fluence_plugins.slurm_bridge.slurm.client import SlurmClient
from fluence_plugins.slurm_bridge.slurm.gres import known_of
from fluence_plugins.slurm_bridge.slurm.model import NodeShare
from fluence_plugins.slurm_bridge.workloads.translation import Terms

_MAX_AGE_SECONDS: Final = 30.0
"""The maximum age of the node list."""


@dataclass(eq=False)
class NodeCache:
    """`tick`: the minimum age of the node list before a node that it lacks causes another read."""

    client: SlurmClient
    metrics: BridgeMetrics
    tick: float
    now: Callable[[], float]

    def __post_init__(self) -> None:
        self.gres: dict[str, str] = {}
        """The GRES of each Slurm node."""
        self.terms = Terms()
        self.generation = 0
        """Incremented by each list that contains new nodes."""
        self._read_at = -math.inf
        self._shares: dict[int, tuple[NodeShare, ...]] = {}
        """By job number."""
        self._reading: dict[object, asyncio.Task[None]] = {}

    async def refresh(self, wanted: Iterable[str]) -> None:
        """Read the nodes if the list is old or lacks one of the wanted nodes. Raises FluenceError."""
        age = self.now() - self._read_at
        if age >= _MAX_AGE_SECONDS or (age >= self.tick and not self.gres.keys() >= set(wanted)):
            await self._once("nodes", self._read_nodes)

    async def share_of(self, job_id: int, node: str) -> tuple[NodeShare, str] | None:
        """What Slurm allocated to a job on one of its nodes, and all GRES of that node; None if Slurm does not report
        it.

        Raises FluenceError.
        """
        if job_id not in self._shares:
            await self._once(job_id, lambda: self._read_shares(job_id))
        await self.refresh((node,))
        known = self._shares.get(job_id, ())
        return next(((share, self.gres.get(node, "")) for share in known if share.node == node), None)

    def prune(self, jobs: Container[int]) -> None:
        """Drop the shares of all other jobs."""
        self._shares = {number: shares for number, shares in self._shares.items() if number in jobs}

    def close(self) -> None:
        """Cancel the reads in flight."""
        for reading in self._reading.values():
            reading.cancel()

    async def _read_nodes(self) -> None:
        with self.metrics.request("nodes"):
            nodes = await self.client.nodes()
        if not self.gres.keys() >= {node.name for node in nodes}:
            self.generation += 1
        self.gres = {node.name: node.gres for node in nodes}
        self.terms = Terms(known_gres=known_of(self.gres.values()))
        self._read_at = self.now()

    async def _read_shares(self, job_id: int) -> None:
        with self.metrics.request("resources"):
            found = await self.client.resources(job_id)
        if found:
            self._shares[job_id] = found

    async def _once(self, key: object, read: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the read, or wait for the one in flight. Each waiter gets its error."""
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.ensure_future(read())
            reading.add_done_callback(lambda done: self._end(key, done))
        await asyncio.shield(reading)

    def _end(self, key: object, done: asyncio.Task[None]) -> None:
        del self._reading[key]
        if not done.cancelled():
            done.exception()  # mark it as retrieved: all waiters may be gone
