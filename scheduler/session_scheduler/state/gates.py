"""Pods that are not to be tried yet: what keeps each out of the queue, and which object's change may let it in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from session_scheduler.model.groups import Group, Phase, Task

if TYPE_CHECKING:
    from session_scheduler.model.objects import KubeObject, Pod
    from session_scheduler.model.refusals import Gate


class Gates:
    """Judges tasks without a node. `ask` tells what the plugins' `pre_enqueue` says of a pod."""

    def __init__(self) -> None:
        self.ask: Callable[[Pod], Gate | None] = lambda _: None
        self.stirred: dict[Group, None] = {}
        """Groups that are to be tried once more, and are to be judged before."""
        self._gates: dict[Task, Gate] = {}
        self._awaiting: dict[tuple[type[KubeObject], str], dict[Task, None]] = {}
        """By kind and key of the object that may open their gates."""

    def judge(self, task: Task) -> Phase:
        """What a task without a node is in now: nothing can be bound that is gated or being deleted."""
        self.drop(task)
        if task.pod.spec.scheduling_gates or task.pod.metadata.deletion_timestamp is not None:
            return Phase.GATED
        gate = self.ask(task.pod)
        if gate is None:
            return Phase.PENDING
        self._gates[task] = gate
        if gate.awaits is not None:
            self._awaiting.setdefault(gate.awaits, {})[task] = None
        return Phase.GATED

    def judge_stirred(self) -> None:
        """Judge again the pods of groups that are to be tried once more. Not in a session."""
        groups, self.stirred = self.stirred, {}
        for task in (task for group in groups for task in group.in_phase(Phase.PENDING)):
            task.phase = self.judge(task)

    def drop(self, task: Task) -> None:
        """The task is gone, has a node, or is judged anew."""
        gate = self._gates.pop(task, None) if self._gates else None
        if gate is not None and gate.awaits is not None:
            tasks = self._awaiting[gate.awaits]
            del tasks[task]
            if not tasks:
                del self._awaiting[gate.awaits]

    def of(self, task: Task) -> Gate | None:
        """The plugin's gate that keeps a task out of the queue."""
        return self._gates.get(task)

    def awaiting(self, obj: KubeObject) -> list[Task]:
        """Those whose gates a change of this object may open."""
        return list(self._awaiting.get((type(obj), obj.key), ())) if self._awaiting else []
