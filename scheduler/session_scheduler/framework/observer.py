"""The observer of the scheduler's work: the live one records events, conditions and metrics, this one does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from session_scheduler.framework.bindings import Failure
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.model.groups import Group, Task
from session_scheduler.model.objects import KubeObject, PodGroup

Stage = Literal["session", "prebind", "plan", "bind", "settle", "recover"]
"""What is timed of the scheduler's work."""


class Observer:
    """Notified of everything, in the scheduler's own turns: returns at once. This one does nothing."""

    def finished(self) -> None:
        """Work in flight has ended: there is something to complete."""

    def stage(self, stage: Stage, seconds: float) -> None:
        """One of "session", "prebind", "plan", "bind" and "settle" ended."""

    def decided(self, outcome: PlacementResult) -> None:
        """A session tried a group."""

    def requeued(self, event: str, plugin: str, groups: int) -> None:
        """An event requeued so many groups that this plugin (or none) had refused."""

    def bound(self, task: Task, node: str) -> None:
        """A pod is bound."""

    def failed(self, task: Task, reason: str) -> None:
        """A pod that was placed could not be bound and is pending again: its event says why."""

    def bind_failed(self, failure: Failure) -> None:
        """A bind had another answer than that it was done: logged and counted. The event comes with `failed`."""

    def group_scheduled(self, pod_group: PodGroup, message: str) -> None:
        """A group has started. Repeated for the same group, so that its condition is written in the end."""

    def group_failed(self, pod_group: PodGroup, reason: str) -> None:
        """A gang was placed, and not all of it could be bound."""

    def gang_timed_out(self, group: Group, members: int, seconds: float) -> None:
        """A gang could be bound only in part for so long that its bound members are evicted."""

    def gang_stale(self, group: Group, members: int, seconds: float) -> None:
        """A gang was short of members that it had lost for so long that the others, so many, are evicted."""

    def preempts(self, group: Group, victims: Sequence[Task]) -> None:
        """Running pods are to end for a group."""

    def preempted(self, task: Task, text: str) -> None:
        """A running pod was asked to end for others; the text says for which."""

    def moves(self, group: Group, victims: Sequence[Task]) -> None:
        """Running pods are to end so that they run elsewhere and a group fits."""

    def moved(self, task: Task, text: str) -> None:
        """A running pod was asked to end so that it runs elsewhere; the text says for which."""

    def says(self, about: KubeObject, reason: str, note: str) -> None:
        """A plugin has something to say of a pod that is being bound, or of another object."""

    def recovered(self, what: str, pods: int) -> None:
        """A plan that was found was "rolled forward" or "aborted"."""

    def problem(self, obj: KubeObject, text: str) -> None:
        """Something about an object is not as it should be, and is left as it is."""

    def wrong(self, obj: KubeObject, text: str) -> None:
        """An object is not what it should be; the text says what of it, and what follows."""
