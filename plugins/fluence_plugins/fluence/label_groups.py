"""Groups of pods that name no PodGroup: by label, with their size in an annotation."""

from __future__ import annotations

from fluence_plugins.fluence import names
from session_scheduler.errors import shown
from session_scheduler.model.groups import Group, GroupRef
from session_scheduler.model.objects import Pod

GROUP_LABEL = names.ANNOTATION_PREFIX + "group"
GROUP_SIZE_ANNOTATION = names.ANNOTATION_PREFIX + "group-size"
LARGEST = 1_000_000
KIND = "Group"
"""Not PodGroup: a PodGroup of the same name is another group, and nothing here ever concerns it."""


def group_of(pod: Pod) -> GroupRef | None:
    """The group that the pod's label names, with as many pods to start as the annotation says; None without a label.

    One pod suffices where the annotation is missing, or wrong: then `wrong_size` refuses the group.
    """
    name = pod.metadata.labels.get(GROUP_LABEL)
    if not name:
        return None
    return GroupRef(pod.metadata.namespace, name, _size_of(pod) or 1, kind=KIND, api_group="")


def wrong_size(group: Group) -> str | None:
    """Why it is not known how many pods the group needs to start: an annotation is wrong, or two of them disagree."""
    if group.ref.kind != KIND:
        return None
    pods = sorted(
        (task.pod for task in group.tasks.values() if task.pod.metadata.labels.get(GROUP_LABEL) == group.name),
        key=lambda pod: pod.key,
    )
    said = {pod.key: _size_of(pod) for pod in pods}
    for pod in pods:
        if said[pod.key] is None:
            text = pod.metadata.annotations[GROUP_SIZE_ANNOTATION]
            return f"{_field(pod)}: {shown(text)} is not a number of pods from 1 to {LARGEST}; correct or remove it"
    first = next(iter(pods), None)
    other = next((pod for pod in pods if first is not None and said[pod.key] != said[first.key]), None)
    if first is None or other is None:
        return None
    return (
        f"{_field(other)} is {said[other.key]} and that of pod {first.key} is {said[first.key]}, of group "
        f"{group.namespace}/{group.name} both (1 where there is none): give all its pods the same"
    )


def _field(pod: Pod) -> str:
    return f"pod {pod.key}: metadata.annotations[{GROUP_SIZE_ANNOTATION}]"


def _size_of(pod: Pod) -> int | None:
    """How many pods the annotation says, 1 without one; None where it says nothing of the kind."""
    text = pod.metadata.annotations.get(GROUP_SIZE_ANNOTATION)
    if text is None:
        return 1
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST))):
        return None
    return int(text) if 1 <= int(text) <= LARGEST else None
