"""Constraints of pods that no enabled plugin evaluates. `status`, other commands and the log report them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from session_scheduler.model.objects import Pod


def _pod_terms(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    return affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)


def _claims_volume(pod: Pod) -> bool:
    return any("persistentVolumeClaim" in volume or "ephemeral" in volume for volume in pod.spec.volumes)


ASKS_FOR: Final[Mapping[str, tuple[str, Callable[[Pod], bool]]]] = {
    "InterPodAffinity": ("spec.affinity.podAffinity or podAntiAffinity", _pod_terms),
    "PodTopologySpread": (
        "spec.topologySpreadConstraints",
        lambda pod: bool(pod.spec.topology_spread_constraints),
    ),
    "VolumeBinding": ("spec.volumes[].persistentVolumeClaim", _claims_volume),
    "DynamicResources": ("spec.resourceClaims", lambda pod: bool(pod.spec.resource_claims)),
}
"""By kube-scheduler's plugin: the field of a constraint, and whether a pod has it."""


def unevaluated_fields(pod: Pod, plugins: Collection[str]) -> list[tuple[str, str]]:
    """Return (plugin, field) for each constraint of a pod whose plugin is not among `plugins`."""
    return [(name, field) for name, (field, asks) in ASKS_FOR.items() if name not in plugins and asks(pod)]


def unevaluated(pods: Iterable[Pod], plugins: Collection[str]) -> list[str]:
    """Return one line for each constraint of these pods whose plugin is not among `plugins`."""
    counts = Counter(found for pod in pods for found in unevaluated_fields(pod, plugins))
    order = list(ASKS_FOR)
    return [
        f"{'1 pod has' if count == 1 else f'{count} pods have'} {field}, which no enabled plugin evaluates: "
        f"the profile has no plugin {name}"
        for (name, field), count in sorted(counts.items(), key=lambda one: order.index(one[0][0]))
    ]
