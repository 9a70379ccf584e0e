"""What a process follows of a cluster: a mirror of all kinds, limited to the scheduler's partition if it has one.

A replica follows it while it stands by and while it leads; an observer only stands by.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
import structlog

from session_scheduler.base.clock import Clock
from session_scheduler.base.signals import background, first_of
from session_scheduler.cluster.mirror import Mirror, MirrorMeter
from session_scheduler.cluster.partition import Partition
from session_scheduler.cluster.port import Change, Cluster
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.loop import Follower
from session_scheduler.engine.scheduler import OPTIONAL_KINDS, watched_kinds
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.model.objects import KubeObject

_log = structlog.get_logger(__name__)
Deliver = Callable[[Change, KubeObject], None]


class Source(msgspec.Struct, frozen=True):
    """A mirror, and the partition that it reads, if there is one."""

    mirror: Mirror
    partition: Partition | None

    @property
    def serves(self) -> Callable[[str], bool] | None:
        """Whether a node is in the partition; None without a partition."""
        return self.partition.serves if self.partition is not None else None

    def following(self, *, compares: bool = True) -> list[Coroutine[Any, Any, None]]:
        """The tasks that follow the cluster."""
        joining = [] if self.partition is None else [self.partition.run(self.mirror)]
        return [self.mirror.run(compares=compares), *joining]


# more than five parameters: what the scheduler and the observer set
def source_of(
    cluster: Cluster, config: SchedulerConfig, profiles: Mapping[str, HookCalls], deliver: Deliver, clock: Clock, *,
    reconcile_seconds: float, meter: MirrorMeter | None = None,
) -> Source:  # fmt: skip
    """The source of a scheduler with this configuration and these profiles."""
    partition = None
    if config.partition is not None:
        partition = Partition(cluster, config.partition, config.scheduler_names, deliver)
    mirror = Mirror(cluster if partition is None else partition, watched_kinds(profiles),
                    deliver if partition is None else partition.deliver, clock=clock,
                    reconcile_seconds=reconcile_seconds, meter=meter, optional=OPTIONAL_KINDS)  # fmt: skip
    return Source(mirror, partition)


# more than five parameters: what one of the two callers needs
async def stand_by(
    source: Source,
    follower: Follower,
    recovered: Callable[[], None] = lambda: None,
    updated: Callable[[], None] = lambda: None,
    *,
    compares: bool = False,
) -> None:
    """List the cluster, then keep the follower's cache current until cancelled; see `Follower.follow`."""
    for obj in await source.mirror.start():
        follower.deliver(Change.ADDED, obj)
    _log.info("standing by with a synced cache", objects=follower.queued)
    async with background(*source.following(compares=compares)) as watching:
        await first_of(follower.follow(recovered, updated), beside=watching)
