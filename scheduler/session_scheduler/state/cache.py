"""Cache: the state of the cluster that the scheduler works with. Event handlers update it between sessions.

Nodes are columns (`NodeTable`), live pods are tasks, and tasks belong to groups. Of the pods of other schedulers the
cache keeps only the bound ones: they use resources, and may be members of a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.cluster_view import ClusterView
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.group_refs import COSCHEDULING_API, COSCHEDULING_LABEL, GroupOf, group_ref
from session_scheduler.model.groups import NO_COUNTS, Group, GroupRef, NodeChange, Phase, Task
from session_scheduler.model.label_reads import concerns
from session_scheduler.model.object_changes import same_needs, scheduling_fields
from session_scheduler.model.objects import KubeObject, Node, Pod, PodGroup, PriorityClass
from session_scheduler.model.quantity import QuantityError
from session_scheduler.model.queues import QUEUE_LABEL
from session_scheduler.model.refusals import Gate
from session_scheduler.model.related import RelatedObject
from session_scheduler.model.requests import effective_spec
from session_scheduler.model.sub_groups import minima_of_group, sub_group_of
from session_scheduler.state.budgets import KnownBudgets
from session_scheduler.state.gates import Gates
from session_scheduler.state.lowest_priorities import LowestPriorities
from session_scheduler.state.moves import Moves
from session_scheduler.state.nominations import Nominations
from session_scheduler.state.priorities import Priorities
from session_scheduler.state.queue_use import QueueUse, queue_of
from session_scheduler.state.single_pods import SinglePods
from session_scheduler.state.stale_gangs import StaleGangs
from session_scheduler.state.tables import ObjectTables
from session_scheduler.state.volume_use import VolumeUse

_TO_BE_PLACED = (Phase.PENDING, Phase.GATED)
_SPARE_CLASSES = 1000
"""How many unused classes accumulate before the cache drops them."""


class Cache:
    """Nodes, tasks and groups of the cluster.

    `serves(scheduler_name)` returns whether this scheduler places the pods of that schedulerName.
    """

    def __init__(
        self, table: NodeTable, classes: ClassTable, serves: Callable[[str], bool], group_of: Sequence[GroupOf] = (), *,
        coscheduling_served: bool = False, view: ClusterView | None = None, objects: ObjectTables | None = None,
        pre_enqueue: Callable[[Pod], Gate | None] = lambda _: None,
        class_changed: Callable[..., None] = lambda *_, **__: None,
        opened: Callable[[str, str], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        """`pre_enqueue` returns the gate that keeps a pod out of the scheduling queue, or None.

        The cache calls `class_changed` before it changes the class of an unbound task. It calls `opened` with each
        group (its key) that enters the queue because another object changed, and with the name of that event.
        """
        self.table = table
        self.classes = classes
        self.view = view or ClusterView()
        """The namespaces, services and controllers."""
        self.coscheduling_served = coscheduling_served
        """Whether the API server serves scheduling.x-k8s.io PodGroups; if not, their label names native PodGroups."""
        self.tasks: dict[str, Task] = {}
        """By pod uid: all bound pods, and the unbound pods that this scheduler places."""
        self.pods_of: Counter[TaskClass] = Counter()
        """The number of these pods by class; only classes with pods."""
        self.groups: dict[str, Group] = {}
        self.problems: dict[str, str] = {}
        """By "Node n1" or "Pod ns/name": the error in an invalid object."""
        self.left_out = 0
        """The number of unbound pods of other schedulers."""
        self.unbound: dict[str, Task] = {}
        """The entries of `tasks` without a node."""
        self.objects = objects or ObjectTables()
        """The objects of all other kinds that plugins read."""
        self.volume_use = VolumeUse()
        self.nominations = Nominations(self._count_in_queue)
        self.preempted: set[str] = set()
        """The pods (uids) being evicted for others, until they are gone. `made_to_end` and `spared` change it."""
        self.moves = Moves()
        self.budgets = KnownBudgets(self.objects)
        self._foreign_pending: set[str] = set()
        self._waiting: dict[Group, None] = {}
        """The groups with a pending task that are not unschedulable, and some that no longer have one."""
        self._requeued: dict[Group, None] = {}
        """The requeued groups: before their next attempt, `pre_enqueue` checks their pods again."""
        self.gates = Gates()
        self._pre_enqueue = pre_enqueue
        self._class_changed = class_changed
        self._opened = opened
        self._serves = serves
        self._group_of = tuple(group_of)
        self._on_node: dict[str, dict[str, Task]] = {}
        self.lowest_priorities = LowestPriorities(table, self._on_node)
        self.single_pods = SinglePods(table, self._on_node)
        self._pod_groups: dict[str, PodGroup] = {}
        self._priorities = Priorities()
        self._changed_nodes: dict[str, None] = {}
        self.stale_gangs = StaleGangs()
        self.queues = QueueUse(serves, self.objects, self.tasks, self.preempted, self.nominations)

    # ------------------------------------------------------------------ events

    def put(self, obj: KubeObject) -> None:
        """Add or update an object."""
        if isinstance(obj, Pod):
            self._put_pod(obj)
        elif isinstance(obj, Node):
            self._put_node(obj)
        elif isinstance(obj, PodGroup):
            self._put_pod_group(obj)
        elif isinstance(obj, RelatedObject):
            self._update_selection(obj, self.view.put(obj))
        elif isinstance(obj, PriorityClass):
            self._priorities.put(obj)
            self._update_priorities()
        else:
            action = "Add" if self.objects.put(obj) is None else "Update"
            self.queues.object_changed(obj)
            self._recheck_gates(obj, action)

    def remove(self, obj: KubeObject) -> None:
        """Remove a deleted object."""
        if isinstance(obj, Pod):
            self.problems.pop(f"Pod {obj.key}", None)
            self._drop_pod(obj.metadata.uid)
        elif isinstance(obj, Node):
            self.problems.pop(f"Node {obj.metadata.name}", None)
            self._remove_node(obj.metadata.name)
        elif isinstance(obj, PodGroup):
            key = pod_group_key(obj)
            self._pod_groups.pop(key, None)
            group = self.groups.get(key)
            if group is None:
                self.stale_gangs.forget(key)
            else:
                group.pod_group = group.own_priority = None
                self._note_pods(group.tasks.values())
                self.queues.all_changed((group,))
        elif isinstance(obj, RelatedObject):
            self._update_selection(obj, self.view.remove(obj))
        elif isinstance(obj, PriorityClass):
            self._priorities.remove(obj.metadata.name)
            self._update_priorities()
        else:
            self.objects.remove(obj)
            self.queues.object_changed(obj, deleted=True)
            self._recheck_gates(obj, "Delete")

    # ------------------------------------------------------------------ nodes

    def node(self, name: str) -> Node | None:
        """The node of that name; None if it is unknown or invalid."""
        row = self.table.row_of.get(name)
        return None if row is None else self.table.nodes[row]

    def labels(self, name: str) -> Mapping[str, str] | None:
        """The labels of a node; None if it is unknown or invalid."""
        node = self.node(name)
        return node.metadata.labels if node is not None else None

    def _put_node(self, node: Node) -> None:
        name = node.metadata.name
        known = name in self.table.row_of
        if known and self._put_heartbeat(node):
            return
        try:
            row = self.table.put(node)
        except QuantityError as error:
            self.problems[f"Node {name}"] = str(error)
            if known:
                self._remove_node(name)
            return
        self.problems.pop(f"Node {name}", None)
        if not known:
            self._pods_changed(row)
            for task in self._on_node.get(name, {}).values():
                task.row = row
                self._count(task, 1)
        self.queues.node_changed(name, self._on_node.get(name, {}).values())
        self._changed_nodes[name] = None

    def _put_heartbeat(self, node: Node) -> bool:
        """Update a known node if only its conditions and images have changed. Returns whether that was so.

        The kubelet writes conditions all the time. Those that matter to scheduling arrive as taints, too.
        """
        row = self.table.row_of[node.metadata.name]
        old = self.table.nodes[row]
        if old is None or scheduling_fields(old) != scheduling_fields(node):
            return False
        self.table.nodes[row] = node
        self.table.images.put(row, node)
        return True

    def _remove_node(self, name: str) -> None:
        if name in self.table.row_of:
            self._pods_changed(self.table.remove(name))
        for task in self._on_node.get(name, {}).values():
            task.row = -1
        self.queues.node_changed(name, self._on_node.get(name, {}).values())
        self._changed_nodes[name] = None

    def node_changes(self) -> list[NodeChange]:
        """The nodes that have changed, or whose tasks have, since the last call; sorted by name."""
        names, self._changed_nodes = sorted(self._changed_nodes), {}
        return [self._node_change(name) for name in names]

    def mark_changed(self, names: Iterable[str]) -> None:
        """Let `node_changes` return these nodes again."""
        self._changed_nodes.update(dict.fromkeys(names))

    def _node_change(self, name: str) -> NodeChange:
        row = self.table.row_of.get(name)
        tasks = sorted(self._on_node.get(name, {}).values(), key=lambda task: task.uid)
        return NodeChange(name, None if row is None else self.table.nodes[row], tuple(tasks))

    # ------------------------------------------------------------------ pods

    def _put_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if pod.terminal:
            self._record_success(pod)
            self._drop_pod(uid)
            return
        served = bool(pod.spec.node_name) or self._serves(pod.spec.scheduler_name)
        (self._foreign_pending.discard if served else self._foreign_pending.add)(uid)
        self.left_out = len(self._foreign_pending)
        if not served:
            return
        known = self.tasks.get(uid)
        self._forget_unused_classes()
        cls = self._counted_class(pod, known)
        if known is None:
            task = self._new_task(pod, cls)
            self._update_phase(task, new=True)
            self._nominate_replacement(task)
        else:
            had_node = bool(known.pod.spec.node_name)
            self._update(known, pod, cls)
            if had_node and not pod.spec.node_name:  # etcd was restored from a backup
                self.vacate(known, Phase.PENDING)
                self._reclass((known,))
                self._waiting[known.group] = None
            self._update_phase(known)

    def _nominate_replacement(self, task: Task) -> None:
        """Nominate a task that replaces a moved pod for the node that consolidation has found."""
        node = self.moves.place_for(task) if self.moves.places and task.phase is Phase.PENDING else None
        if node is not None and self.nominations.node_of(task) is None:
            self.nominations.put(task, node)

    def _record_success(self, pod: Pod) -> None:
        """Record that a member of a gang has succeeded: the gang needs one running member less."""
        if pod.status.phase != "Succeeded" or not pod.spec.node_name:
            return
        key = self.group_ref(pod).key
        pod_group, group = self._pod_groups.get(key), self.groups.get(key)
        minima = minima_of_group(pod_group)
        needed = pod_group.min_count if pod_group is not None else group.min_count if group is not None else 0
        needed = max(needed, sum(minima.values()))
        if needed > 1 or minima:
            self.stale_gangs.succeeded(key, pod.metadata.uid, needed, sub_group_of(pod, minima))

    def _counted_class(self, pod: Pod, known: Task | None) -> TaskClass:
        """The class with which the pod counts. A running pod that becomes invalid keeps its class.

        A running pod keeps even the annotations of its class: a later change does not affect what it was allocated.
        """
        if known is not None and known.node is not None:
            if not known.cls.problem and same_needs(known.pod, pod):
                return known.cls
            annotations = known.cls.pod.metadata.annotations
            if annotations != pod.metadata.annotations:
                pod = replace(pod, metadata=replace(pod.metadata, annotations=annotations))
        cls = self._class_of(pod)
        if not cls.problem:
            self.problems.pop(f"Pod {pod.key}", None)
            return cls
        self.problems[f"Pod {pod.key}"] = cls.problem
        return known.cls if known is not None and known.node is not None else cls

    def _class_of(self, pod: Pod) -> TaskClass:
        """The class of a pod's needs, its effective requests included, its node not."""
        if pod.spec.node_name:
            pod = replace(pod, spec=replace(effective_spec(pod), node_name=""))
        cls = self.classes.of(pod)
        new = self.classes.drain_newly_read()
        if new:
            self._reclass(task for task in self.unbound.values() if concerns(new, task.pod))
        if self.classes.outdated:
            self.split_classes()
        return cls

    def _forget_unused_classes(self) -> None:
        """Drop the classes of no task, if they are many. Not while a class is computed: no task has that one yet."""
        if len(self.classes) > _SPARE_CLASSES + 2 * len(self.tasks) or self.classes.crowded:
            self.classes.forget_unused(self.pods_of)

    def split_classes(self) -> bool:
        """Recompute classes if plugins have read more of pods than the class key had. Returns whether they have.

        Pods on nodes keep their class.
        """
        if not self.classes.accept_reads():
            return False
        self._reclass(self.unbound.values())
        return True

    def _reclass(self, tasks: Iterable[Task]) -> None:
        """Recompute the classes of these unbound tasks."""
        for task in list(tasks):
            cls = self._counted_class(task.pod, task)
            if cls is not task.cls:
                self._change_class(task, cls)

    def _update_selection(self, obj: RelatedObject, changed: bool) -> None:
        """Recompute classes if a change of a service or controller may have changed a default selector."""
        if changed:
            self._reclass(task for task in self.unbound.values() if self.view.may_concern(obj, task.pod))

    def _new_task(self, pod: Pod, cls: TaskClass) -> Task:
        task = Task(pod, cls, self._group_for(self.group_ref(pod)), self._priority_of(pod))
        task.kind = self.table.pods.acquire(pod)
        self._join(task, task.group)
        self.tasks[task.uid] = self.unbound[task.uid] = task
        self.pods_of[cls] += 1
        self._activate_queues(pod.metadata.labels)
        return task

    def _update(self, task: Task, pod: Pod, cls: TaskClass) -> None:
        if task.cls is not cls:
            self._change_class(task, cls)
        self._change_kind(task, self.table.pods.acquire(pod))
        before, task.pod = task.pod, pod
        if before.status.nominated_node_name != pod.status.nominated_node_name:
            self.nominations.update_from_status(task, before)
        task.priority = self._priority_of(pod)
        self._activate_queues(pod.metadata.labels)
        self._regroup(task)

    def _priority_of(self, pod: Pod) -> int:
        if pod.spec.priority is not None:
            return pod.spec.priority
        return self._priorities.of(pod) if pod.spec.priority_class_name or self._priorities.defaults else 0

    def _activate_queues(self, labels: Mapping[str, str]) -> None:
        """Start counting queues with the first pod or PodGroup that names one."""
        if QUEUE_LABEL in labels and not self.queues.active:
            self.queues.start()

    def _group_for(self, ref: GroupRef) -> Group:
        key = ref.key
        group = self.groups.get(key)
        if group is None:
            pod_group = self._pod_groups.get(key)
            priority = self._priorities.of_group(pod_group) if pod_group is not None else None
            group = Group(ref, pod_group=pod_group, own_priority=priority)
            self.groups[group.key] = group
        return group

    def _join(self, task: Task, group: Group) -> None:
        task.group = group
        group.tasks[task.uid] = task
        self._waiting[group] = None

    def _leave(self, task: Task) -> None:
        group = task.group
        group.tasks.pop(task.uid, None)
        if self.queues.active:
            self.queues.changed(group)
        if not group.tasks:
            self.groups.pop(group.key, None)
            self._waiting.pop(group, None)
            self.stale_gangs.forget(group.key)

    def _regroup(self, task: Task) -> None:
        """Move a task to its current group: its labels, the served APIs or a plugin's answer may have changed."""
        ref = self.group_ref(task.pod)
        if ref.key != task.group.key:
            self._leave(task)
            self._join(task, self._group_for(ref))
        elif ref != task.group.ref:
            task.group.ref = ref
        self._note_pods((task,))

    def _change_class(self, task: Task, cls: TaskClass) -> None:
        if task.node is None:
            self._class_changed(task.group.key, task.cls, cls, alone=len(task.group.tasks) == 1)
        if task.row >= 0:
            self.table.add_usage(task.row, task.cls, -1)
        if task.node is not None:
            self._use_volumes(task, task.node, -1)
        self._uncount_class(task.cls)
        task.cls = cls
        self.pods_of[cls] += 1
        if task.row >= 0:
            self.table.add_usage(task.row, task.cls, 1)
        if task.node is not None:
            self._use_volumes(task, task.node, 1)
            self._changed_nodes[task.node] = None

    def _uncount_class(self, cls: TaskClass) -> None:
        self.pods_of[cls] -= 1
        if not self.pods_of[cls]:
            del self.pods_of[cls]

    def _change_kind(self, task: Task, kind: int) -> None:
        """Count the task's pod under `kind`, that of its current labels, which the caller has acquired."""
        pods, before = self.table.pods, task.kind
        if task.row >= 0 and kind != before:
            pods.add(task.row, before, -1)
            pods.add(task.row, kind, 1)
        task.kind = kind
        pods.release(before)

    def _count(self, task: Task, sign: int) -> None:
        """Add a task to the usage of its row (`sign` 1), or remove it (-1)."""
        self.table.add_usage(task.row, task.cls, sign)
        self.table.add_counts(task.row, task.counts, sign)
        self.table.pods.add(task.row, task.kind, sign)
        self._pods_changed(task.row)

    def count_on(self, row: int, task: Task, sign: int) -> None:
        """Add a task without a node to the usage of this row (`sign` 1), or remove it (-1)."""
        self.table.add_usage(row, task.cls, sign)
        self.table.add_counts(row, task.counts, sign)
        self.table.pods.add(row, task.kind, sign)
        node = self.table.nodes[row]
        if node is not None:
            self._use_volumes(task, node.metadata.name, sign)

    def set_counts(self, task: Task, counts: Mapping[Hashable, int]) -> None:
        """Replace what a task adds to counters of its row in addition to its class's footprint."""
        if task.row >= 0:
            self.table.add_counts(task.row, task.counts, -1)
            self.table.add_counts(task.row, counts, 1)
        task.counts = counts

    def tasks_on(self, node: str) -> list[Task]:
        """All tasks on a node, sorted by uid."""
        return [task for _, task in sorted(self._on_node.get(node, {}).items())]

    def _use_volumes(self, task: Task, node: str, sign: int) -> None:
        if task.cls.volumes:
            self.volume_use.count(node, task.cls.volumes, sign)

    def _phase_without_node(self, task: Task) -> Phase:
        """Gated if the pod has scheduling gates, is being deleted, or a plugin keeps it out; else pending."""
        if task in self.gates.by_task:
            self.gates.drop(task)
        if task.pod.spec.scheduling_gates or task.pod.metadata.deletion_timestamp is not None:
            return Phase.GATED
        gate = self._pre_enqueue(task.pod)
        if gate is None:
            return Phase.PENDING
        self.gates.put(task, gate)
        return Phase.GATED

    def _update_phase(self, task: Task, *, new: bool = False) -> None:
        """Set the task's phase and node from its pod. A gated pod is not nominated."""
        pod = task.pod
        if self.queues.active:
            self.queues.changed(task.group)
        if pod.spec.node_name:
            if task.node != pod.spec.node_name:
                if task.node is not None:
                    self.vacate(task, Phase.PENDING)
                self.occupy(task, pod.spec.node_name)
            if task in self.gates.by_task:
                self.gates.drop(task)
            task.phase = Phase.RELEASING if pod.metadata.deletion_timestamp else Phase.BOUND
            if self.nominations.active:
                self.nominations.forget(task)
        elif task.node is None:  # else its bind is in flight, or has succeeded before the watch event arrives
            was_gated, before = task in self.gates.by_task, task.phase
            task.phase = self._phase_without_node(task)
            opened = (new or was_gated) and task not in self.gates.by_task
            if opened and pod.status.nominated_node_name and self.nominations.node_of(task) is None:
                self.nominations.update_from_status(task, None)
            if new or task.phase is not before:
                self._waiting[task.group] = None

    def _recheck_gates(self, obj: KubeObject, action: str) -> None:
        """Recheck the gates that a change of this object may open."""
        for task in self.gates.awaiting(obj):
            self._update_phase(task)
            if task.phase is Phase.PENDING:
                self._opened(task.group.key, f"{type(obj).__name__}{action}")

    def _drop_pod(self, uid: str) -> None:
        self._foreign_pending.discard(uid)
        self.left_out = len(self._foreign_pending)
        task = self.tasks.pop(uid, None)
        if task is None:
            return
        self._uncount_class(task.cls)
        if task.node is not None:
            self.vacate(task, task.phase)
        if task in self.gates.by_task:
            self.gates.drop(task)
        if self.queues.active:
            self.queues.gone(task)
        self.unbound.pop(uid, None)
        self.preempted.discard(uid)
        self.moves.leaving.discard(uid)
        if self.nominations.active:
            self.nominations.forget(task)
        self.table.pods.release(task.kind)
        self._leave(task)

    def occupy(self, task: Task, node: str) -> None:
        """Put a task on a node, and count it there. The node may still be unknown."""
        task.node = node
        self.unbound.pop(task.uid, None)
        task.row = self.table.row_of.get(node, -1)
        if task.row >= 0:
            self._count(task, 1)
        self._use_volumes(task, node, 1)
        self._on_node.setdefault(node, {})[task.uid] = task
        self._changed_nodes[node] = None
        if self.queues.active:
            self.queues.moved(task)

    def vacate(self, task: Task, phase: Phase) -> None:
        """Remove a task from its node."""
        if task.node is None:
            return
        if task.row >= 0:
            self._count(task, -1)
        self._use_volumes(task, task.node, -1)
        on_node = self._on_node[task.node]
        del on_node[task.uid]
        if not on_node:
            del self._on_node[task.node]
        self._changed_nodes[task.node] = None
        task.node, task.row, task.phase = None, -1, phase
        if phase in _TO_BE_PLACED:
            task.counts = NO_COUNTS
        self.unbound[task.uid] = task
        if self.queues.active:
            self.queues.moved(task)

    def made_to_end(self, tasks: Iterable[Task]) -> None:
        """Record that these tasks are being evicted for others."""
        for task in tasks:
            self.preempted.add(task.uid)
            self._count_in_queue(task)

    def spared(self, task: Task) -> None:
        """Record that a task is not evicted for others after all."""
        self.preempted.discard(task.uid)
        self.budgets.now().spare(task)
        self._count_in_queue(task)

    def _count_in_queue(self, task: Task) -> None:
        if self.queues.active and self.tasks.get(task.uid) is task:
            self.queues.moved(task)

    def forget(self, task: Task) -> None:
        """Undo a placement whose bind failed: the task is pending again, if its pod still exists."""
        if task.phase is Phase.ASSUMED:
            self.vacate(task, self._phase_without_node(task))
            self._reclass((task,))
            self._waiting[task.group] = None

    # ------------------------------------------------------------------ groups

    def group_ref(self, pod: Pod) -> GroupRef:
        """The group of a pod: from its spec, a label or a plugin; else the pod is its own."""
        return group_ref(pod, self._group_of, coscheduling_served=self.coscheduling_served)

    def group_of_class(self, cls: TaskClass) -> Group:
        """A group with the queue and the preemptibility of a class whose pods have both in common.

        The pod of the class may be gone, or have another class by now.
        """
        ref = self.group_ref(cls.pod)
        group = self.groups.get(ref.key) if not ref.single else None
        if group is None:
            group = Group(ref)
            group.tasks[cls.pod.metadata.uid] = Task(cls.pod, cls, group, self._priority_of(cls.pod))
            group.queue = queue_of(group)
        return group

    def _put_pod_group(self, pod_group: PodGroup) -> None:
        key = pod_group_key(pod_group)
        self._pod_groups[key] = pod_group
        if not pod_group.native and not self.coscheduling_served:
            self.serve_coscheduling()
        group = self.groups.get(key)
        self._activate_queues(pod_group.metadata.labels)
        if group is not None:
            group.pod_group, group.own_priority = pod_group, self._priorities.of_group(pod_group)
            self._note_pods(group.tasks.values())
            self.queues.all_changed((group,))

    def serve_coscheduling(self) -> None:
        """The API server serves the coscheduling API: from now on its label names its own PodGroups."""
        self.coscheduling_served = True
        for task in list(self.tasks.values()):
            if COSCHEDULING_LABEL in task.pod.metadata.labels:
                self._regroup(task)

    def pod_groups(self) -> Iterator[PodGroup]:
        """All PodGroup objects, including those without pods."""
        return iter(self._pod_groups.values())

    def pod_group(self, key: str) -> PodGroup | None:
        """The current PodGroup object of a group (its key)."""
        return self._pod_groups.get(key)

    def pending_groups(self, wanted: Callable[[Group], bool] = lambda _: True) -> list[Group]:
        """The `wanted` groups with a pending task, except those that `rest` left out.

        The cost depends on the number of waiting groups, not of running ones.
        """
        for group in list(self._requeued):
            self.recheck_gates(group)
        found = []
        for group in [group for group in self._waiting if wanted(group)]:
            if group.pending:
                found.append(group)
            else:
                del self._waiting[group]
        return found

    def recheck_gates(self, group: Group) -> bool:
        """Let `pre_enqueue` check the pods of a requeued group again. Returns whether any pod is pending."""
        self._requeued.pop(group, None)
        for task in group.in_phase(Phase.PENDING):
            task.phase = self._phase_without_node(task)
            if task.phase is not Phase.PENDING and self.queues.active:
                self.queues.moved(task)
        return group.pending

    def rest(self, is_unschedulable: Callable[[str], bool]) -> None:
        """Leave the unschedulable groups (by key) out of `pending_groups` until they are requeued or change."""
        for group in [group for group in self._waiting if is_unschedulable(group.key)]:
            del self._waiting[group]

    def requeued(self, key: str) -> None:
        """A group (its key) is not unschedulable any more: `pending_groups` returns it again."""
        group = self.groups.get(key)
        if group is not None:
            self._waiting[group] = self._requeued[group] = None
            self.queues.all_changed((group,))

    def _update_priorities(self) -> None:
        for task in self.tasks.values():
            task.priority = self._priority_of(task.pod)
        for group in self.groups.values():
            group.own_priority = self._priorities.of_group(group.pod_group)
        for row in range(self.table.size):
            self._pods_changed(row)
        self.queues.all_changed(self.groups.values())

    def _note_pods(self, tasks: Iterable[Task]) -> None:
        """These tasks, or their groups, may have other pods or priorities now."""
        for task in tasks:
            if task.row >= 0:
                self._pods_changed(task.row)

    def _pods_changed(self, row: int) -> None:
        self.lowest_priorities.changed.add(row)
        self.single_pods.by_row.pop(row, None)

    def serves(self, pod: Pod) -> bool:
        """Whether this scheduler places the pod, or did so."""
        return self._serves(pod.spec.scheduler_name)

    def places(self, group: Group) -> bool:
        """Whether this scheduler places pods of the group: no other one starts or evicts it."""
        return any(self.serves(task.pod) for task in group.tasks.values())

    def bound_tasks(self) -> Iterable[Task]:
        """All tasks on nodes."""
        return (task for task in self.tasks.values() if task.node is not None)


def schedulers_of(group: Group) -> list[str]:
    """The schedulerNames of the group's pending pods, each once, sorted."""
    return sorted({task.pod.spec.scheduler_name for task in group.in_phase(Phase.PENDING)})


def pod_group_key(pod_group: PodGroup) -> str:
    """The key of a PodGroup's group."""
    kind = "PodGroup" if pod_group.native else f"PodGroup.{COSCHEDULING_API}"
    return f"{kind} {pod_group.metadata.namespace}/{pod_group.metadata.name}"
