"""Reads a bound pod's allocations from its annotation, at a restart and when another replica binds."""

from __future__ import annotations

from typing import Any

import msgspec

from session_scheduler.framework.bindings import HELD_ANNOTATION, Holding
from session_scheduler.model.groups import Task


class _Record(msgspec.Struct, frozen=True):
    """The annotation's format."""

    uid: str = ""
    plugins: dict[str, Any] = {}


def holding_of(task: Task, plugin: str, *, foreign: bool = False) -> Holding:
    """A bound pod's allocation of one plugin.

    An invalid record, and one that was copied from another pod (its uid differs), count as empty.
    """
    return Holding(task, task.node or "", held_by(task).get(plugin), task.pod.metadata.annotations, foreign)


def held_by(task: Task) -> dict[str, Any]:
    """A bound pod's allocations by plugin; empty for an invalid record."""
    record = _record(task)
    return record.plugins if record is not None and record.uid == task.uid else {}


def record_problem(task: Task) -> str | None:
    """Why a bound pod's record is invalid; None if it is valid or missing."""
    if HELD_ANNOTATION not in task.pod.metadata.annotations:
        return None
    record = _record(task)
    if record is None:
        return f"pod {task.key}: ignoring annotation {HELD_ANNOTATION}: expected a record of allocations"
    if record.uid != task.uid:
        return f"pod {task.key}: ignoring annotation {HELD_ANNOTATION}: it was written for another pod"
    return None


def _record(task: Task) -> _Record | None:
    try:
        return msgspec.json.decode(task.pod.metadata.annotations.get(HELD_ANNOTATION, "{}"), type=_Record)
    except (msgspec.DecodeError, RecursionError):  # RecursionError: nested too deep
        return None
