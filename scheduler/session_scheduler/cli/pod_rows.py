"""Pods that a table shows in one row, because they differ only in their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

Pod = Mapping[str, Any]
_GENERATED: Final = re.compile(r"(?:-(?:\d+|[bcdfghjklmnpqrstvwxz2456789]{5,10}))+")
"""What controllers append to names of pods. Source: SafeEncodeString of k8s.io/apimachinery/pkg/util/rand."""


def grouped(pods: Iterable[Pod], key: Callable[[Pod], Hashable]) -> list[list[Pod]]:
    """Pods of one namespace, one group or controller, and an equal key, in the order of the first of each."""
    found: dict[Hashable, list[Pod]] = {}
    for pod in pods:
        owner = pod.get("group") or stem(pod["name"])
        found.setdefault((pod["namespace"], owner, key(pod)), []).append(pod)
    return list(found.values())


def stem(name: str) -> str:
    """The name without the numbers and the random characters that controllers append."""
    return name[: match.start()] if (match := re.search(rf"{_GENERATED.pattern}$", name)) else name


def names(pods: Sequence[str]) -> str:
    """As `a`, `a, b` or `a … z (26 pods)`."""
    return ", ".join(pods) if len(pods) < 3 else f"{pods[0]} … {pods[-1]} ({len(pods)} pods)"
