"""Synchronises plugins between sessions: changed nodes, and allocations of pods that another replica bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from session_scheduler.binding.held_record import held_by, holding_of, record_problem
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
    _foreign: set[str] = field(default_factory=set, init=False)
    """Pods (uids) of other schedulers whose records a plugin has, or will have, recovered."""

    def start(self) -> None:
        """Recover the allocations of all bound pods, also of other schedulers. Raises PluginError."""
        bound = sorted(self.cache.bound_tasks(), key=lambda task: task.key)
        for name, calls in self.profiles.items():
            ours = [task for task in bound if task.pod.spec.scheduler_name == name]
            for task in ours:
                self._report_problem(task)
            for call in calls.functions("recover"):
                self._recover(call, ours)
        foreign: dict[HookCall, list[Task]] = {}
        for task in bound:
            for call in self._foreign_calls(task):
                foreign.setdefault(call, []).append(task)
        for call, tasks in foreign.items():
            self._recover(call, tasks)

    def later(self, task: Task) -> None:
        """Recover a pod that another replica or scheduler, or a late request, bound, before the next session."""
        calls = self.profiles.get(task.pod.spec.scheduler_name)
        if calls is not None:
            self._report_problem(task)
        for call in self._foreign_calls(task) if calls is None else calls.functions("recover"):
            self._due.setdefault(call, {})[task.uid] = task

    def _foreign_calls(self, task: Task) -> list[HookCall]:
        """The `recover` hooks of the plugins in the record of another scheduler's pod; each plugin once."""
        if self._is_own(task) or not (held := held_by(task)):
            return []
        found: dict[int, HookCall] = {}
        for calls in self.profiles.values():
            for call in calls.functions("recover"):
                if call.plugin in held:
                    found.setdefault(id(calls.instances[call.plugin]), call)
        if found:
            self._foreign.add(task.uid)
        return list(found.values())

    def ended(self, task: Task) -> Sequence[HookCall]:
        """The `cancel` hooks of the plugins that may hold something for a pod that has terminated."""
        calls = self.profiles.get(task.pod.spec.scheduler_name)
        if calls is not None:
            return calls.functions("cancel")
        if task.uid not in self._foreign:
            return ()
        self._foreign.discard(task.uid)
        found: dict[int, HookCall] = {}
        for calls in self.profiles.values():
            recovering = {call.plugin for call in calls.functions("recover")}
            for call in calls.functions("cancel"):
                if call.plugin in recovering:
                    found.setdefault(id(calls.instances[call.plugin]), call)
        return list(found.values())

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

    def _is_own(self, task: Task) -> bool:
        return task.pod.spec.scheduler_name in self.profiles

    def _report_problem(self, task: Task) -> None:
        problem = record_problem(task)
        if problem is not None:
            self.observer.problem(task.pod, problem)

    def _recover(self, call: HookCall, tasks: Iterable[Task]) -> None:
        """Let a plugin recover the allocations of bound pods; report those that it cannot. Raises PluginError."""
        lost: Mapping[str, str] | None = call(
            [holding_of(task, call.plugin, foreign=not self._is_own(task)) for task in tasks]
        )
        for uid, why in (lost or {}).items():
            task = self.cache.tasks.get(uid)
            if task is not None:
                text = f"pod {task.key}: plugin {call.plugin} cannot recover its allocation: {why}"
                self.observer.problem(task.pod, text)
