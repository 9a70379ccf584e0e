"""Leader election for servers: one of several replicas works. Used by the scheduler and plugins' servers. Public.

    election = LeaderElection(name="one")
    async with connect(kubeconfig, context, election) as cluster:
        status = await Leadership(election).run(cluster, stop, serve)

`serve` has the signature of the plugin hook and runs once this replica leads. So a plugin's tasks run the same in
`fluence run` and in a server of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import structlog
from msgspec.structs import replace

from session_scheduler.base.clock import Clock, SystemClock
from session_scheduler.base.signals import background, first_of
from session_scheduler.cluster import kubernetes
from session_scheduler.cluster.dynamic_client import KubeApi
from session_scheduler.cluster.errors import NotLeading
from session_scheduler.cluster.kube_requests import RequestSettings
from session_scheduler.cluster.kubernetes import KubernetesCluster
from session_scheduler.cluster.leader_election import Elector, new_identity
from session_scheduler.cluster.partition_claims import PartitionError
from session_scheduler.config.settings import LeaderElection
from session_scheduler.framework.bindings import Runtime

_log = structlog.get_logger(__name__)
LOST: Final = 1
"""Exit status after the lease was lost: the process is restarted, for example by the kubelet, and stands by."""


@asynccontextmanager
async def connect(
    kubeconfig: str | None, context: str | None, election: LeaderElection, connections: int = 0
) -> AsyncGenerator[KubernetesCluster]:
    """The cluster of `kubeconfig`, or of $KUBECONFIG, ~/.kube/config or the pod's service account.

    `connections` raises the default limit of concurrent connections. Raises InputError.
    """
    settings = RequestSettings.for_leader(election) if election.enabled else RequestSettings()
    settings = replace(settings, connections=max(settings.connections, connections))
    async with await kubernetes.connect(kubeconfig, context, settings) as cluster:
        yield cluster


class Leadership:
    """One replica's part in the election."""

    def __init__(
        self,
        election: LeaderElection,
        *,
        clock: Clock | None = None,
        renewal_failed: Callable[[], None] = lambda: None,
        annotations: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Each failed renewal of the lease calls `renewal_failed`. Each write of it sets the `annotations`."""
        self.identity = new_identity()
        self._election = election
        self._clock = clock
        self._renewal_failed = renewal_failed
        self._annotations = annotations
        self._elector: Elector | None = None

    @property
    def leading(self) -> bool:
        """Whether this replica leads now."""
        return not self._election.enabled or (self._elector is not None and self._elector.fence.leading)

    @property
    def token(self) -> str:
        """Identifies this term of leadership; empty without an election."""
        return self._elector.token if self._elector is not None else ""

    @property
    def holder(self) -> str:
        """The leader last seen; empty if there was none."""
        return self._elector.holder if self._elector is not None else ""

    async def renew(self) -> None:
        """Write the current annotations now. Raises NotLeading if the lease is lost, or ClusterError."""
        if self._elector is not None:
            await self._elector.renew()

    def problems(self) -> Mapping[str, str | None]:
        """The checks of /readyz. A replica is ready if it leads, or could take over."""
        if self.leading:
            return {"leading": None}
        elector = self._elector
        silent = elector is None or elector.silent > self._election.lease_seconds
        return {"standing-by": "the lease has not been read recently; see the log" if silent else None}

    async def run(
        self,
        cluster: KubernetesCluster,
        stop: asyncio.Event,
        serve: Callable[[Runtime], AbstractAsyncContextManager[None]],
    ) -> int:
        """Run `serve` while this replica leads, until `stop` is set or the lease is lost. Returns the exit status."""
        runtime = Runtime(lambda *_: None, lambda: self.leading, cluster, api=KubeApi(cluster.client))

        async def serving(keeping: Sequence[asyncio.Task[object]]) -> bool:
            async with serve(runtime):
                await first_of(stop.wait(), beside=keeping)
            return True

        try:
            return await self.lead(cluster, stop, serving)
        except BaseException:
            if self._elector is not None:
                await self._elector.release()  # no write is in flight any more
            raise

    async def lead(
        self,
        cluster: KubernetesCluster,
        stop: asyncio.Event,
        work: Callable[[Sequence[asyncio.Task[object]]], Awaitable[bool]],
        standby: Callable[[], Awaitable[object]] | None = None,
    ) -> int:
        """Run `work` once this replica leads, unless `stop` is set before. Returns the exit status.

        `standby` runs while another replica leads; it is cancelled before `work` begins. Its exceptions are raised.

        `work` receives the task that renews the lease, which fails with NotLeading when the lease is lost. It returns
        whether all its writes have completed: only then is the lease released.
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
            annotations=self._annotations,
        )
        cluster.fence_writes(elector.fence.check)
        try:
            waits = asyncio.Event()
            async with background(_after(waits, standby)) as beside:
                await first_of(elector.acquire(waits.set), stop.wait(), beside=beside)
            ended = True
            if not stop.is_set():
                async with background(elector.keep()) as keeping:
                    ended = await work(keeping)
            if ended:
                await elector.release()  # else a write may be in flight: let the lease expire
        except PartitionError:
            await elector.release()  # it has written nothing
            raise
        except NotLeading as error:
            _log.error("this replica lost the lease: it exits, and stands by after a restart", why=str(error))
            return LOST
        return 0


async def _after(event: asyncio.Event, work: Callable[[], Awaitable[object]] | None) -> None:
    if work is not None:
        await event.wait()
        await work()
