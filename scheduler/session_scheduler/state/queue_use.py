"""The use of queues: what each queue's pods have, and what its waiting pods request; kept up to date pod by pod.

Nothing is counted until the first queue is configured, a Queue object comes, or a pod names a queue: without queues
this costs nothing. What sessions place, and undo, moves the same counts, so that a limit holds at every moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.groups import DEFAULT_QUEUE, Group, Phase, Task
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.queue_shares import Counts, QueueShares
from session_scheduler.model.queues import PODS, QUEUE_LABEL, Amounts, Problem, QueueSpec, QueueTree, of_object
from session_scheduler.state.tables import ObjectTables


@dataclass(frozen=True, slots=True)
class _Counted:
    queue: str
    allocated: bool
    """Whether it is on a node; it is pending otherwise."""
    cls: TaskClass
    kept: bool
    """Whether it is not preemptible."""
    decided: bool
    """Whether it is allocated once all is done that was decided."""

    def of(self) -> tuple[object, ...]:
        """All of it but whether it is decided."""
        return self.queue, self.allocated, self.cls, self.kept


class QueueUse:
    """One cache's queues. `serves(scheduler_name)` tells whose pods count, `tasks` are all that there are."""

    def __init__(
        self,
        serves: Callable[[str], bool],
        objects: ObjectTables,
        tasks: Mapping[str, Task],
        to_end: Container[str] = (),
        to_come: Callable[[Task], bool] = lambda _: False,
    ) -> None:
        """`to_end` are the pods (uids) that were made to end for others, `to_come` tells which are to come to nodes as
        soon as they can: where that changes for one, call `moved`.
        """
        self._to_end = to_end
        self._to_come = to_come
        self._serves = serves
        self._objects = objects
        self._tasks = tasks
        self._configured: dict[str, QueueSpec] = {}
        self._seen = 0
        self.active = False
        """Whether anything is counted."""
        self.tree = QueueTree()
        self.version = 0
        """Moves whenever anything here changes."""
        self._counts: dict[str, Counts] = {}
        self._counted: dict[Task, _Counted] = {}
        self.kinds: Counter[tuple[str, TaskClass]] = Counter()
        """By queue and class, how many pods on nodes are preemptible."""
        self._kept: set[Group] = set()
        """The groups whose pods are not preemptible, as last seen."""
        self._dirty: dict[Group, None] = {}
        self._ours: Amounts = {}
        """What all that count here have on nodes."""
        self.offered: dict[str, Mapping[str, int]] = {}
        """By plugin: what it says that there is of some resources, in place of what nodes offer."""
        self._shares: tuple[object, QueueShares] | None = None

    # ------------------------------------------------------------------ what is there

    def configure(self, specs: Iterable[QueueSpec]) -> None:
        """The configured queues; an object of the same name does not count."""
        self._configured = {spec.name: spec for spec in specs}
        if self._configured:
            self._replant()

    def start(self) -> None:
        """Count from now on, also where there are no queues."""
        if not self.active:
            self.active = True
            self._dirty.update(dict.fromkeys(task.group for task in self._tasks.values()))

    def counts(self, queue: str) -> Counts:
        """What a queue and those below it have."""
        found = self._counts.get(queue)
        if found is None:
            found = Counts()
            if queue in self.tree.specs:
                self._counts[queue] = found
        return found

    def deleted(self) -> list[str]:
        """The queues that pods on nodes, or that wait, name and that there are not, in order."""
        return sorted(name for name in self._counts if name not in self.tree.specs)

    def holds_as_decided(self, group: Group) -> bool:
        """Whether a group's queue, and all above it, keep to their bounds once all is done that was decided."""
        for name in self.tree.path(group.queue) if self.tree.usable(group.queue) else ():
            spec, counts = self.tree.specs[name], self.counts(name)
            bounds = [(spec.limit, counts.decided)]
            if not group.preemptible:
                bounds.append((spec.deserved, counts.decided_kept))
            if any(had.get(resource, 0) > most[resource] for most, had in bounds for resource in most):
                return False
        return True

    def concerns(self, task: Task) -> bool:
        """Whether a task counts at all: not where another scheduler places it."""
        return self._serves(task.pod.spec.scheduler_name)

    def problem(self, queue: Queue) -> Problem | None:
        """Why a Queue object takes no pods."""
        if queue.metadata.name in self._configured:
            return Problem("Configured", "the scheduler's configuration has a queue of this name, which counts")
        return self.tree.problem(queue.metadata.name)

    def shares(self, table: NodeTable) -> QueueShares:
        """The fair shares as things are now; computed when something has changed since.

        What the cluster has to share is what its nodes offer, or what plugins say, less what pods have that do not
        count here.
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

    # ------------------------------------------------------------------ changes of the cluster

    def changed(self, group: Group) -> None:
        """Something of a group, or its pods, has changed: it is looked at before the next session."""
        self._dirty[group] = None

    def all_changed(self, groups: Iterable[Group]) -> None:
        """Something has changed that may concern every group."""
        if self.active:
            self._dirty.update(dict.fromkeys(groups))

    def moved(self, task: Task) -> None:
        """A task was put on a node, or taken off one; or is to be."""
        before, after = self._counted.get(task), self._count_of(task)
        if before == after:
            return
        if before is not None and after is not None and before.of() == after.of():
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
        """A task is no more."""
        before = self._counted.pop(task, None)
        if before is not None:
            self._add(before, -1)

    def reconcile(self) -> None:
        """Count what changed since: before a session, and before what queues have is reported."""
        if self._objects.version(Queue) != self._seen:
            self._seen = self._objects.version(Queue)
            self._replant()
        if self._dirty:
            groups, self._dirty = self._dirty, {}
            for group in groups:
                group.queue = queue_of(group)
                (self._kept.discard if group.preemptible or not group.tasks else self._kept.add)(group)
                for task in group.tasks.values():
                    self.moved(task)

    # ------------------------------------------------------------------ inside

    def _replant(self) -> None:
        """The queues are others now. What they have is added up again where the tree is another one."""
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
        self._counts = {
            name: Counts(freed=old.freed + 1, changed=old.changed + 1)
            for name, old in self._counts.items()
            if name in tree.specs
        }
        for counted in self._counted.values():
            self._add(counted, 1)

    def _count_of(self, task: Task) -> _Counted | None:
        if not self._serves(task.pod.spec.scheduler_name):
            return None
        group = task.group
        kept = group in self._kept
        if task.node is not None:
            return _Counted(group.queue, True, task.cls, kept, task.uid not in self._to_end)
        if task.phase is Phase.PENDING:
            return _Counted(group.queue, False, task.cls, kept, self._to_come(task))
        return None

    def _add(self, counted: _Counted, sign: int) -> None:
        self.version += 1
        amounts, allocated = counted.cls.requests, counted.allocated
        if allocated:
            _add(self._ours, amounts, sign)
        for name in self.tree.path(counted.queue):
            counts = self._counts.setdefault(name, Counts())
            counts.changed += 1
            if allocated:
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
            del self._counts[counted.queue]  # anybody can name a queue that there is not

    def _decide(self, counted: _Counted, sign: int) -> None:
        for name in self.tree.path(counted.queue):
            counts = self._counts.setdefault(name, Counts())
            _add(counts.decided, counted.cls.requests, sign)
            if counted.kept:
                _add(counts.decided_kept, counted.cls.requests, sign)


def _add(total: Amounts, amounts: Mapping[str, int], sign: int) -> None:
    """Add what one pod requests, and the pod; nothing stays where it is 0."""
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
    """By label on the PodGroup, else on a pod (the first by uid that has it), else the default."""
    for labels in group.labels():
        name = labels.get(QUEUE_LABEL)
        if name:
            return name
    return DEFAULT_QUEUE
