"""The annotation with which a group prefers nodes that are near each other: labels of topology levels."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from session_scheduler.model.objects import PodGroup

PREFER_WITHIN: Final = "fluence.flux-framework.org/prefer-within"
"""On a PodGroup: node labels, comma-separated, the narrowest level first. The scheduler places its pods in one domain
of the first level that fits them all, or else anywhere."""
_MOST: Final = 8


def preferred_levels(pod_group: PodGroup | None) -> tuple[str, ...]:
    """The labels of the levels, the preferred one first; at most 8."""
    text = pod_group.metadata.annotations.get(PREFER_WITHIN) if pod_group is not None else None
    return () if text is None else _labels(text)


@lru_cache(maxsize=4096)
def _labels(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(",", _MOST)[:_MOST])))
