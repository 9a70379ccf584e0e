"""Sub-groups of a gang, with a minimum each: a leader and workers, say.

A PodGroup says them in an annotation, a pod says by a label to which it belongs. They are the core's own: no version of
the PodGroup API has them, so they are said in the same way on all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from session_scheduler.model.objects import Pod, PodGroup

SUB_GROUPS_ANNOTATION: Final = "fluence.flux-framework.org/sub-groups"
"""Of a PodGroup: "leader=1,worker=3"."""
SUB_GROUP_LABEL: Final = "fluence.flux-framework.org/sub-group"
"""Of a pod: the name of its sub-group."""
MOST: Final = 64
"""Sub-groups of one group."""
NONE: Final[Mapping[str, int]] = MappingProxyType({})

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_MINIMUM = re.compile(r"[0-9]{1,6}")
_SHOWN = 80
"""Characters of a wrong text that are shown."""


class SubGroupsError(ValueError):
    """The text names no sub-groups: what is wrong with it, and what to write."""


@lru_cache(maxsize=4096)
def minima_of(text: str) -> Mapping[str, int]:
    """The minimum of each sub-group that an annotation's text names, in its order. Raises SubGroupsError."""
    parts = text.split(",", MOST + 1)
    if len(parts) > MOST:
        raise SubGroupsError(f"names more than {MOST} sub-groups: write at most {MOST}")
    minima: dict[str, int] = {}
    for part in parts:
        name, equals, minimum = (piece.strip() for piece in part.partition("="))
        if not equals or not _NAME.fullmatch(name) or not _MINIMUM.fullmatch(minimum):
            raise SubGroupsError(
                f"{part.strip()[:_SHOWN]!r} is no sub-group with its minimum: write name=minimum, comma-separated, "
                "such as leader=1,worker=3; a name has up to 63 lower-case letters, digits and '-', a minimum up to 6 "
                "digits"
            )
        if name in minima:
            raise SubGroupsError(f"names the sub-group {name!r} twice: write it once")
        minima[name] = int(minimum)
    return MappingProxyType(minima)


def minima_said(pod_group: PodGroup | None) -> Mapping[str, int]:
    """The minima that a PodGroup says; nothing where it says none, or a wrong text: then the group is refused."""
    text = pod_group.metadata.annotations.get(SUB_GROUPS_ANNOTATION) if pod_group is not None else None
    if text is None:
        return NONE
    try:
        return minima_of(text)
    except SubGroupsError:
        return NONE


def sub_group_of(pod: Pod, minima: Mapping[str, int]) -> str:
    """The name of a pod's sub-group; empty for none, or for one that its group does not have."""
    name = pod.metadata.labels.get(SUB_GROUP_LABEL, "") if minima else ""
    return name if name in minima else ""


def as_text(counts: Mapping[str, int]) -> str:
    """Counts by sub-group, for people: "1 of sub-group leader and 2 of sub-group worker"."""
    return " and ".join(f"{count} of sub-group {name}" for name, count in counts.items())
