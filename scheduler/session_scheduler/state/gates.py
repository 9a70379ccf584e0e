"""Pods that plugins keep out of the queue (`pre_enqueue`): what gates each, and which object's change may open it."""

from __future__ import annotations

from session_scheduler.model.groups import Task
from session_scheduler.model.objects import KubeObject
from session_scheduler.model.refusals import Gate


class Gates:
    """Of one cache."""

    def __init__(self) -> None:
        self.by_task: dict[Task, Gate] = {}
        self._awaiting: dict[tuple[type[KubeObject], str], dict[Task, None]] = {}
        """By kind and key of the object that may open their gates."""

    def put(self, task: Task, gate: Gate) -> None:
        """A plugin keeps a task out of the queue."""
        self.by_task[task] = gate
        if gate.awaits is not None:
            self._awaiting.setdefault(gate.awaits, {})[task] = None

    def drop(self, task: Task) -> None:
        """The task is gone, has a node, or is checked anew."""
        gate = self.by_task.pop(task, None)
        if gate is not None and gate.awaits is not None:
            tasks = self._awaiting[gate.awaits]
            del tasks[task]
            if not tasks:
                del self._awaiting[gate.awaits]

    def of(self, task: Task) -> Gate | None:
        """The plugin's gate that keeps a task out of the queue."""
        return self.by_task.get(task)

    def awaiting(self, obj: KubeObject) -> list[Task]:
        """Those whose gates a change of this object may open."""
        return list(self._awaiting.get((type(obj), obj.key), ()))
