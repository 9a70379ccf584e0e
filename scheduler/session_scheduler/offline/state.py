"""Reads a cluster's state, and starts the scheduler over it in memory, for `simulate`, `explain` and others.

The state comes from manifests, a snapshot or a live cluster; manifests can be added to either. All writes are in
memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec
import structlog
from msgspec import structs

from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.field_validation import FieldValidation
from session_scheduler.cluster.manifests import SavedConfiguration, load_manifests
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.cluster.partition import partition_of
from session_scheduler.cluster.saved_state import place_of
from session_scheduler.config.settings import SchedulerConfig, config_from
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.errors import InputError
from session_scheduler.framework.coverage import unevaluated
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.model.objects import KubeObject, Node, Pod, PortObject
from session_scheduler.model.times import parsed_time
from session_scheduler.registry.registry import Builder, Registry

_log = structlog.get_logger(__name__)
_Any = TypeVar("_Any", bound=PortObject)
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, repr=False)  # asyncio computes the repr of a main task's result twice
class ClusterState:
    """The scheduler's input, apart from the configuration."""

    objects: tuple[PortObject, ...]
    """Objects of a live cluster or a snapshot, unchanged."""
    brought: tuple[KubeObject, ...] = ()
    """Objects of manifests: plugins add the devices that agents would advertise on their nodes."""
    configuration: SavedConfiguration | None = None
    """The snapshot's configuration, not validated yet."""

    def waiting(self) -> list[Pod]:
        """The pending pods of every scheduler."""
        return _waiting((*self.objects, *self.brought))

    def serves_none(self, config: SchedulerConfig) -> bool:
        """Whether manifests have pending pods, and no profile serves any of them."""
        names = {pod.spec.scheduler_name for pod in _waiting(self.brought)}
        return bool(names) and not any(map(config.profile, names))

    def served(self, keys: Collection[str], scheduler_name: str) -> ClusterState:
        """The state with these pods served by another schedulerName."""

        def changed(obj: _Any) -> _Any:
            if not isinstance(obj, Pod) or obj.key not in keys:
                return obj
            return structs.replace(obj, spec=structs.replace(obj.spec, scheduler_name=scheduler_name))

        return replace(self, objects=tuple(map(changed, self.objects)), brought=tuple(map(changed, self.brought)))

    def latest(self) -> datetime | None:
        """The latest creation time in the state; None if no object has one."""
        texts = [obj.metadata.creation_timestamp for obj in (*self.objects, *self.brought)]
        return max((time for text in texts if text and (time := parsed_time(text)) is not None), default=None)

    def config(self) -> SchedulerConfig:
        """The state's configuration, else the default one. Raises InputError."""
        saved = self.configuration
        return config_from(dict(saved.values), f"{saved.file}: configuration") if saved else SchedulerConfig()


def _waiting(objects: Iterable[PortObject]) -> list[Pod]:
    pods = [obj for obj in objects if isinstance(obj, Pod)]
    return [pod for pod in pods if not pod.spec.node_name and not pod.terminal]


# ------------------------------------------------------------------ read


# more than five parameters: the options of the commands
async def read_state(
    files: Sequence[str],
    kubeconfig: str | None = None,
    context: str | None = None,
    validate: FieldValidation = FieldValidation.STRICT,
    *,
    live: bool = False,
    config: SchedulerConfig | None = None,
) -> ClusterState:
    """The state in files (manifests, a snapshot), or of a kubeconfig's cluster with the files added.

    With `live` and no kubeconfig it is the cluster of KUBECONFIG, ~/.kube/config, or the pod's service account. Its
    scheduler has the configuration `config`. Raises InputError, and ClusterError if the cluster does not answer.
    """
    config = config or SchedulerConfig()
    live = live or kubeconfig is not None
    if not live and context is not None:
        raise InputError(f"--context {context}: needs --kubeconfig; add it")
    there: tuple[PortObject, ...] = ()
    if live:
        from session_scheduler.offline.live_reader import (
            read_cluster,  # imports large libraries
        )

        plugins = {plugin.name for profile in config.profiles for plugin in profile.plugins if plugin.enabled}
        there = await read_cluster(kubeconfig, context, config.leader_election.namespace, plugins)
    loaded = load_manifests(files, there=there, validate=validate)
    return ClusterState((*there, *loaded.saved), loaded.objects, loaded.configuration)


# ------------------------------------------------------------------ open


async def open_state(
    state: ClusterState, config: SchedulerConfig, *, evaluation: str = "heap", warns: bool = True,
    plugins: Mapping[str, Builder] | None = None,
) -> Scheduler:  # fmt: skip
    """A scheduler started over the state in memory, with a stopped clock. Raises PluginLoadError.

    If it `warns`, it logs the fields of pods that no plugin evaluates. `plugins` are those of this process, by name.
    """
    profiles = Registry(BUILTIN, plugins).load_calls(config)
    objects = complete(state, profiles, config)
    now = state.latest() or _EPOCH  # equal states give equal decisions
    cluster = MemoryCluster(objects, history=0, binds_volumes=True, now=lambda: now)  # nothing watches it
    scheduler = Scheduler(cluster, config, profiles, StoppedClock(wall=now.timestamp()), evaluation=evaluation)
    await scheduler.start()
    warn_of_extenders(config)
    pods = [obj for obj in objects if isinstance(obj, Pod) and not obj.spec.node_name]
    for name, calls in profiles.items() if warns else ():
        for line in unevaluated([pod for pod in pods if pod.spec.scheduler_name == name], calls.instances):
            _log.warning(line, profile=name)
    return scheduler


def warn_of_extenders(config: SchedulerConfig) -> None:
    """Log that commands which only read do not call the extenders."""
    if config.extenders:
        _log.warning(
            "the extenders in the configuration are not called: they may reject nodes that fit in this simulation"
        )


def complete(state: ClusterState, profiles: Mapping[str, HookCalls], config: SchedulerConfig) -> list[PortObject]:
    """The objects of the scheduler's partition, in order. Nodes of manifests have the devices that plugins' agents
    would advertise.
    """
    brought = [_advertising(obj, profiles) if isinstance(obj, Node) else obj for obj in state.brought]
    return sorted(partition_of((*state.objects, *brought), config), key=place_of)


def _advertising(node: Node, profiles: Mapping[str, HookCalls]) -> Node:
    """The node with the devices that plugins' agents would advertise."""
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
