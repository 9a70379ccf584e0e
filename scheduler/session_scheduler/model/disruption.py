"""The condition of a pod that the scheduler evicts."""

from __future__ import annotations

from typing import Final

from session_scheduler.model.objects import Pod

DISRUPTION_TARGET: Final = "DisruptionTarget"
"""The condition's type."""
PREEMPTED: Final = "PreemptionByScheduler"
"""The reason where the pod makes room for one of higher priority: kube-scheduler's own."""
MOVED: Final = "ConsolidationByScheduler"
"""The reason where the pod is to run elsewhere, so that another fits."""


def is_disrupted(pod: Pod, reason: str) -> bool:
    """Whether the pod's condition says that it is evicted for this reason."""
    found = (one for one in pod.status.conditions if one.type == DISRUPTION_TARGET and one.status == "True")
    return any(one.reason == reason for one in found)
