"""The callbacks that plugins register for one session: what each is asked, and what it may answer.

They are registered in `on_session_open`, and hold for that session. What holds for all of them:

* They are asked in order of registration, so in the order of the plugins in the configuration.
* A session does no I/O: answer from memory, at once.
* One that raises, answers with what its contract does not allow, or does not answer in time fails the group that was
  being placed, with the plugin's and the callback's name in the reason; what was done for the group is undone.
* Where order matters they answer with a *key*: anything that compares, smaller comes first. A comparison by -1, 0 and 1
  becomes a key with `functools.cmp_to_key`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from session_scheduler.framework.answers import Scope
from session_scheduler.framework.evaluation import NodeInfo
from session_scheduler.framework.hooks import HookCall, HookCalls, ScopedCall, seconds_by_plugin
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeTable
from session_scheduler.model.groups import Group, Task

Key = Any
"""What orders: anything that compares; smaller comes first."""
Share = Mapping[str, float]
"""Amounts by resource: cpu in millicores, parts of GPUs in thousandths, the rest in base units.

What is not in it is not limited, or not used.
"""
HTTP_PATHS: Final = 16
"""How many paths a plugin may serve."""
_HTTP_PATH: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}(/[a-z0-9][a-z0-9._-]{0,62}){0,3}")


@dataclass(frozen=True, slots=True)
class Event:
    """What an event handler is given: a task that was placed on, or taken from, a node."""

    task: Task
    node: str


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """What would be done for a group that fits nowhere: evaluated as a whole before any of it is done."""

    group: Group
    nominated: Mapping[Task, str]
    """Where its tasks would go once the victims have ended."""
    victims: Sequence[Task]
    """The running tasks that would end, those included that end already."""


@dataclass
class Registered:
    """What plugins registered for one session, by kind, each in order of registration."""

    predicates: list[ScopedCall] = field(default_factory=list)
    node_orders: list[ScopedCall] = field(default_factory=list)
    tie_break: IntColumn | None = None
    pre_allocations: list[HookCall] = field(default_factory=list)
    pre_predicates: list[HookCall] = field(default_factory=list)
    queue_orders: list[HookCall] = field(default_factory=list)
    job_orders: list[HookCall] = field(default_factory=list)
    sub_group_orders: list[HookCall] = field(default_factory=list)
    task_orders: list[HookCall] = field(default_factory=list)
    gpu_orders: list[HookCall] = field(default_factory=list)
    subset_nodes: list[HookCall] = field(default_factory=list)
    preemptable: list[HookCall] = field(default_factory=list)
    preempts_alike: bool = True
    """Whether what may be preempted is the same for all tasks of one class, queue and priority."""
    preempt_validators: list[HookCall] = field(default_factory=list)
    can_reclaim: list[HookCall] = field(default_factory=list)
    reclaimable: list[HookCall] = field(default_factory=list)
    reclaims_alike: list[HookCall | None] = field(default_factory=list)
    reclaim_validators: list[HookCall] = field(default_factory=list)
    validates_alike: bool = True
    """Whether reclaim validators look at nothing of one pod's scenarios but their victims' queues and classes."""
    queue_allocated: list[HookCall] = field(default_factory=list)
    queue_deserved: list[HookCall] = field(default_factory=list)
    queue_fair_share: list[HookCall] = field(default_factory=list)
    bind_mutations: list[HookCall] = field(default_factory=list)
    over_capacity: list[HookCall] = field(default_factory=list)
    on_allocate: list[HookCall] = field(default_factory=list)
    on_deallocate: list[HookCall] = field(default_factory=list)
    on_remove: list[HookCall] = field(default_factory=list)
    on_put_back: list[HookCall] = field(default_factory=list)

    def seconds(self) -> dict[str, float]:
        """Seconds spent in each plugin's callbacks so far."""
        registered = (one for kind in self._lists() for one in kind if one is not None)
        return seconds_by_plugin(getattr(one, "call", one) for one in registered)

    def clear(self) -> None:
        """Let go of them: they refer back to the session."""
        for registered in self._lists():
            registered.clear()

    def _lists(self) -> Iterator[list[Any]]:
        return (value for value in vars(self).values() if isinstance(value, list))


