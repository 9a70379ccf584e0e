"""What events and conditions say: their reasons and actions, and the texts that are the scheduler's own.

Change a text here. A text that another part knows better is passed in: why a node does not fit is the `Refusal` of the
plugin that rejected it, why a bind failed is the `Failure.reason` of `binding.binder` (`sent`), and which pod needs the
place of a preempted one comes from `engine.preemption_executor`.

The way of a message: the scheduler calls an `Observer` method → `live_observer` counts it in `metrics` and calls the
`recorder`, where one of these messages is picked → the recorder writes it to the API server.
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
"""Reasons of conditions, kube-scheduler's own."""


class Message(NamedTuple):
    """What one event says."""

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
    """The pod, or the group, was not placed or not bound."""
    return Message("FailedScheduling", "Scheduling", why, warning=True)


def not_evaluated(field: str, plugin: str) -> Message:
    """The pod is bound, though no plugin of the profile evaluates one of its constraints."""
    note = f"{field} was not judged when a node was chosen: the profile has no plugin {plugin}"
    return Message("NotJudged", "Binding", note, warning=True)


def preempted(why: str) -> Message:
    """The pod is deleted to make room for another."""
    return Message("Preempted", "Preempting", why)


def moved(why: str) -> Message:
    """The pod is evicted so that it runs elsewhere and another fits."""
    return Message("Moved", "Moving", why)


def of_plugin(reason: str, note: str) -> Message:
    """A plugin's own event."""
    return Message(reason, "Scheduling", note)


def not_recovered(problem: str) -> Message:
    """What an object says of plans or held resources cannot be used."""
    return Message("FluenceRecovery", "Recovering", problem, warning=True)


def not_readable(problem: str) -> Message:
    """A field of the object is not valid."""
    return Message("NotReadable", "Counting", problem, warning=True)


def gang_timed_out(group: Group, members: int, seconds: float) -> str:
    """A gang was bound only in part for too long."""
    lacks = group.short_of(group.in_phase(Phase.BOUND))
    without = f", and {as_text(lacks)} could not" if lacks else ""
    return (
        f"{members} of at least {group.min_count} pods could be bound within {seconds:g} s{without}: they are "
        "evicted, and the gang starts over"
    )


def gang_stale(group: Group, members: int, seconds: float) -> str:
    """A gang was short of members that it had lost for too long."""
    lacks = group.short_of(group.in_phase(Phase.BOUND))
    without = f", without {as_text(lacks)}," if lacks else ""
    return (
        f"{members} pods run of at least {group.min_count}{without} since others were lost, for {seconds:g} s: "
        "they are evicted, and the gang starts over"
    )
