"""The runner of a session's callbacks: calls them, checks their answers, and notes which plugin rejected which task.

The actions and the evaluator use it; plugins register callbacks in `callbacks`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, TypeGuard

import msgspec
import numpy as np

from session_scheduler.framework.answers import Scope
from session_scheduler.framework.callbacks import Event, Key, Registered, Scenario, Share
from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError
from session_scheduler.framework.node_info import NodeInfo
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeTable, NodeView, RowIndex, natural
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.refusals import Refusal

NOT_PREEMPTABLE: Final = "preempting a pod is not allowed"
NOT_RECLAIMABLE: Final = "reclaiming a pod is not allowed"
_LARGEST: Final = 2**56
_KIND_OF: Final[Mapping[type, object]] = {bool: float, int: float, float: float, str: str}
"""By type of a plain key: its kind. Keys of one kind compare with each other."""
_NO_MUTATIONS: Final[Mapping[Task, Sequence[Mutation]]] = MappingProxyType({})


class Mutation(msgspec.Struct, frozen=True):
    """Annotations that a plugin adds to a pod before its binding."""

    call: HookCall
    annotations: Mapping[str, str]


class Rejectors(msgspec.Struct):
    """The plugins to note for a task whose attempt reuses an answer."""

    of_nodes: set[str] = msgspec.field(default_factory=set)
    """They rejected it on nodes, or on any node."""
    of_victims: set[str] = msgspec.field(default_factory=set)
    """They limit which pods may be evicted for it."""


class CallbackRunner:
    """Calls the registered callbacks. Methods that call plugins raise PluginError."""

    def __init__(self, registered: Registered, table: NodeTable, calls: HookCalls) -> None:
        self.registered = registered
        self._table = table
        self._calls = calls
        self._rejected: dict[Task, frozenset[str]] = {}
        self._limited: dict[Task, frozenset[str]] = {}
        """By task: the plugins that limit which pods may be evicted for it."""
        self._collected: list[Rejectors] = []
        self._job_keys: dict[Group, tuple[Key, ...]] = {}
        self._kinds: dict[HookCall, object] = {}
        """By order callback: the kind of its first answer (see `_kind`)."""
        self._tie_order: RowIndex | None = None

    @property
    def has_any_callbacks(self) -> bool:
        """Whether a predicate or node order has scope ANY, and so is called again for every task."""
        known = self.registered
        scopes = [one.scope for one in known.predicates] + [one.scope for one in known.node_orders]
        return Scope.ANY in scopes

    def ties(self) -> IntColumn:
        """Return the tie-break between equal totals, shape [rows of the table]; the smallest wins. Read only."""
        return self._table.ties() if self.registered.tie_break is None else self.registered.tie_break

    def tie_order(self) -> RowIndex:
        """Return all rows in the order of the tie-break. Read only."""
        if self._tie_order is None:
            self._tie_order = np.argsort(self.ties(), kind="stable")
        return self._tie_order

    def queue_key(self, queue: str) -> tuple[Key, ...]:
        """Return the sort key of a queue."""
        return (*(self._key(call, queue) for call in self.registered.queue_orders), queue)

    def changed_queues(self, unlike: Collection[str]) -> Collection[str] | None:
        """Return the queues whose keys have changed since the last call; None if a plugin does not report them.

        The next groups of the queues in `unlike` request something else, or they have none left.
        """
        found: set[str] = set()
        for call in self.registered.queue_changes:
            if call is None:
                return None
            found.update(call.guarded(frozenset, call(unlike)))
        return found

    def group_key(self, group: Group) -> tuple[Key, ...]:
        """Return the sort key of a group within its queue. Calls callbacks once for each group."""
        own = self._job_keys.get(group)
        if own is None:
            own = self._job_keys[group] = tuple([self._key(call, group) for call in self.registered.job_orders])
        return (*own, *group.order)

    def _key(self, call: HookCall, *args: object) -> Key:
        """Return the answer of an order callback if it is plain and of the same kind as the callback's first one, so
        that comparing both runs no code of the plugin and cannot fail; else as an `OrderKey`.
        """
        value = call(*args)
        kind = _kind(value)
        if kind is None or kind != self._kinds.setdefault(call, kind):
            return OrderKey(call, value)
        return value

    def task_key(self, task: Task) -> tuple[Key, ...]:
        """Return the sort key of a task within its group."""
        own = (self._key(call, task) for call in self.registered.task_orders)
        return (*own, -task.priority, task.pod.metadata.creation_timestamp or "", task.uid, task.key)

    def sub_group_key(self, group: Group, sub_group: str) -> tuple[Key, ...]:
        """Return the sort key of a sub-group within its group."""
        return (*(self._key(call, group, sub_group) for call in self.registered.sub_group_orders), sub_group)

    def _gpu_score(self, task: Task, node: str, gpu: str) -> float:
        """Return the score of a node's GPU for a task, summed over all plugins."""
        info = NodeInfo(NodeView(self._table, np.array([self._table.row_of[node]], np.int64)), 0)
        return math.fsum(_number(call, call(task, info, gpu)) for call in self.registered.gpu_orders)

    def gpu_order(self, task: Task, node: str, gpus: Iterable[str]) -> list[str]:
        """Return a node's GPUs, the best for a task first; GPUs with equal scores are ordered by index."""
        ordered = sorted(gpus, key=natural)
        if not self.registered.gpu_orders:
            return ordered
        return sorted(ordered, key=lambda gpu: -self._gpu_score(task, node, gpu))

    # ------------------------------------------------------------------ admission to nodes

    def pre_allocation(self, group: Group) -> Refusal | None:
        """Return the first reason not to try a group now."""
        return _first_refusal(self.registered.pre_allocations, group)

    def pre_predicate(self, task: Task) -> str | None:
        """Return the first reason why a task cannot be placed on any node."""
        for call in self.registered.pre_predicates:
            reason = call(task, task.group)
            if reason is not None:
                self.note_rejected(task, (call.plugin,))
                return _reason(call, reason)
        return None

    @property
    def divides_nodes(self) -> bool:
        """Whether plugins may offer a group subsets of the nodes."""
        return bool(self.registered.subset_nodes or self._calls.functions("node_subsets"))

    def subsets(self, call: HookCall, group: Group, mask: BoolColumn) -> list[BoolColumn] | None:
        """Return the parts into which a `subset_nodes` callback divides a set of nodes; None for no division."""
        answer = call(group, mask.copy())
        if answer is None:
            return None
        parts: list[BoolColumn] = call.guarded(list, answer)
        for part in parts:
            if getattr(part, "shape", None) != mask.shape or part.dtype != np.bool_:
                raise call.wrong(f"expected masks of {len(mask)} bools, one for each row")
            if (part > mask).any():
                raise call.wrong("a part contains rows outside the set of nodes to divide")
        return parts

    # ------------------------------------------------------------------ preemption and reclaiming

    @property
    def limits_preemption(self) -> bool:
        """Whether any callback limits preemption."""
        return bool(self.registered.preemptable or self.registered.preempt_validators)

    @property
    def reclaims(self) -> bool:
        """Whether any plugin allows reclaiming."""
        return bool(self.registered.reclaimable)

    def reclaim_alike(self, group: Group) -> Hashable | None:
        """Return a key for which reclaimable callbacks answer alike; None if a plugin does not promise that."""
        calls = [call for call in self.registered.reclaims_alike if call is not None]
        if len(calls) < len(self.registered.reclaims_alike):
            return None
        return tuple(call(group) for call in calls)

    def reclaim_damages(self, group: Group, units: Sequence[Sequence[Task]]) -> list[int | None] | None:
        """Return the damage of each unit of victims (the least important first) in addition to the others, or None if
        it must not be evicted. None if no callback chooses among victims.
        """
        calls = self.registered.reclaims_together
        if not calls:
            return None
        damages: list[int | None] = [0] * len(units)
        for call in calls:
            answer = call(group, units)
            if not isinstance(answer, list | tuple) or len(answer) != len(units) or not all(map(_is_damage, answer)):
                wanted = f"a number of 0 or more, or None, for each of {len(units)} units"
                raise call.wrong(f"expected {wanted}, got {answer!r}")
            damages = [None if own is None or one is None else max(own, one)
                       for own, one in zip(damages, answer, strict=True)]  # fmt: skip
        return damages

    def can_reclaim(self, group: Group) -> Refusal | None:
        """Return why a group must not reclaim at all, whatever the victims."""
        refusal = _first_refusal(self.registered.can_reclaim, group)
        if refusal is not None:
            self.note_group(group, refusal.plugin)
        return refusal

    def note_unreclaimed(self, tasks: Iterable[Task]) -> None:
        """Note for some tasks that the reclaim callbacks rejected them."""
        plugins = {call.plugin for call in (*self.registered.reclaimable, *self.registered.reclaim_validators)}
        for task in tasks:
            self.note_limited(task, plugins)

    def queues_with_victims(self, group: Group, *, reclaims: bool) -> tuple[frozenset[str], str] | None:
        """Return the only queues in which callbacks allow the group to preempt, or to reclaim, and the first plugin
        that limits them; None for all queues.
        """
        found: tuple[frozenset[str], str] | None = None
        for call in self.registered.reclaimable_queues if reclaims else self.registered.preemptable_queues:
            answer = call(group)
            if answer is not None:
                names: frozenset[str] = call.guarded(frozenset, answer)
                found = (names, call.plugin) if found is None else (found[0] & names, found[1])
        return found

    def preemptable(self, group: Group, victims: Iterable[Task]) -> list[Task]:
        """Return those of the victims that callbacks allow the group to preempt."""
        return self._allowed(self.registered.preemptable, group, victims)

    def reclaimable(self, group: Group, victims: Iterable[Task]) -> list[Task]:
        """Return those of the victims that callbacks allow the group's queue to reclaim."""
        return self._allowed(self.registered.reclaimable, group, victims)

    def preempt_refusal(self, scenario: Scenario, *, spared: bool = True) -> Refusal | None:
        """Return why a scenario of preemption is not allowed. Without `spared`, skip the preemptable callbacks: they
        have already allowed these victims.
        """
        sparing = self.registered.preemptable if spared else ()
        return self._scenario_refusal(scenario, sparing, self.registered.preempt_validators, NOT_PREEMPTABLE)

    def reclaim_refusal(self, scenario: Scenario, *, spared: bool = True) -> Refusal | None:
        """Like `preempt_refusal`, for reclaiming and the reclaimable callbacks."""
        sparing = self.registered.reclaimable if spared else ()
        return self._scenario_refusal(scenario, sparing, self.registered.reclaim_validators, NOT_RECLAIMABLE)

    def _allowed(self, calls: Sequence[HookCall], group: Group, victims: Iterable[Task]) -> list[Task]:
        """Return the victims that no plugin protects. Each group of victims is evaluated once."""
        if not calls:
            return list(victims)
        known: dict[Group, bool] = {}
        found = []
        for task in victims:
            if task.group not in known:
                by = self._protecting_plugin(calls, group, task.group)
                known[task.group] = by is None
                if by is not None:
                    self.note_group(group, by)
            if known[task.group]:
                found.append(task)
        return found

    def _protecting_plugin(self, calls: Sequence[HookCall], group: Group, victim: Group) -> str | None:
        """Return the first plugin that protects a victim."""
        for call in calls:
            answer = call(group, victim)
            if type(answer) is not bool:
                raise call.wrong(f"expected True or False, got {answer!r}")
            if not answer:
                return call.plugin
        return None

    def _scenario_refusal(
        self, scenario: Scenario, sparing: Sequence[HookCall], validators: Sequence[HookCall], spared: str
    ) -> Refusal | None:
        for victim in dict.fromkeys(task.group for task in scenario.victims) if sparing else ():
            by = self._protecting_plugin(sparing, scenario.group, victim)
            if by is not None:
                self.note_group(scenario.group, by)
                return Refusal(f"{spared}: {victim.key} ({by})", by)
        refusal = _first_refusal(validators, scenario)
        if refusal is not None:
            self.note_group(scenario.group, refusal.plugin)
        return refusal

    # ------------------------------------------------------------------ queues

    @property
    def limits_capacity(self) -> bool:
        """Whether `over_capacity` may reject tasks."""
        return bool(self.registered.over_capacity)

    def over_capacity(self, group: Group, tasks: Sequence[Task]) -> dict[Task, tuple[str, str]]:
        """Return the tasks of a group that must not use what they request, each with (reason, plugin)."""
        refused: dict[Task, tuple[str, str]] = {}
        for call in self.registered.over_capacity:
            asked = [task for task in tasks if task not in refused]
            answer = call(group, asked)
            if not isinstance(answer, list | tuple) or len(answer) != len(asked):
                raise call.wrong(f"expected a reason or None for each of {len(asked)} tasks, got {answer!r}")
            for task, given in zip(asked, answer, strict=True):
                reason = _reason(call, given)
                if reason is not None:
                    self.note_rejected(task, (call.plugin,))
                    refused[task] = reason, call.plugin
        return refused

    # ------------------------------------------------------------------ annotations for a binding

    def bind_annotations(self, tasks: Iterable[Task]) -> Mapping[Task, Sequence[Mutation]]:
        """Return the annotations that plugins add to the placed tasks."""
        if not self.registered.bind_mutations:
            return _NO_MUTATIONS
        return {task: [m for call in self.registered.bind_mutations if (m := _mutation(call, task))] for task in tasks}

    # ------------------------------------------------------------------ which plugin rejected which task

    def rejected_by(self, task: Task, *, awaits_victims: bool = False) -> frozenset[str] | None:
        """Return the plugins that rejected a task; None if that was not noted.

        They include those that limit the victims for the task, unless it `awaits_victims`: then it needs no others.
        """
        rejected, limited = self._rejected.get(task), self._limited.get(task)
        if limited is None or (awaits_victims and rejected):
            return rejected
        return limited if rejected is None else rejected | limited

    def note_rejected(self, task: Task, plugins: Collection[str]) -> None:
        """Note that these plugins rejected a task. The queue requeues it when an event may change their answers."""
        for found in self._collected:
            found.of_nodes.update(plugins)
        _add(self._rejected, task, plugins)

    def note_limited(self, task: Task, plugins: Collection[str]) -> None:
        """Note that these plugins limit which pods may be evicted for a task, like `note_rejected`."""
        for found in self._collected:
            found.of_victims.update(plugins)
        _add(self._limited, task, plugins)

    @contextmanager
    def collecting(self, found: Rejectors) -> Iterator[None]:
        """In this context add each noted plugin to `found`, even if it was noted before. The caller notes these plugins
        for each task that reuses the result.
        """
        self._collected.append(found)
        try:
            yield
        finally:
            self._collected.pop()

    def note_group(self, group: Group, plugin: str) -> None:
        """Note for all pending tasks of a group that this plugin limits which pods may be evicted for them."""
        for task in group.in_phase(Phase.PENDING):
            self.note_limited(task, (plugin,))

    def forget(self) -> None:
        """Drop all references back to the session."""
        self._job_keys.clear()
        self._kinds.clear()

    def forget_rejections(self, task: Task) -> None:
        """Forget which plugins rejected the task: the scheduler retries it whatever happens."""
        self._rejected[task] = frozenset()
        self._limited.pop(task, None)

    # ------------------------------------------------------------------ events

    @staticmethod
    def notify(handlers: Sequence[HookCall], task: Task, node: str) -> None:
        """Notify handlers of a change of a task on a node. Raises PluginError; the change itself is not undone."""
        if handlers:
            notify(handlers, Event(task, node))


