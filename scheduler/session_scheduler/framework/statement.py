"""The statement: the undo log of what a session does for a group, committed all or nothing; and the ledger it changes.

A statement allocates tasks, evicts them, and owns what plugins reserved (`Placement`). Until `commit` everything can be
rolled back, to a checkpoint or to the start; leaving the `with` block without a commit undoes all of it. Actions open
one for each group; `binding` carries out the `Decision` that a commit returns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Self

import msgspec

from session_scheduler.framework.answers import Placement, Preemption
from session_scheduler.framework.callback_runner import CallbackRunner, Mutation
from session_scheduler.framework.hooks import HookCall, PluginError
from session_scheduler.model.durations import known_end, known_seconds
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.refusals import Refusal
from session_scheduler.state.cache import Cache

_NONE: Final[Mapping[Task, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Held:
    """A plugin's placement, with the plugin's name."""

    plugin: str
    placement: Placement
    budget: float | None = None
    """Seconds that it may take for an answer."""

    def undo(self) -> None:
        """Give everything back. Raises PluginError."""
        self._call(self.placement.undo)()

    def redo(self) -> None:
        """Take it all again. Raises PluginError."""
        self._call(self.placement.redo)()

    def holds(self) -> Mapping[Task, Mapping[str, Any]]:
        """What each task holds, read once. Raises PluginError."""
        answer: Mapping[Task, Mapping[str, Any]] = self._call(self._holds)()
        return answer

    def _holds(self) -> dict[Task, dict[str, Any]]:
        found = {task: dict(held) for task, held in self.placement.holds.items()}
        msgspec.json.encode(list(found.values()))  # raises where it is no JSON
        return found

    def release(self, tasks: Sequence[Task]) -> None:
        """Give some tasks' share back. Raises PluginError."""
        self._call(self.placement.release)(tasks)

    def _call(self, function: Callable[..., Any]) -> HookCall:
        return HookCall(self.plugin, "place_group", function, self.budget)


class Allocated(msgspec.Struct, frozen=True, eq=False):
    """One task placed on a row."""

    task: Task
    row: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """One task taken off its row; `phase` is what it was in."""

    task: Task
    row: int
    node: str
    phase: Phase


Operation = Allocated | Evicted | Held


@dataclass(slots=True)
class Decision:
    """What one committed statement decided, for `binding` to carry out."""

    group: Group
    allocated: list[Task] = field(default_factory=list)
    evicted: dict[Task, str] = field(default_factory=dict)
    """With the node of each."""
    held: list[Held] = field(default_factory=list)
    holds: Mapping[Task, Mapping[str, Any]] | None = None
    """What each task holds, by plugin, where that was decided before and is in no `held`."""
    preemptions: Sequence[Preemption] = ()
    """The pods that end to make room for the group's other tasks."""
    nominated: Mapping[Task, str] = field(default_factory=dict)
    """The node for which each of these is nominated from now on; empty where for none any more."""
    mutations: Mapping[Task, Sequence[Mutation]] = field(default_factory=dict)
    """What plugins add to the annotations of the tasks that are placed."""


@dataclass(slots=True)
class PlacementResult:
    """What placing came to, for a group or for one attempt of it: what was placed, and why the rest was not."""

    group: Group
    placed: list[Task] = field(default_factory=list)
    """The tasks of the group that were placed; those of an attempt are in the statement."""
    reasons: dict[Task, str] = field(default_factory=dict)
    """Why each of the others was refused."""
    refusal: Refusal | None = None
    """What refused the group as a whole."""
    score: float = 0.0
    """Of an attempt: the summed score of what it placed."""
    nowhere: bool = False
    """Whether there was not even a node set to try: then the refusal says it all."""
    placements: int = 0
    """In how many topology domains the group was tried; 0 without a topology constraint."""
    lacks: Mapping[str, int] = field(default_factory=dict)
    """By sub-group: how many more an attempt would have needed beside what it placed; nothing where it placed none."""
    tried: list[Task] = field(default_factory=list)
    """The tasks for which nodes were looked for."""
    barred: list[Task] = field(default_factory=list)
    """Those that a plugin's `prepare` refused, whatever the node."""
    over_capacity: list[Task] = field(default_factory=list)
    """Those that may not have what they request, wherever it is."""
    over_capacity_together: list[Task] = field(default_factory=list)
    """The tasks of a gang that could be placed, where too few of them may have what they request."""
    nominated: dict[Task, str] = field(default_factory=dict)
    """The node for which each of these is nominated from now on; empty where for none any more."""
    nominated_before: dict[Task, str] = field(default_factory=dict)
    """The node for which each of these was nominated until now; empty for none."""
    preempts: bool = False
    """Whether plugins were asked which pods to preempt."""
    filled_in: bool = False
    """Whether it uses what is kept for a gang that starts later."""
    placed_in_part: bool = False
    """Whether the group starts without some of the tasks: they are retried on their own."""

    @property
    def scheduled(self) -> bool:
        """Whether nothing of the group was refused."""
        return self.refusal is None and not self.reasons

    @property
    def refused(self) -> bool:
        """Whether nothing was placed, and no error is the reason."""
        failed = self.refusal is not None and self.refusal.failed
        return not self.scheduled and not self.placed and not failed


