"""One of several replicas of a plugin's own server does the work, as of the scheduler's. Public.

    election = LeaderElection(name="one")
    async with connect(kubeconfig, context, election) as cluster:
        status = await Leadership(election).run(cluster, stop, serve)

`serve` is called as a plugin's hook of that name, once this replica leads: so a plugin's tasks run in `fluence run`
and in a server of their own alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import structlog

from session_scheduler.base.clock import SystemClock
from session_scheduler.base.signals import background, first_of
from session_scheduler.cluster import kubernetes
from session_scheduler.cluster.dynamic_client import KubeApi
from session_scheduler.cluster.errors import NotLeading
from session_scheduler.cluster.kube_requests import RequestSettings
from session_scheduler.cluster.kubernetes import KubernetesCluster
from session_scheduler.cluster.leader_election import Elector, new_identity
from session_scheduler.config.settings import LeaderElection
from session_scheduler.framework.bindings import Runtime

_log = structlog.get_logger(__name__)
LOST: Final = 1
"""Exit status where the lease was lost: whoever started the process starts it again, and it stands by."""


@asynccontextmanager
async def connect(
    kubeconfig: str | None, context: str | None, election: LeaderElection
) -> AsyncGenerator[KubernetesCluster]:
    """A candidate's cluster: of `kubeconfig`, else of $KUBECONFIG, ~/.kube/config or the pod. Raises InputError."""
    settings = RequestSettings.for_leader(election) if election.enabled else RequestSettings()
    async with await kubernetes.connect(kubeconfig, context, settings) as cluster:
        yield cluster


class Leadership:
    """One replica's part in it."""

    def __init__(self, election: LeaderElection) -> None:
        self._election = election
        self._elector: Elector | None = None

    @property
    def leading(self) -> bool:
        """Whether this replica leads now."""
        return not self._election.enabled or (self._elector is not None and self._elector.fence.leading)

    def problems(self) -> Mapping[str, str | None]:
        """For /readyz: as what this replica is ready, or why it is not. One that could take over is."""
        if self.leading:
            return {"leading": None}
        elector = self._elector
        silent = elector is None or elector.silent > self._election.lease_seconds
        return {"standing-by": "the lease was not seen lately: look into the log for why" if silent else None}

    async def run(
        self,
        cluster: KubernetesCluster,
        stop: asyncio.Event,
        serve: Callable[[Runtime], AbstractAsyncContextManager[None]],
    ) -> int:
        """Serve, while this replica leads, until `stop` is set or the lease is lost. Returns the exit status."""
        runtime = Runtime(lambda *_: None, lambda: self.leading, cluster, api=KubeApi(cluster.client))
        if not self._election.enabled:
            async with serve(runtime):
                await stop.wait()
            return 0
        elector = self._elector = Elector(cluster, self._election, identity=new_identity(), clock=SystemClock())
        cluster.fence_writes(elector.fence.check)
        lost = False
        try:
            await first_of(elector.acquire(), stop.wait())
            if not stop.is_set():
                await self._lead(elector, stop, serve(runtime))
        except NotLeading as error:
            lost = True
            _log.error("this replica leads no more: it ends, and stands by when it is started again", why=str(error))
        finally:
            if not lost:
                await elector.release()  # nothing is written any more, however it ended
        return LOST if lost else 0

    async def _lead(self, elector: Elector, stop: asyncio.Event, serving: AbstractAsyncContextManager[None]) -> None:
        async with background(elector.keep()) as keeping, serving:
            await first_of(stop.wait(), beside=keeping)