def _add(noted: dict[Task, frozenset[str]], task: Task, plugins: Collection[str]) -> None:
    known = noted.get(task)
    if known is None:
        noted[task] = frozenset(plugins)
    elif not known.issuperset(plugins):
        noted[task] = known.union(plugins)


def notify(handlers: Sequence[HookCall], event: object) -> None:
    """Notify all handlers, so that each learns of a change and of its undo; then raise the first failure."""
    failure: PluginError | None = None
    for call in handlers:
        try:
            call(event)
        except PluginError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _first_refusal(calls: Sequence[HookCall], *args: object) -> Refusal | None:
    """Return the refusal of the first callback that returns a reason."""
    for call in calls:
        reason = _reason(call, call(*args))
        if reason is not None:
            return Refusal(reason, call.plugin)
    return None


def _reason(call: HookCall, answer: object) -> str | None:
    if answer is not None and not isinstance(answer, str):
        raise call.wrong(f"expected a string or None as the reason, got {answer!r}")
    return answer


def _is_damage(value: object) -> bool:
    return value is None or (type(value) is int and value >= 0)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _number(call: HookCall, answer: object) -> float:
    if not _is_number(answer) or not abs(answer) <= _LARGEST:
        raise call.wrong(f"expected a number from -{_LARGEST} to {_LARGEST} as the score, got {answer!r}")
    return float(answer)


