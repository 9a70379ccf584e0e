"""The undo log through which every change of a session goes: committed whole or undone whole.

A statement allocates tasks, evicts them, and takes over what plugins hold (`Placement`). Until `commit` everything can
be rolled back, to a checkpoint or to the start; leaving the `with` block without a commit undoes all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from session_scheduler.framework.answers import Placement, Preemption
from session_scheduler.framework.hooks import HookCall, PluginError
from session_scheduler.model.groups import Group, Phase, Task

if TYPE_CHECKING:
    from session_scheduler.framework.session import Session


@dataclass(frozen=True, slots=True)
class Event:
    """What an event handler is told: a task that was placed on, or taken from, a node."""

    task: Task
    node: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """What a plugin adds to the annotations of a pod that is to be bound."""

    call: HookCall
    annotations: Mapping[str, str]


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
    preemptions: list[Preemption] = field(default_factory=list)
    """Whose end makes room for the group's other tasks."""
    nominated: Mapping[Task, str] = field(default_factory=dict)
    """The node for which each of these is nominated from now on; empty where for none any more."""
    mutations: Mapping[Task, Sequence[Mutation]] = field(default_factory=dict)
    """What plugins add to the annotations of the tasks that are placed."""


class Statement:
    """Use as a context manager: `with session.statement(group) as statement: …; statement.commit()`."""

    def __init__(self, session: Session, group: Group) -> None:
        self._session = session
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

        When the statement is committed it is asked to end, and what was placed beside is tried again once it has.
        """
        self._check_open()
        if task.phase is not Phase.BOUND or task.node is None:
            raise ValueError(f"{task.key} is {task.phase.value}, not bound: it cannot be evicted")
        self._apply(Evicted(task, task.row, task.node, task.phase))

    def hold(self, plugin: str, placement: Placement) -> Held:
        """Take over resources that a plugin has just taken: from now on they are undone with the rest."""
        self._check_open()
        held = Held(plugin, placement, self._session.calls.budgets.get(plugin))
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
                self._redo(operation)
        except BaseException:
            with suppress(PluginError):  # the first failure is the one that is told
                self.rollback(mark)
            raise

    def commit(self) -> Decision:
        """End the statement; its changes stand and are returned as one decision."""
        self._check_open()
        self._open = False
        self._session.committed += bool(self._log)
        decision = Decision(self._group)
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
        """Change, log, tell: in this order, so that a handler that raises leaves nothing that cannot be undone."""
        task = operation.task
        if isinstance(operation, Allocated):
            self._session.occupy(task, self._session.node_at(operation.row))
            self._log.append(operation)
            self._session.tell_allocated(task, task.node or "")
        else:
            self._session.vacate(task, Phase.RELEASING)
            self._log.append(operation)
            self._session.tell_deallocated(task, operation.node)

    def _redo(self, operation: Operation) -> None:
        if isinstance(operation, Held):
            operation.redo()
            self._log.append(operation)
        else:
            self._apply(operation)

    def _revert(self, operation: Operation) -> None:
        if isinstance(operation, Held):
            operation.undo()
        elif isinstance(operation, Allocated):
            node = operation.task.node or ""
            self._session.vacate(operation.task, Phase.PENDING)
            self._session.tell_deallocated(operation.task, node)
        else:
            self._session.occupy(operation.task, operation.node, operation.phase)
            self._session.tell_allocated(operation.task, operation.node)

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("the statement was committed: open another")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            try:
                self.rollback()
            finally:
                self._open = False
