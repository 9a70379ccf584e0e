"""The callbacks that plugins register for one session: what each is asked, and what it may answer.

They are registered in `on_session_open`, and hold for that session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from session_scheduler.evaluation import NodeInfo, NodeOrderCall, PredicateCall
from session_scheduler.hook_calls import HookCall
from session_scheduler.hookspecs import Scope
from session_scheduler.model.columns import IntColumn, NodeTable
from session_scheduler.model.groups import Group, Task
from session_scheduler.order_keys import Key
from session_scheduler.statement import Event


class Callbacks:
    """The registry: `Session` is one, so plugins register with `session.add_…`."""

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self.predicates: list[PredicateCall] = []
        self.node_orders: list[NodeOrderCall] = []
        self._tie_break: IntColumn | None = None
        self._pre_predicates: list[HookCall] = []
        self._queue_orders: list[HookCall] = []
        self._job_orders: list[HookCall] = []
        self._task_orders: list[HookCall] = []
        self._on_allocate: list[HookCall] = []
        self._on_deallocate: list[HookCall] = []
        self._on_remove: list[HookCall] = []
        self._on_put_back: list[HookCall] = []
        self._registering = "?"

    def add_queue_order(self, key: Callable[[str], Key]) -> None:
        """`key(queue) -> anything that compares`; smaller first. The queue's name decides at the end."""
        self._queue_orders.append(self._callback("queue order", key))

    def add_job_order(self, key: Callable[[Group], Key]) -> None:
        """`key(group) -> anything that compares`; smaller first, within a queue, in order of registration.

        Then decide priority (higher first), since when it waits (it came, or was last tried), creation time and uid:
        there are no ties.
        """
        self._job_orders.append(self._callback("job order", key))

    def add_task_order(self, key: Callable[[Task], Key]) -> None:
        """`key(task) -> anything that compares`; smaller first, within a group. Then as for groups."""
        self._task_orders.append(self._callback("task order", key))

    def add_node_order(self, score: Callable[[Task, NodeInfo], float], scope: Scope = Scope.ANY) -> None:
        """`score(task, node) -> number`, added to the weighted sum of scores as it is; higher is better.

        `scope` is a promise: STATIC and NODE also mean that tasks of one class, queue and priority score alike.
        """
        self.node_orders.append(NodeOrderCall(self._callback("node order", score), scope))

    def set_tie_break(self, order: IntColumn) -> None:
        """Which of several nodes with equal totals is taken: that with the smallest number, shape [rows of the table].

        The numbers differ from each other. The first plugin's count; without any a hash of seed and name decides.
        """
        if order.shape != (self.table.size,) or order.dtype != np.int64:
            raise ValueError(f"the order of equal nodes is no int64 for each of the {self.table.size} rows")
        if self._tie_break is None:
            self._tie_break = order.copy()

    def add_pre_predicate(self, check: Callable[[Task, Group], str | None]) -> None:
        """`check(task, group) -> None, or the reason why the task cannot be placed now`; once a task."""
        self._pre_predicates.append(self._callback("pre-predicate", check))

    def add_predicate(self, check: Callable[[Task, Group, NodeInfo], str | None], scope: Scope = Scope.ANY) -> None:
        """`check(task, group, node) -> None where the node fits, or the reason why not`.

        `scope` as for `add_node_order`. It runs once a node: a `filter` hook with a mask is a thousand times faster.
        """
        self.predicates.append(PredicateCall(self._callback("predicate", check), scope))

    def add_event_handler(
        self,
        allocate: Callable[[Event], None] | None = None,
        deallocate: Callable[[Event], None] | None = None,
    ) -> None:
        """Told of every placement and its undo in this session, simulated moves included.

        Answers are ignored; a handler that raises fails the group being placed. Keep it lean.
        """
        if allocate is not None:
            self._on_allocate.append(self._callback("allocate handler", allocate))
        if deallocate is not None:
            self._on_deallocate.append(self._callback("deallocate handler", deallocate))

    def add_trial_handler(self, remove: Callable[[Event], None], put_back: Callable[[Event], None]) -> None:
        """Told of each running task that is thought away, and of its return before the trial ends.

        A plugin that keeps a state of its own lets go of what the task holds, and takes the same again.
        """
        self._on_remove.append(self._callback("remove handler", remove))
        self._on_put_back.append(self._callback("put back handler", put_back))

    def _callback(self, kind: str, function: Callable[..., Any]) -> HookCall:
        return HookCall(self._registering, kind, function)

    def _forget_callbacks(self) -> None:
        """Let go of them: they refer back to the session."""
        for callbacks in (
            self.predicates, self.node_orders, self._pre_predicates, self._queue_orders, self._job_orders,
            self._task_orders, self._on_allocate, self._on_deallocate, self._on_remove, self._on_put_back,
        ):  # fmt: skip
            callbacks.clear()
