"""The reasons, actions and notes of events and conditions.

Other modules pass some texts in: the `Refusal` of the plugin that rejects a node, the `Failure.reason` of
`binding.binder` (`sent`) for a failed bind, and the preemptor of a victim from `engine.preemption_executor`.

The path of a message: the scheduler calls an `Observer` method → `live_observer` counts it in `metrics` and calls the
`recorder`, which chooses one of these messages and writes it to the API server.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from session_scheduler.model.groups import Group, Phase
from session_scheduler.model.objects import Pod
from session_scheduler.model.sub_groups import as_text

POD_SCHEDULED: Final = "PodScheduled"
"""The type of a pod's condition."""
UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULER_ERROR: Final = "SchedulerError"
SCHEDULED: Final = "Scheduled"
"""Reasons of conditions, as in kube-scheduler."""


class Message(NamedTuple):
    """One event."""

    reason: str
    action: str
    note: str
    warning: bool = False


def assigned(pod: Pod, node: str) -> Message:
    """The pod is bound."""
    return Message(SCHEDULED, "Binding", f"Successfully assigned {pod.key} to {node}")


def started(why: str) -> Message:
    """The group has started."""
    return Message(SCHEDULED, "Binding", why)


def failed_scheduling(why: str) -> Message:
    """The pod or the group was not placed, or not bound."""
    return Message("FailedScheduling", "Scheduling", why, warning=True)


def not_evaluated(field: str, plugin: str) -> Message:
    """The pod is bound, but no plugin of the profile evaluates one of its constraints."""
    note = f"{field} was not evaluated: the profile does not enable the plugin {plugin}"
    return Message("NotJudged", "Binding", note, warning=True)


def preempted(why: str) -> Message:
    """The pod is preempted for another."""
    return Message("Preempted", "Preempting", why)


def moved(why: str) -> Message:
    """The pod is evicted to run on another node, so that a pending pod fits."""
    return Message("Moved", "Moving", why)


def of_plugin(reason: str, note: str) -> Message:
    """A plugin's event."""
    return Message(reason, "Scheduling", note)


def not_recovered(problem: str) -> Message:
    """An object's plan or allocation cannot be recovered."""
    return Message("FluenceRecovery", "Recovering", problem, warning=True)


def not_readable(problem: str) -> Message:
    """A field of the object is invalid."""
    return Message("NotReadable", "Counting", problem, warning=True)


def gang_timed_out(group: Group, members: int, seconds: float) -> str:
    """A gang was partly bound for too long."""
    lacks = group.short_of(group.in_phase(Phase.BOUND))
    also = f" and lacks {as_text(lacks)}" if lacks else ""
    bound = "1 pod was" if members == 1 else f"{members} pods were"
    return (
        f"{bound} bound within {seconds:g} s, but the gang needs at least {group.min_count}{also}: "
        "the scheduler evicts the bound pods, and the gang starts over"
    )


def gang_stale(group: Group, members: int, seconds: float) -> str:
    """A gang lost members, and ran below its minimum for too long."""
    lacks = group.short_of(group.in_phase(Phase.BOUND))
    also = f" and lacks {as_text(lacks)}" if lacks else ""
    left = "1 pod is" if members == 1 else f"{members} pods are"
    return (
        f"{left} running {seconds:g} s after the gang lost other pods, but the gang needs at least "
        f"{group.min_count}{also}: the scheduler evicts the running pods, and the gang starts over"
    )
