"""A session: one cycle's view of the cluster, and the callbacks that plugins register for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from session_scheduler.framework.board import Board
from session_scheduler.framework.callback_runner import CallbackAnswers, tell
from session_scheduler.framework.evaluation import ClassPlan, NodeInfo, make_plan
from session_scheduler.framework.hooks import HookCalls, PluginError
from session_scheduler.framework.nominated_pods import Key as NominatedKey
from session_scheduler.framework.nominated_pods import nominated_key, with_nominated, yielded_to
from session_scheduler.framework.outcome import Outcome
from session_scheduler.framework.statement import Decision, Event, Statement
from session_scheduler.framework.trial_cache import KnownNoPreemption, TrialMemory
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.cluster_view import ClusterView
from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.durations import known_end, known_seconds
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import KubeObject
from session_scheduler.state.nominations import Nominations
from session_scheduler.state.queue_use import QueueUse
from session_scheduler.state.scheduling_queue import TOPOLOGY_PLACEMENT, Wants
from session_scheduler.state.snapshot import Snapshot
from session_scheduler.state.volume_use import VolumeUse

Kube = TypeVar("Kube", bound=KubeObject)
_MOST_BOARDS = 64


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session evaluates and how hard it tries."""

    evaluation: str = "heap"
    """naive, board or heap: three ways to the same decisions. Naive remembers nothing of one task for the next."""
    placement_retries: int = 3
    """Whole new starts of a gang in another order."""
    search_steps: int = 2000
    """Steps of the exhaustive search that ends the tries for a small gang."""
    most_moves: int = 64
    """How many pods are moved at most for one group."""
    rest_seconds: float = 300.0
    """How long the pods of a controller are left alone after one of them was moved."""
    preempts: bool = True
    """Whether pods may be asked to end for others of higher priority."""
    preempts_at_once: bool = True
    """Whether that is a part of each group's try, and not an action of its own."""
    reservations: int = 0
    """For how many gangs that wait nodes are kept at a time."""


