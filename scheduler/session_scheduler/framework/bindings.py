"""The values of the hooks around a binding: before it, when its share is free again, and at a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from session_scheduler.model.groups import Task
from session_scheduler.model.objects import KubeObject, Pod

if TYPE_CHECKING:
    from session_scheduler.cluster.dynamic_client import KubeApi
    from session_scheduler.cluster.port import Cluster

HELD_ANNOTATION = "fluence.flux-framework.org/held"
"""What a pod holds, {"uid": the pod's, "plugins": {name: its part}} as JSON: written in the request that binds it."""
_Kube = TypeVar("_Kube", bound=KubeObject)


class Objects(Protocol):
    """What was seen of the objects of a kind, by key: as `session.objects`, at any time."""

    def __call__(self, kind: type[_Kube]) -> Mapping[str, _Kube]:
        """All of them now, to be read only."""


@dataclass(slots=True)
class Binding:
    """One task about to be bound. Annotations that `prebind` hooks add are written together with the node's name."""

    task: Task
    node: str
    holds: Mapping[str, Any]
    """What this plugin's placement holds for the task; empty where it holds nothing."""
    cluster: Cluster
    """To read what is there now, and to write what the bind needs."""
    objects: Objects
    """To wait, without asking the cluster, until what was written has come about."""
    annotations: dict[str, str] = field(default_factory=dict)
    told: Callable[[Pod, str, str], None] = lambda *_: None
    """Takes the pod, the reason and the text of an event; see `tell`."""

    @property
    def pod(self) -> Pod:
        """The pod to be bound."""
        return self.task.pod

    def tell(self, reason: str, note: str) -> None:
        """Let the pod have an event: what its bind waits for, say."""
        self.told(self.pod, reason, note)


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that was not bound to its node as far as is known, and why."""

    task: Task
    node: str
    reason: str
    pod: Pod
    """As it was when the cluster was asked."""
    sent: bool = False
    """Whether the cluster was asked to bind it."""
    held: str | None = None
    """The record of what it holds that the bind was to write; None for none."""
    unknown: bool = False
    """Whether it may have been bound all the same."""
    why_unknown: str = ""
    """Why the cluster does not say whether it was."""
    error: BaseException | None = field(default=None, compare=False)
    """An unexpected error: a bug, to be raised once everything is complete. Else the cluster's answer is `cause`."""
    cause: str = ""
    """The name of the cluster's answer."""

    def landed(self, pod: Pod) -> bool:
        """Whether the pod, as the cluster has it, was bound by this very request."""
        here = pod.metadata.uid == self.task.uid and pod.spec.node_name == self.node
        return self.sent and here and self.held in (None, pod.metadata.annotations.get(HELD_ANNOTATION))


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a task held and holds no more: its pod, by uid, and the node that it was on or was meant for."""

    uid: str
    pod: Pod
    node: str


@dataclass(frozen=True, slots=True)
class Holding:
    """What a live bound pod says that it holds: `held` is the asked plugin's part, None where it has none."""

    task: Task
    node: str
    held: Any
    annotations: Mapping[str, str]


class Runtime:
    """What a plugin's own tasks may do to the scheduler."""

    def __init__(
        self,
        wake: Callable[[str, str], None],
        elected: Callable[[], bool],
        cluster: Cluster | None = None,
        change: Callable[[str, Callable[[], None]], None] = lambda _, work: work(),
        tell: Callable[[KubeObject, str, str], None] = lambda *_: None,
        api: KubeApi | None = None,
    ) -> None:
        self._wake = wake
        self._elected = elected
        self._change = change
        self._tell = tell
        self.cluster = cluster
        """To read and to write what no single pod's binding needs; None where there is none."""
        self.api = api
        """The same cluster's API server, for objects that the scheduler knows nothing of; None where there is none."""

    def wake(self, group: str, why: str) -> None:
        """Make a group (its key) due."""
        self._wake(group, why)

    def change(self, plugin: str, work: Callable[[], None]) -> None:
        """Have `work` called between two sessions, soon: what it changes, no session sees half way.

        Then those are due that the plugin of this name refused. A state that sessions read is changed here, or in the
        hooks that are called between sessions, and nowhere else.
        """
        self._change(plugin, work)

    def tell(self, about: KubeObject, reason: str, note: str) -> None:
        """Let a pod, a node or another object have an event."""
        self._tell(about, reason, note)

    @property
    def elected(self) -> bool:
        """Whether this replica leads."""
        return self._elected()
