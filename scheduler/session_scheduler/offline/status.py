"""`fluence status`: reports what pods have allocated, which pods wait and why, and the queues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from session_scheduler.engine.explain import head_of
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.errors import InputError
from session_scheduler.framework.hooks import HookCall, PluginError
from session_scheduler.model.columns import natural
from session_scheduler.model.durations import known_end, placed_at, wrong_durations
from session_scheduler.model.groups import Task
from session_scheduler.model.times import time_text
from session_scheduler.offline.pod_selector import PodSelector, selected
from session_scheduler.offline.queue_report import queue_report
from session_scheduler.offline.reasons import Reasons
from session_scheduler.offline.simulate import json_columns

_COLUMNS: Final = ("jobid", "devices")
"""The columns that plugins report for a bound pod."""
_LAST: Final = 253_402_300_799
"""The end of the year 9999, in seconds since 1970."""


def status_of(scheduler: Scheduler, chosen: Sequence[PodSelector] = ()) -> dict[str, Any]:
    """The JSON of `fluence status`: {"held": […], "waiting": […], "queues": […], "summary": {…}}.

    Shows the chosen pods, or all. The scheduler is started; no session is open. Raises InputError.
    """
    queues = queue_report(scheduler)  # first: it looks up the queue of each group
    tasks = sorted(
        (task for task in scheduler.cache.tasks.values() if task.pod.spec.scheduler_name in scheduler.profiles),
        key=lambda task: natural(task.key),
    )
    for each in chosen:
        if not any(each.has(task) for task in tasks):
            where, remedy = f"in namespace {each.key.partition('/')[0]}", each.remedy(each.objects(tasks))
            raise InputError(f"{each.written}: no pods with a profile's schedulerName {where}; {remedy}")
    tasks = [task for task in tasks if selected(chosen, task)]
    problems = {**wrong_durations(tasks), **scheduler.cache.problems}
    held = [_held(scheduler, task, problems) for task in tasks if task.node is not None]
    reasons = Reasons(scheduler)
    waiting = [_waiting(task, reasons.of(task)) for task in tasks if task.node is None]
    return {
        "held": held,
        "waiting": waiting,
        **queues,
        "summary": {"held": len(held), "waiting": len(waiting), "problems": dict(sorted(problems.items()))},
    }


# ------------------------------------------------------------------ held


def _held(scheduler: Scheduler, task: Task, problems: dict[str, str]) -> dict[str, Any]:
    columns: dict[str, Any] = {"jobid": None, "devices": []}
    for call in scheduler.profiles[task.pod.spec.scheduler_name].functions("shown_holding"):
        try:
            shown = _shown(call, call(task.pod, scheduler.cache.objects.of))
            columns["jobid"] = columns["jobid"] or shown.get("jobid")
            columns["devices"] = [*columns["devices"], *shown.get("devices", ())]
        except PluginError as error:
            problems[f"Plugin {call.plugin}"] = str(error)
    since, until = placed_at(task.pod) or task.pod.status.start_time, _written(known_end(task))  # see model.durations
    return {**head_of(task), "node": task.node, **columns, "since": since, "until": until}


def _shown(call: HookCall, answer: object) -> dict[str, Any]:
    if answer is None:
        return {}
    if not isinstance(answer, Mapping) or not set(answer).issubset(_COLUMNS):
        raise call.wrong(f"expected a mapping with the keys {' and '.join(_COLUMNS)}, got {answer!r}")
    return json_columns(call, answer)


def _written(end: float | None) -> str | None:
    """A time in the API server's format, rounded up to the second; None after the year 9999."""
    if end is None or end > _LAST:
        return None
    return time_text(datetime.fromtimestamp(math.ceil(end), UTC))


# ------------------------------------------------------------------ waiting


def _waiting(task: Task, reason: str) -> dict[str, Any]:
    nominated = task.pod.status.nominated_node_name or None
    return {**head_of(task), "since": task.pod.metadata.creation_timestamp, "nominated": nominated, "reason": reason}
