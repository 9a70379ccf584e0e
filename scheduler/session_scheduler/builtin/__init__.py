"""The built-in plugins: kube-scheduler's plugins under their own names and in their order, one file each.

Four more are not in kube-scheduler: Proportion, for queues, GpuSharing, and two that are off by default:
GpuFragmentation and NodeResourceTopologyMatch.
Messages, formulas and the conditions to skip a plugin are those of Kubernetes 1.36; the conformance tests compare them
with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from session_scheduler.builtin.default_preemption import DefaultPreemption
from session_scheduler.builtin.dynamic_resources import DynamicResources
from session_scheduler.builtin.gpu_fragmentation import GpuFragmentation
from session_scheduler.builtin.gpu_sharing import GpuSharing
from session_scheduler.builtin.image_locality import ImageLocality
from session_scheduler.builtin.inter_pod_affinity import InterPodAffinity
from session_scheduler.builtin.node_affinity import NodeAffinity
from session_scheduler.builtin.node_declared_features import NodeDeclaredFeatures
from session_scheduler.builtin.node_name import NodeName
from session_scheduler.builtin.node_ports import NodePorts
from session_scheduler.builtin.node_resource_topology_match import NodeResourceTopologyMatch
from session_scheduler.builtin.node_resources_balanced_allocation import NodeResourcesBalancedAllocation
from session_scheduler.builtin.node_resources_fit import NodeResourcesFit
from session_scheduler.builtin.node_unschedulable import NodeUnschedulable
from session_scheduler.builtin.node_volume_limits import NodeVolumeLimits
from session_scheduler.builtin.pod_group_pods_count import PodGroupPodsCount
from session_scheduler.builtin.pod_topology_spread import PodTopologySpread
from session_scheduler.builtin.proportion import Proportion
from session_scheduler.builtin.scheduling_gates import SchedulingGates
from session_scheduler.builtin.taint_toleration import TaintToleration
from session_scheduler.builtin.volume_binding import VolumeBinding
from session_scheduler.builtin.volume_restrictions import VolumeRestrictions
from session_scheduler.builtin.volume_zone import VolumeZone

_IN_ORDER: Final = (
    SchedulingGates,
    NodeUnschedulable,
    NodeName,
    TaintToleration,
    NodeAffinity,
    NodePorts,
    NodeResourcesFit,
    VolumeRestrictions,
    NodeVolumeLimits,
    VolumeBinding,
    VolumeZone,
    PodTopologySpread,
    InterPodAffinity,
    DynamicResources,
    DefaultPreemption,
    NodeResourcesBalancedAllocation,
    ImageLocality,
    NodeDeclaredFeatures,
    PodGroupPodsCount,
    Proportion,
    GpuSharing,
    GpuFragmentation,
    NodeResourceTopologyMatch,
)

BUILTIN: Final[Mapping[str, type]] = {plugin.name: plugin for plugin in _IN_ORDER}
"""Name → class, in kube-scheduler's default order."""

DEFAULT_PLUGINS: Final[tuple[tuple[str, int], ...]] = tuple(
    (plugin.name, plugin.weight) for plugin in _IN_ORDER if getattr(plugin, "by_default", True)
)
"""(name, default weight) of those that are on by default, in the same order."""
