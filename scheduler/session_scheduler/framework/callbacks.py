"""The callbacks that plugins register for one session: when each is called, and what it may answer.

Plugins register them in `on_session_open`. They last for that session. Rules for all of them:

* The scheduler calls them in order of registration, so in the order of the plugins in the configuration.
* A session does no I/O: answer from memory, at once.
* If a callback raises, returns an invalid answer or times out, the group that is being placed fails. The reason names
  the plugin and the callback, and the scheduler undoes everything that it did for the group.
* Callbacks for an order return a *key*: any value that can be compared; a smaller one comes first. A comparison with
  -1, 0 and 1 becomes a key with `functools.cmp_to_key`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from session_scheduler.framework.answers import Scope
from session_scheduler.framework.hooks import HookCall, HookCalls, ObservedCall, ScopedCall, seconds_by_plugin
from session_scheduler.framework.node_info import NodeInfo
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeTable
from session_scheduler.model.groups import Group, Task

Key = Any
"""A sort key: any value that can be compared; a smaller one comes first."""
Share = Mapping[str, float]
"""Amounts by resource: cpu in millicores, parts of GPUs in thousandths, all others in base units.

A resource that is missing is not limited, or not used.
"""
HTTP_PATHS: Final = 16
"""Maximum number of paths that a plugin may serve."""
_HTTP_PATH: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}(/[a-z0-9][a-z0-9._-]{0,62}){0,3}")


class Event(msgspec.Struct, frozen=True):
    """The argument of an event handler: a task that was placed on a node, or removed from it."""

    task: Task
    node: str


class Scenario(msgspec.Struct, frozen=True, eq=False):
    """A possible preemption for a group that fits on no node. Callbacks can reject it before it is executed."""

    group: Group
    nominated: Mapping[Task, str]
    """The node of each of its tasks after the evictions."""
    victims: Sequence[Task]
    """The running tasks to evict, including those that are already terminating."""
    moves: bool = False
    """Whether the victims move to other nodes, so that their queues still have them."""


@dataclass
class Registered:
    """The callbacks of one session by kind, each list in order of registration."""

    predicates: list[ScopedCall] = field(default_factory=list)
    node_orders: list[ScopedCall] = field(default_factory=list)
    tie_break: IntColumn | None = None
    pre_allocations: list[HookCall] = field(default_factory=list)
    pre_predicates: list[HookCall] = field(default_factory=list)
    queue_orders: list[HookCall] = field(default_factory=list)
    queue_changes: list[HookCall | None] = field(default_factory=list)
    """For each queue order: which queues' keys have changed; None if the plugin does not report them."""
    job_orders: list[HookCall] = field(default_factory=list)
    sub_group_orders: list[HookCall] = field(default_factory=list)
    task_orders: list[HookCall] = field(default_factory=list)
    gpu_orders: list[HookCall] = field(default_factory=list)
    subset_nodes: list[HookCall] = field(default_factory=list)
    preemptable: list[HookCall] = field(default_factory=list)
    preemptable_queues: list[HookCall] = field(default_factory=list)
    preempts_alike: bool = True
    """Whether preemption callbacks answer alike for all tasks of one class, queue and priority."""
    preempt_validators: list[HookCall] = field(default_factory=list)
    can_reclaim: list[HookCall] = field(default_factory=list)
    reclaimable: list[HookCall] = field(default_factory=list)
    reclaimable_queues: list[HookCall] = field(default_factory=list)
    reclaims_alike: list[HookCall | None] = field(default_factory=list)
    reclaims_together: list[HookCall] = field(default_factory=list)
    reclaim_validators: list[HookCall] = field(default_factory=list)
    validates_alike: bool = True
    """Whether reclaim validators answer alike (see `add_reclaim_validator`)."""
    queue_allocated: list[HookCall] = field(default_factory=list)
    queue_deserved: list[HookCall] = field(default_factory=list)
    queue_fair_share: list[HookCall] = field(default_factory=list)
    bind_mutations: list[HookCall] = field(default_factory=list)
    over_capacity: list[HookCall] = field(default_factory=list)
    on_allocate: list[HookCall] = field(default_factory=list)
    on_deallocate: list[HookCall] = field(default_factory=list)
    on_remove: list[HookCall] = field(default_factory=list)
    on_put_back: list[HookCall] = field(default_factory=list)
    trial_followers: set[str] = field(default_factory=set)
    """The plugins whose state simulated removals change, except for those that promise `own_filter`."""

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent so far in each plugin's callbacks."""
        registered = (one for kind in self._lists() for one in kind if one is not None)
        return seconds_by_plugin(getattr(one, "call", one) for one in registered)

    def clear(self) -> None:
        """Drop all callbacks, because they refer back to the session."""
        for registered in self._lists():
            registered.clear()

    def _lists(self) -> Iterator[list[Any]]:
        return (value for value in vars(self).values() if isinstance(value, list))


