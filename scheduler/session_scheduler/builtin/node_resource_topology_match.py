"""The NodeResourceTopologyMatch plugin: rejects nodes whose kubelet could not align a pod on one NUMA node.

It is off by default. It reads the NodeResourceTopology of each node, which an agent on the node writes some time after
pods start. Pods that the object does not account for yet may be in any zone: a node fits a pod only if some zone has
room for it wherever they are. The plugin marks a pod as reported when the object shows its amounts, in a version that
is newer than the pod's placement. It also accepts an older version when the pod has been on the node for a minute,
because an agent writes nothing if nothing changed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Final, NamedTuple

import msgspec
import numpy as np

from session_scheduler.base.background import alongside
from session_scheduler.builtin.numa_requests import Need, Pinned, PodNeeds, Reported, needs_of, pinned_of
from session_scheduler.builtin.numa_scores import Strategy, fullness, zones_needed
from session_scheduler.builtin.numa_zones import SINGLE, Items, Offer, RowZones, ZoneTable, manager_of
from session_scheduler.builtin.scored_resources import DEFAULT_RESOURCES, ScoredResources
from session_scheduler.config.settings import PluginArguments
from session_scheduler.framework.bindings import Runtime
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Normalise, Prepared, Refusal, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView, RowIndex
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.groups import NodeChange, Task
from session_scheduler.model.node_topology import NodeResourceTopology
from session_scheduler.model.objects import KubeObject, Node, Pod
from session_scheduler.model.quantity import QuantityError, quantity_text

REPORT_SECONDS: Final = 60.0
"""How often agents compare what they reported with the kubelet's allocations, by default."""
_MOST_PINNED: Final = 256
"""With more kinds of pods, those that no longer exist are forgotten."""
_REMEMBERED: Final = 10_000
"""How many classes keep their needs for queueing hints."""
_CHECK_SECONDS: Final = 1.0
_NOT_REPORTED: Final = " while the NodeResourceTopology lacks new pods"


class NumaScoringStrategy(PluginArguments):
    """How the resources of zones become a score."""

    type: Strategy = "LeastAllocated"
    resources: ScoredResources = DEFAULT_RESOURCES
    """The weights of resources; those of all others are 1."""


class NodeResourceTopologyMatchArguments(PluginArguments):
    """The scoring strategy of scheduler-plugins' NodeResourceTopologyMatchArgs."""

    scoring_strategy: NumaScoringStrategy = NumaScoringStrategy()


class NumaState(msgspec.Struct, frozen=True):
    """What a class needs, and what its pods hold when they run."""

    needs: PodNeeds
    pinned: Pinned | None


class _Seen(NamedTuple):
    """When the plugin first saw a pod on its node, and the node's object then. None: it was there at the start."""

    topology: NodeResourceTopology | None
    time: float


