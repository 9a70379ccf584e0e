"""Places a cluster's pending pods in memory with the code that schedules a live one, and reports what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace as changed

from session_scheduler.binding.binder import OF_BINDINGS
from session_scheduler.cluster.errors import NotFound
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.explain import reason_of
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError
from session_scheduler.model.columns import natural
from session_scheduler.model.durations import wrong_durations
from session_scheduler.model.groups import Group, Task
from session_scheduler.model.objects import Pod
from session_scheduler.offline.state import ClusterState, open_state, read_state

_OWN = frozenset({"namespace", "name", "group", "node", "reason"})
"""The columns of the core; plugins report others."""
_CONTRACT: Mapping[str, Any] = {"backend": None, "attributes": {}, "env": {}}
"""Columns that are always there, whichever plugins are on."""


def simulate(files: Sequence[str], *, config: SchedulerConfig) -> dict[str, Any]:
    """Place the pending pods of manifests (paths, directories, "-"), or of a snapshot among them.

    Returns the JSON of the command: {"pods", "groups", "summary"}, "preempted" where running pods ended for others, and
    "moved" where they were to run elsewhere. Raises InputError.
    """

    async def read_and_simulate() -> dict[str, Any]:
        return await simulate_state(await read_state(files), config)

    return asyncio.run(read_and_simulate())


async def simulate_state(state: ClusterState, config: SchedulerConfig) -> dict[str, Any]:
    """As `simulate`, for a state that was read."""
    return await place_all(await open_state(state, config))


async def place_all(scheduler: Scheduler) -> dict[str, Any]:
    """Run cycles until nothing more can be placed. The scheduler was started; its cluster is changed.

    Returns the JSON of `simulate`. Pods that were bound before are not listed.
    """
    ours = [task for task in scheduler.cache.tasks.values() if task.node is None]
    groups = list(dict.fromkeys(task.group for task in ours))
    all_ended: list[_Ended] = []
    while True:
        done = await scheduler.cycle()
        ended = await _end_preempted(scheduler)
        all_ended += ended
        if not ended and not any(bound.bound for bound in done):
            break
        instead = {one.task: one.successor for one in ended}
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
    all_ended.sort(key=lambda one: natural(one.task.key))
    preempted = [_victim(one) for one in all_ended if one.successor is None]
    moved = [_move(one, bound_pods) for one in all_ended if one.successor is not None]
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
class _Ended:
    """A running pod that ended for others."""

    task: Task
    node: str
    successor: Task | None
    """The pod in its place, where it was moved."""


async def _end_preempted(scheduler: Scheduler) -> list[_Ended]:
    """End the evicted pods at once, as kubelets do in time; create those that are moved again, as controllers do."""
    cache, cluster = scheduler.cache, scheduler.cluster
    ended = []
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
        ended.append(_Ended(task, node, successor))
    return ended


def _recreated(pod: Pod) -> Pod:
    """The pod that a controller makes in the place of a pod that ended."""
    annotations = {key: text for key, text in pod.metadata.annotations.items() if key not in OF_BINDINGS}
    metadata = changed(pod.metadata, uid="", resource_version="", creation_timestamp=None, deletion_timestamp=None,
                       annotations=annotations)  # fmt: skip
    return changed(pod, metadata=metadata, spec=changed(pod.spec, node_name=""))


def _victim(ended: _Ended) -> dict[str, Any]:
    return {"namespace": ended.task.namespace, "name": ended.task.name, "node": ended.node}


def _move(ended: _Ended, pods: Mapping[str, Pod]) -> dict[str, Any]:
    now = pods.get(ended.successor.uid) if ended.successor is not None else None
    return {**_victim(ended), "to": (now.spec.node_name or None) if now is not None else None}


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
    """The plugins' columns; one that fails, or writes into what is not its own, is noted and left out."""
    columns: dict[str, Any] = {}
    for call in calls.functions("report"):
        try:
            columns |= _columns(call, call(pod))
        except PluginError as error:
            problems[f"Plugin {call.plugin}"] = str(error)
    return columns


def _columns(call: HookCall, answer: object) -> dict[str, Any]:
    if answer is None:
        return {}
    if not isinstance(answer, Mapping) or not all(isinstance(name, str) for name in answer):
        raise call.wrong(f"{type(answer).__name__} is no mapping of column names to values")
    if taken := sorted(_OWN.intersection(answer)):
        raise call.wrong(f"the column {taken[0]!r} is the core's own")
    return json_columns(call, answer)


def json_columns(call: HookCall, answer: object) -> dict[str, Any]:
    """A plugin's columns as JSON values. Raises PluginError."""
    try:
        return dict(msgspec.json.decode(msgspec.json.encode(answer)))
    except (TypeError, ValueError) as error:
        raise call.wrong(f"a column is no JSON value: {error}") from error


def _group(group: Group) -> dict[str, Any]:
    return {"namespace": group.namespace, "name": group.name, "minCount": group.min_count, "scheduled": group.started}
