"""A session: one cycle's view of the cluster, and the callbacks that plugins register for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from session_scheduler.board import Board
from session_scheduler.evaluation import ClassPlan, NodeInfo, NodeOrderCall, PredicateCall, make_plan
from session_scheduler.hook_calls import HookCall, HookCalls, PluginError
from session_scheduler.hookspecs import Refusal, Scope
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, NodeTable
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import KubeObject
from session_scheduler.state.cluster_view import ClusterView
from session_scheduler.state.snapshot import Snapshot
from session_scheduler.state.volume_use import VolumeUse
from session_scheduler.statement import Decision, Event, Statement

Key = Any
"""What orders: anything that compares; smaller comes first."""

Kube = TypeVar("Kube", bound=KubeObject)
_MOST_BOARDS = 64


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session evaluates and how hard it tries."""

    evaluation: str = "heap"
    """naive, board or heap: three ways to the same decisions."""
    placement_retries: int = 3
    """Whole new starts of a gang in another order."""
    search_steps: int = 2000
    """Steps of the exhaustive search that ends the tries for a small gang."""


@dataclass(slots=True)
class Outcome:
    """What a session did for a group: the tasks placed now, and why the others were not."""

    group: Group
    placed: list[Task] = field(default_factory=list)
    reasons: dict[Task, str] = field(default_factory=dict)
    refusal: Refusal | None = None
    """What refused the group as a whole."""

    @property
    def scheduled(self) -> bool:
        """Whether nothing of the group was refused."""
        return self.refusal is None and not self.reasons


class _OrderKey:
    """What an order callback answered: where it does not compare, its plugin is named."""

    __slots__ = ("_call", "value")

    def __init__(self, call: HookCall, value: Any) -> None:
        self._call = call
        self.value = value
        if call.guarded(_unequal, value, value):
            raise call.wrong(f"{value!r} is no key: it does not even equal itself")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OrderKey) and self._call.guarded(_equal, self.value, other.value)

    def __lt__(self, other: _OrderKey) -> bool:
        return self._call.guarded(_less, self.value, other.value)

    __hash__ = None  # type: ignore[assignment]


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right)


def _unequal(left: Any, right: Any) -> bool:
    return bool(left != right)


def _less(left: Any, right: Any) -> bool:
    return bool(left < right)


