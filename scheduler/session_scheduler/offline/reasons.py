"""Why pods wait, in one sentence: for `fluence status` and observers."""

from __future__ import annotations

from typing import Any, Final

from session_scheduler.actions.best_part import is_gang
from session_scheduler.engine.explain import explain_gang, explain_task, gang_reason, gate_reason, outcome_reason
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.groups import Group, Task

NOT_REPORTED: Final = "not tried yet: no scheduler has reported why the pod waits"


class Reasons:
    """Why pods wait: a gate, the outcome of their last attempt, or the message of the condition PodScheduled."""

    def __init__(self, scheduler: Scheduler, *, evaluates: bool = True) -> None:
        """If none of these exists, the pod is evaluated now; without `evaluates` the reason is NOT_REPORTED."""
        self._scheduler = scheduler
        self._evaluates = evaluates
        self._of_class: dict[Any, str] = {}
        """Caches by class, queue and priority, for pods without a group."""
        self._of_gang: dict[Group, str | None] = {}

    def of(self, task: Task) -> str:
        """The reason of a task without a node. The scheduler is started; no session is open."""
        known = gate_reason(self._scheduler, task) or outcome_reason(self._scheduler, task)
        if known is not None:
            return known
        condition = next((one for one in task.pod.status.conditions if one.type == "PodScheduled"), None)
        if condition is not None and condition.status == "False" and condition.message:
            return condition.message
        if not self._evaluates:
            return NOT_REPORTED
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
