"""The topology constraint of a group: all pods within one vertex of a level, or spread over several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fluence_plugins.fluence.graph.topology import TopologyLevel
from fluence_plugins.resources import names
from session_scheduler import Refusal
from session_scheduler.errors import shown
from session_scheduler.model.groups import Group
from session_scheduler.model.objects import Pod

WITHIN_ANNOTATION: Final = names.ANNOTATION_PREFIX + "within"
"""On a PodGroup or a pod: the type of a topology level; all pods of the group run in one domain of it."""
SPREAD_ANNOTATION: Final = names.ANNOTATION_PREFIX + "spread-over"
"""On a PodGroup or a pod: the type of a topology level, and how many of its domains the group is spread over."""
ANNOTATIONS: Final = (WITHIN_ANNOTATION, SPREAD_ANNOTATION)
MOST_OVER: Final = 1_000_000
_SPREAD: Final = re.compile(r"([A-Za-z0-9_-]+)(?:=([0-9]{1,7}))?")


class TopologyConstraint(msgspec.Struct, frozen=True):
    """The constraint between the pods of a group."""

    within: tuple[str, ...] = ()
    """The levels where one vertex contains all pods."""
    spread: str | None = None
    """The level over whose vertices the pods are spread."""
    over: int | None = None
    """The minimum number of its vertices; None: as many as possible."""


def class_key(pod: Pod) -> tuple[str, str] | None:
    """The constraint in a pod's annotations, as a part of its class key; None for none."""
    written = pod.metadata.annotations
    found = (written.get(WITHIN_ANNOTATION, ""), written.get(SPREAD_ANNOTATION, ""))
    return found if any(found) else None


def constraint_of(group: Group, topology: Sequence[TopologyLevel]) -> TopologyConstraint | Refusal | None:
    """The constraint of a group, from its PodGroup or, without one, from its pods; None for none.

    A refusal if it is invalid: a level that is not configured, or pods that disagree.
    """
    key = group.topology_key
    if not _has_constraint(group) and (key is None or not topology):
        return None
    where, written = _written(group)
    if isinstance(written, Refusal):
        return written
    constrained = next((level.type for level in topology if level.label == key), None) if key is not None else None
    within, spread = written.get(WITHIN_ANNOTATION), written.get(SPREAD_ANNOTATION)
    if not within and not spread and constrained is None:
        return None
    known = [level.type for level in topology]
    kinds = {kind for kind in (within, constrained) if kind}
    spread_over: tuple[str | None, int | None] = (None, None)
    if within and within not in known:
        return Refusal(f"{where}[{WITHIN_ANNOTATION}]: {_unknown(within, known)}")
    if spread:
        found = _SPREAD.fullmatch(spread)
        number = int(found[2]) if found is not None and found[2] else None
        if found is None or (number is not None and not 1 <= number <= MOST_OVER):
            return Refusal(
                f"{where}[{SPREAD_ANNOTATION}]: expected a level, or a level and a number from 1 to {MOST_OVER}, such "
                f"as rack=3, got {shown(spread)}; correct or remove it"
            )
        if found[1] not in known:
            return Refusal(f"{where}[{SPREAD_ANNOTATION}]: {_unknown(found[1], known)}")
        inner = [kind for kind in kinds if known.index(kind) >= known.index(found[1])]
        if inner:
            return Refusal(
                f"{where}[{SPREAD_ANNOTATION}]: a group that must stay within one {inner[0]} cannot be spread "
                f"over level {found[1]}; choose a level below {inner[0]}, or remove one of the two constraints"
            )
        spread_over = found[1], number
    return TopologyConstraint(tuple(sorted(kinds, key=known.index)), *spread_over)


def _unknown(kind: str, known: Sequence[str]) -> str:
    listed = ", ".join(known) or "none (set `topology` in the arguments of the plugin fluence)"
    return f"unknown level {shown(kind)}; known levels: {listed}"


def _has_constraint(group: Group) -> bool:
    """Whether its PodGroup, or a pod of it, has one of the annotations: a fast check, since most groups have none."""
    pod_group = group.pod_group
    if pod_group is not None and group.ref.api_group:
        return _has_any(pod_group.metadata.annotations)
    return any(_has_any(task.pod.metadata.annotations) for task in group.tasks.values())


def _has_any(annotations: Mapping[str, str]) -> bool:
    return WITHIN_ANNOTATION in annotations or SPREAD_ANNOTATION in annotations


def _written(group: Group) -> tuple[str, Mapping[str, str] | Refusal]:
    """The field with the group's annotations, for messages, and the annotations."""
    pod_group = group.pod_group
    if pod_group is not None and group.ref.api_group:  # a real one, not that of a group by label
        return f"PodGroup {group.namespace}/{group.name}: metadata.annotations", pod_group.metadata.annotations
    pods: Iterable[Pod] = (task.pod for task in group.tasks.values())
    if not group.single:
        pods = sorted(pods, key=lambda pod: pod.metadata.name)
    first: Pod | None = None
    for pod in pods:
        if first is None:
            first = pod
        elif class_key(pod) != class_key(first):
            return "", Refusal(_disagreement(first, pod))
    if first is None:
        return "", {}
    return f"pod {first.key}: metadata.annotations", first.metadata.annotations


def _disagreement(first: Pod, other: Pod) -> str:
    ours, theirs = first.metadata.annotations, other.metadata.annotations
    name = next(name for name in ANNOTATIONS if ours.get(name, "") != theirs.get(name, ""))
    values = [shown(written[name]) if written.get(name) else "not set" for written in (theirs, ours)]
    return (
        f"pod {other.key}: metadata.annotations[{name}] is {values[0]}, but that of pod {first.key} in the same group "
        f"is {values[1]}; give all pods of the group the same value"
    )