class Ledger:
    """What a session changes: which tasks are on which nodes, nominated, ending, or removed by a simulation."""

    def __init__(self, cache: Cache, runner: CallbackRunner, wall: float, budgets: Mapping[str, float | None]) -> None:
        """`wall` is the time of day; `budgets` are the seconds that a call of each plugin may take."""
        self.runner = runner
        self.budgets = budgets
        self.touched: list[int] = []
        """Rows in the order in which tasks were put on or taken off them; boards remember how far they have read."""
        self.committed = 0
        """How many statements have changed something for good."""
        self.to_end: set[str] = set()
        """Pods (uids) that are to end for tasks of the group whose turn it is."""
        self.away: dict[Task, None] = {}
        """The running tasks whose removal is simulated just now."""
        self._cache = cache
        self._wall = wall
        self._nominations = cache.nominations
        self._nominated = cache.nominations.node_by_uid
        self._nodes, self._row_of = cache.table.nodes, cache.table.row_of

    def statement(self, group: Group) -> Statement:
        """A statement for a group: a context manager, and undone at its end unless it is committed."""
        return Statement(self, group)

    # ------------------------------------------------------------------ what is so

    def leaves(self, task: Task) -> bool:
        """Whether a running task was made to end for others."""
        return task.uid in self._cache.preempted or task.uid in self.to_end

    def is_ending(self, task: Task) -> bool:
        """Whether a running task was asked to end, by anything."""
        return task.pod.metadata.deletion_timestamp is not None or self.leaves(task)

    def ends_at(self, task: Task) -> float | None:
        """When a task on a node ends; see `Session.ends_at`."""
        if self.is_ending(task):
            return self._wall
        seconds = known_seconds(task)
        if seconds is None:
            return None
        end = known_end(task) if task.pod.spec.node_name else None
        return self._wall + seconds if end is None else max(end, self._wall)

    def node_at(self, row: int) -> str:
        """The name of a row's node. Raises LookupError where it holds none."""
        node = self._nodes[row] if 0 <= row < len(self._nodes) else None
        if node is None:
            raise LookupError(f"row {row} holds no node")
        return node.metadata.name

    # ------------------------------------------------------------------ changes

    def occupy(self, task: Task, node: str, phase: Phase = Phase.ASSUMED) -> None:
        """Put a task on a node, known or (an eviction undone) not. For statements."""
        self._cache.occupy(task, node)
        task.phase = phase
        if self._nominated:
            self._touch_nominated(task)
        if task.row >= 0:
            self.touched.append(task.row)

    def vacate(self, task: Task, phase: Phase) -> None:
        """Take a task off its row. For statements."""
        if task.row >= 0:
            self.touched.append(task.row)
        self._cache.vacate(task, phase)
        if self._nominated:
            self._touch_nominated(task)

    def count(self, task: Task, counts: Mapping[Hashable, int]) -> None:
        """Add to counters of a task's row; see `Session.count`."""
        if task.node is None:
            raise ValueError(f"{task.key} is on no node: there is nothing to count it on")
        merged = {key: amount for key, amount in {**task.counts, **counts}.items() if amount}
        self._cache.set_counts(task, merged)
        if task.row >= 0 and self.touched[-1:] != [task.row]:  # right after it was put there it is one change
            self.touched.append(task.row)

    def nominate(self, task: Task, node: str, start: float | None = None) -> None:
        """Let a pending task be nominated for a node; for none where that is empty.

        `start`: since when it is to have the node, in seconds since 1970; None where that is as soon as it can be.
        """
        self._touch_nominated(task)
        self._nominations.put(task, node)
        self._nominations.reserve(task, start)
        self._touch_nominated(task)

    def _touch_nominated(self, task: Task) -> None:
        """Others must (no more) fit beside the task on the node that it is nominated for."""
        row = self._row_of.get(self._nominations.node_of(task) or "", -1)
        if row >= 0:
            self.touched.append(row)

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
    """Use as a context manager: `with ledger.statement(group) as statement: …; statement.commit()`."""

    def __init__(self, ledger: Ledger, group: Group) -> None:
        self._ledger = ledger
        self._runner = ledger.runner
        self._registered = ledger.runner.registered
        self._group = group
        self._log: list[Operation] = []
        self._open = True

    # ------------------------------------------------------------------ changes

    def allocate(self, task: Task, row: int) -> None:
        """Place a pending task on a row. Filters are not asked: the caller did."""
        self._check_open()
        if task.phase is not Phase.PENDING:
            raise ValueError(f"{task.key} is {task.phase.value}, not pending: it cannot be placed")
        self._apply(Allocated(task, row))

    def evict(self, task: Task) -> None:
        """Take a bound task off its node, in this session's view.

        When the statement is committed it is asked to end, and what was placed beside is retried once it has.
        """
        self._check_open()
        if task.phase is not Phase.BOUND or task.node is None:
            raise ValueError(f"{task.key} is {task.phase.value}, not bound: it cannot be evicted")
        self._apply(Evicted(task, task.row, task.node, task.phase))

    def hold(self, plugin: str, placement: Placement) -> Held:
        """Own resources that a plugin has just reserved: from now on they are undone with the rest."""
        self._check_open()
        held = Held(plugin, placement, self._ledger.budgets.get(plugin))
        self._log.append(held)
        return held

    # ------------------------------------------------------------------ undo and redo

    def checkpoint(self) -> int:
        """A mark to roll back to."""
        return len(self._log)

    def rollback(self, mark: int = 0) -> list[Operation]:
        """Undo everything after the mark, last first. Returns what was undone, for `redo`.

        A placement that fails to undo does not stop the others; the first failure is raised at the end.
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
        """Do again what `rollback` undid, all of it; the state must be as it was when it returned.

        Where one of them fails, those before it are undone again, and its error is raised.
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
            with suppress(PluginError):  # the first failure is the one that is reported
                self.rollback(mark)
            raise

    def commit(
        self,
        mutations: Mapping[Task, Sequence[Mutation]] = _NONE,
        preemptions: Sequence[Preemption] = (),
        nominated: Mapping[Task, str] = _NONE,
    ) -> Decision:
        """End the statement; its changes stand and are returned as one decision, with what else was decided."""
        self._check_open()
        self._open = False
        self._ledger.committed += bool(self._log)
        self._ledger.to_end.clear()  # what carries the decision out knows from now on
        decision = Decision(self._group, mutations=mutations, preemptions=preemptions, nominated=nominated)
        for operation in self._log:
            if isinstance(operation, Allocated):
                decision.allocated.append(operation.task)
            elif isinstance(operation, Evicted):
                decision.evicted[operation.task] = operation.node
            else:
                decision.held.append(operation)
        return decision

    def placed_since(self, mark: int) -> list[Task]:
        """The tasks that were allocated after the mark."""
        return [operation.task for operation in self._log[mark:] if isinstance(operation, Allocated)]

    # ------------------------------------------------------------------ inside

    def _apply(self, operation: Allocated | Evicted) -> None:
        """Change, log, notify: in this order, so that a handler that raises leaves nothing that cannot be undone."""
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
            raise RuntimeError("the statement was committed: open another")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            try:
                self.rollback()
            finally:
                self._open = False
