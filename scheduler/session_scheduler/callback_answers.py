"""What the callbacks of a session answer: asked here, and checked."""

from __future__ import annotations

from collections.abc import Sequence

from session_scheduler.callbacks import Callbacks
from session_scheduler.hook_calls import HookCall, PluginError
from session_scheduler.hookspecs import Scope
from session_scheduler.model.columns import IntColumn
from session_scheduler.model.groups import Group, Task
from session_scheduler.order_keys import Key, OrderKey
from session_scheduler.statement import Event


class CallbackAnswers(Callbacks):
    """The callbacks with what asks them."""

    @property
    def has_any_callbacks(self) -> bool:
        """Whether a predicate or node order must be asked for every task anew."""
        scopes = [call.scope for call in self.predicates] + [call.scope for call in self.node_orders]
        return Scope.ANY in scopes

    def ties(self) -> IntColumn:
        """What decides between equal totals, shape [rows of the table]; the smaller wins. To be read only."""
        return self.table.ties() if self._tie_break is None else self._tie_break

    def queue_key(self, queue: str) -> tuple[Key, ...]:
        """What orders queues."""
        return (*(OrderKey(call, call(queue)) for call in self._queue_orders), queue)

    def group_key(self, group: Group) -> tuple[Key, ...]:
        """What orders groups within a queue."""
        own = (OrderKey(call, call(group)) for call in self._job_orders)
        return (*own, -group.priority, group.queued, group.creation, group.uid, group.key)

    def task_key(self, task: Task) -> tuple[Key, ...]:
        """What orders tasks within a group."""
        own = (OrderKey(call, call(task)) for call in self._task_orders)
        return (*own, -task.priority, task.pod.metadata.creation_timestamp or "", task.uid, task.key)

    # ------------------------------------------------------------------ events

    @property
    def trial_followers(self) -> frozenset[str]:
        """The plugins that follow what is thought away."""
        return frozenset(call.plugin for call in (*self._on_remove, *self._on_put_back))

    def tell_removed(self, task: Task, node: str) -> None:
        """Tell who follows trials of a task that was thought away. Raises PluginError; the change itself stands."""
        if self._on_remove:
            tell(self._on_remove, Event(task, node))

    def tell_put_back(self, task: Task, node: str) -> None:
        """Tell who follows trials of its return. Raises PluginError; the change itself stands."""
        if self._on_put_back:
            tell(self._on_put_back, Event(task, node))

    def tell_allocated(self, task: Task, node: str) -> None:
        """Tell the event handlers. Raises PluginError; the change itself stands."""
        if self._on_allocate:
            tell(self._on_allocate, Event(task, node))

    def tell_deallocated(self, task: Task, node: str) -> None:
        """Tell the event handlers. Raises PluginError; the change itself stands."""
        if self._on_deallocate:
            tell(self._on_deallocate, Event(task, node))


def tell(handlers: Sequence[HookCall], event: object) -> None:
    """All of them, so that each is told of a change and of its undo; the first failure is raised then."""
    failure: PluginError | None = None
    for call in handlers:
        try:
            call(event)
        except PluginError as error:
            failure = failure or error
    if failure is not None:
        raise failure
