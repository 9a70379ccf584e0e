"""The pods that this replica assigned GPUs to, until an event reports them as bound; a simulation has no events."""

from __future__ import annotations

from collections.abc import Iterator

from session_scheduler.model.groups import Task


class InFlight:
    """The pods in flight, by the node on which they got GPUs."""

    def __init__(self) -> None:
        self._on: dict[str, dict[Task, None]] = {}

    def add(self, task: Task, node: str) -> None:
        """A pod got GPUs on a node."""
        self._on.setdefault(node, {})[task] = None

    def remove(self, task: Task, node: str) -> None:
        """A pod is bound, or has left the node."""
        tasks = self._on[node]
        del tasks[task]
        if not tasks:
            del self._on[node]

    def all(self) -> list[tuple[Task, str]]:
        """All pods, each with the node on which it got GPUs: it may have left that one."""
        return [(task, node) for node, tasks in self._on.items() for task in tasks]

    def on(self, node: str) -> Iterator[Task]:
        """The pods that are on a node."""
        return (task for task in self._on.get(node, ()) if task.node == node)