class Callbacks:
    """Where plugins register: `Session` is one, so they call `session.add_…`."""

    def __init__(self, table: NodeTable, calls: HookCalls) -> None:
        self.table = table
        """The nodes, and the columns of what is on them."""
        self.calls = calls
        self.registered = Registered()
        self._registering = "?"
        """The plugin that is opening."""

    # ------------------------------------------------------------------ order

    def add_queue_order(self, key: Callable[[str], Key]) -> None:
        """`key(queue) -> anything that compares`; smaller first. The queue's name decides at the end.

        Asked again, of all queues that have groups left, whenever something was placed or taken off since, which may
        move it; where it fails, the groups of that queue fail.
        """
        self.registered.queue_orders.append(self._callback("queue order", key))

    def add_job_order(self, key: Callable[[Group], Key]) -> None:
        """`key(group) -> anything that compares`; smaller first, within a queue, in order of registration.

        Then decide priority (higher first), since when it waits (it came, or was last tried), creation time and uid:
        there are no ties. Asked once a group and session.
        """
        self.registered.job_orders.append(self._callback("job order", key))

    def add_sub_group_order(self, key: Callable[[Group, str], Key]) -> None:
        """`key(group, sub-group's name) -> anything that compares`; smaller first, within a group. Then the name.

        Asked of groups with sub-groups, once a sub-group, before tasks of the group are placed: first those that the
        minima need, then the others, both in this order; within a sub-group the task order decides. It may raise: then
        the group fails.
        """
        self.registered.sub_group_orders.append(self._callback("sub-group order", key))

    def add_task_order(self, key: Callable[[Task], Key]) -> None:
        """`key(task) -> anything that compares`; smaller first, within a group. Then as for groups."""
        self.registered.task_orders.append(self._callback("task order", key))

    def add_node_order(self, score: Callable[[Task, NodeInfo], float], scope: Scope = Scope.ANY) -> None:
        """`score(task, node) -> number`, added to the weighted sum of scores as it is; higher is better.

        `scope` is a promise: STATIC and NODE also mean that tasks of one class, queue and priority score alike.
        """
        self.registered.node_orders.append(ScopedCall(self._callback("node order", score), scope))

    def add_gpu_order(self, score: Callable[[Task, NodeInfo, str], float]) -> None:
        """`score(task, node, gpu) -> number`: what one of the node's GPUs is worth to a task; higher is better.

        The scores of all plugins are added; between equal ones the GPU's index decides. Asked by whatever chooses GPUs
        on the node that was picked, with `session.gpu_order`, of those that can take the task.
        """
        self.registered.gpu_orders.append(self._callback("gpu order", score))

    def set_tie_break(self, order: IntColumn) -> None:
        """Which of several nodes with equal totals is taken: that with the smallest number, shape [rows of the table].

        The numbers differ from each other. The first plugin's count; without any a hash of seed and name decides.
        """
        if order.shape != (self.table.size,) or order.dtype != np.int64:
            raise ValueError(f"the order of equal nodes is no int64 for each of the {self.table.size} rows")
        if self.registered.tie_break is None:
            self.registered.tie_break = order.copy()

    # ------------------------------------------------------------------ what may be placed where

    def add_pre_allocation(self, check: Callable[[Group], str | None]) -> None:
        """`check(group) -> None, or the reason why the group is not to be tried now`.

        Called when the group's turn has come and no `prefilter` refuses it, before anything is tried: a plugin may
        prepare itself for the group, too. A reason refuses the whole group.
        """
        self.registered.pre_allocations.append(self._callback("pre-allocation", check))

    def add_pre_predicate(self, check: Callable[[Task, Group], str | None]) -> None:
        """`check(task, group) -> None, or the reason why the task cannot be placed now`; once a task."""
        self.registered.pre_predicates.append(self._callback("pre-predicate", check))

    def add_predicate(self, check: Callable[[Task, Group, NodeInfo], str | None], scope: Scope = Scope.ANY) -> None:
        """`check(task, group, node) -> None where the node fits, or the reason why not`.

        `scope` as for `add_node_order`. It runs once a node: a `filter` hook with a mask is a thousand times faster.
        """
        self.registered.predicates.append(ScopedCall(self._callback("predicate", check), scope))

    def add_over_capacity(self, check: Callable[[Group, Sequence[Task]], Sequence[str | None]]) -> None:
        """`check(group, tasks) -> for each task None, or the reason why it cannot have what it requests on any node`.

        Asked right before tasks are placed: of a pod that stands for itself alone, of a gang all that could be placed
        together, in order; of these each counts for those after it that is not refused itself. Placements made before,
        and undone, are to be counted: see `add_event_handler`. For tasks that are refused no pod is preempted by
        priority; where queues take their shares back it is asked again as if some pods were gone.
        """
        self.registered.over_capacity.append(self._callback("over capacity", check))

    def add_subset_nodes(self, divide: Callable[[Group, BoolColumn], Iterable[BoolColumn] | None]) -> None:
        """`divide(group, mask) -> masks to try in turn, or None`: parts of a set of nodes that are tried one by one.

        Masks are over all rows of `session.table`; a part has no row that is not in `mask`, and parts may overlap. The
        first plugin divides what the hook `node_subsets` offers, or each topology domain, or all nodes; the next one
        each of those parts. None leaves the set as it is; no parts at all take it away. Of the parts that hold the
        group the best is taken, as for `node_subsets`.
        """
        self.registered.subset_nodes.append(self._callback("subset nodes", divide))

    # ------------------------------------------------------------------ whose end may make room

    def add_preemptable(self, may_end: Callable[[Group, Group], bool], *, alike: bool = False) -> None:
        """`may_end(group, victim) -> whether running tasks of the victim may end for the group`: True or False.

        All plugins must agree. Asked where running tasks of lower priority are looked at for a group that fits nowhere,
        once a group and victim. It can only spare tasks: which may end at all is for priorities, and for the plugin
        that runs `postfilter`, to say. `alike` is a promise: tasks of one class, queue and priority get the same
        answers in a session, and what was found out for one of them holds for the others; without it each is tried for
        itself.
        """
        self.registered.preemptable.append(self._callback("preemptable", may_end))
        self.registered.preempts_alike &= alike

    def add_preempt_validator(self, check: Callable[[Scenario], str | None], *, alike: bool = False) -> None:
        """`check(scenario) -> None, or the reason why all of this must not be done`.

        Asked of each candidate, so of each node that some victims' end would make fit, before the cheapest one is
        taken; for a gang, of the one way that was found. The first reason counts. `alike` as for `add_preemptable`.
        """
        self.registered.preempt_validators.append(self._callback("preempt validator", check))
        self.registered.preempts_alike &= alike

    def add_can_reclaim(self, check: Callable[[Group], str | None]) -> None:
        """`check(group) -> None, or the reason why the group may take no share back, whoever would end`.

        Asked once a group, before any running pods are looked at; the first reason counts. Where its pods need not
        start together it is asked for each of them, which is `session.asked_for` then.
        """
        self.registered.can_reclaim.append(self._callback("can reclaim", check))

    def add_reclaimable(
        self, may_end: Callable[[Group, Group], bool], *, alike: Callable[[Group], Hashable] | None = None
    ) -> None:
        """As `add_preemptable`, where a queue that has less than its share takes it back from others.

        `alike(group)` is a promise: where it returns an equal value, for this group or another one, `may_end` answers
        the same for victims in the same queue and of the same classes.
        """
        self.registered.reclaimable.append(self._callback("reclaimable", may_end))
        self.registered.reclaims_alike.append(None if alike is None else self._callback("reclaimable alike", alike))

    def add_reclaim_validator(self, check: Callable[[Scenario], str | None], *, alike: bool = False) -> None:
        """As `add_preempt_validator`, where a queue that has less than its share takes it back from others.

        `alike` is a promise: of the scenarios of one pod, those whose victims are in the same queues, of the same
        classes and made to end already or not alike are validated alike, whatever the node.
        """
        self.registered.reclaim_validators.append(self._callback("reclaim validator", check))
        self.registered.validates_alike &= alike

    # ------------------------------------------------------------------ queues

    def add_queue_allocated(self, share: Callable[[str], Share | None]) -> None:
        """`share(queue) -> what it uses now, this session's placements included, or None`; the first answer wins."""
        self.registered.queue_allocated.append(self._callback("queue allocated", share))

    def add_queue_deserved(self, share: Callable[[str], Share | None]) -> None:
        """`share(queue) -> what it is to have whenever it wants it, or None`; the first answer wins."""
        self.registered.queue_deserved.append(self._callback("queue deserved", share))

    def add_queue_fair_share(self, share: Callable[[str], Share | None]) -> None:
        """`share(queue) -> what it is to have beside what others want now, or None`; the first answer wins."""
        self.registered.queue_fair_share.append(self._callback("queue fair share", share))

    # ------------------------------------------------------------------ what is notified, and carried out

    def add_bind_mutation(self, annotate: Callable[[Task, str], Mapping[str, str] | None]) -> None:
        """`annotate(task, node) -> annotations of the pod, or None`: written in the request that binds it.

        Asked for each task that was placed, right before the group's placement is committed; `prebind` hooks see them
        as `binding.annotations`, and may change them. Of two plugins with the same key the later one counts. The core's
        own keys, and what is no annotation, fail the group. Asked again where another replica carries out the places
        that were written down for a gang.
        """
        self.registered.bind_mutations.append(self._callback("bind mutation", annotate))

    def add_event_handler(
        self,
        allocate: Callable[[Event], None] | None = None,
        deallocate: Callable[[Event], None] | None = None,
    ) -> None:
        """Notified of every placement and its undo in this session, simulated moves included.

        Answers are ignored; a handler that raises fails the group being placed. Keep it lean.
        """
        if allocate is not None:
            self.registered.on_allocate.append(self._callback("allocate handler", allocate))
        if deallocate is not None:
            self.registered.on_deallocate.append(self._callback("deallocate handler", deallocate))

    def add_trial_handler(self, remove: Callable[[Event], None], put_back: Callable[[Event], None]) -> None:
        """Notified of each running task whose removal is simulated, and of its return before the trial ends.

        A plugin that keeps a state of its own lets go of what the task holds, and takes the same again.
        """
        self.registered.on_remove.append(self._callback("remove handler", remove))
        self.registered.on_put_back.append(self._callback("put back handler", put_back))

    def add_http_handler(self, path: str, handler: Callable[[Mapping[str, str]], Any]) -> None:
        """`handler(query) -> a text, or JSON values`: what GET /plugins/PLUGIN/PATH answers, `query` by name.

        It holds beyond the session, until the plugin registers another one for the path: keep nothing of the session
        in it. It is called on the scheduler's own thread, in a session too, between two groups: answer from memory, at
        most 1 MiB. One that fails answers 500 and concerns no other. Paths are of lower-case letters, digits,
        `.`, `_` and `-`, in up to four parts; a plugin may have 16. Raises ValueError.
        """
        if not isinstance(path, str) or not _HTTP_PATH.fullmatch(path):
            raise ValueError(
                f"{path!r} is no path: use lower-case letters, digits, '.', '_' and '-', without a '/' first"
            )
        served = self.calls.http_handlers.setdefault(self._registering, {})
        if path not in served and len(served) >= HTTP_PATHS:
            raise ValueError(f"{path!r} is one path too many: a plugin may serve {HTTP_PATHS}")
        served[path] = self._callback("http handler", handler)

    # ------------------------------------------------------------------ inside

    def _callback(self, kind: str, function: Callable[..., Any]) -> HookCall:
        return HookCall(self._registering, kind, function, self.calls.budgets.get(self._registering))
