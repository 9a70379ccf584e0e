"""`fluence status`: what is held, what waits and why, and what queues have. Nothing is placed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from session_scheduler.engine.explain import explain_task, gate_reason, head_of
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.errors import InputError
from session_scheduler.framework.hooks import HookCall, PluginError
from session_scheduler.model.columns import natural
from session_scheduler.model.durations import known_end, placed_at, wrong_durations
from session_scheduler.model.groups import Task
from session_scheduler.model.times import time_text
from session_scheduler.offline.pod_selector import PodSelector, selected
from session_scheduler.offline.queue_report import queue_report
from session_scheduler.offline.simulate import json_columns

_COLUMNS: Final = ("jobid", "devices")
"""What plugins say of a pod that holds something."""
_LAST: Final = 253_402_300_799
"""The end of the year 9999, in seconds since 1970."""


def status_of(scheduler: Scheduler, chosen: Sequence[PodSelector] = ()) -> dict[str, Any]:
    """The JSON of `fluence status`: {"held": […], "waiting": […], "queues": […], "summary": {…}}.

    Of the chosen pods, where some are. The scheduler was started; no session is open. Raises InputError.
    """
    queues = queue_report(scheduler)  # first: which queue a group is in is looked up where queues are in use
    tasks = sorted(
        (task for task in scheduler.cache.tasks.values() if task.pod.spec.scheduler_name in scheduler.profiles),
        key=lambda task: natural(task.key),
    )
    for each in chosen:
        if not any(each.has(task) for task in tasks):
            raise InputError(f"{each.written}: no pod of a profile's schedulerName belongs to it in namespace "
                             f"{each.key.partition('/')[0]}: name another one, or another namespace by -n")  # fmt: skip
    tasks = [task for task in tasks if selected(chosen, task)]
    problems = {**wrong_durations(tasks), **scheduler.cache.problems}
    held = [_held(scheduler, task, problems) for task in tasks if task.node is not None]
    reasons = _Reasons(scheduler)
    waiting = [_waiting(task, reasons.of(task)) for task in tasks if task.node is None]
    return {
        "held": held,
        "waiting": waiting,
        **queues,
        "summary": {"held": len(held), "waiting": len(waiting), "problems": dict(sorted(problems.items()))},
    }


# ------------------------------------------------------------------ what is held


def _held(scheduler: Scheduler, task: Task, problems: dict[str, str]) -> dict[str, Any]:
    columns: dict[str, Any] = {"jobid": None, "devices": []}
    for call in scheduler.profiles[task.pod.spec.scheduler_name].functions("shown_holding"):
        try:
            shown = _shown(call, call(task.pod))
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
        raise call.wrong(f"{answer!r} is no mapping of {' and '.join(_COLUMNS)}")
    if not isinstance(answer.get("devices", ()), list | tuple):
        raise call.wrong(f"{answer['devices']!r} is no list of devices")
    return json_columns(call, answer)


def _written(end: float | None) -> str | None:
    """A time as the API server writes it, to the second, rounded up; None where no calendar has it."""
    if end is None or end > _LAST:
        return None
    return time_text(datetime.fromtimestamp(math.ceil(end), UTC))


# ------------------------------------------------------------------ what waits


def _waiting(task: Task, reason: str) -> dict[str, Any]:
    nominated = task.pod.status.nominated_node_name or None
    return {**head_of(task), "since": task.pod.metadata.creation_timestamp, "nominated": nominated, "reason": reason}


class _Reasons:
    """Why pods wait: what a scheduler has written on them, else what their evaluation says now."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._of_class: dict[Any, str] = {}
        """For pods alone: those of one class, queue and priority are evaluated once."""

    def of(self, task: Task) -> str:
        gated = gate_reason(self._scheduler, task)
        if gated is not None:
            return gated
        condition = next((one for one in task.pod.status.conditions if one.type == "PodScheduled"), None)
        if condition is not None and condition.status == "False" and condition.message:
            return condition.message
        if not task.group.single:
            return self._evaluated(task)
        key = task.cls, task.group.queue, task.priority
        if key not in self._of_class:
            self._of_class[key] = self._evaluated(task)
        return self._of_class[key]

    def _evaluated(self, task: Task) -> str:
        answer = explain_task(self._scheduler, task)
        if answer["reason"] is not None:
            return str(answer["reason"])
        verdicts = answer["nodes"].values()
        fits = sum(verdict["fits"] for verdict in verdicts)
        if fits:
            return f"not tried yet: {fits} of {len(verdicts)} nodes would take it"
        return str(answer["summary"])
