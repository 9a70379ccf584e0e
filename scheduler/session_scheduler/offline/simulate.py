"""`fluence simulate`: schedules a cluster's pending pods in memory with the real scheduler, and reports the result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec.structs import replace as changed

from session_scheduler.binding.binder import OF_BINDINGS
from session_scheduler.cluster.errors import NotFound
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.explain import reason_of
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.errors import plain
from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError
from session_scheduler.model.columns import natural
from session_scheduler.model.durations import wrong_durations
from session_scheduler.model.groups import Group, Task
from session_scheduler.model.objects import Pod
from session_scheduler.offline.state import ClusterState, open_state, read_state

_OWN = frozenset({"namespace", "name", "group", "node", "reason"})
"""The core's columns; plugins report others."""
_CONTRACT: Mapping[str, Any] = {"backend": None, "attributes": {}, "env": {}}
"""Columns that exist whichever plugins are enabled."""


def simulate(files: Sequence[str], *, config: SchedulerConfig) -> dict[str, Any]:
    """Schedule the pending pods of manifests (paths, directories, "-"), or of a snapshot.

    Returns the JSON of the command: {"pods", "groups", "summary"}, with "preempted" for running pods that were
    preempted, "moved" for those that the action `consolidate` moved, and "leftOut" for pending pods that no profile
    serves. Raises InputError.
    """

    async def read_and_simulate() -> dict[str, Any]:
        return await simulate_state(await read_state(files), config)

    return asyncio.run(read_and_simulate())


async def simulate_state(state: ClusterState, config: SchedulerConfig) -> dict[str, Any]:
    """Like `simulate`, for a state."""
    return {**await place_all(await open_state(state, config)), **left_out(state, config)}


def left_out(state: ClusterState, config: SchedulerConfig) -> dict[str, Any]:
    """The pending pods that no profile serves, as {"leftOut": [...]}; empty if there are none."""
    pods = [
        {"namespace": pod.metadata.namespace, "name": pod.metadata.name, "schedulerName": pod.spec.scheduler_name,
         "reason": unserved(pod.spec.scheduler_name, config)}
        for pod in sorted(state.waiting(), key=lambda pod: natural(pod.key))
        if config.profile(pod.spec.scheduler_name) is None
    ]  # fmt: skip
    return {"leftOut": pods} if pods else {}


def unserved(scheduler_name: str, config: SchedulerConfig) -> str:
    """Why no profile serves the pods of a schedulerName, with a remedy."""
    names = [profile.scheduler_name for profile in config.profiles]
    near = get_close_matches(scheduler_name, names, 1, 0.6)
    remedy = f"did you mean {near[0]}?" if near else f"set spec.schedulerName to {' or '.join(names)}, or add a profile"
    return f"no profile has schedulerName {plain(scheduler_name)}; {remedy}"


