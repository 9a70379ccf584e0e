"""Manifests put into an in-memory cluster with the scheduler over it: what `simulate` and `explain` work on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import structlog

from session_scheduler.clock import StoppedClock
from session_scheduler.cluster.manifests import load_manifests
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config import SchedulerConfig
from session_scheduler.hook_calls import HookCalls
from session_scheduler.model.objects import Node
from session_scheduler.plugin_loading import load_profiles
from session_scheduler.service import Scheduler
from session_scheduler.unjudged import unjudged

_log = structlog.get_logger(__name__)


def load_calls(config: SchedulerConfig) -> dict[str, HookCalls]:
    """Each profile's hooks, ready to be called, by schedulerName. Raises PluginLoadError."""
    return {
        name: HookCalls((plugin.name, plugin.instance, plugin.weight) for plugin in plugins)
        for name, plugins in load_profiles(config).items()
    }


async def open_offline(files: Sequence[str], config: SchedulerConfig, *, evaluation: str = "heap") -> Scheduler:
    """A scheduler that was started over the manifests, its clock stopped.

    Raises InputError (a file) and PluginLoadError (a plugin).
    """
    loaded = load_manifests(files)
    profiles = load_calls(config)
    objects = [_advertising(obj, profiles) if isinstance(obj, Node) else obj for obj in loaded.objects]
    scheduler = Scheduler(
        MemoryCluster(objects, binds_volumes=True), config, profiles, StoppedClock(), evaluation=evaluation
    )
    await scheduler.start()
    for name, calls in profiles.items():
        ours = [pod for pod in loaded.pods if pod.spec.scheduler_name == name and not pod.spec.node_name]
        for line in unjudged(ours, calls.instances):
            _log.warning(line, profile=name)
    return scheduler


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
