"""Groups (a PodGroup, or a single pod) and tasks (their pods).

They belong to the cache. Event handlers change them between sessions; a session changes them through a Statement only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from session_scheduler.model.classes import TaskClass
from session_scheduler.model.group_api import SCHEDULED
from session_scheduler.model.objects import Node, Pod, PodGroup
from session_scheduler.model.refusals import Refusal
from session_scheduler.model.sub_groups import NONE, SUB_GROUPS_ANNOTATION, minima_of_group, sub_group_of

__all__ = ["Group", "GroupRef", "NodeChange", "Phase", "Task"]

PREEMPTIBILITY_LABEL = "fluence.flux-framework.org/preemptibility"
"""On a PodGroup or a pod: whether the scheduler may evict it for others: `preemptible` or `non-preemptible`."""
NON_PREEMPTIBLE_PRIORITY = 100
SYSTEM_CRITICAL = 2_000_000_000
"""The priority of system-cluster-critical, the lower of Kubernetes' system PriorityClasses."""
DEFAULT_QUEUE = "default"
NO_COUNTS: Final[Mapping[Hashable, int]] = MappingProxyType({})


class Phase(Enum):
    """The state of a task."""

    GATED = "gated"
    PENDING = "pending"
    ASSUMED = "assumed"
    """A session has placed it: its statement is open, or its bind is in flight."""
    BOUND = "bound"
    RELEASING = "releasing"
    """A statement has evicted it, or its pod is being deleted."""


class Task:
    """A pod in a session. Hashed by identity: a pod has one Task for its lifetime."""

    __slots__ = ("cls", "counts", "group", "key", "kind", "node", "phase", "pod", "priority", "row")

    def __init__(self, pod: Pod, cls: TaskClass, group: Group, priority: int = 0) -> None:
        self.pod = pod
        self.cls = cls
        self.group = group
        self.key = pod.key
        self.priority = priority
        self.kind = -1
        """The number of its kind (namespace and labels) in the table's `PodCounts`."""
        self.phase = Phase.PENDING
        self.node: str | None = None
        """The node's name, if it is assumed or bound."""
        self.row = -1
        """The node's row in the table; -1 without a node, or if the node is unknown."""
        self.counts: Mapping[Hashable, int] = NO_COUNTS
        """What it adds to counters of its row in addition to its class's footprint: see `Session.count`."""

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
        """The name of the task's sub-group; empty if the pod names none, or one that its group does not define."""
        return sub_group_of(self.pod, self.group.minima)

    @property
    def standing(self) -> int:
        """The priority that defends it and its nominated node: the higher of the pod's and its PodGroup's priority.

        Only pods of a higher priority preempt it or take its nominated node.
        """
        own = self.group.own_priority
        return self.priority if own is None else max(self.priority, own)

    @property
    def preemptor_priority(self) -> int:
        """The priority with which it preempts, and competes with nominated pods: its PodGroup's, else the pod's."""
        own = self.group.own_priority
        return self.priority if own is None else own

    def __repr__(self) -> str:
        return f"Task({self.key}, {self.phase.value}, {self.node})"


class GroupRef(msgspec.Struct, frozen=True):
    """Identifies the group of a pod: `namespace`/`name`. `min_count` applies if there is no PodGroup object."""

    namespace: str
    name: str
    min_count: int = 1
    kind: str = "PodGroup"
    api_group: str = "scheduling.k8s.io"
    """The API group of the PodGroup that must exist; empty if none is needed (a single pod, a plugin's group)."""
    refusal: Refusal | None = None
    """Why the group cannot be placed: a plugin's `group_of` failed on the pod."""

    @property
    def key(self) -> str:
        """Unique for each group: "Pod ns/name" for a single pod, else "PodGroup ns/name"."""
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def single(self) -> bool:
        """Whether the pod is in no group with others."""
        return self.kind == "Pod"


