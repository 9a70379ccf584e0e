"""A cluster's state put into an in-memory cluster with the scheduler over it: what `simulate` and `explain` work on.

The state is that of manifests, of a snapshot, or of a live cluster, whose objects are listed as the scheduler lists
them; manifests can be brought to either. Nothing is ever written but in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec
import structlog
from msgspec import structs

from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.manifests import SavedConfiguration, load_manifests
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.cluster.saved_state import place_of
from session_scheduler.config.settings import SchedulerConfig, config_from
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.errors import InputError
from session_scheduler.framework.coverage import unevaluated
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.model.objects import KubeObject, Node, Pod, PortObject
from session_scheduler.model.times import parsed_time
from session_scheduler.registry.registry import Registry

_log = structlog.get_logger(__name__)
_Any = TypeVar("_Any", bound=PortObject)
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What decisions are made from, beside the configuration."""

    objects: tuple[PortObject, ...]
    """Of a live cluster or a snapshot: as they are."""
    brought: tuple[KubeObject, ...] = ()
    """Of manifests: the agents on their nodes are yet to advertise what they would."""
    configuration: SavedConfiguration | None = None
    """The snapshot's, not checked yet."""

    def waiting(self) -> list[Pod]:
        """The pods without a node that have not ended, of every scheduler."""
        pods = [obj for obj in (*self.objects, *self.brought) if isinstance(obj, Pod)]
        return [pod for pod in pods if not pod.spec.node_name and not pod.terminal]

    def served(self, keys: Collection[str], scheduler_name: str) -> ClusterState:
        """The state with that schedulerName in these pods."""

        def changed(obj: _Any) -> _Any:
            if not isinstance(obj, Pod) or obj.key not in keys:
                return obj
            return structs.replace(obj, spec=structs.replace(obj.spec, scheduler_name=scheduler_name))

        return replace(self, objects=tuple(map(changed, self.objects)), brought=tuple(map(changed, self.brought)))

    def latest(self) -> datetime | None:
        """The latest creation time in the state; None where no object has one."""
        texts = [obj.metadata.creation_timestamp for obj in (*self.objects, *self.brought)]
        return max((time for text in texts if text and (time := parsed_time(text)) is not None), default=None)

    def config(self) -> SchedulerConfig:
        """The configuration that came with the state, else the default one. Raises InputError."""
        saved = self.configuration
        return config_from(dict(saved.values), f"{saved.file}: configuration") if saved else SchedulerConfig()


# ------------------------------------------------------------------ the state


async def read_state(
    files: Sequence[str], kubeconfig: str | None = None, context: str | None = None, *, live: bool = False
) -> ClusterState:
    """The state in files (manifests, a snapshot), or of the live cluster that a kubeconfig names, with files added.

    With `live` it is a cluster's without a kubeconfig, too: that of KUBECONFIG, ~/.kube/config, or the pod. Raises
    InputError, and ClusterError where the cluster does not answer.
    """
    live = live or kubeconfig is not None
    if not live and context is not None:
        raise InputError(f"--context {context}: names a part of a kubeconfig: give --kubeconfig, too")
    there: tuple[PortObject, ...] = ()
    if live:
        from session_scheduler.offline.live_reader import (
            read_cluster,  # most runs need no live cluster, and its libraries are large
        )

        there = await read_cluster(kubeconfig, context)
    loaded = load_manifests(files, there=there)
    return ClusterState((*there, *loaded.saved), loaded.objects, loaded.configuration)


# ------------------------------------------------------------------ the scheduler over it


async def open_state(state: ClusterState, config: SchedulerConfig, *, evaluation: str = "heap") -> Scheduler:
    """A scheduler that was started over the state, in memory, its clock stopped. Raises PluginLoadError."""
    profiles = Registry(BUILTIN).load_calls(config)
    objects = complete(state, profiles)
    now = state.latest() or _EPOCH  # a clock's time would be another in each run
    cluster = MemoryCluster(objects, binds_volumes=True, now=lambda: now)
    scheduler = Scheduler(cluster, config, profiles, StoppedClock(wall=now.timestamp()), evaluation=evaluation)
    await scheduler.start()
    pods = [obj for obj in objects if isinstance(obj, Pod) and not obj.spec.node_name]
    for name, calls in profiles.items():
        for line in unevaluated([pod for pod in pods if pod.spec.scheduler_name == name], calls.instances):
            _log.warning(line, profile=name)
    return scheduler


def complete(state: ClusterState, profiles: Mapping[str, HookCalls]) -> list[PortObject]:
    """All objects in order, the brought nodes with what the plugins' own agents would make them advertise."""
    brought = [_advertising(obj, profiles) if isinstance(obj, Node) else obj for obj in state.brought]
    return sorted((*state.objects, *brought), key=place_of)


def _advertising(node: Node, profiles: Mapping[str, HookCalls]) -> Node:
    """The node with what the plugins' own agents would make it advertise."""
    for calls in profiles.values():
        for call in calls.functions("simulated_node"):
            offered = call(node)
            if offered:
                status = node.status
                status = msgspec.structs.replace(
                    status,
                    allocatable={**status.allocatable, **offered},
                    capacity={**status.capacity, **offered},
                )
                node = msgspec.structs.replace(node, status=status)
    return node
