"""Groups (a PodGroup, or a pod alone) and tasks (their pods), as the core keeps them.

They belong to the cache and change only between sessions, by events, and in a session through a Statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from session_scheduler.model.classes import TaskClass
from session_scheduler.model.group_api import SCHEDULED
from session_scheduler.model.objects import Node, Pod, PodGroup
from session_scheduler.model.refusals import Refusal
from session_scheduler.model.sub_groups import NONE, SUB_GROUPS_ANNOTATION, minima_said, sub_group_of

__all__ = ["Group", "GroupRef", "NodeChange", "Phase", "Task"]

PREEMPTIBILITY_LABEL = "fluence.flux-framework.org/preemptibility"
"""On a PodGroup or a pod: whether the scheduler may evict it for others: `preemptible` or `non-preemptible`."""
NON_PREEMPTIBLE_PRIORITY = 100
SYSTEM_CRITICAL = 2_000_000_000
"""The lowest priority of Kubernetes' own classes, system-cluster-critical and above."""
DEFAULT_QUEUE = "default"
NO_COUNTS: Final[Mapping[Hashable, int]] = MappingProxyType({})


class Phase(Enum):
    """Where a task is in its life."""

    GATED = "gated"
    PENDING = "pending"
    ASSUMED = "assumed"
    """Placed by a session; its bind is in flight, or it is being considered in a statement."""
    BOUND = "bound"
    RELEASING = "releasing"
    """Evicted in a statement, or being deleted: its node counts without it."""


class Task:
    """A pod in a session. Hashed by identity: one object a pod as long as it lives."""

    __slots__ = ("cls", "counts", "group", "key", "kind", "node", "phase", "pod", "priority", "row")

    def __init__(self, pod: Pod, cls: TaskClass, group: Group, priority: int = 0) -> None:
        self.pod = pod
        self.cls = cls
        self.group = group
        self.key = pod.key
        self.priority = priority
        self.kind = -1
        """The number of the pod's namespace and labels in the table's `PodCounts`."""
        self.phase = Phase.PENDING
        self.node: str | None = None
        """The node's name once assumed or bound."""
        self.row = -1
        """The node's row in the table; -1 where it has none."""
        self.counts: Mapping[Hashable, int] = NO_COUNTS
        """What it alone adds to counter columns of its row, beside its class's footprint: see `Session.count`."""

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.pod.metadata.uid

    @property
    def name(self) -> str:
        """The pod's name."""
        return self.pod.metadata.name

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.pod.metadata.namespace

    @property
    def sub_group(self) -> str:
        """The name of its sub-group; empty for none, or for one that its group does not have."""
        return sub_group_of(self.pod, self.group.minima)

    @property
    def standing(self) -> int:
        """What others must exceed to end it or have its place: the higher of the pod's and its PodGroup's priority."""
        own = self.group.own_priority
        return self.priority if own is None else max(self.priority, own)

    @property
    def preemptor_priority(self) -> int:
        """What it looks for room with, and what it need not yield to: its PodGroup's priority, else the pod's."""
        own = self.group.own_priority
        return self.priority if own is None else own

    def __repr__(self) -> str:
        return f"Task({self.key}, {self.phase.value}, {self.node})"


