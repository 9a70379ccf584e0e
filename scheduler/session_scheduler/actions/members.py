"""The members of a gang: whether there are enough to start it, and which of them go first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from session_scheduler.framework.session import Session
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.sub_groups import SUB_GROUP_LABEL, SUB_GROUPS_ANNOTATION, SubGroupsError, minima_of


def wrong_sub_groups(group: Group) -> str | None:
    """Why a PodGroup's annotation names no sub-groups; None where it does, or there is none."""
    pod_group = group.pod_group
    text = pod_group.metadata.annotations.get(SUB_GROUPS_ANNOTATION) if pod_group is not None else None
    if text is None:
        return None
    try:
        minima_of(text)
    except SubGroupsError as error:
        return (
            f"PodGroup {group.namespace}/{group.name}: metadata.annotations[{SUB_GROUPS_ANNOTATION}] {error}; "
            "or remove the annotation"
        )
    return None


def can_start(group: Group, tasks: Sequence[Task]) -> bool:
    """Whether these pending tasks are enough to start the group, beside those that have started."""
    if not group.minima:
        return len(tasks) >= group.needed
    return bool(tasks) and group.suffice([*group.in_phase(Phase.BOUND, Phase.ASSUMED), *tasks])


def too_few(group: Group, ready: Sequence[Task]) -> str:
    """The reason of a gang of which too few members can be placed at all; `ready` are pending and not held back."""
    gated = len(group.in_phase(Phase.GATED))
    held_back = f", {gated} of them gated" if gated else ""
    name = f"pod group {group.namespace}/{group.name}"
    can = len(ready) + group.started
    short = group.short_of([*group.in_phase(Phase.BOUND, Phase.ASSUMED), *ready])
    if not short:
        return (
            f"{name} needs {group.min_count} pods to start and has {len(group.tasks)}{held_back}: {can} can be placed"
        )
    has = Counter(task.sub_group for task in group.tasks.values())
    least = ((one, group.minima[one]) for one in short)
    needs = (f"{n} pod{'s' * (n != 1)} of sub-group {one} to start and has {has[one]}" for one, n in least)
    unnamed = f"; {has['']} of its pods name none of its sub-groups (label {SUB_GROUP_LABEL})" if has[""] else ""
    return f"{name} needs {', and '.join(needs)}{held_back and f' ({gated} of its pods are gated)'}{unnamed}"


def required_first(session: Session, group: Group, tasks: list[Task]) -> list[Task]:
    """Tasks in task order as they are to be placed: first those that the sub-groups need to start, then the others.

    Both by sub-group, in sub-group order; tasks of none come last. Without sub-groups the order stays. PluginError.
    """
    if not group.minima:
        return tasks
    names = sorted(group.minima, key=lambda name: session.sub_group_key(group, name))
    rank = {name: number for number, name in enumerate([*names, ""])}
    ordered = sorted(tasks, key=lambda task: rank[task.sub_group])
    lacks = Counter(group.lacks)
    required: list[Task] = []
    others: list[Task] = []
    for task in ordered:
        part = required if lacks[task.sub_group] > 0 else others
        lacks[task.sub_group] -= 1
        part.append(task)
    return required + others
