"""The running pods by queue and node, with the priorities that other pods must exceed to preempt them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterator
from typing import TypeVar

from session_scheduler.model.groups import Task

_Kind = TypeVar("_Kind", bound=Hashable)
_Entry = tuple[str, str, int]
"""A task's queue, node and priority."""


class RunningPods:
    """Counts tasks on nodes by queue, node and priority (`Task.preemptor_priority`), task by task."""

    def __init__(self) -> None:
        self._on: dict[str, dict[str, Counter[int]]] = {}
        self._priorities: dict[str, Counter[int]] = {}
        self._entries: dict[Task, _Entry] = {}

    def update(self, task: Task) -> None:
        """Count a task again: it was put on a node or removed from one, or its queue or priority changed."""
        before = self._entries.get(task)
        after = (task.group.queue, task.node, task.preemptor_priority) if task.node is not None else None
        if before != after:
            if before is not None:
                self._count(before, -1)
                del self._entries[task]
            if after is not None:
                self._entries[task] = after
                self._count(after, 1)

    def drop(self, task: Task) -> None:
        """Stop counting a task whose pod is gone."""
        before = self._entries.pop(task, None)
        if before is not None:
            self._count(before, -1)

    def nodes_below(self, queue: str, priority: int) -> Iterator[str]:
        """The nodes on which tasks of the queue have a lower priority."""
        if self._any_below(queue, priority):
            yield from (node for node, there in self._on[queue].items() if any(one < priority for one in there))

    def is_below(self, queue: str, node: str, priority: int) -> bool:
        """Whether a task of the queue on the node has a lower priority."""
        return any(one < priority for one in self._on.get(queue, {}).get(node, ()))

    def any_below(self, priority: int, *, outside: Container[str]) -> bool:
        """Whether tasks of queues other than those of `outside` have a lower priority."""
        return any(self._any_below(queue, priority) for queue in self._priorities if queue not in outside)

    def _any_below(self, queue: str, priority: int) -> bool:
        return any(one < priority for one in self._priorities.get(queue, ()))

    def _count(self, entry: _Entry, sign: int) -> None:
        queue, node, priority = entry
        add_to(self._priorities, queue, priority, sign)
        nodes = self._on.setdefault(queue, {})
        add_to(nodes, node, priority, sign)
        if not nodes:
            del self._on[queue]


def add_to(counts: dict[str, Counter[_Kind]], name: str, kind: _Kind, sign: int) -> None:
    """Add 1 or -1 to the number of a kind in the counter of this name; drop what becomes empty."""
    found = counts.setdefault(name, Counter())
    found[kind] += sign
    if not found[kind]:
        del found[kind]
    if not found:
        del counts[name]
