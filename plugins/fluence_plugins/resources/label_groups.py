"""Groups of pods that name no PodGroup: by label, with their size in an annotation."""

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
"""Where no PodGroups are made: a PodGroup of the same name is another group, and nothing here ever concerns it."""
MADE_PREFIX = "fluence-"
"""What the name of a PodGroup that is made begins with, before the group's."""


def group_of(pod: Pod, *, made: bool) -> GroupRef | None:
    """The group that the pod's label names, with as many pods to start as the annotation says; None without a label.

    `made`: PodGroups are made for such groups, so the group is that of the PodGroup, which need not be there. One pod
    suffices where the annotation is missing, or wrong: then `wrong_size` refuses the group.
    """
    name = pod.metadata.labels.get(GROUP_LABEL)
    if not name:
        return None
    size, namespace = _size_of(pod) or 1, pod.metadata.namespace
    if made:
        return GroupRef(namespace, MADE_PREFIX + name, size, api_group="")
    return GroupRef(namespace, name, size, kind=KIND, api_group="")


def members(group: Group) -> Sequence[Pod]:
    """The pods that name the group by label, by name; none where it is no group by label."""
    if group.single or group.ref.api_group:
        return ()
    prefix = "" if group.ref.kind == KIND else MADE_PREFIX
    pods = (task.pod for task in group.tasks.values())
    return sorted(
        (pod for pod in pods if prefix + pod.metadata.labels.get(GROUP_LABEL, "") == group.name),
        key=lambda pod: pod.metadata.name,
    )


def wrong_size(pods: Sequence[Pod]) -> str | None:
    """Why it is not known how many pods a group needs to start: an annotation is wrong, or two of them disagree."""
    said = [_size_of(pod) for pod in pods]
    for pod, size in zip(pods, said, strict=True):
        if size is None:
            text = pod.metadata.annotations[GROUP_SIZE_ANNOTATION]
            return f"{_field(pod)}: {shown(text)} is not a number of pods from 1 to {LARGEST}; correct or remove it"
    for pod, size in zip(pods, said, strict=True):
        if size != said[0]:
            group = f"{pod.metadata.namespace}/{pod.metadata.labels[GROUP_LABEL]}"
            return (
                f"{_field(pod)} is {size} and that of pod {pods[0].key} is {said[0]}, of group {group} both "
                "(1 where there is none): give all its pods the same"
            )
    return None


def _field(pod: Pod) -> str:
    return f"pod {pod.key}: metadata.annotations[{GROUP_SIZE_ANNOTATION}]"


def _size_of(pod: Pod) -> int | None:
    """How many pods the annotation says, 1 without one; None where it says nothing of the kind."""
    text = pod.metadata.annotations.get(GROUP_SIZE_ANNOTATION)
    return 1 if text is None else parsed_size(text)


def parsed_size(text: str | None) -> int | None:
    """The number of pods, from 1 to LARGEST, that a text is; None for any other."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST))):
        return None
    return int(text) if 1 <= int(text) <= LARGEST else None
