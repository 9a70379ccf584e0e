"""Synchronises plugins between sessions: changed nodes, and allocations of pods that another replica bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from session_scheduler.binding.held_record import holding_of, record_problem
from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError
from session_scheduler.framework.observer import Observer
from session_scheduler.model.groups import Task
from session_scheduler.state.cache import Cache


@dataclass(eq=False, repr=False)
class PluginSync:
    """Calls `on_nodes_changed` and `recover` of every profile's plugins."""

    cache: Cache
    profiles: Mapping[str, HookCalls]
    observer: Observer
    _due: dict[HookCall, dict[str, Task]] = field(default_factory=dict, init=False)
    """By `recover` hook and pod uid: bound pods to recover before the next session."""

    def start(self) -> None:
        """Recover the allocations of all bound pods. Raises PluginError."""
        bound = sorted(self.cache.bound_tasks(), key=lambda task: task.key)
        for name, calls in self.profiles.items():
            ours = [task for task in bound if task.pod.spec.scheduler_name == name]
            for task in ours:
                self._report_problem(task)
            for call in calls.functions("recover"):
                self._recover(call, ours)

    def later(self, task: Task) -> None:
        """Recover a pod that another replica or a late request bound, before the next session."""
        calls = self.profiles.get(task.pod.spec.scheduler_name)
        if calls is None:
            return
        self._report_problem(task)
        for call in calls.functions("recover"):
            self._due.setdefault(call, {})[task.uid] = task

    def sync(self) -> dict[str, PluginError]:
        """Update the plugins before sessions. Returns the profiles that failed, which the next call retries."""
        failed = self.sync_nodes()
        for name, calls in self.profiles.items() if self._due else ():
            for call in calls.functions("recover"):
                found = self._due.get(call, {})
                tasks = [task for uid, task in found.items() if self.cache.tasks.get(uid) is task and task.node]
                try:
                    if tasks and name not in failed:
                        self._recover(call, tasks)
                except PluginError as error:
                    failed[name] = error
                if name not in failed:
                    self._due.pop(call, None)
        return failed

    def sync_nodes(self) -> dict[str, PluginError]:
        """Pass the changed nodes to the plugins. Returns the profiles that failed, which the next call retries."""
        changes = self.cache.node_changes()
        failed: dict[str, PluginError] = {}
        failures: dict[int, PluginError | None] = {}
        for name, calls in self.profiles.items() if changes else ():
            for call in calls.functions("on_nodes_changed"):
                instance = id(calls.instances[call.plugin])  # profiles may share it
                if instance not in failures:
                    failures[instance] = None
                    try:
                        call(changes)
                    except PluginError as error:
                        failures[instance] = error
                if (failure := failures[instance]) is not None:
                    failed.setdefault(name, failure)
        if failed:
            self.cache.mark_changed(change.name for change in changes)
        return failed

    def _report_problem(self, task: Task) -> None:
        problem = record_problem(task)
        if problem is not None:
            self.observer.problem(task.pod, problem)

    def _recover(self, call: HookCall, tasks: Iterable[Task]) -> None:
        """Let a plugin recover the allocations of bound pods; report those that it cannot. Raises PluginError."""
        lost: Mapping[str, str] | None = call([holding_of(task, call.plugin) for task in tasks])
        for uid, why in (lost or {}).items():
            task = self.cache.tasks.get(uid)
            if task is not None:
                text = f"pod {task.key}: plugin {call.plugin} cannot recover its allocation: {why}"
                self.observer.problem(task.pod, text)