class Callbacks:
    """The registration of callbacks. `Session` inherits it, so plugins call `session.add_…`."""

    def __init__(self, table: NodeTable, calls: HookCalls) -> None:
        self.table = table
        """The nodes, and the columns with their usage."""
        self.calls = calls
        self.registered = Registered()
        self._registering = "?"
        """The plugin that is registering callbacks."""

    # ------------------------------------------------------------------ order

    def add_queue_order(
        self, key: Callable[[str], Key], *, changed: Callable[[Collection[str]], Iterable[str]] | None = None
    ) -> None:
        """`key(queue)` returns a sort key for queues; smaller first. The queue's name breaks ties.

        The scheduler calls `key` again for all queues with remaining groups when the order may change: after each
        placement or removal, and when the next group of a queue requests something else. `session.next_groups` has the
        next group of each queue. If `key` fails, the groups of that queue fail.

        `changed(queues)` is a promise: it returns the queues whose keys have changed since its last call, and the
        scheduler calls `key` for these only. The next groups of `queues` request something else now, or these queues
        have none left. If it fails, the groups of all queues fail.
        """
        self.registered.queue_orders.append(self._callback("queue order", key))
        self.registered.queue_changes.append(None if changed is None else self._callback("changed queues", changed))

    def add_job_order(self, key: Callable[[Group], Key]) -> None:
        """`key(group)` returns a sort key for groups within a queue; smaller first, in order of registration.

        Ties are broken by priority (higher first), the time since which the group waits (its arrival or last attempt),
        creation time and uid. The scheduler calls `key` once for each group and session.
        """
        self.registered.job_orders.append(self._callback("job order", key))

    def add_sub_group_order(self, key: Callable[[Group, str], Key]) -> None:
        """`key(group, name)` returns a sort key for sub-groups within a group; smaller first. The name breaks ties.

        The scheduler calls `key` once for each sub-group, before it places tasks of the group: first the tasks that the
        minimum counts need, then the others, both in this order. Within a sub-group, tasks follow the task order. If
        `key` raises, the group fails.
        """
        self.registered.sub_group_orders.append(self._callback("sub-group order", key))

    def add_task_order(self, key: Callable[[Task], Key]) -> None:
        """`key(task)` returns a sort key for tasks within a group; smaller first. Ties are broken as for groups."""
        self.registered.task_orders.append(self._callback("task order", key))

    def add_node_order(self, score: Callable[[Task, NodeInfo], float], scope: Scope = Scope.ANY) -> None:
        """`score(task, node)` returns a number that is added to the weighted sum of scores; higher is better.

        `scope` is a promise. STATIC and NODE also promise that tasks of one class, queue and priority score alike.
        """
        self.registered.node_orders.append(self._scoped("node order", score, scope))

    def add_gpu_order(self, score: Callable[[Task, NodeInfo, str], float]) -> None:
        """`score(task, node, gpu)` returns the score of one of the node's GPUs for a task; higher is better.

        The scheduler adds the scores of all plugins; the GPU's index breaks ties. Whatever chooses GPUs on the picked
        node calls `score` through `session.gpu_order`, for the GPUs that fit the task.
        """
        self.registered.gpu_orders.append(self._callback("gpu order", score))

    def set_tie_break(self, order: IntColumn) -> None:
        """Set the tie-break between nodes with equal totals: the smallest number wins. Shape [rows of the table].

        The numbers must be distinct. The first plugin's order counts. The default is a hash of seed and name.
        """
        if order.shape != (self.table.size,) or order.dtype != np.int64:
            raise ValueError(f"expected an int64 for each of the {self.table.size} rows as the order of equal nodes")
        if self.registered.tie_break is None:
            self.registered.tie_break = order.copy()

    # ------------------------------------------------------------------ admission to nodes

    def add_pre_allocation(self, check: Callable[[Group], str | None]) -> None:
        """`check(group)` returns None, or the reason not to try the group now.

        The scheduler calls `check` when it is the group's turn and no `prefilter` rejects it, before any attempt; a
        plugin may also prepare itself for the group. A reason rejects the whole group.
        """
        self.registered.pre_allocations.append(self._callback("pre-allocation", check))

    def add_pre_predicate(self, check: Callable[[Task, Group], str | None]) -> None:
        """`check(task, group)` returns None, or the reason why the task cannot be placed now. Called once per task."""
        self.registered.pre_predicates.append(self._callback("pre-predicate", check))

    def add_predicate(self, check: Callable[[Task, Group, NodeInfo], str | None], scope: Scope = Scope.ANY) -> None:
        """`check(task, group, node)` returns None if the task fits on the node, else the reason.

        `scope` means the same as in `add_node_order`. The check runs once per node; a `filter` hook with a mask is a
        thousand times faster.
        """
        self.registered.predicates.append(self._scoped("predicate", check, scope))

    def add_over_capacity(self, check: Callable[[Group, Sequence[Task]], Sequence[str | None]]) -> None:
        """`check(group, tasks)` returns for each task None, or the reason why it must not use its requests on any node.

        The scheduler calls `check` directly before it places tasks: with a single pod, or with all tasks of a gang that
        it could place together, in order. A task that is not rejected counts for those after it. Count placements of
        this session, and subtract those that are undone: see `add_event_handler`. If preemption in the group's queue or
        reclaim may help, the scheduler calls `check` again with some pods removed.
        """
        self.registered.over_capacity.append(self._callback("over capacity", check))

    def add_subset_nodes(self, divide: Callable[[Group, BoolColumn], Iterable[BoolColumn] | None]) -> None:
        """`divide(group, mask)` returns masks of parts of a set of nodes, to be tried one by one, or None.

        Masks cover all rows of `session.table`. A part must not have rows outside `mask`; parts may overlap. The first
        plugin divides the sets that the hook `node_subsets` offers, or each topology domain, or the set of all nodes;
        the next plugin divides each of those parts. None keeps the set; an empty list removes it. Of the parts that fit
        the group the scheduler takes the best, as it does with `node_subsets`.
        """
        self.registered.subset_nodes.append(self._callback("subset nodes", divide))

    # ------------------------------------------------------------------ preemption and reclaiming

    def add_preemptable(
        self,
        may_end: Callable[[Group, Group], bool],
        *,
        alike: bool = False,
        queues: Callable[[Group], Iterable[str] | None] | None = None,
    ) -> None:
        """`may_end(group, victim)` returns whether running tasks of the victim may be preempted for the group.

        All plugins must return True. The scheduler calls it once for each group and victim, when it looks for victims
        of lower priority for a group that fits on no node. A plugin can only protect tasks: priorities and the plugin
        that runs `postfilter` decide which tasks may be preempted at all. `alike` is a promise: tasks of one class,
        queue and priority get the same answers in a session, so the scheduler reuses results. Without it the scheduler
        tries each of them separately. `queues(group)` returns the only queues in which `may_end` allows victims, or
        None for all; the scheduler then does not look for victims elsewhere.
        """
        self.registered.preemptable.append(self._callback("preemptable", may_end))
        if queues is not None:
            self.registered.preemptable_queues.append(self._callback("preemptable queues", queues))
        self.registered.preempts_alike &= alike

    def add_preempt_validator(self, check: Callable[[Scenario], str | None], *, alike: bool = False) -> None:
        """`check(scenario)` returns None, or the reason why this preemption is not allowed.

        The scheduler calls `check` for each candidate node, before it takes the cheapest one; for a gang, for the
        scenario that it found. The first reason counts. `alike` is a promise for the scenarios of one pod, for all pods
        of one class, queue and priority: on every node the answer is the same for equal victims. Victims are equal if
        they are in the same queues, of the same classes and priorities, equally preemptible, and count equally
        (`session.queues.by_model`). Those that were evicted before (`session.leaves`) do not matter.
        """
        self.registered.preempt_validators.append(self._callback("preempt validator", check))
        self.registered.preempts_alike &= alike

    def add_can_reclaim(self, check: Callable[[Group], str | None]) -> None:
        """`check(group)` returns None, or the reason why the group must not reclaim at all, whatever the victims.

        The scheduler calls `check` once for each group, before it looks for victims; the first reason counts. If the
        pods of the group need not start together, it calls `check` for each pod, which is then `session.asked_for`.
        """
        self.registered.can_reclaim.append(self._callback("can reclaim", check))

    def add_reclaimable(
        self,
        may_end: Callable[[Group, Group], bool],
        *,
        alike: Callable[[Group], Hashable] | None = None,
        together: Callable[[Group, Sequence[Sequence[Task]]], Sequence[int | None]] | None = None,
        queues: Callable[[Group], Iterable[str] | None] | None = None,
    ) -> None:
        """Like `add_preemptable`, including `queues`, but for a queue below its share that reclaims from others.

        `alike(group)` is a promise: for groups with equal values, `may_end` answers the same for victims of the same
        queue and classes that count alike. So does `together` for pods of one class, queue and preemptibility. If the
        cheapest victims are rejected, `together(group, units)` chooses others. Units are tuples of tasks that are
        evicted together, the least important first. It returns the damage of each (0 for none), or None if the unit
        must not be evicted in addition to the others. The scheduler evicts units of less damage first.
        """
        self.registered.reclaimable.append(self._callback("reclaimable", may_end))
        if queues is not None:
            self.registered.reclaimable_queues.append(self._callback("reclaimable queues", queues))
        if together is not None:
            self.registered.reclaims_together.append(self._callback("reclaimable together", together))
        self.registered.reclaims_alike.append(None if alike is None else self._callback("reclaimable alike", alike))

    def add_reclaim_validator(self, check: Callable[[Scenario], str | None], *, alike: bool = False) -> None:
        """Like `add_preempt_validator`, but for a queue below its share that reclaims from others.

        `alike` promises more: whatever the victims' priorities, and for all pods of one class, queue and preemptibility
        for whose groups the `alike` of `add_reclaimable` returns equal values. All these victims are preemptible.
        """
        self.registered.reclaim_validators.append(self._callback("reclaim validator", check))
        self.registered.validates_alike &= alike

    # ------------------------------------------------------------------ queues

    def add_queue_allocated(self, share: Callable[[str], Share | None]) -> None:
        """`share(queue)` returns the queue's usage with this session's placements, or None; the first result wins."""
        self.registered.queue_allocated.append(self._callback("queue allocated", share))

    def add_queue_deserved(self, share: Callable[[str], Share | None]) -> None:
        """`share(queue)` returns the queue's deserved share, or None; the first result wins."""
        self.registered.queue_deserved.append(self._callback("queue deserved", share))

    def add_queue_fair_share(self, share: Callable[[str], Share | None]) -> None:
        """`share(queue)` returns the queue's fair share by the demand of all queues, or None; the first result wins."""
        self.registered.queue_fair_share.append(self._callback("queue fair share", share))

    # ------------------------------------------------------------------ notifications and side effects

    def add_bind_mutation(self, annotate: Callable[[Task, str], Mapping[str, str] | None]) -> None:
        """`annotate(task, node)` returns annotations for the pod, or None. The Binding's request writes them.

        The scheduler calls `annotate` for each placed task, directly before it commits the group's placement. `prebind`
        hooks see the annotations as `binding.annotations`, and may change them. If two plugins set the same key, the
        later one counts. A key of the core, or an invalid annotation, fails the group. The scheduler calls `annotate`
        again if another replica resumes the plan of a gang.
        """
        self.registered.bind_mutations.append(self._callback("bind mutation", annotate))

    def add_event_handler(
        self,
        allocate: Callable[[Event], None] | None = None,
        deallocate: Callable[[Event], None] | None = None,
    ) -> None:
        """The handlers are notified of every placement in this session and of its undo, including simulated moves.

        Answers are ignored. If a handler raises, the group that is being placed fails. Handlers must be fast.
        """
        if allocate is not None:
            self.registered.on_allocate.append(self._callback("allocate handler", allocate))
        if deallocate is not None:
            self.registered.on_deallocate.append(self._callback("deallocate handler", deallocate))

    def add_trial_handler(
        self, remove: Callable[[Event], None], put_back: Callable[[Event], None], *, own_filter: bool = False
    ) -> None:
        """The handlers are notified of each simulated removal of a running task, and of its undo before the trial ends.

        A plugin with its own state frees the task's resources, and reserves the same ones again.

        `own_filter` is a promise: that state changes only the answers of the plugin's own filter, for classes for which
        its scope is ANY. Trials of other classes then do not notify the handlers.
        """
        removal = self._callback("remove handler", remove)
        self.registered.on_remove.append(removal)
        self.registered.on_put_back.append(self._callback("put back handler", put_back))
        if not own_filter:
            self.registered.trial_followers.add(removal.plugin)

    def add_http_handler(self, path: str, handler: Callable[[Mapping[str, str]], Any]) -> None:
        """`handler(query)` returns a string or JSON values for GET /plugins/PLUGIN/PATH; `query` is a mapping.

        The handler stays registered after the session, until the plugin registers another one for the path: it must not
        refer to the session. It runs on the scheduler's main thread, also during a session, between two groups: answer
        from memory, at most 1 MiB. If it fails, the response is a 500; nothing else is affected. A path has up to four
        parts of lower-case letters, digits, `.`, `_` and `-`; a plugin may have 16 paths. Raises ValueError.
        """
        if not isinstance(path, str) or not _HTTP_PATH.fullmatch(path):
            raise ValueError(
                f"{path!r} is not a valid path; use lower-case letters, digits, '.', '_' and '-', without a leading '/'"
            )
        served = self.calls.http_handlers.setdefault(self._registering, {})
        if path not in served and len(served) >= HTTP_PATHS:
            raise ValueError(f"cannot add path {path!r}: a plugin may serve at most {HTTP_PATHS} paths")
        served[path] = self._callback("http handler", handler)

    # ------------------------------------------------------------------ helpers

    def _scoped(self, kind: str, function: Callable[..., Any], scope: Scope) -> ScopedCall:
        """A callback about one task. Unless its scope is ANY, all tasks of a class share the answer."""
        plugin = self._registering
        if scope is Scope.ANY or plugin not in self.calls.observed:
            return ScopedCall(self._callback(kind, function), scope)
        call = ObservedCall(plugin, kind, _with_observed_pod(function), self.calls.budgets.get(plugin))
        return ScopedCall(call, scope)

    def _callback(self, kind: str, function: Callable[..., Any]) -> HookCall:
        return HookCall(self._registering, kind, function, self.calls.budgets.get(self._registering))


def _with_observed_pod(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a callback about a task, so that it sees the task's observed pod."""

    def call(task: Task | None, *args: Any) -> Any:
        if task is None:
            return function(task, *args)
        pod, task.pod = task.pod, task.cls.observed(task.pod)
        try:
            return function(task, *args)
        finally:
            task.pod = pod

    return call
