"""Tells plugins between sessions what has changed: nodes, and what pods hold that no session here placed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from session_scheduler.binding.held_record import holding_of, record_problem
from session_scheduler.framework.bindings import Holding
from session_scheduler.framework.hooks import HookCall, PluginError
from session_scheduler.model.groups import Task

if TYPE_CHECKING:
    from session_scheduler.engine.scheduler import Scheduler


class Informing:
    """Belongs to one scheduler, whose plugins it asks between sessions."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._due: dict[HookCall, dict[str, Task]] = {}
        """By `recover` hook and pod uid: bound pods of which the plugin is to be told before the next session."""

    def start(self) -> None:
        """Tell what all bound pods hold. Raises PluginError."""
        bound = sorted(self._scheduler.cache.bound_tasks(), key=lambda task: task.key)
        for name, calls in self._scheduler.profiles.items():
            ours = [task for task in bound if task.pod.spec.scheduler_name == name]
            for task in ours:
                self._tell_problem(task)
            for call in calls.functions("recover"):
                self._tell_lost(call(_holdings(ours, call.plugin)), call.plugin)

    def later(self, task: Task) -> None:
        """Another replica bound the pod, or a late request did: the plugins are told before the next session."""
        calls = self._scheduler.profiles.get(task.pod.spec.scheduler_name)
        if calls is None:
            return
        self._tell_problem(task)
        for call in calls.functions("recover"):
            self._due.setdefault(call, {})[task.uid] = task

    def of_nodes(self) -> dict[str, PluginError]:
        """Tell the plugins which nodes changed. Returns the profiles that failed; they are told again next time."""
        cache, profiles = self._scheduler.cache, self._scheduler.profiles
        changes = cache.node_changes()
        failed: dict[str, PluginError] = {}
        answers: dict[int, PluginError | None] = {}
        for name, calls in profiles.items() if changes else ():
            for call in calls.functions("on_nodes_changed"):
                instance = id(calls.instances[call.plugin])  # profiles may share it
                if instance not in answers:
                    answers[instance] = _failure(call, changes)
                error = answers[instance]
                if error is not None:
                    failed.setdefault(name, error)
        if failed:
            cache.mark_changed(change.name for change in changes)
        return failed

    def of_holdings(self, failed: dict[str, PluginError]) -> None:
        """Tell the plugins what pods turned out to hold. A profile that fails is added, and told again next time."""
        tasks_of = self._scheduler.cache.tasks
        for name, calls in self._scheduler.profiles.items() if self._due else ():
            for call in calls.functions("recover"):
                found = self._due.get(call, {})
                tasks = [task for uid, task in found.items() if tasks_of.get(uid) is task and task.node]
                try:
                    if tasks and name not in failed:
                        self._tell_lost(call(_holdings(tasks, call.plugin)), call.plugin)
                except PluginError as error:
                    failed[name] = error
                if name not in failed:
                    self._due.pop(call, None)

    def _tell_problem(self, task: Task) -> None:
        problem = record_problem(task)
        if problem is not None:
            self._scheduler.observer.problem(task.pod, problem)

    def _tell_lost(self, lost: Mapping[str, str] | None, plugin: str) -> None:
        """Tell of bound pods whose holdings a plugin cannot hold."""
        for uid, why in (lost or {}).items():
            task = self._scheduler.cache.tasks.get(uid)
            if task is not None:
                text = f"pod {task.key}: what it holds cannot be held: {why} ({plugin})"
                self._scheduler.observer.problem(task.pod, text)


def _holdings(tasks: Iterable[Task], plugin: str) -> list[Holding]:
    return [holding_of(task, plugin) for task in tasks]


def _failure(call: HookCall, *arguments: object) -> PluginError | None:
    """Call a hook whose answer is of no interest; the error that it ended in, or None."""
    try:
        call(*arguments)
    except PluginError as error:
        return error
    return None
