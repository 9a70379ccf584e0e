"""The simulated removal of running pods: a trial removes them to see what fits then, and puts them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from session_scheduler.errors import FluenceError
from session_scheduler.framework.hooks import PluginError
from session_scheduler.framework.session import Session
from session_scheduler.framework.watchdog import answer_in_time
from session_scheduler.model.groups import Phase, Task

_T = TypeVar("_T")


class SimulatedRemoval:
    """The tasks that are removed just now."""

    def __init__(self, session: Session, *, by_node: bool) -> None:
        """`by_node`: only the columns of their nodes change, for nothing else is asked meanwhile."""
        self.tasks: dict[Task, tuple[str, Phase]] = {}
        """With the node and phase of each."""
        self._by_node = by_node
        self._cache = session.snapshot.cache
        self._ledger = session.ledger
        self._evaluator = session.evaluator
        self._lost_track = False
        """Whether a plugin failed to follow what was put back."""

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
        """Put removed tasks back: all of them, whatever plugins say. Raises PluginError."""
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
        """What `find` finds; where a plugin fails meanwhile its error, and what was removed since is put back.

        Raises PluginError where a plugin did not follow what was put back: what it says is of no use any more.
        """
        before = set(self.tasks)
        try:
            return find()
        except PluginError as error:
            self.put_back([task for task in self.tasks if task not in before])
            self._evaluator.forget_boards()
            if self._lost_track or error.late:  # else it may hang for each node
                raise
            return error

    def _count(self, task: Task, sign: int) -> None:
        if task.row >= 0:  # a member of a group may be on a node that is not known
            self._cache.count_on(task.row, task, sign)
