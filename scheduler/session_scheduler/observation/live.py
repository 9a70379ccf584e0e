"""An observer of a live cluster: it lists and watches like a standby replica, and writes nothing. Public.

It needs the scheduler's permissions to read, and takes no part in the election.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from session_scheduler.base.clock import Clock, SystemClock
from session_scheduler.base.signals import background, first_of
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.kubernetes import connect
from session_scheduler.cluster.port import Change
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.loop import Follower
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.objects import KubeObject, Pod
from session_scheduler.observation.observer import Observer
from session_scheduler.offline.live_reader import reject_writes
from session_scheduler.offline.state import warn_of_extenders
from session_scheduler.registry.registry import Registry
from session_scheduler.server.source import source_of, stand_by

__all__ = ["follow"]

_COMPARE_SECONDS: Final = 600.0
"""The minimum time between two lists that look for missed changes: seldom, because an observer is less important than
the scheduler."""


@asynccontextmanager
async def follow(
    config: SchedulerConfig, *, kubeconfig: str | None = None, context: str | None = None, levels: Sequence[str] = ()
) -> AsyncGenerator[Observer]:
    """Observe the cluster of `kubeconfig`, or of $KUBECONFIG, ~/.kube/config or the pod's service account.

    The configuration is that of the scheduler. The observer has the whole cluster when the context begins; its state
    then changes at most once per second. If it can no longer follow the cluster, `observe` raises the error.
    Raises InputError, or ClusterError if the API server refuses to list nodes, PodGroups or pods.
    """
    profiles = Registry(BUILTIN).load_calls(config)
    warn_of_extenders(config)
    async with await connect(kubeconfig, context) as cluster:
        cluster.fence_writes(reject_writes)
        follower: Follower
        clock: Clock = SystemClock()
        source = source_of(cluster, config, profiles, lambda change, obj: deliver(change, obj), clock,
                           reconcile_seconds=max(config.reconcile_seconds, _COMPARE_SECONDS))  # fmt: skip
        scheduler = Scheduler(cluster, config, profiles, clock, serves=source.serves)
        follower = Follower(scheduler)
        observer = Observer(scheduler, cluster.client.server, levels=levels, evaluates=False, busy=follower.busy)

        def deliver(change: Change, obj: KubeObject) -> None:
            if isinstance(obj, Pod) and (change is Change.DELETED or obj.terminal):
                observer.ended(obj)
            follower.deliver(change, obj)

        def updated() -> None:
            scheduler.cache.gates.drain_new()  # only a scheduler that leads reports them
            observer.notify()

        async def run() -> None:
            try:
                await stand_by(source, follower, updated=updated, compares=True)
            except Exception as error:
                observer.fail(error)
                raise

        observer.changed.clear()
        async with background(run()) as following:
            await first_of(observer.changed.wait(), beside=following)
            following[0].add_done_callback(lambda task: task.cancelled() or task.exception())  # `observe` raises it
            yield observer
