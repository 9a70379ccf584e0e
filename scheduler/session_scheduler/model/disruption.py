"""Condition DisruptionTarget, which the scheduler sets on the pods that it evicts."""

from __future__ import annotations

from typing import Final

from session_scheduler.model.objects import Pod

DISRUPTION_TARGET: Final = "DisruptionTarget"
"""The type of the condition."""
PREEMPTED: Final = "PreemptionByScheduler"
"""The reason for a preempted pod, as in kube-scheduler."""
MOVED: Final = "ConsolidationByScheduler"
"""The reason for a pod that consolidation moves to another node."""


def is_disrupted(pod: Pod, reason: str | None = None) -> bool:
    """Whether the pod has the condition, with this reason if it is given."""
    found = (one for one in pod.status.conditions if one.type == DISRUPTION_TARGET and one.status == "True")
    return any(reason is None or one.reason == reason for one in found)
