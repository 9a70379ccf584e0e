"""The runner of a session's callbacks: asks them, checks what they answer, and notes which plugin refused which task.

The actions and the evaluator ask here; `callbacks` is where plugins register.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import numpy as np

from session_scheduler.framework.answers import Scope
from session_scheduler.framework.callbacks import Event, Key, Registered, Scenario, Share
from session_scheduler.framework.evaluation import NodeInfo
from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeTable, NodeView, natural
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.refusals import Refusal

NOT_PREEMPTABLE: Final = "a pod must not end for it"
NOT_RECLAIMABLE: Final = "a pod must not give its share back to it"
_LARGEST: Final = 2**56


@dataclass(frozen=True, slots=True)
class Mutation:
    """What a plugin adds to the annotations of a pod that is to be bound."""

    call: HookCall
    annotations: Mapping[str, str]


class CallbackRunner:
    """Asks what is registered. Whatever asks plugins raises PluginError."""

    def __init__(self, registered: Registered, table: NodeTable, calls: HookCalls) -> None:
        self.registered = registered
        self._table = table
        self._calls = calls
        self._rejected: dict[Task, frozenset[str]] = {}

    @property
    def has_any_callbacks(self) -> bool:
        """Whether a predicate or node order must be asked again for every task."""
        known = self.registered
        scopes = [one.scope for one in known.predicates] + [one.scope for one in known.node_orders]
        return Scope.ANY in scopes

    def ties(self) -> IntColumn:
        """What decides between equal totals, shape [rows of the table]; the smaller wins. To be read only."""
        return self._table.ties() if self.registered.tie_break is None else self.registered.tie_break

    def queue_key(self, queue: str) -> tuple[Key, ...]:
        """What orders queues."""
        return (*(OrderKey(call, call(queue)) for call in self.registered.queue_orders), queue)

    def group_key(self, group: Group) -> tuple[Key, ...]:
        """What orders groups within a queue."""
        own = (OrderKey(call, call(group)) for call in self.registered.job_orders)
        return (*own, -group.priority, group.queued, group.creation, group.uid, group.key)

    def task_key(self, task: Task) -> tuple[Key, ...]:
        """What orders tasks within a group."""
        own = (OrderKey(call, call(task)) for call in self.registered.task_orders)
        return (*own, -task.priority, task.pod.metadata.creation_timestamp or "", task.uid, task.key)

    def sub_group_key(self, group: Group, sub_group: str) -> tuple[Key, ...]:
        """What orders the sub-groups of a group, by name."""
        return (*(OrderKey(call, call(group, sub_group)) for call in self.registered.sub_group_orders), sub_group)

    def _gpu_score(self, task: Task, node: str, gpu: str) -> float:
        """What a GPU of a node is worth to a task, all plugins together."""
        info = NodeInfo(NodeView(self._table, np.array([self._table.row_of[node]], np.int64)), 0)
        return math.fsum(_number(call, call(task, info, gpu)) for call in self.registered.gpu_orders)

    def gpu_order(self, task: Task, node: str, gpus: Iterable[str]) -> list[str]:
        """A node's GPUs, the best for a task first, else in the order of their indices."""
        ordered = sorted(gpus, key=natural)
        if not self.registered.gpu_orders:
            return ordered
        return sorted(ordered, key=lambda gpu: -self._gpu_score(task, node, gpu))

    # ------------------------------------------------------------------ what may be placed where

    def pre_allocation(self, group: Group) -> Refusal | None:
        """The first reason why a group is not to be tried now."""
        return _first_refusal(self.registered.pre_allocations, group)

    def pre_predicate(self, task: Task) -> str | None:
        """The first reason why a task cannot be placed on any node."""
        for call in self.registered.pre_predicates:
            reason = call(task, task.group)
            if reason is not None:
                self.note_rejected(task, (call.plugin,))
                return _reason(call, reason)
        return None

    @property
    def divides_nodes(self) -> bool:
        """Whether plugins may offer groups sets of nodes."""
        return bool(self.registered.subset_nodes or self._calls.functions("node_subsets"))

    def subsets(self, call: HookCall, group: Group, mask: BoolColumn) -> list[BoolColumn] | None:
        """The parts in which a registered `subset_nodes` divides a set of nodes; None where it leaves it as it is."""
        answer = call(group, mask.copy())
        if answer is None:
            return None
        parts: list[BoolColumn] = call.guarded(list, answer)
        for part in parts:
            if getattr(part, "shape", None) != mask.shape or part.dtype != np.bool_:
                raise call.wrong(f"a part is no mask of bools over all {len(mask)} rows")
            if (part > mask).any():
                raise call.wrong("a part has rows that are not in the set of nodes that it is a part of")
        return parts

    # ------------------------------------------------------------------ whose end may make room

    @property
    def limits_preemption(self) -> bool:
        """Whether what may be preempted is for callbacks to say, too."""
        return bool(self.registered.preemptable or self.registered.preempt_validators)

    @property
    def reclaims(self) -> bool:
        """Whether any plugin says what may be reclaimed."""
        return bool(self.registered.reclaimable)

    def reclaim_alike(self, group: Group) -> Hashable | None:
        """What decides whose tasks a group may reclaim, beside its class; None where that is not promised."""
        calls = [call for call in self.registered.reclaims_alike if call is not None]
        if len(calls) < len(self.registered.reclaims_alike):
            return None
        return tuple(call(group) for call in calls)

    def can_reclaim(self, group: Group) -> Refusal | None:
        """Why a group may take no share back, whoever would end."""
        refusal = _first_refusal(self.registered.can_reclaim, group)
        if refusal is not None:
            self._note_group(group, refusal.plugin)
        return refusal

    def note_unreclaimed(self, tasks: Iterable[Task]) -> None:
        """Whoever says what may be reclaimed left some tasks without."""
        plugins = {call.plugin for call in (*self.registered.reclaimable, *self.registered.reclaim_validators)}
        for task in tasks:
            self.note_rejected(task, plugins)

    def preemptable(self, group: Group, victims: Iterable[Task]) -> list[Task]:
        """Those of some running tasks that may end for a group that fits nowhere."""
        return self._spared(self.registered.preemptable, group, victims)

    def reclaimable(self, group: Group, victims: Iterable[Task]) -> list[Task]:
        """Those of some running tasks that may end so that a group's queue gets its share."""
        return self._spared(self.registered.reclaimable, group, victims)

    def preempt_refusal(self, scenario: Scenario) -> Refusal | None:
        """Why a whole scenario of preemption must not be done."""
        known = self.registered
        return self._validated(scenario, known.preemptable, known.preempt_validators, NOT_PREEMPTABLE)

    def reclaim_refusal(self, scenario: Scenario, *, spared: bool = True) -> Refusal | None:
        """Why a whole scenario of reclaiming a queue's share must not be done; without `spared`, of victims of which it
        is known that no plugin spares them.
        """
        sparing = self.registered.reclaimable if spared else ()
        return self._validated(scenario, sparing, self.registered.reclaim_validators, NOT_RECLAIMABLE)

    def _spared(self, calls: Sequence[HookCall], group: Group, victims: Iterable[Task]) -> list[Task]:
        """The victims without those that a plugin spares, each group of them asked about once."""
        if not calls:
            return list(victims)
        known: dict[Group, bool] = {}
        found = []
        for task in victims:
            if task.group not in known:
                by = self._sparing(calls, group, task.group)
                known[task.group] = by is None
                if by is not None:
                    self._note_group(group, by)
            if known[task.group]:
                found.append(task)
        return found

    def _sparing(self, calls: Sequence[HookCall], group: Group, victim: Group) -> str | None:
        """The first plugin that spares a victim."""
        for call in calls:
            answer = call(group, victim)
            if type(answer) is not bool:
                raise call.wrong(f"{answer!r} is neither True nor False")
            if not answer:
                return call.plugin
        return None

    def _validated(
        self, scenario: Scenario, sparing: Sequence[HookCall], validators: Sequence[HookCall], spared: str
    ) -> Refusal | None:
        for victim in dict.fromkeys(task.group for task in scenario.victims) if sparing else ():
            by = self._sparing(sparing, scenario.group, victim)
            if by is not None:
                self._note_group(scenario.group, by)
                return Refusal(f"{spared}: {victim.key} ({by})", by)
        refusal = _first_refusal(validators, scenario)
        if refusal is not None:
            self._note_group(scenario.group, refusal.plugin)
        return refusal

    # ------------------------------------------------------------------ queues

    @property
    def limits_capacity(self) -> bool:
        """Whether `over_capacity` may refuse anybody."""
        return bool(self.registered.over_capacity)

    def over_capacity(self, group: Group, tasks: Sequence[Task]) -> dict[Task, tuple[str, str]]:
        """Those of some tasks of a group that may not have what they request: (reason, plugin)."""
        refused: dict[Task, tuple[str, str]] = {}
        for call in self.registered.over_capacity:
            asked = [task for task in tasks if task not in refused]
            answer = call(group, asked)
            if not isinstance(answer, list | tuple) or len(answer) != len(asked):
                raise call.wrong(f"it returned no reason or None for each of {len(asked)} tasks")
            for task, given in zip(asked, answer, strict=True):
                reason = _reason(call, given)
                if reason is not None:
                    self.note_rejected(task, (call.plugin,))
                    refused[task] = reason, call.plugin
        return refused

    # ------------------------------------------------------------------ what goes with a binding

    def bind_annotations(self, tasks: Iterable[Task]) -> dict[Task, list[Mutation]]:
        """What plugins add to the annotations of tasks that were placed."""
        if not self.registered.bind_mutations:
            return {}
        return {task: [m for call in self.registered.bind_mutations if (m := _mutation(call, task))] for task in tasks}

    # ------------------------------------------------------------------ which plugin refused which task

    def rejected_by(self, task: Task) -> frozenset[str] | None:
        """The plugins that refused a task; None where that was not noted."""
        return self._rejected.get(task)

    def note_rejected(self, task: Task, plugins: Iterable[str]) -> None:
        """These plugins refused a task, on some node or altogether: one of them must be helped before it can fit."""
        known = self._rejected.get(task)
        if known is None:
            self._rejected[task] = frozenset(plugins)
        elif not known.issuperset(plugins):
            self._rejected[task] = known.union(plugins)

    def _note_group(self, group: Group, plugin: str) -> None:
        for task in group.in_phase(Phase.PENDING):
            self.note_rejected(task, (plugin,))

    def forget_rejections(self, task: Task) -> None:
        """What refused the task holds no more: the scheduler retries it whatever happens."""
        self._rejected[task] = frozenset()

    # ------------------------------------------------------------------ events

    @property
    def trial_followers(self) -> frozenset[str]:
        """The plugins that follow simulated removals."""
        return frozenset(call.plugin for call in (*self.registered.on_remove, *self.registered.on_put_back))

    @staticmethod
    def notify(handlers: Sequence[HookCall], task: Task, node: str) -> None:
        """Notify handlers of a change of a task on a node. Raises PluginError; the change itself stands."""
        if handlers:
            notify(handlers, Event(task, node))


