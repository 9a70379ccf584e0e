"""How long pods run at most, and so when they end: by their deadline, or by what an annotation says.

The annotation is `fluence.flux-framework.org/duration`: a duration as Go writes it (90s, 1h30m) or a number of seconds.
A PodGroup's counts for each of its pods, a pod's own where its PodGroup has none. It is not enforced;
`spec.activeDeadlineSeconds` is enforced by the kubelet. Where a pod has both, the shorter counts.

Source: time.ParseDuration of Go; core/v1 PodSpec.activeDeadlineSeconds, which counts from status.startTime.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Final

from session_scheduler.errors import InputError
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.model.times import parsed_time

__all__ = ["known_seconds"]

DURATION_ANNOTATION: Final = "fluence.flux-framework.org/duration"
"""On a pod or a PodGroup: how long it runs at most, as `90m` or in seconds."""
LONGEST: Final = float(2**63 // 10**9)
"""Seconds, some 292 years: no duration of Go is longer, and greater deadlines count as this."""

_UNITS: Final = {"ns": Decimal("1e-9"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "μs": Decimal("1e-6"),
                 "ms": Decimal("1e-3"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}  # fmt: skip
_NUMBER: Final = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_PART: Final = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h)")
_DURATION: Final = re.compile(rf"\+?(?:{_PART.pattern})+")
_SECONDS: Final = re.compile(rf"\+?({_NUMBER})")
_MOST_CHARACTERS: Final = 64
_SHOWN: Final = 32


class DurationError(InputError, ValueError):
    """A text that is no duration, or none that a pod can have."""


@lru_cache(maxsize=4096)
def parse_duration(text: str) -> float:
    """The seconds that a text means, more than 0. Raises DurationError, which quotes it and says what to write."""
    remedy = "write 90s, 30m, 1h30m or a number of seconds"
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    short = text if len(text) <= _MOST_CHARACTERS else ""
    if _SECONDS.fullmatch(short):
        seconds = Decimal(short)
    elif _DURATION.fullmatch(short):
        seconds = sum((Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(short)), Decimal(0))
    else:
        raise DurationError(f"{shown!r} is no duration: {remedy}")
    if not 0 < seconds <= LONGEST:
        raise DurationError(f"{shown!r} is no time that a pod can take: {remedy}, more than 0 and up to 292 years")
    return float(seconds)


def known_seconds(what: Group | Task) -> float | None:
    """How long a pod runs at most once it has begun, in seconds; of a group the longest of its pods.

    None where that is not known, also where the annotation is no duration (see `problem`) and there is no deadline.
    """
    if isinstance(what, Task):
        return _seconds(what.pod, what.group.pod_group)
    if not what.tasks:
        return _annotated(what.pod_group) if what.pod_group is not None else None
    longest = 0.0
    for task in what.tasks.values():
        seconds = _seconds(task.pod, what.pod_group)
        if seconds is None:
            return None
        longest = max(longest, seconds)
    return longest


def known_end(task: Task) -> float | None:
    """When a pod that runs ends at the latest, in seconds since 1970; it may be over already, where it is late.

    It counts from when the kubelet began with it, else from when it was placed, else from its creation. None where that
    or how long it runs is not known, and for a pod that is not bound: it has not begun.
    """
    seconds = known_seconds(task) if task.phase in (Phase.BOUND, Phase.RELEASING) else None
    if seconds is None:
        return None
    pod = task.pod
    begun = parsed_time(pod.status.start_time or placed_at(pod) or pod.metadata.creation_timestamp or "")
    return begun.timestamp() + seconds if begun is not None else None


def placed_at(pod: Pod) -> str | None:
    """Since when a pod has its node, by its condition; None where it does not say."""
    return next(
        (one.last_transition_time for one in pod.status.conditions
         if one.type == "PodScheduled" and one.status == "True"), None
    )  # fmt: skip


def problem(what: Group | Task) -> str | None:
    """What is wrong with the annotation that counts for a pod, or with the first such of a group; None for nothing.

    It names object, field and remedy.
    """
    tasks = [what] if isinstance(what, Task) else sorted(what.tasks.values(), key=lambda task: task.key)
    return next((f"{name}: {text}" for name, text in wrong_durations(tasks).items()), None)


def wrong_durations(tasks: Iterable[Task]) -> dict[str, str]:
    """What is wrong with the annotations that count for some pods: by kind and namespace/name of what bears them."""
    found: dict[str, str] = {}
    for task in tasks:
        bearer = _bearer(task.pod, task.group.pod_group)
        text = bearer.metadata.annotations.get(DURATION_ANNOTATION)
        if text is None:
            continue
        try:
            parse_duration(text)
        except DurationError as error:
            found[f"{type(bearer).__name__} {bearer.key}"] = f"metadata.annotations[{DURATION_ANNOTATION}]: {error}"
    return found


def _bearer(pod: Pod, pod_group: PodGroup | None) -> Pod | PodGroup:
    """Whose annotation counts."""
    if pod_group is not None and DURATION_ANNOTATION in pod_group.metadata.annotations:
        return pod_group
    return pod


def _seconds(pod: Pod, pod_group: PodGroup | None) -> float | None:
    deadline = pod.spec.active_deadline_seconds
    known = _annotated(_bearer(pod, pod_group))
    if deadline is None:
        return known
    enforced = min(float(max(deadline, 0)), LONGEST)
    return enforced if known is None else min(known, enforced)


def _annotated(bearer: Pod | PodGroup) -> float | None:
    text = bearer.metadata.annotations.get(DURATION_ANNOTATION)
    if text is None:
        return None
    try:
        return parse_duration(text)
    except DurationError:
        return None
