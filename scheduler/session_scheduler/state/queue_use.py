"""Usage of queues: what the pods of each queue have allocated and request, updated pod by pod.

Counting starts with the first configured queue, Queue object, or pod that names a queue; without queues it costs
nothing. Placements in a session, and their rollback, change the same counts, so limits hold at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping

import msgspec

from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.groups import DEFAULT_QUEUE, Group, Phase, Task
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.queue_shares import Counts, QueueShares
from session_scheduler.model.queues import PODS, QUEUE_LABEL, Amounts, Problem, QueueSpec, QueueTree, of_object
from session_scheduler.state.nominations import Nominations
from session_scheduler.state.running_pods import RunningPods, add_to
from session_scheduler.state.tables import ObjectTables

NominatedKind = tuple[int, bool, TaskClass]
"""What decides how a nominated task counts in a queue: its standing, whether it is not preemptible, and its class."""


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

    def without_decided(self) -> tuple[object, ...]:
        """All fields except `decided`."""
        return self.queue, self.allocated, self.cls, self.kept, self.standing


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
        self._counted: dict[Task, _Counted] = {}
        self.kinds: Counter[tuple[str, TaskClass]] = Counter()
        """By queue and class: the number of preemptible pods on nodes."""
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

    # ------------------------------------------------------------------ queues and counts

    def configure(self, specs: Iterable[QueueSpec]) -> None:
        """Set the configured queues; they take precedence over Queue objects of the same name."""
        self._configured = {spec.name: spec for spec in specs}
        if self._configured:
            self._rebuild_tree()

    def start(self) -> None:
        """Start counting, even without queues."""
        if not self.active:
            self.active = True
            self._dirty.update(dict.fromkeys(task.group for task in self._tasks.values()))

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
        offered = table.offered()
        for amounts in self.offered.values():
            offered |= {name: (amount, offered.get(name, (0, 0))[1]) for name, amount in amounts.items()}
        total = {name: amount - used + self._ours.get(name, 0) for name, (amount, used) in offered.items()}
        key = (self.version, total)
        if self._shares is None or self._shares[0] != key:
            has = {name: self.counts(name) for name in self.tree if self.tree.usable(name)}
            self._shares = key, QueueShares(self.tree, total, has)
        return self._shares[1]

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
            self._decide(after, 1 if after.decided else -1)
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
        wanted = named | self._configured
        self.start()
        tree = QueueTree(wanted.values())
        if tree.specs == self.tree.specs:
            return
        self.tree = tree
        self.version += 1
        self._ours = {}
        self.kinds.clear()
        self._standings.clear()
        self._counts = {
            name: Counts(freed=old.freed + 1, moved=old.moved + 1, changed=old.changed + 1)
            for name, old in self._counts.items()
            if name in tree.specs
        }
        for counted in self._counted.values():
            self._add(counted, 1)

    def _count_nominated(self, task: Task) -> None:
        group, after = task.group, None
        if task.node is None and self._nominations.node_of(task) is not None and self.concerns(task):
            after = group.queue, (task.standing, group in self._kept, task.cls)
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
        group = task.group
        kept = group in self._kept
        if task.node is not None:
            return _Counted(group.queue, True, task.cls, kept, task.standing, task.uid not in self._evicted)
        if task.phase is Phase.PENDING:
            return _Counted(group.queue, False, task.cls, kept, task.standing, self._nominations.comes_next(task))
        return None

    def _add(self, counted: _Counted, sign: int) -> None:
        self.version += 1
        amounts, allocated = counted.cls.requests, counted.allocated
        if allocated:
            _add(self._ours, amounts, sign)
        for name in self.tree.path(counted.queue):
            counts = self._counts.setdefault(name, Counts())
            if allocated:
                counts.moved += 1
                _add(counts.allocated, amounts, sign)
                _add_each(counts.gpus, counted.cls.gpu_amounts, sign)
                counts.freed += sign < 0
                if counted.kept:
                    _add(counts.kept, amounts, sign)
                    _add_each(counts.kept_gpus, counted.cls.gpu_amounts, sign)
            else:
                _add(counts.pending, amounts, sign)
        if counted.decided:
            self._decide(counted, sign)
        if allocated and not counted.kept:
            kind = counted.queue, counted.cls
            self.kinds[kind] += sign
            if not self.kinds[kind]:
                del self.kinds[kind]
        counts = self._counts[counted.queue]
        if counted.queue not in self.tree.specs and not counts.allocated and not counts.pending:
            del self._counts[counted.queue]  # pods may name any number of unknown queues

    def _decide(self, counted: _Counted, sign: int) -> None:
        for name in self.tree.path(counted.queue):
            counts = self._counts.setdefault(name, Counts())
            counts.changed += 1
            _add(counts.decided, counted.cls.requests, sign)
            if counted.kept:
                _add(counts.decided_kept, counted.cls.requests, sign)
        if counted.allocated and not counted.kept:
            add_to(self._standings, counted.queue, counted.standing, sign)


def _add(total: Amounts, amounts: Mapping[str, int], sign: int) -> None:
    """Add the requests of one pod, and the pod itself; drop amounts that become 0."""
    _add_each(total, amounts, sign)
    total[PODS] = total.get(PODS, 0) + sign
    if not total[PODS]:
        del total[PODS]


def _add_each(total: Amounts, amounts: Mapping[str, int], sign: int) -> None:
    for name, amount in amounts.items():
        if name != PODS:
            total[name] = total.get(name, 0) + sign * amount
            if not total[name]:
                del total[name]


def queue_of(group: Group) -> str:
    """The queue of a group: by the label of the PodGroup, else of a pod (the first by uid), else the default."""
    for labels in group.labels():
        name = labels.get(QUEUE_LABEL)
        if name:
            return name
    return DEFAULT_QUEUE
