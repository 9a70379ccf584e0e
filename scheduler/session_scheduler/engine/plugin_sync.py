"""Synchronises plugins between sessions: changed nodes, and allocations of pods that another replica bound.

A replica that stands by recovers the allocations of bound pods as they change. So after it has acquired the Lease it
recovers only the differences that its list shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from session_scheduler.binding.binder import cancel
from session_scheduler.binding.held_record import held_by, holding_of, record_problem
from session_scheduler.framework.bindings import HELD_ANNOTATION, Allocation
from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError
from session_scheduler.framework.observer import Observer
from session_scheduler.model.groups import Task
from session_scheduler.state.cache import Cache

_log = structlog.get_logger(__name__)


_Lost = tuple[Task, str, str]
"""A pod whose allocation a plugin cannot recover, the plugin's name, and why."""


class _Recovered(NamedTuple):
    """A bound pod whose allocations the plugins have recovered while this replica stands by."""

    task: Task
    node: str | None
    record: str | None


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
    _recovered: dict[str, _Recovered] = field(default_factory=dict, init=False)
    """By pod uid, while this replica stands by."""
    _lost: set[str] = field(default_factory=set, init=False)
    """Those pods (uids) that a plugin could not recover."""
    _followed: bool = field(default=False, init=False)
    """Whether this replica has called `recover` while it stands by."""
    _changed: set[str] = field(default_factory=set, init=False)
    """The pods (uids) that changed since then."""

    # ------------------------------------------------------------------ standby and start

    def changed(self, uid: str) -> None:
        """A pod changed while another replica leads."""
        self._changed.add(uid)

    async def follow(self) -> bool:
        """While another replica leads: synchronise the plugins with the cache. Returns whether it called `recover`.

        It reports nothing; `start` does, and it repeats what failed here. The cost depends on the changed pods, except
        in the first call.
        """
        await self.release_changed()
        if self.sync_nodes():
            return False  # the next call retries plugins that fail
        new = self._unrecovered()
        self._changed.clear()
        if not new and self._followed:
            return False
        try:
            self._lost.update(task.uid for task, _, _ in self._recover_all(new))
        except PluginError as error:
            _log.error("recover failed on a standby replica", plugin=error.plugin, error=str(error))
            self._lost.update(task.uid for task in new)
        self._recovered.update((task.uid, _as_recovered(task)) for task in new)
        self._followed = True
        return True

    async def release_changed(self, *, lost: bool = False) -> None:
        """Free the resources of pods that have ended since they were recovered, or have another node or record.

        With `lost`, also what pods hold that a plugin could not recover: `start` recovers them again.
        """
        self._changed.update(self._lost if lost else ())
        for uid in sorted(self._changed & self._recovered.keys()):
            known, task = self._recovered[uid], self.cache.tasks.get(uid)
            if task is None or _as_recovered(task)[1:] != known[1:] or (lost and uid in self._lost):
                allocation = Allocation(uid, known.task.pod, known.node or "")
                for error in await cancel(self._releasing(known.task), allocation):
                    _log.error("cancel failed", pod=known.task.key, plugin=error.plugin, error=str(error))
                del self._recovered[uid]  # not before: a call that is cut off when this replica leads is repeated
                self._lost.discard(uid)
                self._foreign.discard(uid)

    def start(self) -> None:
        """Recover the allocations of the bound pods that are not recovered yet, also of other schedulers.

        From now on events report what changes. Raises PluginError.
        """
        for task in sorted(self.cache.bound_tasks(), key=lambda task: task.key):
            if self._is_own(task):
                self._report_problem(task)
        for task, plugin, why in self._recover_all(self._unrecovered()):
            self._report_lost(task, plugin, why)
        self._recovered.clear()
        self._changed.clear()

    def _unrecovered(self) -> list[Task]:
        """The bound pods that are not recovered yet, in a fixed order."""
        tasks = self.cache.tasks
        known = map(tasks.get, self._changed) if self._followed else tasks.values()
        found = (task for task in known if task is not None and task.node and task.uid not in self._recovered)
        return sorted(found, key=lambda task: task.key)

    def _recover_all(self, tasks: Sequence[Task]) -> list[_Lost]:
        """Let the plugins recover the allocations of these pods. Returns those that they cannot. Raises PluginError."""
        lost: list[_Lost] = []
        for name, calls in self.profiles.items():
            ours = [task for task in tasks if task.pod.spec.scheduler_name == name]
            for call in calls.functions("recover"):
                lost += self._recover(call, ours)
        foreign: dict[HookCall, list[Task]] = {}
        for task in tasks:
            for call in self._foreign_calls(task):
                foreign.setdefault(call, []).append(task)
        for call, of_call in foreign.items():
            lost += self._recover(call, of_call)
        return lost

    def _releasing(self, task: Task) -> Sequence[HookCall]:
        """The `cancel` hooks of the plugins that have recovered what a pod holds."""
        calls = self.profiles.get(task.pod.spec.scheduler_name)
        if calls is None:
            return self._foreign_cancels() if task.uid in self._foreign else ()
        recovering = {call.plugin for call in calls.functions("recover")}
        return [call for call in calls.functions("cancel") if call.plugin in recovering]

    # ------------------------------------------------------------------ while this replica leads

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
        return self._foreign_cancels()

    def _foreign_cancels(self) -> Sequence[HookCall]:
        """The `cancel` hooks of all plugins that can recover; each plugin once."""
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
                        for task, plugin, why in self._recover(call, tasks):
                            self._report_lost(task, plugin, why)
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

    def _report_lost(self, task: Task, plugin: str, why: str) -> None:
        self.observer.problem(task.pod, f"pod {task.key}: plugin {plugin} cannot recover its allocation: {why}")

    def _recover(self, call: HookCall, tasks: Iterable[Task]) -> list[_Lost]:
        """Let a plugin recover the allocations of bound pods. Returns those that it cannot. Raises PluginError."""
        lost: Mapping[str, str] | None = call(
            [holding_of(task, call.plugin, foreign=not self._is_own(task)) for task in tasks]
        )
        found = ((self.cache.tasks.get(uid), why) for uid, why in (lost or {}).items())
        return [(task, call.plugin, why) for task, why in found if task is not None]


def _as_recovered(task: Task) -> _Recovered:
    return _Recovered(task, task.node, task.pod.metadata.annotations.get(HELD_ANNOTATION))