class NodeResourceTopologyMatch:
    """Filters and scores nodes by their NUMA zones."""

    Arguments = NodeResourceTopologyMatchArguments
    name = "NodeResourceTopologyMatch"
    by_default = False
    weight = 1
    filter_scope = Scope.NODE
    score_scope = Scope.NODE
    normalise = Normalise.NONE

    def __init__(self, arguments: NodeResourceTopologyMatchArguments | None = None) -> None:
        strategy = (arguments or NodeResourceTopologyMatchArguments()).scoring_strategy
        self._strategy: Strategy = strategy.type
        self._weights = {one.name: one.weight for one in strategy.resources}
        self._zones = ZoneTable()
        self._versions = (-1, -1)
        self._pinned: dict[Pinned, None] = {}
        """What the pods on nodes, and those of the session's classes, hold."""
        self._most_pinned = _MOST_PINNED
        self._tasks: dict[str, dict[Task, Pinned]] = {}
        """By node: the pods that hold something, and what they hold."""
        self._seen: dict[str, dict[Task, _Seen]] = {}
        """By node: those of them that its object does not account for."""
        self._changed: set[str] = set()
        self._due: dict[str, float] = {}
        """By node: when a pod that the object covers will have been there for a minute."""
        self._next_due = inf
        """The earliest of these times, in the machine's monotonic time."""
        self._offer: tuple[KubeObject | None, Offer | bool] | None = None
        """The new object of the last event, and what it offers."""
        self._needs: dict[TaskClass, PodNeeds] = {}
        self._opened = False

    # ------------------------------------------------------------------ classes and queueing hints

    @hookimpl
    def footprint(self, cls: TaskClass) -> Iterable[Hashable] | None:
        """The counter of pods that hold the same amounts in zones."""
        try:
            pinned = pinned_of(cls.pod)
        except QuantityError:  # the pod is reported, and counts without the amount
            return None
        return None if pinned is None else (pinned,)

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when a changed object has room for the pod, an unreported pod ends, or a node is added."""
        return [
            ClusterEventWithHint(
                NodeResourceTopology, ActionType.ADD | ActionType.UPDATE | ActionType.DELETE, self._may_help
            ),
            ClusterEventWithHint(Pod, ActionType.DELETE, _held_some),
            ClusterEventWithHint(Node, ActionType.ADD),
        ]

    def _may_help(self, cls: TaskClass, event: ClusterEvent) -> bool:
        """Whether a node's new object may have room for a pod of the class."""
        if self._offer is None or self._offer[0] is not event.new:
            self._offer = event.new, self._offer_of(event)
        offer = self._offer[1]
        if not isinstance(offer, Offer):
            return offer
        needs = self._needs.get(cls)
        if needs is None:
            if len(self._needs) >= _REMEMBERED:
                self._needs.clear()
            needs = self._needs[cls] = needs_of(cls.pod, cls.requests)
        return offer.may_fit(needs)

    def _offer_of(self, event: ClusterEvent) -> Offer | bool:
        """What a new object offers; whether an event without a new offer helps all pods.

        Agents write each object every few seconds. A version with the same amounts helps only by showing that it
        accounts for new pods.
        """
        old, new = event.old, event.new
        if new is None:
            return True
        offer = Offer(new)
        if old is None:
            return offer if offer.is_single else False
        was = manager_of(old)
        if not offer.is_single:
            return was.policy == SINGLE  # it rejected pods before
        same = was == offer.manager and old.zones == new.zones
        return False if same and not self._seen.get(new.metadata.name) else offer

    @hookimpl
    def serve(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """Retry the rejected pods when an unchanged object begins to account for a pod: no event shows that."""
        return alongside(self._retry(runtime))

    async def _retry(self, runtime: Runtime) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            if self._next_due <= time.monotonic():
                self._next_due = inf
                runtime.change(self.name, lambda: None)

    # ------------------------------------------------------------------ what the objects account for

    @hookimpl
    def on_nodes_changed(self, changes: Sequence[NodeChange]) -> None:
        """Note the pods of each changed node."""
        for change in changes:
            tasks = {task: pinned for task in change.tasks if (pinned := _pinned_by(task.cls)) is not None}
            if change.node is not None and tasks:
                self._tasks[change.name] = tasks
                self._changed.add(change.name)
            else:
                for known in (self._tasks, self._seen, self._due):
                    known.pop(change.name, None)

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Read changed objects, and mark the pods that they account for."""
        table = session.table
        versions = session.objects_version(NodeResourceTopology), table.static_version
        if versions != self._versions:
            self._versions = versions
            objects = session.objects(NodeResourceTopology)
            self._changed.update(self._zones.refresh(objects, table.row_of, table.size))
        due = (name for name, at in self._due.items() if at <= session.now)
        changed, self._changed = self._changed.union(due), set()
        for name in sorted(changed & self._tasks.keys()):
            self._pinned.update(dict.fromkeys(self._tasks[name].values()))
            self._account(session, name)
        self._next_due = time.monotonic() - session.now + min(self._due.values(), default=inf)
        self._opened = True
        if len(self._pinned) > self._most_pinned:
            classes = {task.cls for task in session.snapshot.cache.tasks.values()}
            found = {cls: pinned for cls in classes if (pinned := _pinned_by(cls)) is not None}
            self._pinned = dict.fromkeys(found.values())
            self._most_pinned = max(_MOST_PINNED, 2 * len(self._pinned))

    def _account(self, session: Session, name: str) -> None:
        """Mark the pods on a node that its object accounts for, in the order in which they came."""
        topology, row = self._zones.object_of(name), session.table.row_of.get(name, -1)
        before = self._seen.get(name, {})
        first = _Seen(topology if self._opened else None, session.now)
        known = self._tasks[name]
        tasks = {task: pinned for task, pinned in known.items() if task.node == name and task.row == row >= 0}
        for task, pinned in tasks.items():
            old = [key for key in task.counts if isinstance(key, Reported) and key.pinned != pinned]
            if old:  # it was resized
                session.count(task, dict.fromkeys(old, 0))
        waiting = {task: before.get(task, first) for task in tasks if not _is_reported(task)}
        self._seen[name] = dict(sorted(waiting.items(), key=lambda entry: (entry[1].time, entry[0].uid)))
        self._due.pop(name, None)
        if topology is None or row < 0:
            return
        left = {resource: int(column[row]) for resource, column in self._zones.reported.items() if column[row] >= 0}
        for task, pinned in tasks.items():
            if task not in waiting:
                _take(left, pinned)
        for task, seen in list(self._seen[name].items()):
            at = seen.time + REPORT_SECONDS
            if not _take(left, tasks[task]):
                continue
            if seen.topology is topology and at > session.now:
                self._due[name] = min(at, self._due.get(name, at))
            else:
                session.count(task, {Reported(tasks[task]): 1})
                del self._seen[name][task]

    # ------------------------------------------------------------------ decisions

    @hookimpl
    def prepare(self, cls: TaskClass) -> Skip | Prepared | Refusal:
        """The needs of a pod. Skips pods that the kubelet does not align, and all pods while no node has zones."""
        if not self._zones.any:
            return SKIP
        needs = needs_of(cls.pod, cls.requests)
        if not needs.any:
            return SKIP
        filters = Scope.NODE if self._zones.single.any() else SKIP
        scores = Scope.NODE if needs.guaranteed else SKIP
        pinned = _pinned_by(cls)
        if pinned is not None:
            self._pinned[pinned] = None
        return Prepared(NumaState(needs, pinned), filters, scores)

    @hookimpl
    def filter(self, nodes: NodeView, mask: BoolColumn, state: NumaState) -> None:
        """Clear the nodes where no zone may have room for a container, or for the pod if that is the scope."""
        for index, pod_scope in self._single(nodes, mask):
            if len(index):
                mask[index] = self._fits(nodes, index, state, pod_scope=pod_scope)

    @hookimpl
    def filter_key(self, state: NumaState) -> Hashable:
        """The needs, and what more pods of the class hold."""
        return state

    @hookimpl
    def reasons(self, nodes: NodeView, state: NumaState) -> Mapping[str, BoolColumn]:
        """The first need that fits in no zone, and whether only pods that are not reported yet may prevent it."""
        found: dict[str, BoolColumn] = {}
        for index, pod_scope in self._single(nodes, np.ones(len(nodes), np.bool_)):
            open_ = np.ones(len(index), np.bool_)
            needs = state.needs.of_scope(pod=pod_scope)
            zones = self._of(nodes, index)
            for suffix, seen in (("", zones), (_NOT_REPORTED, zones.without(self._items(nodes, index, pod_scope)))):
                for need, fits in zip(needs, seen.aligned(needs), strict=True):
                    text = f"cannot align {need.what}{suffix}"
                    rows = found.setdefault(text, np.zeros(len(nodes), np.bool_))
                    rows[index[open_ & ~fits]] = True
                    open_ &= fits
        return found

    @hookimpl
    def unresolvable(self, nodes: NodeView, state: NumaState) -> BoolColumn:
        """The nodes where no zone has room even without unreported pods: which zone a victim frees is not known."""
        found = np.zeros(len(nodes), np.bool_)
        for index, pod_scope in self._single(nodes, np.ones(len(nodes), np.bool_)):
            found[index] = ~_all(self._of(nodes, index).aligned(state.needs.of_scope(pod=pod_scope)), len(index))
        return found

    @hookimpl
    def fits_if(self, nodes: NodeView, state: NumaState) -> Sequence[Sequence[str] | None]:
        """The amounts that one zone of each node must have free."""
        found: list[Sequence[str] | None] = [None] * len(nodes)
        for index, pod_scope in self._single(nodes, np.ones(len(nodes), np.bool_)):
            needs = state.needs.of_scope(pod=pod_scope)
            fits = self._of(nodes, index).without(self._items(nodes, index, pod_scope)).aligned(needs)
            for place, row in enumerate(index.tolist()):
                need = next((one for one, rows in zip(needs, fits, strict=True) if not rows[place]), None)
                if need is not None:
                    found[row] = [f"{_text(need)} were free in one NUMA node of {nodes.node(row).metadata.name}"]
        return found

    @hookimpl
    def score(self, nodes: NodeView, mask: BoolColumn, state: NumaState) -> IntColumn:
        """By the configured strategy; 0 for nodes without an object."""
        scores = np.zeros(len(nodes), np.int64)
        rows = nodes.row_numbers
        by_number = self._strategy == "LeastNUMANodes"
        counted = self._zones.exists[:, rows].any(axis=0) if by_number else self._zones.single[rows]
        for index, pod_scope in self._by_scope(nodes, mask & counted):
            if not len(index):
                continue
            zones = self._of(nodes, index).without(self._items(nodes, index, pod_scope))
            needs = state.needs.of_scope(pod=pod_scope)
            at = rows[index]
            scores[index] = (
                zones_needed(zones, self._zones.costs[:, :, at], self._zones.most_nodes[at], needs)
                if by_number
                else fullness(self._strategy, zones, needs, self._weights)
            )
        return scores

    def _fits(self, nodes: NodeView, index: RowIndex, state: NumaState, *, pod_scope: bool) -> BoolColumn:
        needs = state.needs.of_scope(pod=pod_scope)
        zones = self._of(nodes, index)
        fits = _all(zones.aligned(needs), len(index))
        items = self._items(nodes, index, pod_scope)
        if items:
            now = _all(zones.without(items).aligned(needs), len(index))
            rest = np.flatnonzero(fits & ~now)
            now[rest] = zones.some(rest).sure(needs, [Items(one.amounts, one.counts[rest]) for one in items])
            fits &= now
        return fits

    def _single(self, nodes: NodeView, mask: BoolColumn) -> list[tuple[RowIndex, bool]]:
        """Those rows of the mask whose policy is single-numa-node, by scope."""
        return self._by_scope(nodes, mask & self._zones.single[nodes.row_numbers])

    def _by_scope(self, nodes: NodeView, mask: BoolColumn) -> list[tuple[RowIndex, bool]]:
        pod_scope = self._zones.pod_scope[nodes.row_numbers]
        return [(np.flatnonzero(mask & (pod_scope == scope)), scope) for scope in (False, True)]

    def _of(self, nodes: NodeView, index: RowIndex) -> RowZones:
        return RowZones.of(self._zones, nodes.row_numbers[index])

    def _items(self, nodes: NodeView, index: RowIndex, pod_scope: bool) -> list[Items]:
        """What the pods that are not reported yet hold on these rows."""
        found = []
        for pinned in self._pinned:
            counts = nodes.counter(pinned)[index] - nodes.counter(Reported(pinned))[index]
            if counts.any():
                parts = (pinned.total,) if pod_scope else pinned.containers
                found += [Items(part, counts * number) for part, number in Counter(parts).items()]
        return found


def _all(columns: Sequence[BoolColumn], rows: int) -> BoolColumn:
    found = np.ones(rows, np.bool_)
    for column in columns:
        found &= column
    return found


def _pinned_by(cls: TaskClass) -> Pinned | None:
    return next((key for key in cls.footprint if isinstance(key, Pinned)), None)


def _is_reported(task: Task) -> bool:
    return any(isinstance(key, Reported) for key in task.counts)


def _take(left: dict[str, int], pinned: Pinned) -> bool:
    """Subtract what a pod holds from the reported amounts, if they cover it."""
    held = {name: amount for name, amount in pinned.total if name in left}
    if any(amount > left[name] for name, amount in held.items()):
        return False
    for name, amount in held.items():
        left[name] -= amount
    return True


def _text(need: Need) -> str:
    return " and ".join(f"{quantity_text(amount, milli=name == 'cpu')} {name}" for name, amount in need.requests)


def _held_some(_: TaskClass, event: ClusterEvent) -> bool:
    return event.own or event.old_class is None or _pinned_by(event.old_class) is not None
