"""Leadership: of several replicas of a server one does the work. The scheduler and plugins' own servers use it. Public.

    election = LeaderElection(name="one")
    async with connect(kubeconfig, context, election) as cluster:
        status = await Leadership(election).run(cluster, stop, serve)

`serve` is called as a plugin's hook of that name, once this replica leads: so a plugin's tasks run in `fluence run`
and in a server of their own alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Final

import structlog

from session_scheduler.base.clock import Clock, SystemClock
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
    kubeconfig: str | None, context: str | None, election: LeaderElection, connections: int = 0
) -> AsyncGenerator[KubernetesCluster]:
    """A candidate's cluster: of `kubeconfig`, else of $KUBECONFIG, ~/.kube/config or the pod. Raises InputError.

    `connections`: so many at once, where the default is fewer.
    """
    settings = RequestSettings.for_leader(election) if election.enabled else RequestSettings()
    settings = replace(settings, connections=max(settings.connections, connections))
    async with await kubernetes.connect(kubeconfig, context, settings) as cluster:
        yield cluster


class Leadership:
    """One replica's part in it."""

    def __init__(
        self, election: LeaderElection, *, clock: Clock | None = None, renewal_failed: Callable[[], None] = lambda: None
    ) -> None:
        """`renewal_failed` is called for each renewal of the lease that fails."""
        self.identity = new_identity()
        self._election = election
        self._clock = clock
        self._renewal_failed = renewal_failed
        self._elector: Elector | None = None

    @property
    def leading(self) -> bool:
        """Whether this replica leads now."""
        return not self._election.enabled or (self._elector is not None and self._elector.fence.leading)

    @property
    def token(self) -> str:
        """Tells this time of leading from all others; empty without an election."""
        return self._elector.token if self._elector is not None else ""

    @property
    def holder(self) -> str:
        """The replica that was last seen to lead; empty for none."""
        return self._elector.holder if self._elector is not None else ""

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

        async def serving(keeping: Sequence[asyncio.Task[object]]) -> bool:
            async with serve(runtime):
                await first_of(stop.wait(), beside=keeping)
            return True

        try:
            return await self.lead(cluster, stop, serving)
        except BaseException:
            if self._elector is not None:
                await self._elector.release()  # nothing is written any more, however it ended
            raise

    async def lead(
        self,
        cluster: KubernetesCluster,
        stop: asyncio.Event,
        work: Callable[[Sequence[asyncio.Task[object]]], Awaitable[bool]],
    ) -> int:
        """Call `work` once this replica leads, unless `stop` is set before. Returns the exit status.

        `work` gets the task that keeps the lease, to run beside it: that task fails with NotLeading when the lease is
        lost. It answers whether all its writes have ended: only then is the lease released.
        """
        if not self._election.enabled:
            await work(())
            return 0
        elector = self._elector = Elector(
            cluster,
            self._election,
            identity=self.identity,
            clock=self._clock or SystemClock(),
            failed=self._renewal_failed,
        )
        cluster.fence_writes(elector.fence.check)
        try:
            await first_of(elector.acquire(), stop.wait())
            ended = True
            if not stop.is_set():
                async with background(elector.keep()) as keeping:
                    ended = await work(keeping)
            if ended:
                await elector.release()  # else a write may be in flight: the lease ends by itself
        except NotLeading as error:
            _log.error("this replica leads no more: it ends, and stands by when it is started again", why=str(error))
            return LOST
        return 0
