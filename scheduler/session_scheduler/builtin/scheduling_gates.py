"""Pods with scheduling gates wait. The core keeps them out of sessions; this says why to whoever asks."""

from __future__ import annotations

from collections.abc import Iterable

from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.hookspecs import Refusal, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.events import ActionType, ClusterEventWithHint
from session_scheduler.model.objects import Pod


class SchedulingGates(WithoutArguments):
    """Refuses a pod as a whole while `spec.schedulingGates` names a gate."""

    name = "SchedulingGates"

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """The pod loses its last gate."""
        return [
            ClusterEventWithHint(Pod, ActionType.UPDATE_POD_SCHEDULING_GATES_ELIMINATED, lambda _, event: event.own)
        ]

    @hookimpl
    def class_key(self, pod: Pod) -> tuple[str, ...]:
        """Gated pods are of another class than the same pods without their gates."""
        return _gates(pod)

    @hookimpl
    def prepare(self, cls: TaskClass) -> Refusal | None:
        """The gates, in kube-scheduler's wording."""
        gates = _gates(cls.pod)
        return Refusal(f"waiting for scheduling gates: [{' '.join(gates)}]") if gates else None


def _gates(pod: Pod) -> tuple[str, ...]:
    return tuple(gate.name for gate in pod.spec.scheduling_gates)
