"""What the annotation on a bound pod says that it holds, read again at a restart and when another replica binds."""

from __future__ import annotations

from typing import Any

import msgspec

from session_scheduler.framework.bindings import HELD_ANNOTATION, Holding
from session_scheduler.model.groups import Task


class _Record(msgspec.Struct, frozen=True):
    """The annotation's form."""

    uid: str = ""
    plugins: dict[str, Any] = {}


def holding_of(task: Task, plugin: str) -> Holding:
    """What a bound pod's annotation says that a plugin holds for it.

    An unreadable record, and one that was copied from another pod (its uid differs), count as nothing.
    """
    return Holding(task, task.node or "", held_by(task).get(plugin), task.pod.metadata.annotations)


def held_by(task: Task) -> dict[str, Any]:
    """What a bound pod's annotation says that it holds, by plugin, as far as it is believed."""
    record = _record(task)
    return record.plugins if record is not None and record.uid == task.uid else {}


def record_problem(task: Task) -> str | None:
    """Why what a bound pod's annotation says is not believed; None where it is, or says nothing."""
    if HELD_ANNOTATION not in task.pod.metadata.annotations:
        return None
    record = _record(task)
    if record is None:
        return f"pod {task.key}: annotation {HELD_ANNOTATION} is no record of what a pod holds: it is ignored"
    if record.uid != task.uid:
        return f"pod {task.key}: annotation {HELD_ANNOTATION} was written for another pod: it is ignored"
    return None


def _record(task: Task) -> _Record | None:
    try:
        return msgspec.json.decode(task.pod.metadata.annotations.get(HELD_ANNOTATION, "{}"), type=_Record)
    except (msgspec.DecodeError, RecursionError):  # the second where it nests too deep
        return None
