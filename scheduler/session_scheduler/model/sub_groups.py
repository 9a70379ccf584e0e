"""Sub-groups of a gang, each with its own minimum: for example one leader and at least three workers.

An annotation of the PodGroup defines them; a label of a pod names its sub-group. They are an extension of Fluence: no
version of the PodGroup API has them, so annotation and label are the same for all versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from session_scheduler.model.objects import Pod, PodGroup

SUB_GROUPS_ANNOTATION: Final = "fluence.flux-framework.org/sub-groups"
"""On a PodGroup: "leader=1,worker=3"."""
SUB_GROUP_LABEL: Final = "fluence.flux-framework.org/sub-group"
"""On a pod: the name of its sub-group."""
MOST: Final = 64
"""The maximum number of sub-groups of one group."""
NONE: Final[Mapping[str, int]] = MappingProxyType({})

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_MINIMUM = re.compile(r"[0-9]{1,6}")
_SHOWN = 80
"""How many characters of an invalid text a message shows."""


class SubGroupsError(ValueError):
    """The annotation's text is invalid. The message says why, and what to write."""


@lru_cache(maxsize=4096)
def minima_of(text: str) -> Mapping[str, int]:
    """By sub-group: its minimum in the annotation's text, in the same order. Raises SubGroupsError."""
    parts = text.split(",", MOST + 1)
    if len(parts) > MOST:
        raise SubGroupsError(f"names more than {MOST} sub-groups; write at most {MOST}")
    minima: dict[str, int] = {}
    for part in parts:
        name, equals, minimum = (piece.strip() for piece in part.partition("="))
        if not equals or not _NAME.fullmatch(name) or not _MINIMUM.fullmatch(minimum):
            raise SubGroupsError(
                f"has the invalid entry {part.strip()[:_SHOWN]!r}; write comma-separated name=minimum pairs, such as "
                "leader=1,worker=3; a name has up to 63 lower-case letters, digits and '-', and a minimum has up to 6 "
                "digits"
            )
        if name in minima:
            raise SubGroupsError(f"names the sub-group {name!r} twice; write it once")
        minima[name] = int(minimum)
    return MappingProxyType(minima)


def minima_of_group(pod_group: PodGroup | None) -> Mapping[str, int]:
    """By sub-group of a PodGroup: its minimum. Empty without the annotation.

    Also empty if the annotation is invalid; the action `allocate` then rejects the group.
    """
    text = pod_group.metadata.annotations.get(SUB_GROUPS_ANNOTATION) if pod_group is not None else None
    if text is None:
        return NONE
    try:
        return minima_of(text)
    except SubGroupsError:
        return NONE


def sub_group_of(pod: Pod, minima: Mapping[str, int]) -> str:
    """The name of a pod's sub-group; empty if it names none, or one that its group does not define."""
    name = pod.metadata.labels.get(SUB_GROUP_LABEL, "") if minima else ""
    return name if name in minima else ""


def as_text(counts: Mapping[str, int]) -> str:
    """Counts by sub-group, for messages: "1 pod of sub-group leader and 2 pods of sub-group worker"."""
    return " and ".join(f"{count} pod{'s' * (count != 1)} of sub-group {name}" for name, count in counts.items())