@dataclass(frozen=True, slots=True)
class GroupRef:
    """Names the group of a pod: `namespace`/`name`; `min_count` where no PodGroup object says it."""

    namespace: str
    name: str
    min_count: int = 1
    kind: str = "PodGroup"
    api_group: str = "scheduling.k8s.io"
    """The API group of the PodGroup that must exist; empty where none is needed (a pod alone, a plugin's group)."""
    refusal: Refusal | None = None
    """Why the group cannot be placed: a plugin failed when it was asked for the pod's group."""

    @property
    def key(self) -> str:
        """Distinct for every group: "Pod ns/name" for a pod alone, "PodGroup ns/name" otherwise."""
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(slots=True, eq=False)
class Group:
    """Pods that start together. Hashed by identity."""

    ref: GroupRef
    pod_group: PodGroup | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    """By pod uid: every live pod of the group, bound ones included."""
    queue: str = DEFAULT_QUEUE
    queued: float = 0.0
    """When it came, or was last tried in vain, in seconds of the scheduler's clock."""
    own_priority: int | None = None
    """The PodGroup's own, by itself or by its class; None where it has none."""

    @property
    def key(self) -> str:
        """As `GroupRef.key`."""
        return self.ref.key

    @property
    def name(self) -> str:
        """The PodGroup's name, or the pod's."""
        return self.ref.name

    @property
    def namespace(self) -> str:
        """The namespace of all its pods."""
        return self.ref.namespace

    @property
    def single(self) -> bool:
        """Whether this is a pod alone."""
        return self.ref.kind == "Pod"

    @property
    def missing(self) -> bool:
        """Whether the PodGroup that its pods name does not exist."""
        return bool(self.ref.api_group) and not self.single and self.pod_group is None

    @property
    def terminating(self) -> bool:
        """Whether its PodGroup is being deleted: then nothing is to be bound any more that names it."""
        return self.pod_group is not None and self.pod_group.metadata.deletion_timestamp is not None

    @property
    def min_count(self) -> int:
        """How many of its tasks must be placed together; 1 for a basic group and a pod alone.

        At least as many as the minima of its sub-groups come to.
        """
        pod_group = self.pod_group
        if pod_group is None:
            return self.ref.min_count
        if SUB_GROUPS_ANNOTATION not in pod_group.metadata.annotations:
            return pod_group.min_count
        return max(pod_group.min_count, sum(self.minima.values()))

    @property
    def minima(self) -> Mapping[str, int]:
        """How many tasks of each of its sub-groups must be placed together; nothing without sub-groups."""
        return minima_said(self.pod_group)

    @property
    def is_gang(self) -> bool:
        """Whether tasks wait for others of the group: it needs several to start, or one of some sub-group."""
        if self.pod_group is None:  # asked of every running pod when room is looked for
            return self.ref.min_count > 1
        return self.min_count > 1 or any(self.minima.values())

    def short_of(self, tasks: Iterable[Task]) -> Mapping[str, int]:
        """By sub-group: how many more are needed beside these; only those of which some are."""
        minima = self.minima
        if not minima:
            return NONE
        there = Counter(task.sub_group for task in tasks)
        return {name: least - there[name] for name, least in minima.items() if there[name] < least}

    def suffice(self, tasks: Collection[Task]) -> bool:
        """Whether these of its tasks are as many as must run together, of each sub-group, too."""
        return len(tasks) >= self.min_count and not self.short_of(tasks)

    @property
    def lacks(self) -> Mapping[str, int]:
        """By sub-group: how many must be placed beside those that are bound, or about to be."""
        return self.short_of(self.in_phase(Phase.BOUND, Phase.ASSUMED)) if self.minima else NONE

    @property
    def needed(self) -> int:
        """How many more must be placed together, at least; 1 once it has started."""
        lacks = self.lacks
        return max(1, self.min_count - self.started, sum(lacks.values()) if lacks else 0)

    @property
    def whole(self) -> bool:
        """Whether as many are bound, or about to be, as must run together."""
        return self.started >= self.min_count and not self.lacks

    @property
    def topology_key(self) -> str | None:
        """As `PodGroup.topology_key`."""
        return self.pod_group.topology_key if self.pod_group is not None else None

    @property
    def priority(self) -> int:
        """The PodGroup's priority, else the highest of its tasks; 0 without any."""
        if self.own_priority is not None:
            return self.own_priority
        return max((task.priority for task in self.tasks.values()), default=0)

    @property
    def starting(self) -> bool:
        """Whether it is a gang that never ran, and of which fewer are bound than must run together.

        Of a PodGroup without conditions (the coscheduling API's) that cannot be told.
        """
        pod_group = self.pod_group
        if pod_group is None or not pod_group.native or not self.started or self.whole:
            return False
        return not any(one.type == SCHEDULED and one.status == "True" for one in pod_group.status.conditions)

    @property
    def creation(self) -> str:
        """When the group came: the PodGroup's creation time, else its earliest pod's (RFC 3339)."""
        if self.pod_group is not None:
            return self.pod_group.metadata.creation_timestamp or ""
        return min((task.pod.metadata.creation_timestamp or "" for task in self.tasks.values()), default="")

    @property
    def uid(self) -> str:
        """The PodGroup's uid, else its first pod's."""
        if self.pod_group is not None:
            return self.pod_group.metadata.uid
        return min(self.tasks, default="")

    @property
    def preemptible(self) -> bool:
        """By label on the PodGroup, else on a pod, else a priority below 100."""
        for labels in self.labels():
            value = labels.get(PREEMPTIBILITY_LABEL)
            if value in ("preemptible", "non-preemptible"):
                return value == "preemptible"
        return self.priority < NON_PREEMPTIBLE_PRIORITY

    def labels(self) -> Iterator[dict[str, str]]:
        """The PodGroup's, then its pods' in order of uid."""
        if self.pod_group is not None:
            yield self.pod_group.metadata.labels
        for _, task in sorted(self.tasks.items()):
            yield task.pod.metadata.labels

    def in_phase(self, *phases: Phase) -> list[Task]:
        """Its tasks in any of these phases, in no particular order."""
        return [task for task in self.tasks.values() if task.phase in phases]

    @property
    def pending(self) -> bool:
        """Whether any of its tasks is to be placed."""
        return any(task.phase is Phase.PENDING for task in self.tasks.values())

    @property
    def started(self) -> int:
        """How many of its tasks are bound or about to be."""
        return sum(task.phase in (Phase.BOUND, Phase.ASSUMED) for task in self.tasks.values())

    def __repr__(self) -> str:
        return f"Group({self.key}, {len(self.tasks)} tasks)"


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node as it is now: None where it is gone; `tasks` are all that occupy it."""

    name: str
    node: Node | None
    tasks: tuple[Task, ...]


def unique_classes(tasks: Iterable[Task]) -> list[TaskClass]:
    """The classes of some tasks, each once, in the order of first appearance."""
    return list(dict.fromkeys(task.cls for task in tasks))
