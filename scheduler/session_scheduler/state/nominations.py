"""Nominations: which pending pods are to go where, on nodes where others are evicted for them or that were chosen.

Here before the API server knows of it (`status.nominatedNodeName`), and from there after a restart.
Source: kube-scheduler's nominator (pkg/scheduler/backend/queue/nominator.go), Kubernetes 1.36.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod


class Nominations:
    """By pod and by node. Most clusters have none most of the time: false then, and asked nothing more."""

    def __init__(self, on_change: Callable[[Task], None] = lambda _: None) -> None:
        """`on_change` is called with each task that is nominated, or no more."""
        self.active = False
        """Whether anything was ever nominated: the cache asks nothing before."""
        self.node_by_uid: dict[str, str] = {}
        """Always the same object: what is asked for every pod is whether there is anything in it."""
        self._on_node: dict[str, dict[str, Task]] = {}
        self._placed: dict[str, str] = {}
        """By pod uid, where the task is on a node, and counts there: no pod need leave room for it."""
        self._given_up: dict[str, str] = {}
        """By pod uid: what pods may still be heard to name while that is taken back: it holds no more."""
        self.starts: dict[Task, float] = {}
        """Of those that are to have their node only later: when, in seconds since 1970."""
        self.kept: set[str] = set()
        """Of pods (uids) that keep their node though they are refused, and whatever their status says."""
        self.version = 0
        """Moves whenever anything is nominated, or no more."""
        self.kinds: Counter[tuple[int, str]] = Counter()
        """How many of them there are of each standing and queue, as these were when last counted."""
        self._kind_of: dict[str, tuple[int, str]] = {}
        self.ended: list[tuple[Task, str]] = []
        """The tasks that are nominated for a node no more and are not on it, since `drain_ended`."""
        self._on_change = on_change

    def __bool__(self) -> bool:
        return bool(self.node_by_uid)

    def node_of(self, task: Task) -> str | None:
        """The node that a task is nominated for."""
        return self.node_by_uid.get(task.uid)

    def nominated_node_name(self, task: Task) -> str:
        """The node that a task's pod names, or is about to, wherever the task is; empty for none."""
        return self.node_by_uid.get(task.uid) or self._placed.get(task.uid, "")

    def comes_next(self, task: Task) -> bool:
        """Whether a task is to have its node as soon as it can, and not only later."""
        return task.uid in self.node_by_uid and task not in self.starts

    @property
    def nodes(self) -> int:
        """For how many nodes tasks are nominated."""
        return len(self._on_node)

    def is_awaited(self, node: str) -> bool:
        """Whether tasks are nominated for a node."""
        return node in self._on_node

    def on_node(self, node: str) -> list[Task]:
        """The tasks that are nominated for a node, in the order in which they were."""
        return list(self._on_node.get(node, {}).values())

    def waiting(self, nodes: Iterable[str] | None = None) -> Iterator[tuple[str, Iterable[Task]]]:
        """Each node, or each of these, with the tasks that are nominated for it and are on none yet."""
        for node in self._on_node if nodes is None else nodes:
            found = [task for task in self._on_node.get(node, {}).values() if task.node is None]
            if found:
                yield node, found

    def put(self, task: Task, node: str) -> None:
        """Nominate a task for a node, in place of the one that it was for; for none where that is empty."""
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
            if (task, node) in self.ended:  # it was so before
                self.ended.remove((task, node))

    def reserve(self, task: Task, start: float | None) -> None:
        """Let a nominated task have its node only from a time on, in seconds since 1970; None: as soon as it can."""
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
        """Nominate a task for a node, until it is placed, or nominated anew; its pod is not told."""
        self.drop(task)
        self.put(task, node)
        self.active = True
        self.kept.add(task.uid)

    def _count(self, task: Task) -> None:
        kind = self._kind_of[task.uid] = task.standing, task.group.queue
        self.kinds[kind] += 1

    def recount(self) -> None:
        """Take in that priorities or queues have changed."""
        self.kinds.clear()
        for there in self._on_node.values():
            for task in there.values():
                self._count(task)

    def drop(self, task: Task) -> None:
        """The task is to go anywhere again."""
        self._placed.pop(task.uid, None)
        self.kept.discard(task.uid)
        self.starts.pop(task, None)
        node = self.node_by_uid.pop(task.uid, None)
        if node is None:
            return
        if task.node != node:
            self.ended.append((task, node))
        del self._on_node[node][task.uid]
        kind = self._kind_of.pop(task.uid)
        self.kinds[kind] -= 1
        if not self.kinds[kind]:
            del self.kinds[kind]
        if not self._on_node[node]:
            del self._on_node[node]
        self.version += 1
        self._on_change(task)

    def give_up(self, task: Task, node: str) -> None:
        """As `drop`, though its pod may be heard to name this node until its status is written anew."""
        self.drop(task)
        self.active = True
        self._given_up[task.uid] = node

    def forget(self, task: Task) -> None:
        """The task is bound, or gone."""
        self.drop(task)
        self._given_up.pop(task.uid, None)

    def drain_ended(self) -> list[tuple[Task, str]]:
        """The tasks that are to go to a node no more and are not on it, since this was last asked: others may."""
        ended, self.ended = self.ended, []
        return ended

    def heard(self, task: Task, before: Pod | None) -> None:
        """Its pod says something else than before: what was said last holds.

        What is not written yet stays: a pod that never named a node does not take it back.
        """
        node = task.pod.status.nominated_node_name
        said = before.status.nominated_node_name if before is not None else ""
        if node == said or task.uid in self.kept or (node and node == self._given_up.get(task.uid)):
            return
        self.put(task, node)
