"""Nominations: the nominated nodes of pending pods, after preemption, a move or a reservation.

A nomination counts before the API server has it as `status.nominatedNodeName`, from which it is read after a restart.
Source: kube-scheduler's nominator (pkg/scheduler/backend/queue/nominator.go), Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod


class Nominations:
    """The nominations of one cache, by pod and by node. The object is false if there are none, as usual."""

    def __init__(self, on_change: Callable[[Task], None] = lambda _: None) -> None:
        """Calls `on_change` with each task whose nomination begins or ends."""
        self.active = False
        """Whether there has ever been a nomination: until then the cache skips all lookups."""
        self.node_by_uid: dict[str, str] = {}
        """By pod uid: the nominated node. Always the same object, so that callers can keep a reference to it."""
        self._on_node: dict[str, dict[str, Task]] = {}
        self._placed: dict[str, str] = {}
        """By pod uid: the nominated node of a task that is on a node already, so that other pods ignore it."""
        self._given_up: dict[str, str] = {}
        """By pod uid: a node to ignore in the pod's status until the scheduler has cleared it there."""
        self.starts: dict[Task, float] = {}
        """The tasks with a reservation: when they may use their node, in seconds since 1970."""
        self.kept: set[str] = set()
        """The pods (uids) that keep their node even if they are rejected, whatever their status says."""
        self.version = 0
        """Incremented whenever a nomination begins, ends or changes."""
        self._kinds: dict[str, dict[int, dict[str, Task]]] = {}
        """By queue and standing: the nominated tasks by uid, as of their nomination or the last `recount`."""
        self._kind_of: dict[str, tuple[str, int]] = {}
        self.ended: dict[tuple[Task, str], None] = {}
        """The nominations, as (task, node), that have ended since `drain_ended`; without tasks that are on the node."""
        self._on_change = on_change

    def __bool__(self) -> bool:
        return bool(self.node_by_uid)

    def node_of(self, task: Task) -> str | None:
        """The nominated node of a task; None if it has none."""
        return self.node_by_uid.get(task.uid)

    def nominated_node_name(self, task: Task) -> str:
        """The value for `status.nominatedNodeName`, even if the task is already on a node; empty if none."""
        return self.node_by_uid.get(task.uid) or self._placed.get(task.uid, "")

    def comes_next(self, task: Task) -> bool:
        """Whether a task is nominated without a reservation, and so starts as soon as it can."""
        return task.uid in self.node_by_uid and task not in self.starts

    @property
    def nodes(self) -> int:
        """The number of nodes for which tasks are nominated."""
        return len(self._on_node)

    def is_awaited(self, node: str) -> bool:
        """Whether tasks are nominated for a node."""
        return node in self._on_node

    def on_node(self, node: str) -> list[Task]:
        """The tasks nominated for a node, in the order of their nominations."""
        return list(self._on_node.get(node, {}).values())

    def waiting(self, nodes: Iterable[str] | None = None) -> Iterator[tuple[str, Iterable[Task]]]:
        """(node, tasks nominated for it that are not on a node yet), for all nodes or for `nodes`."""
        for node in self._on_node if nodes is None else nodes:
            found = [task for task in self._on_node.get(node, {}).values() if task.node is None]
            if found:
                yield node, found

    def put(self, task: Task, node: str) -> None:
        """Nominate a task for a node, in place of any other one; an empty `node` ends the nomination."""
        self._given_up.pop(task.uid, None)
        if self.nominated_node_name(task) == node:
            return
        self.active = True
        self.drop(task)
        if node and task.node is not None:
            self._placed[task.uid] = node
        elif node:
            self.node_by_uid[task.uid] = node
            self._on_node.setdefault(node, {})[task.uid] = task
            self._count(task)
            self.version += 1
            self._on_change(task)
            self.ended.pop((task, node), None)  # the nomination is the same again

    def reserve(self, task: Task, start: float | None) -> None:
        """Set when a nominated task may have its node, in seconds since 1970; None: as soon as it can."""
        start = start if task.uid in self.node_by_uid else None
        if self.starts.get(task) == start:
            return
        self.version += 1
        if start is None:
            del self.starts[task]
        else:
            self.starts[task] = start
        self._on_change(task)

    def keep(self, task: Task, node: str) -> None:
        """Nominate a task for a node until it is placed or nominated again, without writing the pod's status."""
        self.drop(task)
        self.put(task, node)
        self.active = True
        self.kept.add(task.uid)

    def below(self, standing: int, queue: str) -> Iterator[dict[str, Task]]:
        """The nominated tasks of a queue (all queues if empty) with a lower standing, by uid, for each standing."""
        for kinds in (self._kinds.get(queue, {}),) if queue else self._kinds.values():
            for each, tasks in kinds.items():
                if each < standing:
                    yield tasks

    def _count(self, task: Task) -> None:
        queue, standing = self._kind_of[task.uid] = task.group.queue, task.standing
        self._kinds.setdefault(queue, {}).setdefault(standing, {})[task.uid] = task

    def recount(self) -> None:
        """Update the answers of `below` after priorities or queues have changed."""
        self._kinds.clear()
        for tasks in self._on_node.values():
            for task in tasks.values():
                self._count(task)

    def drop(self, task: Task) -> None:
        """End the nomination of a task."""
        self._placed.pop(task.uid, None)
        self.kept.discard(task.uid)
        self.starts.pop(task, None)
        node = self.node_by_uid.pop(task.uid, None)
        if node is None:
            return
        if task.node != node:
            self.ended[task, node] = None
        del self._on_node[node][task.uid]
        queue, standing = self._kind_of.pop(task.uid)
        del self._kinds[queue][standing][task.uid]
        if not self._kinds[queue][standing]:
            del self._kinds[queue][standing]
        if not self._on_node[node]:
            del self._on_node[node]
        self.version += 1
        self._on_change(task)

    def give_up(self, task: Task, node: str) -> None:
        """Like `drop`; and ignore this node in the pod's status, until the scheduler has cleared it there."""
        self.drop(task)
        self.active = True
        self._given_up[task.uid] = node

    def forget(self, task: Task) -> None:
        """Forget a task that is bound or gone."""
        self.drop(task)
        self._given_up.pop(task.uid, None)

    def drain_ended(self) -> list[tuple[Task, str]]:
        """Return and clear `ended`: other pods may now use these nodes."""
        ended, self.ended = list(self.ended), {}
        return ended

    def update_from_status(self, task: Task, before: Pod | None) -> None:
        """Apply a change of the pod's `status.nominatedNodeName` since `before`.

        A status that has not changed does not end a nomination that is not written yet.
        """
        node = task.pod.status.nominated_node_name
        previous = before.status.nominated_node_name if before is not None else ""
        if node == previous or task.uid in self.kept or (node and node == self._given_up.get(task.uid)):
            return
        self.put(task, node)
