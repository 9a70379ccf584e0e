"""Reconciles LocalQueues: creates those that namespaces request, and deletes its own that no namespace requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from fluence_plugins.master_queue.api import informer_store
from fluence_plugins.master_queue.api.master_queue import MasterQueue
from fluence_plugins.master_queue.api.server_side_apply import Applier
from fluence_plugins.master_queue.controller.local_queues import desired_local_queues
from session_scheduler.model.meta import OwnerReference
from session_scheduler.sdk.dynamic_client import ClusterError

log = logging.getLogger("master-queue")

_REST_SECONDS: Final = 0.1
_AGAIN_SECONDS: Final = 5.0
"""The pause after a failure."""


@dataclass(eq=False)
class LocalQueueReconciler:
    """Reconciles the LocalQueues of all namespaces. `run` is its task."""

    store: informer_store.Store
    applier: Applier
    unknown: Callable[[], Collection[type]]

    def __post_init__(self) -> None:
        self._due = asyncio.Event()
        self._logged: tuple[str, ...] = ()
        """The last logged problems, which are not logged again."""

    def requeue(self) -> None:
        """Schedule a pass, because a namespace, a queue or a MasterQueue has changed."""
        self._due.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            if await self._reconcile():
                await asyncio.sleep(_REST_SECONDS)
            else:
                self._due.set()
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _reconcile(self) -> bool:
        """One pass; returns whether all writes succeeded. A failure does not stop the others."""
        if informer_store.LOCAL_QUEUES.kind in self.unknown():
            self._log_new((f"{informer_store.LOCAL_QUEUES.plural}: {informer_store.UNLISTED}",))
            return False
        there = {one.key: one for one in self.store.all(informer_store.ObservedLocalQueue)}
        found = desired_local_queues(list(self.store.all(informer_store.ObservedNamespace)), there, self._owners())
        failures: list[str] = []
        for old in found.gone:
            await _try(failures, self.applier.delete(informer_store.LOCAL_QUEUES, old))
        for wanted in found.wanted:
            await _try(failures, self.applier.apply(informer_store.LOCAL_QUEUES, wanted))
        self._log_new((*found.problems, *failures))
        return not failures

    def _log_new(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            if line not in self._logged:
                log.warning("[master-queue] %s", line)
        self._logged = lines

    def _owners(self) -> dict[str, OwnerReference]:
        """The MasterQueue of each ClusterQueue that has one."""
        masters = {master.metadata.uid: master for master in self.store.all(MasterQueue)}
        queues = self.store.all(informer_store.ObservedQueue)
        return {one.key: masters[one.owner].owner for one in queues if one.owner in masters}


async def _try(failures: list[str], write: Coroutine[Any, Any, object]) -> None:
    try:
        await write
    except ClusterError as error:
        failures.append(str(error))
