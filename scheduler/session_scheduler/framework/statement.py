"""The statement: the undo log of a session's changes for a group, committed all-or-nothing; and the ledger it changes.

A statement allocates tasks, evicts them, and owns what plugins reserved (`Placement`). Until `commit`, `rollback` can
undo changes, back to a checkpoint or to the start. Leaving the `with` block without a commit undoes all changes.
Actions open one for each group; `binding` executes the `Decision` that a commit returns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, Self

import msgspec

from session_scheduler.framework.answers import Placement, Preemption
from session_scheduler.framework.callback_runner import CallbackRunner, Mutation
from session_scheduler.framework.hooks import HookCall, PluginError
from session_scheduler.model.durations import known_end, known_seconds
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.refusals import Refusal
from session_scheduler.model.sub_groups import NONE
from session_scheduler.state.cache import Cache

_NONE: Final[Mapping[Task, Any]] = MappingProxyType({})


class Held(msgspec.Struct, frozen=True):
    """A plugin's placement, with the plugin's name."""

    plugin: str
    placement: Placement
    budget: float | None = None
    """Timeout of its methods in seconds."""

    def undo(self) -> None:
        """Free all resources. Raises PluginError."""
        self._call(self.placement.undo)()

    def redo(self) -> None:
        """Reserve all resources again. Raises PluginError."""
        self._call(self.placement.redo)()

    def holds(self) -> Mapping[Task, Mapping[str, Any]]:
        """Read once what is reserved for each task. Raises PluginError."""
        answer: Mapping[Task, Mapping[str, Any]] = self._call(self._holds)()
        return answer

    def _holds(self) -> dict[Task, dict[str, Any]]:
        found = {task: dict(held) for task, held in self.placement.holds.items()}
        msgspec.json.encode(list(found.values()))  # raises if it is not JSON
        return found

    def release(self, tasks: Sequence[Task]) -> None:
        """Free some tasks' share. Raises PluginError."""
        self._call(self.placement.release)(tasks)

    def _call(self, function: Callable[..., Any]) -> HookCall:
        return HookCall(self.plugin, "place_group", function, self.budget)


class Allocated(msgspec.Struct, frozen=True, eq=False):
    """A task placed on a row."""

    task: Task
    row: int


class Evicted(msgspec.Struct, frozen=True):
    """A task removed from its row; `phase` is its phase before."""

    task: Task
    row: int
    node: str
    phase: Phase


Operation = Allocated | Evicted | Held


class Decision(msgspec.Struct):
    """The changes of one committed statement, for `binding` to execute."""

    group: Group
    allocated: list[Task] = msgspec.field(default_factory=list)
    evicted: Mapping[Task, str] = _NONE
    """The evicted tasks, each with its node."""
    held: list[Held] = msgspec.field(default_factory=list)
    """What plugins reserved. The binder empties it when it has read the records."""
    holds: Mapping[Task, Mapping[str, Any]] | None = None
    """The resources of each task by plugin, if an earlier decision reserved them and `held` does not have them."""
    preemptions: Sequence[Preemption] = ()
    """The preemptions for the group's other tasks."""
    nominated: Mapping[Task, str] = _NONE
    """The new nominated node of each of these tasks; empty for none."""
    mutations: Mapping[Task, Sequence[Mutation]] = _NONE
    """The annotations that plugins add to the placed tasks."""


