"""Durations of pods: the longest time that a pod runs, from its deadline or an annotation.

The annotation is `fluence.flux-framework.org/duration`: a Go duration (90s, 1h30m) or a number of seconds. The
annotation of a PodGroup applies to each of its pods and takes precedence over theirs. The scheduler does not enforce
it; the kubelet enforces `spec.activeDeadlineSeconds`. If a pod has both, the shorter one applies. Reservations and
backfill plan with these times.

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
"""The longest Go duration, about 292 years, in seconds. Longer deadlines count as this."""

_UNITS: Final = {"ns": Decimal("1e-9"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "μs": Decimal("1e-6"),
                 "ms": Decimal("1e-3"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}  # fmt: skip
_NUMBER: Final = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_PART: Final = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h)")
_DURATION: Final = re.compile(rf"\+?(?:{_PART.pattern})+")
_SECONDS: Final = re.compile(rf"\+?({_NUMBER})")
_MAX_LENGTH: Final = 64
_SHOWN: Final = 32


class DurationError(InputError, ValueError):
    """The text is not a duration, or is out of range."""


@lru_cache(maxsize=4096)
def parse_duration(text: str) -> float:
    """The duration in seconds, greater than 0. Raises DurationError, which quotes the text and shows valid ones."""
    remedy = "write 90s, 30m, 1h30m or a number of seconds"
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    short = text if len(text) <= _MAX_LENGTH else ""
    if _SECONDS.fullmatch(short):
        seconds = Decimal(short)
    elif _DURATION.fullmatch(short):
        seconds = sum((Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(short)), Decimal(0))
    else:
        raise DurationError(f"{shown!r} is not a valid duration; {remedy}")
    if not 0 < seconds <= LONGEST:
        raise DurationError(f"expected a duration above 0 and up to 292 years, got {shown!r}; {remedy}")
    return float(seconds)


def known_seconds(what: Group | Task) -> float | None:
    """The longest time that a pod runs after its start, in seconds; for a group, the longest time of any of its pods.

    None if it is unknown. An invalid annotation (see `problem`) counts as none.
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
    """The latest end of a bound pod, in seconds since 1970. It is in the past if the pod is overdue.

    The time counts from the kubelet's start of the pod (`status.startTime`), else from when the pod was scheduled, else
    from its creation. None if the start or the duration is unknown, or if the pod is not bound.
    """
    seconds = known_seconds(task) if task.phase in (Phase.BOUND, Phase.RELEASING) else None
    if seconds is None:
        return None
    pod = task.pod
    start = parsed_time(pod.status.start_time or placed_at(pod) or pod.metadata.creation_timestamp or "")
    return start.timestamp() + seconds if start is not None else None


def placed_at(pod: Pod) -> str | None:
    """The transition time of the pod's condition PodScheduled; None unless the condition is True."""
    return next(
        (one.last_transition_time for one in pod.status.conditions
         if one.type == "PodScheduled" and one.status == "True"), None
    )  # fmt: skip


def problem(what: Group | Task) -> str | None:
    """The error in the annotation that applies to the pod, or to the first such pod of the group; None if valid.

    It names the object, the field and a remedy.
    """
    tasks = [what] if isinstance(what, Task) else sorted(what.tasks.values(), key=lambda task: task.key)
    return next((f"{name}: {text}" for name, text in wrong_durations(tasks).items()), None)


def wrong_durations(tasks: Iterable[Task]) -> dict[str, str]:
    """The errors in the annotations that apply to the pods: by kind and namespace/name of the annotated object."""
    found: dict[str, str] = {}
    for task in tasks:
        source = _annotation_source(task.pod, task.group.pod_group)
        text = source.metadata.annotations.get(DURATION_ANNOTATION)
        if text is None:
            continue
        try:
            parse_duration(text)
        except DurationError as error:
            found[f"{type(source).__name__} {source.key}"] = f"metadata.annotations[{DURATION_ANNOTATION}]: {error}"
    return found


def _annotation_source(pod: Pod, pod_group: PodGroup | None) -> Pod | PodGroup:
    """The object whose annotation applies to the pod."""
    if pod_group is not None and DURATION_ANNOTATION in pod_group.metadata.annotations:
        return pod_group
    return pod


def _seconds(pod: Pod, pod_group: PodGroup | None) -> float | None:
    deadline = pod.spec.active_deadline_seconds
    annotated = _annotated(_annotation_source(pod, pod_group))
    if deadline is None:
        return annotated
    enforced = min(float(max(deadline, 0)), LONGEST)
    return enforced if annotated is None else min(annotated, enforced)


def _annotated(source: Pod | PodGroup) -> float | None:
    text = source.metadata.annotations.get(DURATION_ANNOTATION)
    if text is None:
        return None
    try:
        return parse_duration(text)
    except DurationError:
        return None
