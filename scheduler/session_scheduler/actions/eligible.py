"""Eligible victims: the running pods that preemption or reclaim may evict for one group.

A trial lists them by node, and asks here whether a plugin's callbacks object to a set of victims.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from session_scheduler.framework.callbacks import Scenario
from session_scheduler.framework.session import Session
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.disruption import PREEMPTED, is_disrupted
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.units import Unit


class EligibleVictims:
    """The eligible victims of one trial. Methods that call callbacks raise PluginError."""

    def __init__(self, session: Session, group: Group, priority: int, *, reclaims: bool, alike: bool) -> None:
        """`reclaims`: victims come from other queues, whatever their priority. `alike`: equal victims, and scenarios
        with equal victims, may share one answer if the callbacks promise that.
        """
        self.on_nodes_with_binds: set[str] = set()
        """The nodes where `on` skipped tasks of lower priority because their binds are in flight."""
        self._runner = session.runner
        self._cache = session.snapshot.cache
        self._leaves, self._node_at = session.ledger.leaves, session.ledger.node_at
        self._group = group
        self._priority = priority
        self._reclaims = reclaims
        self._others_reclaimed = session.runner.reclaims
        self._limited = reclaims or session.runner.limits_preemption
        self._running = session.queues.running if session.queues.active else None
        self._by_model = session.queues.by_model
        self._row_of, self._rows = session.table.row_of, session.table.size
        trials = self._trials = None if session.evaluator.naive else session.trials
        self._touched, self._known_rows = session.ledger.touched, trials.rows_with_victims if trials else {}
        self._queues: frozenset[str] | None = None
        """The only queues with victims; None for all."""
        limits = session.runner.queues_with_victims(group, reclaims=reclaims)
        if limits is not None:
            self._queues, plugin = limits
            if self._running is None or self._running.any_below(priority, outside=self._queues):
                session.runner.note_group(group, plugin)
        self._preemptible = trials.preemptible if trials else {}
        self._bound_in_part: dict[Group, bool] = {}
        self._alike = alike
        self._reclaimable: dict[object, bool] = {}
        """By what makes victims equal: the answers of reclaimable callbacks."""
        promised = alike and (not reclaims or session.registered.validates_alike)
        self._objections: dict[object, str | None] | None = {} if promised else None
        """Objections of validators, by what makes victims alike; None if the callbacks promise nothing."""

    def on(self, node: str) -> list[Task]:
        """The victims on a node, without tasks that callbacks spare or whose bind, or gang's bind, is in flight."""
        found = list[Task]()
        for task in self._cache.tasks_on(node):
            if not self._is_in_queues(task):
                continue
            if not self._is_being_bound(task):
                found.append(task)
            elif task.standing < self._priority:
                self.on_nodes_with_binds.add(node)
        return self._allowed(found)

    def units_on(self, node: str) -> list[Unit] | None:
        """The units of lower priority on a node, most important first, if only single pods run there and no bind is in
        flight. None for other nodes.
        """
        row = self._row_of.get(node, -1)
        if row < 0 or self._trials is None:
            return None
        pods = self._trials.units_of_kinds(row, self._kind)
        if pods is None:
            return None
        if self._reclaims and self._alike:
            answers = self._reclaimable
            for unit, kind in pods:
                if kind not in answers:
                    answers[kind] = self._is_in_queues(unit.tasks[0]) and self._is_reclaimable(unit.tasks[0])
            return [unit for unit, kind in pods if answers[kind] and unit.priority < self._priority]
        there = [unit for unit, _ in pods if self._is_in_queues(unit.tasks[0])]
        allowed = set(self._allowed([unit.tasks[0] for unit in there]))
        return [unit for unit in there if unit.tasks[0] in allowed and unit.priority < self._priority]

    def _allowed(self, tasks: list[Task]) -> list[Task]:
        """Those of these tasks that callbacks do not spare."""
        if self._reclaims and self._alike:
            return [task for task in tasks if self._is_reclaimable(task)]
        if self._reclaims:
            return self._runner.reclaimable(self._group, filter(self._is_of_other_queue, tasks))
        return self._runner.preemptable(self._group, filter(self._is_outranked, tasks)) if self._limited else tasks

    def rows(self) -> BoolColumn | None:
        """The rows with a running pod of lower priority in a queue with victims; None if that may be any queue.

        Shape [rows of the table]; read only. Later calls evaluate only rows that have changed.
        """
        if self._queues is None or self._running is None:
            return None
        key = self._queues, self._priority
        seen, found = self._known_rows.get(key) or (-1, np.zeros(self._rows, np.bool_))
        if seen < 0:
            nodes = (node for queue in self._queues for node in self._running.nodes_below(queue, self._priority))
            found[[row for row in map(self._row_of.get, nodes) if row is not None]] = True
        for row in set(self._touched[seen:]) if 0 <= seen < len(self._touched) else ():
            node = self._node_at(row)
            found[row] = any(self._running.is_below(queue, node, self._priority) for queue in self._queues)
        self._known_rows[key] = len(self._touched), found
        return found

    def alike(self, victims: Sequence[Task]) -> Hashable | None:
        """What decides `objection` to evicting these victims, whatever the node; None if callbacks promise nothing."""
        if not self._limited:
            return ()
        if self._objections is None:
            return None
        staying = [task for task in victims if not self._leaves(task)]
        if self._reclaims:
            return tuple([(task.group.queue, task.cls, self._by_model(task), self._gang(task)) for task in staying])
        return tuple([(task.group.queue, task.cls, self._by_model(task), self._gang(task), task.group.priority,
                       task.group.preemptible) for task in staying])  # fmt: skip

    def others_end_on(self, node: str) -> bool:
        """Whether another preemption evicts tasks on the node that this group could evict, too."""
        return any(
            task.standing < self._priority or (self._others_reclaimed and task.group.queue != self._group.queue)
            for task in self._cache.tasks_on(node)
            if self._is_evicted(task) and not self._is_being_bound(task)
        )

    def objection(self, nominated: Mapping[Task, str], victims: Sequence[Task]) -> str | None:
        """Why callbacks object to evicting these victims for these nominations; None if they do not.

        Callbacks about single victims that promise to answer alike are not called: they have allowed what `on` returns.
        """
        if not self._limited:
            return None
        scenario, known = Scenario(self._group, nominated, victims), self._objections
        refusal_of = self._runner.reclaim_refusal if self._reclaims else self._runner.preempt_refusal
        kind = None if known is None else self.alike(victims)
        if known is not None and kind in known:
            return known[kind]
        refusal = refusal_of(scenario, spared=known is None)
        why = refusal.reason if refusal is not None else None
        if known is not None:
            known[kind] = why
        return why

    @staticmethod
    def _gang(task: Task) -> Group | None:
        """The gang of a task, because the rest of it matters."""
        return None if task.group.single or not task.group.has_minimum else task.group

    def _is_outranked(self, task: Task) -> bool:
        """Whether a task, or its whole group, has lower priority. Callbacks are asked about such tasks only."""
        return task.preemptor_priority < self._priority

    def _is_of_other_queue(self, task: Task) -> bool:
        """Whether a task is in another queue and preemptible."""
        group = task.group
        if group.queue == self._group.queue:
            return False
        if group not in self._preemptible:
            self._preemptible[group] = group.preemptible
        return self._preemptible[group]

    def _is_reclaimable(self, task: Task) -> bool:
        """Whether a task is in another queue, preemptible, and the reclaimable callbacks allow it. They are asked once
        for equal ones: of one class, with equal labels, priority and device resources.
        """
        kind = self._kind(task) if task.group.single else task.group
        answer = self._reclaimable.get(kind)
        if answer is None:
            answer = self._is_of_other_queue(task) and bool(self._runner.reclaimable(self._group, (task,)))
            self._reclaimable[kind] = answer
        return answer

    def _kind(self, task: Task) -> Hashable:
        """What makes single pods equal for the reclaimable callbacks."""
        return task.group.queue, task.cls, task.kind, task.priority, self._by_model(task), self._leaves(task)

    def _is_in_queues(self, task: Task) -> bool:
        """Whether a task is in a queue with victims."""
        return self._queues is None or task.group.queue in self._queues

    def _is_being_bound(self, task: Task) -> bool:
        if task.phase is Phase.ASSUMED:
            return True
        group = task.group
        if not group.is_gang:
            return False
        if group not in self._bound_in_part:
            self._bound_in_part[group] = bool(group.in_phase(Phase.ASSUMED))
        return self._bound_in_part[group]

    def _is_evicted(self, task: Task) -> bool:
        """Whether a preemption already evicts a running task."""
        terminating = task.pod.metadata.deletion_timestamp is not None
        return task.uid in self._cache.preempted or (terminating and is_disrupted(task.pod, PREEMPTED))