class PlacementResult(msgspec.Struct):
    """The result of placing a group, or of one attempt: the placed tasks, and the reasons for the others."""

    group: Group
    placed: list[Task] = msgspec.field(default_factory=list)
    """The group's placed tasks; those of an attempt are in the statement."""
    reasons: dict[Task, str] = msgspec.field(default_factory=dict)
    """The reason for each rejected task."""
    refusal: Refusal | None = None
    """The refusal of the whole group."""
    score: float = 0.0
    """The summed score of the placed tasks; only of an attempt."""
    nowhere: bool = False
    """Whether there was no node set to try; the refusal has the reason."""
    placements: int = 0
    """Number of topology domains that were tried; 0 without a topology constraint."""
    lacks: Mapping[str, int] = NONE
    """By sub-group, how many tasks an attempt needed in addition to those that it placed; empty if it placed none."""
    tried: list[Task] = msgspec.field(default_factory=list)
    """The tasks for which nodes were searched."""
    barred: Sequence[Task] = ()
    """The tasks that a plugin's `prepare` rejected on any node."""
    over_capacity: Sequence[Task] = ()
    """The tasks that must not use what they request on any node."""
    over_capacity_together: Sequence[Task] = ()
    """The tasks of a gang that fit, although too few of them may use what they request."""
    nominated: dict[Task, str] = msgspec.field(default_factory=dict)
    """The new nominated node of each of these tasks; empty for none."""
    nominated_before: dict[Task, str] = msgspec.field(default_factory=dict)
    """The previous nominated node of each of these tasks; empty for none."""
    preempts: bool = False
    """Whether `postfilter` was called for the group."""
    filled_in: bool = False
    """Whether the group uses nodes reserved for a gang that starts later."""
    placed_in_part: bool = False
    """Whether the group starts without some tasks, which are retried on their own."""

    @property
    def scheduled(self) -> bool:
        """Whether no task of the group was rejected."""
        return self.refusal is None and not self.reasons

    @property
    def refused(self) -> bool:
        """Whether no task was placed, for a reason other than an error."""
        failed = self.refusal is not None and self.refusal.failed
        return not self.scheduled and not self.placed and not failed


