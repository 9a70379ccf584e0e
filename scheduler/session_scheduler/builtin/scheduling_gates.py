"""The SchedulingGates plugin: rejects pods with scheduling gates.

The queue keeps gated pods out of sessions. The refusal here is for `explain`.
"""

from __future__ import annotations

from collections.abc import Iterable

from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.hookspecs import Refusal, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.events import ActionType, ClusterEventWithHint
from session_scheduler.model.objects import Pod


class SchedulingGates(WithoutArguments):
    """Rejects a pod on all nodes while `spec.schedulingGates` names a gate."""

    name = "SchedulingGates"

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when the pod's last gate is removed."""
        return [
            ClusterEventWithHint(Pod, ActionType.UPDATE_POD_SCHEDULING_GATES_ELIMINATED, lambda _, event: event.own)
        ]

    @hookimpl
    def class_key(self, pod: Pod) -> tuple[str, ...]:
        """The pod's gates, so that pods that differ only in these fall into different classes."""
        return _gates(pod)

    @hookimpl
    def prepare(self, cls: TaskClass) -> Refusal | None:
        """The refusal that lists the gates, in kube-scheduler's words."""
        gates = _gates(cls.pod)
        return Refusal(f"waiting for scheduling gates: [{' '.join(gates)}]") if gates else None


def _gates(pod: Pod) -> tuple[str, ...]:
    return tuple(gate.name for gate in pod.spec.scheduling_gates)
