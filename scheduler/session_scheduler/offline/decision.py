"""`fluence simulate --explain`: explains a pod at the moment of its decision, among the pods decided before it.

A pod that waits is explained after the simulation: its last attempt was in that state. For a placed pod the simulation
runs again, with the same decisions, and stops before the attempt that placed the pod.
"""

from __future__ import annotations

from typing import Any, Final

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.explain import explain_tasks, waiting_tasks
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.errors import InputError
from session_scheduler.framework.hooks import HookCall
from session_scheduler.framework.session import Session
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.refusals import Refusal
from session_scheduler.offline.pod_selector import PodSelector
from session_scheduler.offline.simulate import left_out, place_all, unserved
from session_scheduler.offline.state import ClusterState, open_state

_NAME: Final = "simulate"
"""The name of the watch wherever a plugin's name is expected."""


async def simulate_explained(state: ClusterState, config: SchedulerConfig, pod: PodSelector) -> dict[str, Any]:
    """Like `simulate_state`, with "explain": like `explain` for this pod, and with its "node". Raises InputError."""
    scheduler = await open_state(state, config)
    _check(scheduler, state, config, pod)
    watch = _Watch(scheduler, pod)
    result = {**await place_all(scheduler), **left_out(state, config)}
    placed = next(one["node"] for one in result["pods"] if f"{one['namespace']}/{one['name']}" == pod.key)
    if placed is not None:
        scheduler = await open_state(state, config, warns=False)
        watch = _Watch(scheduler, pod, watch.attempts)
        await place_all(scheduler, until=lambda: watch.stopped)
    watch.end()
    answer = explain_tasks(scheduler, [task for task in waiting_tasks(scheduler) if pod.has(task)])
    answer["pods"] = [{**one, "node": placed} for one in answer["pods"]]
    return {**result, "explain": answer}


def _check(scheduler: Scheduler, state: ClusterState, config: SchedulerConfig, pod: PodSelector) -> None:
    """Raises InputError for a pod that is not pending, or that no profile serves."""
    waiting = waiting_tasks(scheduler)
    if any(pod.has(task) for task in waiting):
        return
    for other in state.waiting():
        if other.key == pod.key:
            raise InputError(f"{pod.written}: {unserved(other.spec.scheduler_name, config)}")
    raise InputError(pod.not_waiting(scheduler.cache.tasks.values(), pod.objects(waiting)))


class _Watch:
    """Counts the attempts to place a pod, up to the one that places it; stops the session before attempt `last`."""

    def __init__(self, scheduler: Scheduler, pod: PodSelector, last: int | None = None) -> None:
        self.attempts = 0
        self.stopped = False
        self._scheduler = scheduler
        self._pod = pod
        self._last = last
        self._call = HookCall(_NAME, "prefilter", self._attempted)
        for calls in scheduler.profiles.values():
            calls.hooks.setdefault("prefilter", []).append(self._call)

    def _attempted(self, _: Session, group: Group) -> Refusal | None:
        if not any(self._awaits(task) for task in group.tasks.values()):
            return None
        self.attempts += 1
        if self.attempts != self._last:
            return None
        self._scheduler.stopping = self.stopped = True
        return Refusal("the simulation stops here")

    def _awaits(self, task: Task) -> bool:
        return task.phase is Phase.PENDING and self._pod.has(task)

    def end(self) -> None:
        """Remove the watch, so that an explanation does not count as an attempt."""
        self._scheduler.stopping = False
        for calls in self._scheduler.profiles.values():
            calls.hooks["prefilter"].remove(self._call)
