"""The annotation with which a group prefers nodes that are near each other: labels of topology levels."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from session_scheduler.errors import shown
from session_scheduler.model.expressions import is_label_key
from session_scheduler.model.objects import PodGroup

PREFER_WITHIN: Final = "fluence.flux-framework.org/prefer-within"
"""On a PodGroup: node labels, comma-separated, the narrowest level first. The scheduler places its pods in one domain
of the first level that fits them all, or else anywhere."""
_MOST: Final = 8


class _Levels(NamedTuple):
    labels: tuple[str, ...]
    """Empty if the annotation is invalid."""
    problem: str | None
    """Why it is invalid, and what to write."""


def preferred_levels(pod_group: PodGroup | None) -> tuple[str, ...]:
    """The labels of the levels, the preferred one first; at most 8. Empty if the annotation is invalid: the action
    `allocate` then rejects the group.
    """
    text = pod_group.metadata.annotations.get(PREFER_WITHIN) if pod_group is not None else None
    return () if text is None else _levels(text).labels


def wrong_levels(pod_group: PodGroup | None) -> str | None:
    """Why a PodGroup's annotation prefer-within is invalid; None if it is valid or absent."""
    text = pod_group.metadata.annotations.get(PREFER_WITHIN) if pod_group is not None else None
    problem = _levels(text).problem if text is not None else None
    if pod_group is None or problem is None:
        return None
    return f"PodGroup {pod_group.key}: metadata.annotations[{PREFER_WITHIN}] {problem}; or remove the annotation"


@lru_cache(maxsize=4096)
def _levels(text: str) -> _Levels:
    labels = tuple(filter(None, map(str.strip, text.split(","))))
    if len(labels) > _MOST:
        return _Levels((), f"names {len(labels)} labels; write at most {_MOST}")
    wrong = next((label for label in labels if not is_label_key(label)), None)
    if wrong is not None:
        write = "write comma-separated label keys, the narrowest level first, such as example.com/rack,example.com/zone"
        return _Levels((), f"has the invalid entry {shown(wrong)}; {write}")
    return _Levels(labels, None)