async def place_all(scheduler: Scheduler, until: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Run cycles until no more pods can be placed, or `until` holds. The scheduler is started; its cluster changes.

    Returns the JSON of `simulate`, without pods that were bound before.
    """
    ours = [task for task in scheduler.cache.tasks.values() if task.node is None]
    groups = list(dict.fromkeys(task.group for task in ours))
    all_evicted: list[_Evicted] = []
    while True:
        done = await scheduler.cycle()
        if until():
            break
        evicted = await _evict(scheduler)
        all_evicted += evicted
        if not evicted and (not scheduler.cache.unbound or not any(bound.bound for bound in done)):
            break
        instead = {one.task: one.successor for one in evicted}
        ours = [instead.get(task) or task for task in ours]
        for group in groups:
            scheduler.queue.requeue_now(group.key, scheduler.clock.now())
    bound_pods = {pod.metadata.uid: pod for pod in (await scheduler.cluster.list(Pod)).items}
    problems = {**wrong_durations(scheduler.cache.tasks.values()), **scheduler.cache.problems}
    pods = [
        _pod(scheduler, task, bound_pods.get(task.uid, task.pod), problems)
        for task in sorted(ours, key=lambda task: natural(task.key))
    ]
    scheduled = sum(pod["node"] is not None for pod in pods)
    all_evicted.sort(key=lambda one: natural(one.task.key))
    preempted = [_victim(one) for one in all_evicted if one.successor is None]
    moved = [_move(one, bound_pods) for one in all_evicted if one.successor is not None]
    return {
        "pods": pods,
        "groups": [_group(group) for group in sorted(groups, key=lambda group: natural(group.key)) if not group.single],
        "summary": {
            "scheduled": scheduled,
            "unschedulable": len(pods) - scheduled,
            "leftOut": scheduler.cache.left_out,
            "problems": dict(sorted(problems.items())),
        },
        **({"preempted": preempted} if preempted else {}),
        **({"moved": moved} if moved else {}),
    }


@dataclass(frozen=True, slots=True)
class _Evicted:
    """A running pod that was preempted or moved."""

    task: Task
    node: str
    successor: Task | None
    """The pod that replaces a moved one."""


async def _evict(scheduler: Scheduler) -> list[_Evicted]:
    """Delete the evicted pods at once, like kubelets; recreate the moved ones, like controllers."""
    cache, cluster = scheduler.cache, scheduler.cluster
    evicted = []
    for task in [cache.tasks[uid] for uid in sorted(cache.preempted) if uid in cache.tasks]:
        node, moved = task.node or "", cache.moves.leaves(task)
        with suppress(NotFound):
            await cluster.delete(task.pod, grace_seconds=0)
        await scheduler.event_handlers.apply("DELETED", task.pod)
        successor = None
        if moved:
            pod = await cluster.create(_recreated(task.pod))
            await scheduler.event_handlers.apply("ADDED", pod)
            successor = cache.tasks.get(pod.metadata.uid)
        evicted.append(_Evicted(task, node, successor))
    return evicted


def _recreated(pod: Pod) -> Pod:
    """The pod that a controller creates to replace a deleted one."""
    annotations = {key: text for key, text in pod.metadata.annotations.items() if key not in OF_BINDINGS}
    metadata = changed(pod.metadata, uid="", resource_version="", creation_timestamp=None, deletion_timestamp=None,
                       annotations=annotations)  # fmt: skip
    return changed(pod, metadata=metadata, spec=changed(pod.spec, node_name=""))


def _victim(evicted: _Evicted) -> dict[str, Any]:
    return {"namespace": evicted.task.namespace, "name": evicted.task.name, "node": evicted.node}


def _move(evicted: _Evicted, pods: Mapping[str, Pod]) -> dict[str, Any]:
    now = pods.get(evicted.successor.uid) if evicted.successor is not None else None
    return {**_victim(evicted), "to": (now.spec.node_name or None) if now is not None else None}


def _pod(scheduler: Scheduler, task: Task, pod: Pod, problems: dict[str, str]) -> dict[str, Any]:
    node = pod.spec.node_name or None
    calls = scheduler.profiles[pod.spec.scheduler_name]
    return {
        "namespace": task.namespace,
        "name": task.name,
        "group": None if task.group.single else task.group.name,
        "node": node,
        **_CONTRACT,
        **_reported(calls, pod, problems),
        "reason": None if node else reason_of(scheduler, task),
    }


def _reported(calls: HookCalls, pod: Pod, problems: dict[str, str]) -> dict[str, Any]:
    """The plugins' columns; an error goes to `problems` and leaves the plugin's columns out."""
    columns: dict[str, Any] = {}
    for call in calls.functions("report"):
        try:
            found = _columns(call, call(pod))
        except PluginError as error:
            problems[f"Plugin {call.plugin}"] = str(error)
            continue
        if "devices" in found:
            found["devices"] = [*columns.get("devices", ()), *found["devices"]]
        columns |= found
    return columns


def _columns(call: HookCall, answer: object) -> dict[str, Any]:
    if answer is None:
        return {}
    if not isinstance(answer, Mapping) or not all(isinstance(name, str) for name in answer):
        raise call.wrong(f"expected a mapping of column names to values, got {type(answer).__name__}")
    if taken := sorted(_OWN.intersection(answer)):
        raise call.wrong(f"the column {taken[0]!r} is reserved")
    return json_columns(call, answer)


def json_columns(call: HookCall, answer: Mapping[str, object]) -> dict[str, Any]:
    """A plugin's columns as JSON values. Raises PluginError."""
    devices = answer.get("devices", ())
    if not isinstance(devices, list | tuple) or not all(isinstance(device, str) for device in devices):
        raise call.wrong(f"expected `devices` to be a list of strings, got {devices!r}")
    try:
        return dict(msgspec.json.decode(msgspec.json.encode(answer)))
    except (TypeError, ValueError) as error:
        raise call.wrong(f"expected JSON values: {error}") from error


def _group(group: Group) -> dict[str, Any]:
    return {"namespace": group.namespace, "name": group.name, "minCount": group.min_count, "scheduled": group.started}