class Session:
    """Opened over a snapshot; plugins register callbacks in `on_session_open` and read through it everywhere else."""

    def __init__(self, snapshot: Snapshot, calls: HookCalls, options: SessionOptions = SessionOptions()) -> None:
        self.snapshot = snapshot
        self.calls = calls
        self.options = options
        self.table: NodeTable = snapshot.cache.table
        self.naive = options.evaluation == "naive"
        self.use_heap = options.evaluation == "heap"
        self.touched: list[int] = []
        """Rows in the order in which tasks were put on or taken off them; boards remember how far they have read."""
        self.outcomes: dict[Group, Outcome] = {}
        self.predicates: list[PredicateCall] = []
        self.node_orders: list[NodeOrderCall] = []
        self._pre_predicates: list[HookCall] = []
        self._queue_orders: list[HookCall] = []
        self._job_orders: list[HookCall] = []
        self._task_orders: list[HookCall] = []
        self._on_allocate: list[HookCall] = []
        self._on_deallocate: list[HookCall] = []
        self._plans: dict[TaskClass, ClassPlan] = {}
        self._boards: dict[tuple[Any, ...], Board] = {}
        self._traits: dict[Group, tuple[Any, ...]] = {}
        self._registering = "?"
        self._not_opened = {call.plugin for call in calls.functions("on_session_open")}
        self.expired: Callable[[], bool] = lambda: False
        """Whether the cycle's time is over, so that no further group is started."""

    @property
    def view(self) -> ClusterView:
        """What is known of namespaces, services and controllers."""
        return self.snapshot.cache.view

    @property
    def now(self) -> float:
        """The time of the session in seconds, from the injected clock."""
        return self.snapshot.now

    def facts(self, plugin: str) -> Any:
        """What the plugin's `facts` answered when the session opened; None without."""
        return self.snapshot.facts.get(plugin)

    def objects(self, kind: type[Kube]) -> Mapping[str, Kube]:
        """The objects of a kind, by namespace/name, or by name where it has no namespace; to be read only.

        All kinds that are watched beside nodes, pods, PodGroups and PriorityClasses: see `model.storage`.
        """
        return self.snapshot.cache.objects.of(kind)

    def objects_version(self, kind: type[KubeObject]) -> int:
        """Moves between sessions whenever an object of the kind comes, goes or changes: for what is computed once."""
        return self.snapshot.cache.objects.version(kind)

    @property
    def volume_use(self) -> VolumeUse:
        """Which volumes the pods on each node use, this session's placements included."""
        return self.snapshot.cache.volume_use

    def groups(self) -> Iterable[Group]:
        """The groups that are due."""
        return self.snapshot.due

    # ------------------------------------------------------------------ opening and closing

    def open(self) -> None:
        """Let every plugin register its callbacks. Raises PluginError; then those that opened were closed again."""
        for call in self.calls.functions("on_session_open"):
            self._registering = call.plugin
            try:
                call(self)
            except PluginError:
                with suppress(PluginError):  # the first failure is the one that is told
                    self.close()
                raise
            self._not_opened.discard(call.plugin)

    def close(self) -> None:
        """Tell every plugin that opened; all are told, the first failure is raised."""
        calls = [c for c in self.calls.functions("on_session_close") if c.plugin not in self._not_opened]
        _tell(calls, self)

    # ------------------------------------------------------------------ callbacks

    def add_queue_order(self, key: Callable[[str], Key]) -> None:
        """`key(queue) -> anything that compares`; smaller first. The queue's name decides at the end."""
        self._queue_orders.append(self._callback("queue order", key))

    def add_job_order(self, key: Callable[[Group], Key]) -> None:
        """`key(group) -> anything that compares`; smaller first, within a queue, in order of registration.

        Then priority (higher first), creation time and uid decide: there are no ties.
        """
        self._job_orders.append(self._callback("job order", key))

    def add_task_order(self, key: Callable[[Task], Key]) -> None:
        """`key(task) -> anything that compares`; smaller first, within a group. Then as for groups."""
        self._task_orders.append(self._callback("task order", key))

    def add_node_order(self, score: Callable[[Task, NodeInfo], float], scope: Scope = Scope.ANY) -> None:
        """`score(task, node) -> number`, added to the weighted sum of scores as it is; higher is better.

        `scope` is a promise: STATIC and NODE also mean that tasks of one class, queue and priority score alike.
        """
        self.node_orders.append(NodeOrderCall(self._callback("node order", score), scope))

    def add_pre_predicate(self, check: Callable[[Task, Group], str | None]) -> None:
        """`check(task, group) -> None, or the reason why the task cannot be placed now`; once a task."""
        self._pre_predicates.append(self._callback("pre-predicate", check))

    def add_predicate(self, check: Callable[[Task, Group, NodeInfo], str | None], scope: Scope = Scope.ANY) -> None:
        """`check(task, group, node) -> None where the node fits, or the reason why not`.

        `scope` as for `add_node_order`. It runs once a node: a `filter` hook with a mask is a thousand times faster.
        """
        self.predicates.append(PredicateCall(self._callback("predicate", check), scope))

    def add_event_handler(
        self,
        allocate: Callable[[Event], None] | None = None,
        deallocate: Callable[[Event], None] | None = None,
    ) -> None:
        """Told of every placement and its undo in this session, simulated moves included.

        Answers are ignored; a handler that raises fails the group being placed. Keep it lean.
        """
        if allocate is not None:
            self._on_allocate.append(self._callback("allocate handler", allocate))
        if deallocate is not None:
            self._on_deallocate.append(self._callback("deallocate handler", deallocate))

    def _callback(self, kind: str, function: Callable[..., Any]) -> HookCall:
        return HookCall(self._registering, kind, function)

    @property
    def has_any_callbacks(self) -> bool:
        """Whether a predicate or node order must be asked for every task anew."""
        scopes = [call.scope for call in self.predicates] + [call.scope for call in self.node_orders]
        return Scope.ANY in scopes

    # ------------------------------------------------------------------ order

    def queue_key(self, queue: str) -> tuple[Key, ...]:
        """What orders queues."""
        return (*(_OrderKey(call, call(queue)) for call in self._queue_orders), queue)

    def group_key(self, group: Group) -> tuple[Key, ...]:
        """What orders groups within a queue."""
        own = (_OrderKey(call, call(group)) for call in self._job_orders)
        return (*own, -group.priority, group.creation, group.uid, group.key)

    def task_key(self, task: Task) -> tuple[Key, ...]:
        """What orders tasks within a group."""
        own = (_OrderKey(call, call(task)) for call in self._task_orders)
        return (*own, -task.priority, task.pod.metadata.creation_timestamp or "", task.uid, task.key)

    # ------------------------------------------------------------------ evaluation

    def candidates(self) -> BoolColumn:
        """The rows that may be considered at all: a fresh mask of those that hold a node."""
        return self.table.valid()

    def plan(self, cls: TaskClass) -> ClassPlan:
        """What is left to ask for a class. Raises PluginError."""
        found = self._plans.get(cls)
        if found is None:
            found = self._plans[cls] = make_plan(self, self.calls, cls)
        return found

    def board(self, task: Task, subset: BoolColumn | None = None) -> Board:
        """The board of the task's class; with callbacks, of its class among groups that they may treat alike."""
        traits: tuple[Any, ...] = ()
        if self.predicates or self.node_orders:
            found = self._traits.get(task.group)
            if found is None:
                group = task.group
                found = self._traits[group] = (group.preemptible, group.priority, group.queue)
            traits = found
        key = (task.cls.index, None if subset is None else id(subset), *traits)
        board = self._boards.pop(key, None)
        if board is None:
            board = Board(self, self.plan(task.cls), subset, task)
            if len(self._boards) >= _MOST_BOARDS:
                del self._boards[next(iter(self._boards))]
        self._boards[key] = board
        return board

    def forget_boards(self, subset: BoolColumn | None = None) -> None:
        """Drop the boards of a subset, or all: after a plugin failed in one, its half-made answers must not be used."""
        if subset is None:
            self._boards.clear()
        else:
            self._boards = {key: board for key, board in self._boards.items() if key[1] != id(subset)}

    def pre_predicate(self, task: Task) -> str | None:
        """The first reason why a task cannot be placed on any node. Raises PluginError."""
        for call in self._pre_predicates:
            reason = call(task, task.group)
            if reason is not None:
                if not isinstance(reason, str):
                    raise call.wrong(f"{reason!r} is no reason: return a text, or None")
                return reason
        return None

    # ------------------------------------------------------------------ changes, for statements only

    @contextmanager
    def statement(self, group: Group) -> Iterator[Statement]:
        """A statement for a group, undone unless it is committed."""
        with Statement(self, group) as statement:
            yield statement

    def node_at(self, row: int) -> str:
        """The name of a row's node. Raises LookupError where it holds none."""
        node = self.table.nodes[row] if 0 <= row < self.table.size else None
        if node is None:
            raise LookupError(f"row {row} holds no node")
        return node.metadata.name

    def occupy(self, task: Task, node: str, phase: Phase = Phase.ASSUMED) -> None:
        """Put a task on a node, known or (an eviction undone) not. For `Statement`."""
        self.snapshot.cache.occupy(task, node)
        task.phase = phase
        if task.row >= 0:
            self.touched.append(task.row)

    def vacate(self, task: Task, phase: Phase) -> None:
        """Take a task off its row. For `Statement`."""
        if task.row >= 0:
            self.touched.append(task.row)
        self.snapshot.cache.vacate(task, phase)

    def tell_allocated(self, task: Task, node: str) -> None:
        """Tell the event handlers. Raises PluginError; the change itself stands."""
        if self._on_allocate:
            _tell(self._on_allocate, Event(task, node))

    def tell_deallocated(self, task: Task, node: str) -> None:
        """Tell the event handlers. Raises PluginError; the change itself stands."""
        if self._on_deallocate:
            _tell(self._on_deallocate, Event(task, node))


def _tell(handlers: Sequence[HookCall], event: object) -> None:
    """All of them, so that each is told of a change and of its undo; the first failure is raised then."""
    failure: PluginError | None = None
    for call in handlers:
        try:
            call(event)
        except PluginError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def open_session(snapshot: Snapshot, calls: HookCalls, options: SessionOptions = SessionOptions()) -> Session:
    """A session with every plugin's callbacks registered. Raises PluginError."""
    session = Session(snapshot, calls, options)
    session.open()
    return session


__all__ = ["Decision", "Event", "NodeInfo", "Outcome", "Session", "SessionOptions", "Statement", "open_session"]
