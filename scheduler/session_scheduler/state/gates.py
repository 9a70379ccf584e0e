"""Gates: the pods that plugins keep out of the scheduling queue (`pre_enqueue`), and the objects that may open them."""

from __future__ import annotations

from session_scheduler.model.groups import Task
from session_scheduler.model.objects import KubeObject
from session_scheduler.model.refusals import Gate


class Gates:
    """The gates of one cache."""

    def __init__(self) -> None:
        self.by_task: dict[Task, Gate] = {}
        self._new: dict[Task, None] = {}
        """The tasks whose gates `drain_new` has not returned; some of them are open again."""
        self._awaiting: dict[tuple[type[KubeObject], str], dict[Task, None]] = {}
        """By kind and key of an object: the tasks whose gates it may open."""

    def put(self, task: Task, gate: Gate) -> None:
        """Add the gate of a task."""
        self.by_task[task] = gate
        self._new[task] = None
        if gate.awaits is not None:
            self._awaiting.setdefault(gate.awaits, {})[task] = None

    def drop(self, task: Task) -> None:
        """Remove the gate of a task: the task is gone, has a node, or `pre_enqueue` checks it again."""
        gate = self.by_task.pop(task, None)
        if gate is not None and gate.awaits is not None:
            tasks = self._awaiting[gate.awaits]
            del tasks[task]
            if not tasks:
                del self._awaiting[gate.awaits]

    def of(self, task: Task) -> Gate | None:
        """The gate of a task; None if it has none."""
        return self.by_task.get(task)

    def drain_new(self) -> list[tuple[Task, Gate]]:
        """The gates that were added since the last call and still exist."""
        tasks, self._new = self._new, {}
        return [(task, self.by_task[task]) for task in tasks if task in self.by_task]

    def awaiting(self, obj: KubeObject) -> list[Task]:
        """The tasks whose gates a change of this object may open."""
        return list(self._awaiting.get((type(obj), obj.key), ()))