class Session(CallbackAnswers):
    """Opened over a snapshot; plugins register callbacks in `on_session_open` and read through it everywhere else."""

    def __init__(self, snapshot: Snapshot, calls: HookCalls, options: SessionOptions = SessionOptions()) -> None:
        super().__init__(snapshot.cache.table, calls)
        self.snapshot = snapshot
        self.options = options
        self.naive = options.evaluation == "naive"
        self.use_heap = options.evaluation == "heap"
        self.touched: list[int] = []
        """Rows in the order in which tasks were put on or taken off them; boards remember how far they have read."""
        self.outcomes: dict[Group, Outcome] = {}
        self.errors: list[BaseException] = []
        """What nobody expected, each of one group: to be raised when everything is settled."""
        self.committed = 0
        """How many statements have changed something for good."""
        self.trials = TrialMemory(self.touched)
        self.trials_made = 0
        """How often running tasks were thought away to see whether others would fit."""
        self.held_up = 0
        """How often a plugin was waited for in vain."""
        self.to_end: set[str] = set()
        """Pods (uids) that are to end for tasks of the group whose turn it is."""
        self.asked_for: Task | None = None
        """The task for which it is asked who ends, where it may go without the others of its group."""
        self.no_preemption: dict[Any, KnownNoPreemption] = {}
        """By class and priority: what `postfilter` could not do (see `actions.preempting`)."""
        self.away: dict[Task, None] = {}
        """The running tasks that are thought away just now."""
        self.backfills = False
        """Whether tasks use what is kept for others that start only when they have ended."""
        self._nominated = snapshot.cache.nominations.node_by_uid
        self._plans: dict[TaskClass, ClassPlan] = {}
        self._plans_with: dict[tuple[TaskClass, NominatedKey], ClassPlan] = {}
        self._boards: dict[tuple[Any, ...], Board] = {}
        self._behind: dict[str, tuple[tuple[int, int], frozenset[str]]] = {}
        """By queue: for which state of things the answer of `queues_behind` is."""
        self._traits: dict[Group, tuple[Any, ...]] = {}
        self._not_opened = {call.plugin for call in calls.functions("on_session_open")}
        self.reasons_wanted = True
        """Whether anybody hears why something is refused: not where a trial only asks whether it is."""
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

    @property
    def wall(self) -> float:
        """The time of day at which the session opened, in seconds since 1970, as objects' times tell them."""
        return self.snapshot.wall

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

    def newest_seen(self, kind: type[KubeObject]) -> int:
        """The highest resourceVersion of the kind that was seen: an older object that is not there is gone."""
        return self.snapshot.cache.objects.newest(kind)

    @property
    def volume_use(self) -> VolumeUse:
        """Which volumes the pods on each node use, this session's placements included."""
        return self.snapshot.cache.volume_use

    @property
    def queues(self) -> QueueUse:
        """The queues, and what each has, this session's placements included."""
        return self.snapshot.cache.queues

    def running(self) -> Iterable[Task]:
        """All tasks that are on a node, in no particular order."""
        return self.snapshot.cache.bound_tasks()

    def leaves(self, task: Task) -> bool:
        """Whether a running task was made to end for others."""
        return task.uid in self.snapshot.cache.preempted or task.uid in self.to_end

    @property
    def nominations(self) -> Nominations:
        """Which pending tasks are to go where."""
        return self.snapshot.cache.nominations

    def yields_to(self, tasks: Sequence[Task], nodes: Iterable[str] | None = None) -> Mapping[str, Sequence[Task]]:
        """By node, of all or of these: the nominated tasks on none yet that tasks of one group must leave room for.

        Filters count them. A plugin that places by a state of its own leaves them room in it; mostly it is nothing.
        """
        return yielded_to(self, tasks, nodes) if self._nominated else {}

    def queues_behind(self, queue: str) -> frozenset[str]:
        """Of the queues for whose gangs nodes are kept for later, those that another one goes before.

        It is so for all of a group, whatever it has been given so far. Raises PluginError.
        """
        state = self.committed, self.nominations.version
        known = self._behind.get(queue)
        if known is None or known[0] != state:
            others = {task.group.queue for task in self.nominations.starts} - {queue}
            own = self.queue_key(queue)[:-1]  # without the name, which ends ties
            found = frozenset(other for other in others if own < self.queue_key(other)[:-1])
            known = self._behind[queue] = state, found
        return known[1]

    def ends_at(self, task: Task) -> float | None:
        """When a task on a node ends, in seconds since 1970; None where that is not known.

        What is late, or was asked to end, may end at any moment. What is not heard of as bound yet begins now.
        """
        if self.is_ending(task):
            return self.wall
        seconds = known_seconds(task)
        if seconds is None:
            return None
        end = known_end(task) if task.pod.spec.node_name else None
        return self.wall + seconds if end is None else max(end, self.wall)

    @contextmanager
    def backfilling(self) -> Iterator[None]:
        """While it lasts, tasks need not leave the room of those that start only when they have ended."""
        self.backfills = True
        try:
            yield
        finally:
            self.backfills = False

    @contextmanager
    def asking_for(self, task: Task) -> Iterator[None]:
        """It is asked for this task alone who ends for its group."""
        self.asked_for = task
        try:
            yield
        finally:
            self.asked_for = None

    def is_ending(self, task: Task) -> bool:
        """Whether a running task was asked to end, by whomever."""
        uid, deleted = task.uid, task.pod.metadata.deletion_timestamp
        return deleted is not None or uid in self.snapshot.cache.preempted or uid in self.to_end

    def groups(self) -> Iterable[Group]:
        """The groups that are due."""
        return self.snapshot.due

    # ------------------------------------------------------------------ opening and closing

    def open(self) -> None:
        """Let every plugin register its callbacks. Raises PluginError; then those that opened were closed again."""
        self.queues.reconcile()
        self.nominations.recount()
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
        tell(calls, self)

    def forget(self) -> None:
        """Let go of what refers back to the session, once nobody asks it anything any more.

        Else columns and groups of thousands of sessions would stay until the garbage collector looks for old cycles.
        """
        self.expired = lambda: True
        self._forget_callbacks()
        for kept in (self._plans, self._plans_with, self._boards):
            kept.clear()

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

    def plan_for(self, task: Task) -> ClassPlan:
        """What is left to ask for a task: its class's plan, and where pods are nominated whether it fits beside them.

        Raises PluginError.
        """
        return self._plan_with(task, nominated_key(self, task) if self._nominated else None)

    def _plan_with(self, task: Task, yields: NominatedKey | None) -> ClassPlan:
        plan = self.plan(task.cls)
        if yields is None:
            return plan
        found = self._plans_with.get((task.cls, yields))
        if found is None:
            found = self._plans_with[task.cls, yields] = with_nominated(self, plan, yields)
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
        plan = None
        if self._nominated:
            plan = self._plan_of_board(task)
            traits = (*traits, id(plan))
        key = (task.cls.index, None if subset is None else id(subset), *traits)
        board = self._boards.pop(key, None)
        if board is None:
            board = Board(self, plan or self.plan(task.cls), subset, task)
            if len(self._boards) >= _MOST_BOARDS:
                del self._boards[next(iter(self._boards))]
        self._boards[key] = board
        return board

    def _plan_of_board(self, task: Task) -> ClassPlan:
        """As `plan_for`. A pod that is nominated for a node that it does not fit is judged like others of its class:
        that it need not leave room for itself only matters there.
        """
        node = self.nominations.node_of(task)
        if node is None or task.group.is_gang:
            return self.plan_for(task)
        row = self.table.row_of.get(node, -1)
        if row >= 0 and self.fits_on(task, row):
            return self.plan_for(task)
        return self._plan_with(task, nominated_key(self, task, beside_itself=True))

    def fits_on(self, task: Task, row: int) -> bool:
        """Whether the filters let a task go to a row now: that row alone is looked at. Raises PluginError."""
        view, mask = NodeView(self.table, np.array([row], np.int64)), self.candidates()[row : row + 1]
        for filtering in self.plan_for(task).filters:
            filtering.run(view, mask, task)
        return bool(mask[0])

    def forget_boards(self, subset: BoolColumn | None = None) -> None:
        """Drop the boards of a subset, or all: after a plugin failed in one, its half-made answers must not be used."""
        if subset is None:
            self._boards.clear()
        else:
            self._boards = {key: board for key, board in self._boards.items() if key[1] != id(subset)}

    # ------------------------------------------------------------------ who refused whom

    @contextmanager
    def without_reasons(self) -> Iterator[None]:
        """While it lasts, `reasons_wanted` is False."""
        wanted, self.reasons_wanted = self.reasons_wanted, False
        try:
            yield
        finally:
            self.reasons_wanted = wanted

    def filters_of(self, cls: TaskClass) -> frozenset[str]:
        """The plugins that may refuse a class a node."""
        return frozenset(filtering.plugin for filtering in self.plan(cls).filters)

    def wants(self, outcome: Outcome) -> Wants | None:
        """By which plugins each class of what the group has left to place was refused; None where an error ended it,
        nothing where it is to be tried again whatever happens.

        The tasks of a gang could have been placed in other ways than those that were tried: every filter of the classes
        for which nodes were looked for counts, those of tasks, too, that wait for others only.
        """
        group, refusal = outcome.group, outcome.refusal
        if refusal is not None and refusal.failed:
            return None
        of_group = frozenset((refusal.plugin,)) if refusal is not None and refusal.plugin else frozenset()
        together = group.needed > 1 or bool(group.lacks) or group.topology_key is not None
        tried = set(outcome.tried) if together else ()
        wants = set()
        for task in group.in_phase(Phase.PENDING):
            known = self._rejected.get(task)
            plugins = (known or frozenset()) | of_group
            if known is not None and not plugins:
                return frozenset()
            if task in tried:
                plugins |= self.filters_of(task.cls)
                plugins |= {call.plugin for call in self.calls.functions("place_group")}
            if not plugins:
                return None
            if group.topology_key is not None:
                plugins |= {TOPOLOGY_PLACEMENT}
            wants.add((task.cls, plugins))
        return frozenset(wants) or None

    # ------------------------------------------------------------------ changes, for statements only

    def statement(self, group: Group) -> Statement:
        """A statement for a group: a context manager, and undone at its end unless it is committed."""
        return Statement(self, group)

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
        if self._nominated:
            self._touch_nominated(task)
        if task.row >= 0:
            self.touched.append(task.row)

    def vacate(self, task: Task, phase: Phase) -> None:
        """Take a task off its row. For `Statement`."""
        if task.row >= 0:
            self.touched.append(task.row)
        self.snapshot.cache.vacate(task, phase)
        if self._nominated:
            self._touch_nominated(task)

    def count(self, task: Task, counts: Mapping[Hashable, int]) -> None:
        """Let a task on a node add this to counters of its row (`nodes.counter`), beside its class's footprint and in
        place of what it alone added to these keys before; 0 is nothing.

        For what the node decides only when a task is there, as which of its devices the task has: an `allocate` handler
        counts it. From then on the core keeps it like a footprint, also where the task is thought away, is back again,
        or its node goes and comes; it ends when the task is to be placed again. Keys that no class's footprint has.
        """
        if task.node is None:
            raise ValueError(f"{task.key} is on no node: there is nothing to count it on")
        merged = {key: amount for key, amount in {**task.counts, **counts}.items() if amount}
        self.snapshot.cache.set_counts(task, merged)
        if task.row >= 0 and self.touched[-1:] != [task.row]:  # right after it was put there it is one change
            self.touched.append(task.row)

    def nominate(self, task: Task, node: str, start: float | None = None) -> None:
        """Let a pending task be nominated for a node; for none where that is empty.

        `start`: since when it is to have the node, in seconds since 1970; None where that is as soon as it can be.
        """
        self._touch_nominated(task)
        self.nominations.put(task, node)
        self.nominations.reserve(task, start)
        self._touch_nominated(task)

    def _touch_nominated(self, task: Task) -> None:
        """Others must (no more) fit beside the task on the node that it is nominated for."""
        row = self.table.row_of.get(self.nominations.node_of(task) or "", -1)
        if row >= 0:
            self.touched.append(row)

    def remove(self, task: Task) -> None:
        """Take a running task off its node to see what would be without it. For `Trial`. Raises PluginError."""
        node = task.node or ""
        self.vacate(task, Phase.RELEASING)
        self.away[task] = None
        self.tell_removed(task, node)

    def put_back(self, task: Task, node: str, phase: Phase) -> None:
        """Undo `remove`. For `Trial`. Raises PluginError."""
        self.occupy(task, node, phase)
        self.away.pop(task, None)
        self.tell_put_back(task, node)


def open_session(snapshot: Snapshot, calls: HookCalls, options: SessionOptions = SessionOptions()) -> Session:
    """A session with every plugin's callbacks registered. Raises PluginError."""
    session = Session(snapshot, calls, options)
    session.open()
    return session


__all__ = ["Decision", "Event", "NodeInfo", "Outcome", "Session", "SessionOptions", "Statement", "open_session"]