def notify(handlers: Sequence[HookCall], event: object) -> None:
    """Notify all, so that each hears of a change and of its undo; the first failure is raised then."""
    failure: PluginError | None = None
    for call in handlers:
        try:
            call(event)
        except PluginError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _first_refusal(calls: Sequence[HookCall], *args: object) -> Refusal | None:
    """The refusal of the first callback that has a reason."""
    for call in calls:
        reason = _reason(call, call(*args))
        if reason is not None:
            return Refusal(reason, call.plugin)
    return None


def _reason(call: HookCall, answer: object) -> str | None:
    if answer is not None and not isinstance(answer, str):
        raise call.wrong(f"{answer!r} is no reason: return a text, or None")
    return answer


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _number(call: HookCall, answer: object) -> float:
    if not _is_number(answer) or not abs(answer) <= _LARGEST:
        raise call.wrong(f"{answer!r} is no score: return a number of at most ±{_LARGEST}")
    return float(answer)


def first_share(calls: Sequence[HookCall], queue: str) -> Share | None:
    """The first plugin's answer, as a mapping of its own."""
    for call in calls:
        answer = call(queue)
        if answer is None:
            continue
        share: dict[str, float] = call.guarded(dict, answer) if isinstance(answer, Mapping) else {}
        if not isinstance(answer, Mapping) or not all(map(_is_amount, share.items())):
            raise call.wrong(f"{answer!r} is no share: return amounts (0 or more) by resource, or None")
        return share
    return None


