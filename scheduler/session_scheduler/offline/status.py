"""`fluence status`: reports what pods have allocated, which pods wait and why, and the queues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from session_scheduler.actions.best_part import is_gang
from session_scheduler.engine.explain import explain_gang, explain_task, gang_reason, gate_reason, head_of
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.errors import InputError
from session_scheduler.framework.hooks import HookCall, PluginError
from session_scheduler.model.columns import natural
from session_scheduler.model.durations import known_end, placed_at, wrong_durations
from session_scheduler.model.groups import Group, Task
from session_scheduler.model.times import time_text
from session_scheduler.offline.pod_selector import PodSelector, selected
from session_scheduler.offline.queue_report import queue_report
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
            raise InputError(f"{each.written}: no pods with a profile's schedulerName {where}: {remedy}")
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


# ------------------------------------------------------------------ held


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
        raise call.wrong(f"expected a mapping with the keys {' and '.join(_COLUMNS)}, got {answer!r}")
    if not isinstance(answer.get("devices", ()), list | tuple):
        raise call.wrong(f"expected a list as devices, got {answer['devices']!r}")
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


class _Reasons:
    """Why pods wait: the message of the condition PodScheduled, else their evaluation now."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._of_class: dict[Any, str] = {}
        """Caches by class, queue and priority, for pods without a group."""
        self._of_gang: dict[Group, str | None] = {}

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
        reason = answer["reason"] or self._gang_reason(task.group)
        if reason is not None:
            return str(reason)
        verdicts = answer["nodes"].values()
        fits = sum(verdict["fits"] for verdict in verdicts)
        if fits:
            return f"not tried yet: the pod fits on {fits} of {len(verdicts)} nodes"
        return str(answer["summary"])

    def _gang_reason(self, group: Group) -> str | None:
        if group not in self._of_gang:
            self._of_gang[group] = gang_reason(explain_gang(self._scheduler, group)) if is_gang(group) else None
        return self._of_gang[group]