class Ledger:
    """The state that a session changes: tasks on nodes, nominations, victims, and simulated removals."""

    def __init__(self, cache: Cache, runner: CallbackRunner, wall: float, budgets: Mapping[str, float | None]) -> None:
        """`wall` is the time of day; `budgets` has the timeout of each plugin's calls in seconds."""
        self.runner = runner
        self.budgets = budgets
        self.touched: list[int] = []
        """The rows of all changes, in order. Each board remembers how far it has read."""
        self.committed = 0
        """The number of committed statements with changes."""
        self.to_end: dict[str, Task] = {}
        """By pod uid: the tasks to evict for tasks of the current group."""
        self.choices = 0
        """Incremented whenever victims are chosen, or spared again."""
        self.away: dict[Task, None] = {}
        """The running tasks whose removal is being simulated."""
        self._cache = cache
        self._wall = wall
        self._nominations = cache.nominations
        self._nominated = cache.nominations.node_by_uid
        self._nodes, self._row_of = cache.table.nodes, cache.table.row_of

    def statement(self, group: Group) -> Statement:
        """Open a statement for a group; a context manager that undoes the changes unless they are committed."""
        return Statement(self, group)

    # ------------------------------------------------------------------ state

    def leaves(self, task: Task) -> bool:
        """Whether a running task was evicted for others."""
        uid = task.pod.metadata.uid  # preemption asks this about every running pod
        return uid in self._cache.preempted or uid in self.to_end

    def is_ending(self, task: Task) -> bool:
        """Whether a running task is terminating, or was evicted."""
        metadata = task.pod.metadata
        uid = metadata.uid
        return metadata.deletion_timestamp is not None or uid in self._cache.preempted or uid in self.to_end

    def ends_at(self, task: Task) -> float | None:
        """Return when a task on a node ends; see `Session.ends_at`."""
        if self.is_ending(task):
            return self._wall
        seconds = known_seconds(task)
        if seconds is None:
            return None
        end = known_end(task) if task.pod.spec.node_name else None
        return self._wall + seconds if end is None else max(end, self._wall)

    def node_at(self, row: int) -> str:
        """Return the name of a row's node. Raises LookupError if the row has no node."""
        node = self._nodes[row] if 0 <= row < len(self._nodes) else None
        if node is None:
            raise LookupError(f"row {row} has no node")
        return node.metadata.name

    # ------------------------------------------------------------------ changes

    def occupy(self, task: Task, node: str, phase: Phase = Phase.ASSUMED) -> None:
        """Put a task on a node, which after an undone eviction may be unknown. For statements."""
        self._cache.occupy(task, node)
        task.phase = phase
        if self._nominated:
            self._touch_nominated(task)
        if task.row >= 0:
            self.touched.append(task.row)

    def vacate(self, task: Task, phase: Phase) -> None:
        """Remove a task from its row. For statements."""
        if task.row >= 0:
            self.touched.append(task.row)
        self._cache.vacate(task, phase)
        if self._nominated:
            self._touch_nominated(task)

    def count(self, task: Task, counts: Mapping[Hashable, int]) -> None:
        """Add to counters of a task's row; see `Session.count`."""
        if task.node is None:
            raise ValueError(f"{task.key} is not on a node; call `count` after the placement")
        merged = {key: amount for key, amount in {**task.counts, **counts}.items() if amount}
        self._cache.set_counts(task, merged)
        if task.row >= 0 and self.touched[-1:] != [task.row]:  # directly after its placement it is one change
            self.touched.append(task.row)

    def nominate(self, task: Task, node: str, start: float | None = None) -> None:
        """Nominate a pending task for a node; an empty name removes the nomination.

        `start` is the start of its reservation in seconds since 1970; None if it may start as soon as possible.
        """
        self._touch_nominated(task)
        self._nominations.put(task, node)
        self._nominations.reserve(task, start)
        self._touch_nominated(task)

    def _touch_nominated(self, task: Task) -> None:
        """Note a change on the task's nominated node, because other tasks must leave room there, or no longer."""
        row = self._row_of.get(self._nominations.node_of(task) or "", -1)
        if row >= 0:
            self.touched.append(row)

    def choose_victims(self, victims: Iterable[Task]) -> None:
        """Note tasks to evict for the current group: from now on their eviction costs other tasks nothing."""
        victims = list(victims)
        self._cache.budgets.now().use(task for task in victims if not self.is_ending(task))
        self.to_end.update((task.uid, task) for task in victims)
        self._touch_victims(victims)

    def spare_victims(self) -> None:
        """Undo `choose_victims`: the current group's attempt failed."""
        victims = list(self.to_end.values())
        self.to_end.clear()
        for task in victims:
            if not self.is_ending(task):
                self._cache.budgets.now().spare(task)
        self._touch_victims(victims)

    def _touch_victims(self, victims: Sequence[Task]) -> None:
        """Note a change on the rows of the victims, because it changes the ranking of these nodes."""
        self.choices += bool(victims)
        self.touched.extend(task.row for task in victims if task.row >= 0)

    def remove(self, task: Task) -> None:
        """Simulate removing a running task from its node. For trials. Raises PluginError."""
        node = task.node or ""
        self.vacate(task, Phase.RELEASING)
        self.away[task] = None
        self.runner.notify(self.runner.registered.on_remove, task, node)

    def put_back(self, task: Task, node: str, phase: Phase) -> None:
        """Undo `remove`. For trials. Raises PluginError."""
        self.occupy(task, node, phase)
        self.away.pop(task, None)
        self.runner.notify(self.runner.registered.on_put_back, task, node)


