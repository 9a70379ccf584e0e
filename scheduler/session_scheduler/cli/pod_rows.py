"""Groups pods that differ only in their names, so that a table shows them in one row."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

Pod = Mapping[str, Any]
_GENERATED: Final = re.compile(r"\d+|[bcdfghjklmnpqrstvwxz2456789]{5,10}")
"""A suffix that controllers append to pods' names. Source: SafeEncodeString of k8s.io/apimachinery/pkg/util/rand."""


def grouped(pods: Iterable[Pod], key: Callable[[Pod], Hashable]) -> list[list[Pod]]:
    """Groups of pods with equal namespace, PodGroup or controller, and key, in order of appearance."""
    found: dict[Hashable, list[Pod]] = {}
    for pod in pods:
        owner = pod.get("group") or stem(pod["name"])
        found.setdefault((pod["namespace"], owner, key(pod)), []).append(pod)
    return list(found.values())


def stem(name: str) -> str:
    """The name without the suffixes of controllers."""
    end = len(name)
    while (dash := name.rfind("-", 0, end)) >= 0 and _GENERATED.fullmatch(name, dash + 1, end):
        end = dash
    return name[:end]


def names(pods: Sequence[str]) -> str:
    """As `a`, `a, b` or `a … z (26 pods)`."""
    return ", ".join(pods) if len(pods) < 3 else f"{pods[0]} … {pods[-1]} ({len(pods)} pods)"
