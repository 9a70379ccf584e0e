"""The running pods that may end for a group: which ones a trial offers, and whether callbacks object to a choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from session_scheduler.framework.callbacks import Scenario
from session_scheduler.framework.session import Session
from session_scheduler.model.disruption import PREEMPTED, is_disrupted
from session_scheduler.model.groups import Group, Phase, Task


class EligibleVictims:
    """For one trial. Whatever asks callbacks raises PluginError."""

    def __init__(self, session: Session, group: Group, priority: int, *, reclaims: bool, alike: bool) -> None:
        """`reclaims`: of other queues, whatever their priorities; `alike`: one answer may stand for scenarios whose
        victims are alike, where callbacks promise it.
        """
        self.on_nodes_with_binds: set[str] = set()
        """The nodes where `on` left out tasks of lower priority, for they are being bound."""
        self._runner = session.runner
        self._cache = session.snapshot.cache
        self._leaves = session.ledger.leaves
        self._group = group
        self._priority = priority
        self._reclaims = reclaims
        self._others_reclaimed = session.runner.reclaims
        self._limited = reclaims or session.runner.limits_preemption
        self._preemptible: dict[Group, bool] = {}
        self._bound_in_part: dict[Group, bool] = {}
        self._objections: dict[object, str | None] | None = {} if alike and session.registered.validates_alike else None
        """To reclaiming, by what is alike of the victims; None where nothing is promised."""

    def on(self, node: str) -> list[Task]:
        """Those on a node; not those whose binding, or their gang's, is in flight, nor those that callbacks spare."""
        tasks = self._cache.tasks_on(node)
        found = [task for task in tasks if not self._is_being_bound(task)]
        if any(task.standing < self._priority for task in tasks if task not in found):
            self.on_nodes_with_binds.add(node)
        if self._reclaims:
            return self._runner.reclaimable(self._group, filter(self._is_of_other_queue, found))
        return self._runner.preemptable(self._group, filter(self._is_outranked, found)) if self._limited else found

    def others_end_on(self, node: str) -> bool:
        """Whether tasks on a node were made to end that these outrank, or that may end for their queue's share."""
        return any(
            task.standing < self._priority or (self._others_reclaimed and task.group.queue != self._group.queue)
            for task in self._cache.tasks_on(node)
            if self._ends_for_others(task) and not self._is_being_bound(task)
        )

    def objection(self, nominated: Mapping[Task, str], victims: Sequence[Task]) -> str | None:
        """Why callbacks do not let these victims end so that tasks go there; None where they do."""
        if not self._limited:
            return None
        scenario = Scenario(self._group, nominated, victims)
        if not self._reclaims:
            refusal = self._runner.preempt_refusal(scenario)
        elif self._objections is None:
            refusal = self._runner.reclaim_refusal(scenario)
        else:
            kind = tuple([(task.group.queue, task.cls, self._leaves(task)) for task in victims])
            if kind not in self._objections:
                refusal = self._runner.reclaim_refusal(scenario, spared=False)
                self._objections[kind] = refusal.reason if refusal is not None else None
            return self._objections[kind]
        return refusal.reason if refusal is not None else None

    def _is_outranked(self, task: Task) -> bool:
        """Whether a task, or its group as a whole, is of lower priority: callbacks are asked about no others."""
        return task.standing < self._priority or task.group.priority < self._priority

    def _is_of_other_queue(self, task: Task) -> bool:
        """Whether a task is another queue's, and may end at all."""
        group = task.group
        if group not in self._preemptible:
            self._preemptible[group] = group.queue != self._group.queue and group.preemptible
        return self._preemptible[group]

    def _is_being_bound(self, task: Task) -> bool:
        group = task.group
        if task.phase is Phase.ASSUMED or not group.is_gang:
            return task.phase is Phase.ASSUMED
        if group not in self._bound_in_part:
            self._bound_in_part[group] = bool(group.in_phase(Phase.ASSUMED))
        return self._bound_in_part[group]

    def _ends_for_others(self, task: Task) -> bool:
        """Whether a running task was made to end already, so that another one has its place."""
        ends = task.pod.metadata.deletion_timestamp is not None
        return task.uid in self._cache.preempted or (ends and is_disrupted(task.pod, PREEMPTED))