class Group(msgspec.Struct, eq=False):
    """Pods that the scheduler places together: those of a PodGroup, or a single pod. Hashed by identity."""

    ref: GroupRef
    pod_group: PodGroup | None = None
    tasks: dict[str, Task] = msgspec.field(default_factory=dict)
    """By pod uid: all live pods of the group, including bound ones."""
    queue: str = DEFAULT_QUEUE
    queued: float = 0.0
    """When the queue received it, or its last attempt failed, in seconds of the scheduler's clock."""
    entered: float | None = None
    """When the queue received the first of its pods that are not bound; None if that was before the scheduler started.
    Also in seconds of the scheduler's clock, like `attempted`."""
    attempted: float | None = None
    """When the session of its last attempt opened."""
    failed_attempts: int = 0
    """The number of failed attempts since it was last placed."""
    own_priority: int | None = None
    """The PodGroup's priority, from its spec or its PriorityClass; None if it has neither."""
    key: str = ""
    """As `GroupRef.key`: equal for all references to the group. Set from `ref`."""
    single: bool = False
    """Whether this is a single pod without a group. Set from `ref`."""

    def __post_init__(self) -> None:
        self.key, self.single = self.ref.key, self.ref.single

    @property
    def name(self) -> str:
        """The PodGroup's name, or the pod's."""
        return self.ref.name

    @property
    def namespace(self) -> str:
        """The namespace of all its pods."""
        return self.ref.namespace

    @property
    def missing(self) -> bool:
        """Whether the group's pods name a PodGroup that does not exist."""
        return bool(self.ref.api_group) and not self.single and self.pod_group is None

    @property
    def terminating(self) -> bool:
        """Whether the PodGroup is being deleted: the scheduler then binds none of the group's pods."""
        return self.pod_group is not None and self.pod_group.metadata.deletion_timestamp is not None

    @property
    def min_count(self) -> int:
        """How many of its tasks must be placed together, at least the sum of its sub-groups' minima.

        1 for a basic group and a single pod.
        """
        pod_group = self.pod_group
        if pod_group is None:
            return self.ref.min_count
        if SUB_GROUPS_ANNOTATION not in pod_group.metadata.annotations:
            return pod_group.min_count
        return max(pod_group.min_count, sum(self.minima.values()))

    @property
    def minima(self) -> Mapping[str, int]:
        """By sub-group: how many of its tasks must be placed together; empty without sub-groups."""
        return minima_of_group(self.pod_group)

    @property
    def is_gang(self) -> bool:
        """Whether the group has a minimum: its `min_count` exceeds 1, or that of a sub-group exceeds 0."""
        if self.pod_group is None:  # shortcut: preemption reads this for every running pod
            return self.ref.min_count > 1
        return self.min_count > 1 or any(self.minima.values())

    @property
    def has_minimum(self) -> bool:
        """Whether the group is a gang, including one with a minimum of one."""
        return self.is_gang or (self.pod_group is not None and self.pod_group.is_gang)

    def short_of(self, tasks: Iterable[Task]) -> Mapping[str, int]:
        """By sub-group: how many tasks are missing besides these; only the sub-groups that miss some."""
        minima = self.minima
        if not minima:
            return NONE
        there = Counter(task.sub_group for task in tasks)
        return {name: least - there[name] for name, least in minima.items() if there[name] < least}

    def suffice(self, tasks: Collection[Task]) -> bool:
        """Whether these of its tasks reach `min_count` and the minimum of each sub-group."""
        return len(tasks) >= self.min_count and not self.short_of(tasks)

    @property
    def lacks(self) -> Mapping[str, int]:
        """By sub-group: how many tasks are missing besides the bound and assumed ones."""
        return self.short_of(self.in_phase(Phase.BOUND, Phase.ASSUMED)) if self.minima else NONE

    @property
    def needed(self) -> int:
        """How many more of its tasks must be placed together, at least; 1 once it has started."""
        lacks = self.lacks
        return max(1, self.min_count - self.started, sum(lacks.values()) if lacks else 0)

    @property
    def whole(self) -> bool:
        """Whether the group's bound and assumed tasks reach `min_count` and the minimum of each sub-group."""
        return self.started >= self.min_count and not self.lacks

    @property
    def topology_key(self) -> str | None:
        """The `topology_key` of the PodGroup."""
        return self.pod_group.topology_key if self.pod_group is not None else None

    @property
    def priority(self) -> int:
        """The PodGroup's priority, else the highest priority of its tasks; 0 without tasks."""
        if self.own_priority is not None:
            return self.own_priority
        if len(self.tasks) == 1:  # shortcut: preemption reads this for every running pod
            return next(iter(self.tasks.values())).priority
        return max((task.priority for task in self.tasks.values()), default=0)

    @property
    def starting(self) -> bool:
        """Whether the group is a gang in the middle of its first start: some tasks are bound or assumed, but too few.

        Always False for a coscheduling PodGroup: it has no condition that records a former start.
        """
        pod_group = self.pod_group
        if pod_group is None or not pod_group.native or not self.started or self.whole:
            return False
        return not any(one.type == SCHEDULED and one.status == "True" for one in pod_group.status.conditions)

    @property
    def creation(self) -> str:
        """The creation time of the PodGroup, else of the group's earliest pod (RFC 3339)."""
        if self.pod_group is not None:
            return self.pod_group.metadata.creation_timestamp or ""
        return min((task.pod.metadata.creation_timestamp or "" for task in self.tasks.values()), default="")

    @property
    def uid(self) -> str:
        """The PodGroup's uid, else the lowest uid of the group's pods."""
        if self.pod_group is not None:
            return self.pod_group.metadata.uid
        return min(self.tasks, default="")

    @property
    def order(self) -> tuple[Any, ...]:
        """The sort key of groups in a queue: of one priority, gangs that have their minimum come last."""
        surplus = self.has_minimum and self.whole
        return (-self.priority, surplus, self.queued, self.creation, self.uid, self.key)

    @property
    def preemptible(self) -> bool:
        """Whether the group is preemptible: by the PodGroup's or a pod's label, else if its priority is below 100."""
        if len(self.tasks) == 1 and self.pod_group is None:  # shortcut: preemption reads this for every running pod
            (task,) = self.tasks.values()
            if PREEMPTIBILITY_LABEL not in task.pod.metadata.labels:
                return self.priority < NON_PREEMPTIBLE_PRIORITY
        for labels in self.labels():
            value = labels.get(PREEMPTIBILITY_LABEL)
            if value in ("preemptible", "non-preemptible"):
                return value == "preemptible"
        return self.priority < NON_PREEMPTIBLE_PRIORITY

    def labels(self) -> list[dict[str, str]]:
        """The labels of the PodGroup, then of the group's pods in order of uid."""
        tasks = self.tasks if len(self.tasks) == 1 else sorted(self.tasks)
        found = [self.tasks[uid].pod.metadata.labels for uid in tasks]
        return found if self.pod_group is None else [self.pod_group.metadata.labels, *found]

    def in_phase(self, *phases: Phase) -> list[Task]:
        """The group's tasks in these phases, in no particular order."""
        return [task for task in self.tasks.values() if task.phase in phases]

    @property
    def pending(self) -> bool:
        """Whether any task of the group is pending."""
        return any(task.phase is Phase.PENDING for task in self.tasks.values())

    @property
    def started(self) -> int:
        """How many tasks of the group are bound or assumed."""
        return sum(task.phase in (Phase.BOUND, Phase.ASSUMED) for task in self.tasks.values())

    def __repr__(self) -> str:
        return f"Group({self.key}, {len(self.tasks)} tasks)"


class NodeChange(msgspec.Struct, frozen=True):
    """A changed node: `node` is its current object, None if it was deleted; `tasks` are all tasks on it."""

    name: str
    node: Node | None
    tasks: tuple[Task, ...]


def unique_classes(tasks: Iterable[Task]) -> list[TaskClass]:
    """The classes of the tasks, each once, in order of first appearance."""
    return list(dict.fromkeys(task.cls for task in tasks))
