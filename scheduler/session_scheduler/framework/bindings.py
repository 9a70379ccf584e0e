"""Types for hooks around a binding: before it, when its resources are free again, and after a restart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from session_scheduler.model.groups import Task
from session_scheduler.model.objects import KubeObject, Pod

if TYPE_CHECKING:
    from session_scheduler.cluster.dynamic_client import KubeApi
    from session_scheduler.cluster.port import Cluster

HELD_ANNOTATION = "fluence.flux-framework.org/held"
"""A pod's resources, {"uid": the pod's, "plugins": {name: its part}} as JSON. The Binding's request writes it."""
_Kube = TypeVar("_Kube", bound=KubeObject)


class Objects(Protocol):
    """The known objects of a kind, by key, like `session.objects` but callable at any time."""

    def __call__(self, kind: type[_Kube]) -> Mapping[str, _Kube]:
        """Return all current objects. Read only."""


class Binding(msgspec.Struct):
    """One task before its binding. The Binding's request also writes the annotations that `prebind` hooks add."""

    task: Task
    node: str
    holds: Mapping[str, Any]
    """What this plugin's placement reserves for the task; empty for nothing."""
    cluster: Cluster
    """For reading current objects, and for writes that the binding needs."""
    objects: Objects
    """For waiting until the effect of a write is visible, without requests to the cluster."""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    reported: Callable[[Pod, str, str], None] = lambda *_: None
    """Receives the pod, the reason and the note of each event that the binding records."""
    checks: list[Callable[[], str | None]] = msgspec.field(default_factory=list)
    """Called directly before the Binding is sent, since other plugins' `prebind` may take minutes: a reason stops it.

    `prebind` adds them. They answer from memory, without delay.
    """

    @property
    def pod(self) -> Pod:
        """The pod to bind."""
        return self.task.pod

    def tell(self, reason: str, note: str) -> None:  # codespell:ignore tell
        """Record an event on the pod, for example what its binding waits for."""
        self.reported(self.pod, reason, note)


class Failure(msgspec.Struct, frozen=True):
    """A task that, as far as known, was not bound to its node, and why."""

    task: Task
    node: str
    reason: str
    pod: Pod
    """The pod at the time of the request."""
    sent: bool = False
    """Whether a Binding was sent."""
    held: str | None = None
    """The record of its resources that the Binding was to write, None if there is none."""
    unknown: bool = False
    """Whether the pod may be bound nevertheless."""
    why_unknown: str = ""
    """Why the outcome is unknown."""
    error: BaseException | None = None
    """An unexpected error, a bug: raised once everything is complete. Any other failure has a `cause`."""
    cause: str = ""
    """The name of the cluster's error."""

    def landed(self, pod: Pod) -> bool:
        """Whether this request bound the pod; `pod` is its current state in the cluster."""
        here = pod.metadata.uid == self.task.uid and pod.spec.node_name == self.node
        return self.sent and here and self.held in (None, pod.metadata.annotations.get(HELD_ANNOTATION))


class Allocation(msgspec.Struct, frozen=True):
    """Resources that a task no longer has: its pod, by uid, and the node that it was on or was to be on."""

    uid: str
    pod: Pod
    node: str


class Holding(msgspec.Struct, frozen=True):
    """The resources of a running bound pod: `held` is this plugin's part of the pod's record, or None.

    `foreign`: another scheduler bound the pod, such as that of the partition that its node belonged to before.
    """

    task: Task
    node: str
    held: Any
    annotations: Mapping[str, str]
    foreign: bool = False


class Runtime:
    """The parts of the scheduler that a plugin's own tasks can use."""

    def __init__(
        self,
        wake: Callable[[str, str], None],  # codespell:ignore wake
        elected: Callable[[], bool],
        cluster: Cluster | None = None,
        change: Callable[[str, Callable[[], None]], None] = lambda _, work: work(),
        tell: Callable[[KubeObject, str, str], None] = lambda *_: None,  # codespell:ignore tell
        api: KubeApi | None = None,
        claim: Callable[[str, Mapping[str, Collection[str]]], Awaitable[None]] | None = None,
    ) -> None:
        self._requeue = wake  # codespell:ignore wake
        self._elected = elected
        self._change = change
        self._report = tell  # codespell:ignore tell
        self._claim = claim
        self.cluster = cluster
        """For requests that belong to no single pod's binding; None if there is no cluster."""
        self.api = api
        """A client for the same API server, for kinds that the scheduler does not know; None if there is none."""

    def wake(self, group: str, why: str) -> None:  # codespell:ignore wake
        """Requeue a group (by its key) as active."""
        self._requeue(group, why)

    def change(self, plugin: str, work: Callable[[], None]) -> None:
        """Call `work` soon, between two sessions, so that no session sees a partial change.

        Then requeue the groups that the plugin of this name rejected. A state that sessions read may only be changed
        here, or in hooks that run between sessions.
        """
        self._change(plugin, work)

    def tell(self, about: KubeObject, reason: str, note: str) -> None:  # codespell:ignore tell
        """Record an event on a pod, a node or another object."""
        self._report(about, reason, note)

    async def claim(self, plugin: str, names: Mapping[str, Collection[str]]) -> None:
        """Replace the plugin's `exclusive_names`. Other schedulers see new names before this returns.

        Raises FluenceError, and changes nothing, if another scheduler of a partitioned cluster has one of the names.
        """
        if self._claim is not None:
            await self._claim(plugin, names)

    @property
    def elected(self) -> bool:
        """Whether this replica leads."""
        return self._elected()
