"""Usage of queues: what the pods of each queue have allocated and request, updated pod by pod.

Counting starts with the first configured queue, Queue object, or pod that names a queue; without queues it costs
nothing. Placements in a session, and their rollback, change the same counts, so limits hold at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

import msgspec

from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.device_resources import DeviceLimit, DeviceResources
from session_scheduler.model.devices import Allocation, DeviceClass, ResourceClaim, ResourceSlice
from session_scheduler.model.groups import DEFAULT_QUEUE, Group, Phase, Task
from session_scheduler.model.objects import KubeObject
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.queue_shares import Counts, QueueShares
from session_scheduler.model.queues import (
    QUEUE_LABEL,
    Amounts,
    Problem,
    QueueSpec,
    QueueTree,
    add_each,
    of_object,
    with_known_devices,
)
from session_scheduler.state.claim_use import ClaimUse
from session_scheduler.state.nominations import Nominations
from session_scheduler.state.running_pods import RunningPods, add_to
from session_scheduler.state.tables import ObjectTables

NominatedKind = tuple[int, bool, TaskClass, tuple[tuple[str, int], ...]]
"""What decides how a nominated task counts in a queue: its standing, whether it is not preemptible, its class, and its
device resources on the node that it is nominated for.
"""


class _Counted(msgspec.Struct, frozen=True):
    queue: str
    allocated: bool
    """Whether the task is on a node; otherwise it is pending."""
    cls: TaskClass
    kept: bool
    """Whether it is not preemptible."""
    standing: int
    """Its priority as a possible victim."""
    decided: bool
    """Whether it is allocated once all decisions are carried out."""
    devices: Mapping[str, int]
    """The device resources on its node, or those that it may have on any."""
    decided_devices: Mapping[str, int]
    """The device resources on its node, or on the one that it is nominated for."""

    def without_decided(self) -> tuple[object, ...]:
        """All fields except those that concern decisions."""
        return self.queue, self.allocated, self.cls, self.kept, self.standing, self.devices


class QueueUse:
    """The queues of one cache, and their counts.

    `serves(scheduler_name)` returns whether the pods of that schedulerName count; `tasks` are all tasks of the cache.
    """

    def __init__(
        self,
        serves: Callable[[str], bool],
        objects: ObjectTables,
        tasks: Mapping[str, Task],
        evicted: Container[str],
        nominations: Nominations,
    ) -> None:
        """`evicted`: the pods (uids) being evicted for others.

        Call `moved` for each task for which that or its nomination changes.
        """
        self._evicted = evicted
        self._nominations = nominations
        self._serves = serves
        self._objects = objects
        self._tasks = tasks
        self._configured: dict[str, QueueSpec] = {}
        self._seen = 0
        self.active = False
        """Whether it counts."""
        self.tree = QueueTree()
        self.version = 0
        """Incremented whenever the tree or a count changes."""
        self._counts: dict[str, Counts] = {}
        self.claims = ClaimUse(self._counts_to_change, objects)
        self._counted: dict[Task, _Counted] = {}
        self.kinds: Counter[tuple[str, TaskClass, tuple[tuple[str, int], ...]]] = Counter()
        """By queue, class and device resources: the number of preemptible pods on nodes."""
        self.devices = DeviceResources()
        self._devices_of: dict[Task, Mapping[str, int]] = {}
        """The device resources that tasks have, or had before their removal was simulated."""
        self._standings: dict[str, Counter[int]] = {}
        """By queue and priority: the number of preemptible pods on nodes that nothing evicts yet."""
        self.nominated: dict[str, Counter[NominatedKind]] = {}
        """By queue: the number of nominated tasks of each kind that are not on a node."""
        self._nominated_kinds: dict[Task, tuple[str, NominatedKind]] = {}
        self.running = RunningPods()
        """All pods on nodes, also those of other schedulers."""
        self._kept: set[Group] = set()
        """The groups whose pods are not preemptible, as of the last `reconcile`."""
        self._dirty: dict[Group, None] = {}
        self._ours: Amounts = {}
        """The allocated amounts of all pods that count."""
        self.offered: dict[str, Mapping[str, int]] = {}
        """By plugin: the cluster's amounts of some resources, in place of the nodes' allocatable (hook `offered`)."""
        self._shares: tuple[object, QueueShares] | None = None
        self.device_limits: Callable[[Group, Collection[str]], Sequence[DeviceLimit]] = no_device_limits
        """What a group may still get by the allocation of these claims (keys); a plugin sets it for a session."""

    # ------------------------------------------------------------------ queues and counts

    def configure(self, specs: Iterable[QueueSpec], devices: DeviceResources) -> None:
        """Set the configured queues, which take precedence over Queue objects of the same name, and the amounts of
        devices. Call it before any object is added.
        """
        self.devices = devices
        self.claims.configure(devices)
        self._configured = {spec.name: spec for spec in specs}
        if self._configured:
            self._rebuild_tree()

    def start(self) -> None:
        """Start counting, even without queues."""
        if not self.active:
            self.active = True
            self._dirty.update(dict.fromkeys(task.group for task in self._tasks.values()))
            self.claims.start()

    def counts(self, queue: str) -> Counts:
        """The counts of a queue and its descendants."""
        found = self._counts.get(queue)
        if found is None:
            found = Counts()
            if queue in self.tree.specs:
                self._counts[queue] = found
        return found

    def deleted(self) -> list[str]:
        """The queues that pods name and that do not exist, sorted."""
        return sorted(name for name in self._counts if name not in self.tree.specs)

    def holds_as_decided(self, group: Group) -> bool:
        """Whether a group's queue and all its ancestors stay within their bounds once all decisions are carried out.

        The bounds are the limits, and for a non-preemptible group also the deserved amounts.
        """
        for name in self.tree.path(group.queue) if self.tree.usable(group.queue) else ():
            spec, counts = self.tree.specs[name], self.counts(name)
            bounds = [(spec.limit, counts.decided)]
            if not group.preemptible:
                bounds.append((spec.deserved, counts.decided_kept))
            if any(had.get(resource, 0) > most[resource] for most, had in bounds for resource in most):
                return False
        return True

    def outranks_any(self, group: Group, priority: int) -> bool:
        """Whether a preemptible pod of lower priority runs in the group's queue, and is not evicted yet."""
        return any(standing < priority for standing in self._standings.get(group.queue, ()))

    def concerns(self, task: Task) -> bool:
        """Whether a task counts: pods of other schedulers do not."""
        return self._serves(task.pod.spec.scheduler_name)

    def problem(self, queue: Queue) -> Problem | None:
        """Why a Queue object is not ready; None if it is."""
        if queue.metadata.name in self._configured:
            return Problem("Configured", "a queue of this name in the scheduler's configuration takes precedence")
        return self.tree.problem(queue.metadata.name)

    def shares(self, table: NodeTable) -> QueueShares:
        """The current fair shares; computed only after a change.

        The queues share the nodes' allocatable, or what plugins offer, less the requests of pods that do not count.
        """
        advertised = table.offered()
        others = {name: used - self._ours.get(name, 0) for name, (_, used) in advertised.items()} | self.claims.others
        total = {name: amount for name, (amount, _) in advertised.items()}
        for amounts in self.offered.values():
            total |= amounts
        total = {name: amount - others.get(name, 0) for name, amount in total.items()}
        of_devices = dict(self.claims.devices.total)
        add_each(of_devices, {name: self.claims.others.get(name, 0) for name in of_devices}, -1)
        self.devices.add_capacity(table, total, of_devices)
        key = (self.version, total)
        if self._shares is None or self._shares[0] != key:
            has = {name: self.counts(name) for name in self.tree if self.tree.usable(name)}
            self._shares = key, QueueShares(self.tree, total, has)
        return self._shares[1]

    def devices_of(self, task: Task) -> Mapping[str, int]:
        """The device resources that a task on a node has, even if its removal is simulated; for other tasks, those that
        they would have on every node.
        """
        found = self._devices_of.get(task)
        return self.devices.certain(task.cls) if found is None else found

    def by_model(self, task: Task) -> tuple[tuple[str, int], ...]:
        """The device resources of a task on a node, if they depend on the node: then equal tasks may have other device
        resources.
        """
        return tuple(sorted(self.devices_of(task).items())) if self.devices.by_node else ()

    def requested(self) -> set[str]:
        """The names of all amounts that pods of queues have or request."""
        return {name for counts in self._counts.values() for amounts in (counts.allocated, counts.pending)
                for name in amounts}  # fmt: skip

    def nominated_kind(self, task: Task) -> tuple[str, NominatedKind] | None:
        """The queue and kind under which `nominated` counts a task; None if it does not."""
        return self._nominated_kinds.get(task)

    # ------------------------------------------------------------------ changes of the cluster

    def changed(self, group: Group) -> None:
        """A group or one of its pods has changed: `reconcile` counts it again."""
        self._dirty[group] = None

    def all_changed(self, groups: Iterable[Group]) -> None:
        """A change may affect all of these groups: `reconcile` counts them again."""
        if self.active:
            self._dirty.update(dict.fromkeys(groups))

    def object_changed(self, obj: KubeObject, *, deleted: bool = False) -> None:
        """Count a claim that was added, changed or deleted, or what changes how claims count."""
        if self.active and isinstance(obj, ResourceClaim | ResourceSlice | DeviceClass):
            self.version += self.claims.remove(obj) if deleted else self.claims.put(obj)

    def claim_decided(self, claim: str, allocation: Allocation | None) -> None:
        """Count a claim (its key) with the allocation that a session decided, before it is written; None to undo it."""
        if self.active:
            self.version += self.claims.decide(claim, allocation)

    def node_changed(self, node: str, tasks: Iterable[Task]) -> None:
        """The node of these tasks was added, changed or deleted: its labels decide which device resources they have,
        and those that are nominated for it.
        """
        if self.active and self.devices.by_node:
            for task in (*tasks, *self._nominations.on_node(node)):
                self.moved(task)

    def moved(self, task: Task) -> None:
        """Count a task again: it was put on a node or removed from one, nominated, or is being evicted."""
        if self._nominations or task in self._nominated_kinds:
            self._count_nominated(task)
        self.running.update(task)
        before, after = self._counted.get(task), self._count_of(task)
        if before == after:
            return
        if before is not None and after is not None and before.without_decided() == after.without_decided():
            self._counted[task] = after
            self._decide(before, -1)
            self._decide(after, 1)
            return
        if before is not None:
            del self._counted[task]
            self._add(before, -1)
        if after is not None:
            self._counted[task] = after
            self._add(after, 1)

    def gone(self, task: Task) -> None:
        """Stop counting a task whose pod is gone."""
        self._drop_nominated(task)
        self._devices_of.pop(task, None)
        self.running.drop(task)
        before = self._counted.pop(task, None)
        if before is not None:
            self._add(before, -1)

    def reconcile(self) -> None:
        """Apply all changes: before each session, and before the usage of queues is reported."""
        if self._objects.version(Queue) != self._seen:
            self._seen = self._objects.version(Queue)
            self._rebuild_tree()
        if self._dirty:
            groups, self._dirty = self._dirty, {}
            for group in groups:
                group.queue = queue_of(group)
                (self._kept.discard if group.preemptible or not group.tasks else self._kept.add)(group)
                for task in group.tasks.values():
                    self.moved(task)

    # ------------------------------------------------------------------ counting

    def _rebuild_tree(self) -> None:
        """Build the tree from the configuration and the Queue objects. If it has changed, count everything again."""
        named = {queue.metadata.name: of_object(queue) for queue in self._objects.of(Queue).values()}
        wanted = (named | self._configured).values()
        self.start()
        tree = QueueTree(with_known_devices(spec, self.devices.names) for spec in wanted)
        if tree.specs == self.tree.specs:
            return
        self.tree = tree
        self.version += 1
        self._ours = {}
        self.kinds.clear()
        self._standings.clear()
        self.claims.clear_users()
        self._counts = {
            name: Counts(freed=old.freed + 1, moved=old.moved + 1, changed=old.changed + 1)
            for name, old in self._counts.items()
            if name in tree.specs
        }
        for counted in self._counted.values():
            self._add(counted, 1)

    def _count_nominated(self, task: Task) -> None:
        group, node, after = task.group, self._nominations.node_of(task), None
        if task.node is None and node is not None and self.concerns(task):
            devices = tuple(sorted(self.devices.on_node(task.cls, node).items()))
            after = group.queue, (task.standing, group in self._kept, task.cls, devices)
        if self._nominated_kinds.get(task) != after:
            self._drop_nominated(task)
            if after is not None:
                self._nominated_kinds[task] = after
                add_to(self.nominated, *after, 1)

    def _drop_nominated(self, task: Task) -> None:
        before = self._nominated_kinds.pop(task, None)
        if before is not None:
            add_to(self.nominated, *before, -1)

    def _count_of(self, task: Task) -> _Counted | None:
        if not self._serves(task.pod.spec.scheduler_name):
            return None
        group, cls = task.group, task.cls
        kept = group in self._kept
        if task.node is not None:
            devices = self.devices.on_node(cls, task.node)
            if self.devices.listed:
                self._devices_of[task] = devices
            stays = task.uid not in self._evicted
            return _Counted(group.queue, True, cls, kept, task.standing, stays, devices, devices)
        if task.phase is Phase.PENDING:
            self._devices_of.pop(task, None)
            devices, node = self.devices.possible(cls), self._nominations.node_of(task)
            there = self.devices.on_node(cls, node) if node is not None and devices else {}
            comes = self._nominations.comes_next(task)
            return _Counted(group.queue, False, cls, kept, task.standing, comes, devices, there)
        return None

    def _counts_to_change(self, queue: str) -> Counts:
        return self._counts.setdefault(queue, Counts())

    def _add(self, counted: _Counted, sign: int) -> None:
        self.version += 1
        amounts, allocated, claims = counted.cls.queue_amounts, counted.allocated, counted.cls.claims
        names = ("pending",) if not allocated else ("allocated", "kept") if counted.kept else ("allocated",)
        if allocated:
            add_each(self._ours, amounts, sign)
            self.claims.hold(claims, sign)
        for name in self.tree.path(counted.queue):
            counts = self._counts_to_change(name)
            if allocated:
                counts.moved += 1
                counts.freed += sign < 0
            for which in names:
                add_each(getattr(counts, which), amounts, sign)
                add_each(getattr(counts, which), counted.devices, sign)
            self.claims.use(claims, name, names, sign)
        self._decide(counted, sign)
        if allocated and not counted.kept:
            kind = counted.queue, counted.cls, tuple(sorted(counted.devices.items()))
            self.kinds[kind] += sign
            if not self.kinds[kind]:
                del self.kinds[kind]
        counts = self._counts[counted.queue]
        if counted.queue not in self.tree.specs and not counts.allocated and not counts.pending:
            del self._counts[counted.queue]  # pods may name any number of unknown queues

    def _decide(self, counted: _Counted, sign: int) -> None:
        """Count a task as it is once all decisions are carried out, or as one that leaves."""
        if not counted.decided:
            for name in self.tree.path(counted.queue) if counted.allocated and counted.devices else ():
                add_each(self._counts_to_change(name).leaving, counted.devices, sign)
            return
        names = ("decided", "decided_kept") if counted.kept else ("decided",)
        for name in self.tree.path(counted.queue):
            counts = self._counts_to_change(name)
            counts.changed += 1
            for which in names:
                add_each(getattr(counts, which), counted.cls.queue_amounts, sign)
                add_each(getattr(counts, which), counted.decided_devices, sign)
            self.claims.use(counted.cls.claims, name, names, sign)
        if counted.allocated and not counted.kept:
            add_to(self._standings, counted.queue, counted.standing, sign)


def no_device_limits(_group: Group, _claims: Collection[str]) -> Sequence[DeviceLimit]:
    """No limits: without queues, or without a plugin that enforces them."""
    return ()


def queue_of(group: Group) -> str:
    """The queue of a group: by the label of the PodGroup, else of a pod (the first by uid), else the default."""
    for labels in group.labels():
        name = labels.get(QUEUE_LABEL)
        if name:
            return name
    return DEFAULT_QUEUE