def first_share(calls: Sequence[HookCall], queue: str) -> Share | None:
    """Return a copy of the first plugin's answer."""
    for call in calls:
        answer = call(queue)
        if answer is None:
            continue
        share: dict[str, float] = call.guarded(dict, answer) if isinstance(answer, Mapping) else {}
        if not isinstance(answer, Mapping) or not all(map(_is_amount, share.items())):
            raise call.wrong(f"expected a mapping of resources to amounts of 0 or more, or None, got {answer!r}")
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
        raise call.wrong(f"expected a mapping of annotation keys to strings, or None, got {answer!r}")
    return Mutation(call, own) if own else None


class OrderKey:
    """The answer of an order callback. If comparing it fails, the error names the plugin."""

    __slots__ = ("_call", "value")

    def __init__(self, call: HookCall, value: Any) -> None:
        self._call = call
        self.value = value
        if call.guarded(_unequal, value, value):
            raise call.wrong(f"expected a key that equals itself, got {value!r}")

    def __eq__(self, other: object) -> bool:
        return self._call.guarded(_equal, self.value, _value(other))

    def __lt__(self, other: object) -> bool:
        return self._call.guarded(_less, self.value, _value(other))

    def __gt__(self, other: object) -> bool:
        return self._call.guarded(_less, _value(other), self.value)

    __hash__ = None  # type: ignore[assignment]


def _value(key: Any) -> Any:
    return key.value if isinstance(key, OrderKey) else key


def _kind(value: Any) -> object:
    """Return what plain keys that compare with each other have in common; None if the value is not plain."""
    kind = _KIND_OF.get(type(value))
    if kind is not None:
        return kind if value == value else None
    if type(value) is not tuple:
        return None
    kinds = tuple([_kind(part) for part in value])
    return None if None in kinds else kinds


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right)


def _unequal(left: Any, right: Any) -> bool:
    return bool(left != right)


def _less(left: Any, right: Any) -> bool:
    return bool(left < right)
