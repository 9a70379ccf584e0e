"""The simulated removal of running pods. A trial removes pods to see what fits without them, and puts them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from session_scheduler.errors import FluenceError
from session_scheduler.framework.hooks import ClassSplitError, PluginError
from session_scheduler.framework.session import Session
from session_scheduler.framework.watchdog import answer_in_time
from session_scheduler.model.groups import Phase, Task

_T = TypeVar("_T")


class SimulatedRemoval:
    """The tasks that a trial has removed for now."""

    def __init__(self, session: Session, *, by_node: bool) -> None:
        """`by_node`: change only the columns of the tasks' nodes, because the trial reads nothing else."""
        self.tasks: dict[Task, tuple[str, Phase]] = {}
        """The node and phase of each removed task."""
        self._by_node = by_node
        self._cache = session.snapshot.cache
        self._ledger = session.ledger
        self._evaluator = session.evaluator
        self._lost_track = False
        """Whether a plugin raised when a task was put back."""

    def remove(self, tasks: Iterable[Task]) -> None:
        """Remove running tasks. Raises PluginError."""
        answer_in_time()
        for task in tasks:
            self.tasks[task] = (task.node or "", task.phase)
            if self._by_node:
                self._count(task, -1)
            else:
                self._ledger.remove(task)

    def put_back(self, tasks: Iterable[Task]) -> None:
        """Put all of these tasks back, even if a plugin fails. Raises its PluginError afterwards."""
        failure: PluginError | None = None
        for task in tasks:
            node, phase = self.tasks.pop(task)
            try:
                if self._by_node:
                    self._count(task, 1)
                else:
                    self._ledger.put_back(task, node, phase)
            except PluginError as error:
                failure = failure or error
                self._lost_track = True
        if failure is not None:
            raise failure

    def attempt(self, find: Callable[[], _T]) -> _T | FluenceError:
        """The result of `find`. If a plugin fails, returns its error and puts back what `find` removed.

        Raises PluginError if the plugin timed out, or failed when a task was put back: its state can be wrong then.
        Raises ClassSplitError, because the engine attempts the group again.
        """
        before = set(self.tasks)
        try:
            return find()
        except PluginError as error:
            self.put_back([task for task in self.tasks if task not in before])
            self._evaluator.forget_boards()
            if self._lost_track or error.late:  # a plugin that times out can do so for every node
                raise
            if isinstance(error, ClassSplitError):
                raise
            return error

    def _count(self, task: Task, sign: int) -> None:
        if task.row >= 0:  # a group's member can be on a node that is not in the cache
            self._cache.count_on(task.row, task, sign)