class Statement:
    """An undo log, used as a context manager: `with ledger.statement(group) as statement: …; statement.commit()`."""

    def __init__(self, ledger: Ledger, group: Group) -> None:
        self._ledger = ledger
        self._runner = ledger.runner
        self._registered = ledger.runner.registered
        self._group = group
        self._log: list[Operation] = []
        self._open = True

    # ------------------------------------------------------------------ changes

    def allocate(self, task: Task, row: int) -> None:
        """Place a pending task on a row. The caller must have run the filters."""
        self._check_open()
        if task.phase is not Phase.PENDING:
            raise ValueError(f"{task.key} is {task.phase.value}, not pending: it cannot be placed")
        self._apply(Allocated(task, row))

    def evict(self, task: Task) -> None:
        """Remove a bound task from its node in this session's view.

        After the commit the pod is evicted; the tasks that take its place are retried once it is gone.
        """
        self._check_open()
        if task.phase is not Phase.BOUND or task.node is None:
            raise ValueError(f"{task.key} is {task.phase.value}, not bound: it cannot be evicted")
        self._apply(Evicted(task, task.row, task.node, task.phase))

    def hold(self, plugin: str, placement: Placement) -> Held:
        """Own resources that a plugin has just reserved: from now on the statement undoes them with the rest."""
        self._check_open()
        held = Held(plugin, placement, self._ledger.budgets.get(plugin))
        self._log.append(held)
        return held

    # ------------------------------------------------------------------ undo and redo

    def checkpoint(self) -> int:
        """Return a mark for `rollback`."""
        return len(self._log)

    def rollback(self, mark: int = 0) -> list[Operation]:
        """Undo everything after the mark, last first. Return the undone operations, for `redo`.

        If the undo of a placement fails, the others are still undone; the first failure is raised at the end.
        """
        self._check_open()
        undone = self._log[mark:]
        failure: PluginError | None = None
        while len(self._log) > mark:
            try:
                self._revert(self._log.pop())
            except PluginError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return undone

    def redo(self, operations: Sequence[Operation]) -> None:
        """Apply again all operations that `rollback` undid. The state must be the same as after the rollback.

        If one of them fails, undo those before it and raise its error.
        """
        self._check_open()
        mark = self.checkpoint()
        try:
            for operation in operations:
                if isinstance(operation, Held):
                    operation.redo()
                    self._log.append(operation)
                else:
                    self._apply(operation)
        except BaseException:
            with suppress(PluginError):  # report only the first failure
                self.rollback(mark)
            raise

    def commit(
        self,
        mutations: Mapping[Task, Sequence[Mutation]] = _NONE,
        preemptions: Sequence[Preemption] = (),
        nominated: Mapping[Task, str] = _NONE,
    ) -> Decision:
        """End the statement. Its changes stay; return them, with the other arguments, as one decision."""
        self._check_open()
        self._open = False
        self._ledger.committed += bool(self._log)
        self._ledger.to_end.clear()  # from now on the executor of the decision tracks them
        decision = Decision(self._group, mutations=mutations, preemptions=preemptions, nominated=nominated)
        evicted: dict[Task, str] = {}
        for operation in self._log:
            if isinstance(operation, Allocated):
                decision.allocated.append(operation.task)
            elif isinstance(operation, Evicted):
                evicted[operation.task] = operation.node
            else:
                decision.held.append(operation)
        if evicted:
            decision.evicted = evicted
        return decision

    def placed_since(self, mark: int) -> list[Task]:
        """Return the tasks that were allocated after the mark."""
        return [operation.task for operation in self._log[mark:] if isinstance(operation, Allocated)]

    # ------------------------------------------------------------------ helpers

    def _apply(self, operation: Allocated | Evicted) -> None:
        """Change, log, notify: in this order, so that a change can be undone even if a handler raises."""
        task = operation.task
        if isinstance(operation, Allocated):
            self._ledger.occupy(task, self._ledger.node_at(operation.row))
            self._log.append(operation)
            self._runner.notify(self._registered.on_allocate, task, task.node or "")
        else:
            self._ledger.vacate(task, Phase.RELEASING)
            self._log.append(operation)
            self._runner.notify(self._registered.on_deallocate, task, operation.node)

    def _revert(self, operation: Operation) -> None:
        if isinstance(operation, Held):
            operation.undo()
        elif isinstance(operation, Allocated):
            node = operation.task.node or ""
            self._ledger.vacate(operation.task, Phase.PENDING)
            self._runner.notify(self._registered.on_deallocate, operation.task, node)
        else:
            self._ledger.occupy(operation.task, operation.node, operation.phase)
            self._runner.notify(self._registered.on_allocate, operation.task, operation.node)

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("the statement was committed; open a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            try:
                self.rollback()
            finally:
                self._open = False
