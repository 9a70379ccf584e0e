"""The observer interface for the scheduler's work. The live observer records events, conditions and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from session_scheduler.framework.bindings import Failure
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.model.groups import Group, Task
from session_scheduler.model.objects import KubeObject, PodGroup

Stage = Literal["session", "prebind", "plan", "bind", "settle", "recover"]  # codespell:ignore settle
"""The timed stages of the scheduler's work."""


class Observer:
    """Receives notifications in the scheduler's own turns; methods must return at once. This one ignores them."""

    def finished(self) -> None:
        """Work in flight has finished and can be completed."""

    def stage(self, stage: Stage, seconds: float) -> None:
        """A stage ended."""

    def decided(self, outcome: PlacementResult) -> None:
        """A session tried a group. `queued` and `failed_attempts` of the group are those before the attempt."""

    def gated(self, task: Task, reason: str) -> None:
        """A plugin keeps a pod out of the queue (`pre_enqueue`). Repeated when the plugin was asked again."""

    def requeued(self, event: str, plugin: str, groups: Sequence[Group]) -> None:
        """An event requeued groups that this plugin (or none) had rejected."""

    def bound(self, task: Task, node: str) -> None:
        """A pod is bound."""

    def failed(self, task: Task, reason: str) -> None:
        """A placed pod could not be bound and is pending again. Its event has the reason."""

    def bind_failed(self, failure: Failure) -> None:
        """A binding failed or has an unknown outcome: log and count it. `failed` records the event."""

    def gang_started(self, group: Group) -> None:
        """The last bind of a gang's start completed. Called once for each start."""

    def group_scheduled(self, pod_group: PodGroup, message: str) -> None:
        """A group has started. Repeated for the same group until its condition is written."""

    def group_failed(self, pod_group: PodGroup, reason: str) -> None:
        """A gang was placed, but not all of it could be bound."""

    def gang_timed_out(self, group: Group, members: int, seconds: float) -> None:
        """A gang was bound only in part for too long, so its bound members are evicted."""

    def gang_stale(self, group: Group, members: int, seconds: float) -> None:
        """A gang was below its minimum count for too long, so its remaining members (this many) are evicted."""

    def preempts(self, group: Group, victims: Sequence[Task]) -> None:
        """The scheduler preempts running pods for a group."""

    def preempted(self, task: Task, text: str) -> None:
        """A running pod was preempted; the text names the group."""

    def moves(self, group: Group, victims: Sequence[Task]) -> None:
        """The scheduler moves running pods to other nodes so that a group fits."""

    def moved(self, task: Task, text: str) -> None:
        """A running pod was evicted to move it to another node; the text names the group."""

    def says(self, about: KubeObject, reason: str, note: str) -> None:
        """A plugin records an event on a pod that is being bound, or on another object."""

    def recovered(self, what: str, pods: int) -> None:
        """A plan was "rolled forward" or "aborted" after a restart."""

    def problem(self, obj: KubeObject, text: str) -> None:
        """The scheduler reports a problem of an object, and does not change the object."""

    def wrong(self, obj: KubeObject, text: str) -> None:
        """An object is invalid; the text has the problem and its consequence."""
