"""Groups of pods without a PodGroup: a label names the group, and an annotation gives its size."""

from __future__ import annotations

from collections.abc import Sequence

from fluence_plugins.resources import names
from session_scheduler.errors import shown
from session_scheduler.model.groups import Group, GroupRef
from session_scheduler.model.objects import Pod

GROUP_LABEL = names.ANNOTATION_PREFIX + "group"
"""On a pod without a PodGroup: the name of its group."""
GROUP_SIZE_ANNOTATION = names.ANNOTATION_PREFIX + "group-size"
"""On a pod with a group by label: how many pods of the group start together."""
LARGEST = 1_000_000
KIND = "Group"
"""The kind of groups for which no PodGroups are created. A PodGroup with the same name is another group."""
MADE_PREFIX = "fluence-"
"""Prepended to the group's name to form the name of a created PodGroup."""
_LABELS = ("scheduling.k8s.io/pod-group", "scheduling.x-k8s.io/pod-group", GROUP_LABEL)
"""The labels that name a pod's PodGroup or group."""
MADE_LABEL = "app.kubernetes.io/managed-by"
MADE_BY = "fluence"
"""The value of the label on created objects."""


def group_of(pod: Pod, prefix: str | None) -> GroupRef | None:
    """The group that the pod's label names, with the minimum in the annotation; None without the label.

    `prefix`: PodGroups are created for such groups, with this prefix to the name, so the group is the PodGroup's, which
    may not exist yet; None if none are created. The minimum is one pod if the annotation is missing or invalid: then
    `wrong_size` rejects the group.
    """
    name = pod.metadata.labels.get(GROUP_LABEL)
    if not name:
        return None
    size, namespace = _size_of(pod) or 1, pod.metadata.namespace
    if prefix is not None:
        return GroupRef(namespace, prefix + name, size, api_group="")
    return GroupRef(namespace, name, size, kind=KIND, api_group="")


def in_group(pod: Pod) -> bool:
    """Whether the pod names a PodGroup, or a group by label."""
    group = pod.spec.scheduling_group
    return bool(group is not None and group.pod_group_name) or any(pod.metadata.labels.get(name) for name in _LABELS)


def members(group: Group) -> Sequence[Pod]:
    """The pods whose label names the group, ordered by name; none if it is not a group by label."""
    if group.single or group.ref.api_group:
        return ()
    names = (group.name,) if group.ref.kind == KIND else (group.name, group.name.removeprefix(MADE_PREFIX))
    pods = (task.pod for task in group.tasks.values())
    return sorted(
        (pod for pod in pods if pod.metadata.labels.get(GROUP_LABEL) in names), key=lambda pod: pod.metadata.name
    )


def wrong_size(pods: Sequence[Pod]) -> str | None:
    """Why the group's size is unknown: an annotation is invalid, or two annotations differ."""
    sizes = [_size_of(pod) for pod in pods]
    for pod, size in zip(pods, sizes, strict=True):
        if size is None:
            text = pod.metadata.annotations[GROUP_SIZE_ANNOTATION]
            return (
                f"{_field(pod)}: expected a number of pods from 1 to {LARGEST}, got {shown(text)}; correct or remove it"
            )
    for pod, size in zip(pods, sizes, strict=True):
        if size != sizes[0]:
            group = f"{pod.metadata.namespace}/{pod.metadata.labels[GROUP_LABEL]}"
            return (
                f"{_field(pod)} is {size}, but pod {pods[0].key} of the same group {group} has {sizes[0]} "
                "(a missing size counts as 1); set the same size on all pods"
            )
    return None


def _field(pod: Pod) -> str:
    return f"pod {pod.key}: metadata.annotations[{GROUP_SIZE_ANNOTATION}]"


def _size_of(pod: Pod) -> int | None:
    """The number in the annotation, 1 if it is missing; None if it is invalid."""
    text = pod.metadata.annotations.get(GROUP_SIZE_ANNOTATION)
    return 1 if text is None else parsed_size(text)


def parsed_size(text: str | None) -> int | None:
    """The number of pods, from 1 to LARGEST, in a string; None if it is invalid."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST))):
        return None
    return int(text) if 1 <= int(text) <= LARGEST else None