def _is_amount(entry: tuple[object, object]) -> bool:
    resource, amount = entry
    return isinstance(resource, str) and _is_number(amount) and 0 <= amount < math.inf


def _mutation(call: HookCall, task: Task) -> Mutation | None:
    answer = call(task, task.node or "")
    if answer is None:
        return None
    own: dict[str, str] = call.guarded(dict, answer) if isinstance(answer, Mapping) else {}
    if not isinstance(answer, Mapping) or not all(isinstance(text, str) for entry in own.items() for text in entry):
        raise call.wrong(f"{answer!r} is no mapping of annotations: return texts by key, or None")
    return Mutation(call, own) if own else None


class OrderKey:
    """What an order callback answered: where it does not compare, its plugin is named."""

    __slots__ = ("_call", "value")

    def __init__(self, call: HookCall, value: Any) -> None:
        self._call = call
        self.value = value
        if call.guarded(_unequal, value, value):
            raise call.wrong(f"{value!r} is no key: it does not even equal itself")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrderKey) and self._call.guarded(_equal, self.value, other.value)

    def __lt__(self, other: OrderKey) -> bool:
        return self._call.guarded(_less, self.value, other.value)

    __hash__ = None  # type: ignore[assignment]


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right)


def _unequal(left: Any, right: Any) -> bool:
    return bool(left != right)


def _less(left: Any, right: Any) -> bool:
    return bool(left < right)
