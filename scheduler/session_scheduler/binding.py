"""Carries decisions out: prebind for all members, then all binds, many at once; undoes what failed.

A binding cannot be taken back. So no bind of a group starts before every member's `prebind` has succeeded; when a bind
fails after that, only that member is placed again, around those that are bound.

An answer that was lost says nothing: the pod is read before anything is decided, and where it cannot be read either,
the failure is `unknown` and is to be looked at again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import structlog

from session_scheduler.cluster.errors import ClusterError, Forbidden, Invalid, NotFound, TooManyRequests
from session_scheduler.cluster.port import Cluster
from session_scheduler.hook_calls import HookCall, HookCalls, PluginError
from session_scheduler.model.bindings import Allocation, Binding, Holding
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod
from session_scheduler.statement import Decision

_log = structlog.get_logger()

HELD_ANNOTATION = "fluence.flux-framework.org/held"
"""What a pod holds, {"uid": the pod's, "plugins": {name: its part}} as JSON: written in the request that binds it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that was not bound to its node as far as is known, and why."""

    task: Task
    node: str
    reason: str
    sent: bool = False
    """Whether the cluster was asked to bind it."""
    held: str | None = None
    """The record of what it holds that the bind was to write; None for none."""
    unknown: bool = False
    """Whether it may have been bound all the same."""
    error: BaseException | None = None
    """What nobody expected: a bug, to be raised once everything is settled."""

    def landed(self, pod: Pod) -> bool:
        """Whether the pod, as the cluster has it, was bound by this very request."""
        here = pod.metadata.uid == self.task.uid and pod.spec.node_name == self.node
        return self.sent and here and self.held in (None, pod.metadata.annotations.get(HELD_ANNOTATION))


_REFUSED = (NotFound, Invalid, Forbidden, TooManyRequests)
"""Answers that leave no doubt: the pod was not bound by this request. A conflict may be with our own, sent before."""


class Binder:
    """Binds through a cluster port, a bounded number of requests at once."""

    def __init__(self, cluster: Cluster, in_flight: int = 64) -> None:
        self._cluster = cluster
        self._slots = asyncio.Semaphore(in_flight)

    async def carry_out(self, decision: Decision, calls: HookCalls) -> list[Failure]:
        """Bind what the decision placed. Returns the tasks that are not known to be bound.

        The plugins still hold their share. Beside evictions nothing is bound: the room is there when those pods ended.
        """
        if decision.evicted:
            reason = f"waits for {len(decision.evicted)} evicted pods to end"
            return [Failure(task, task.node or "", reason) for task in decision.allocated]
        try:
            holds = [(held.plugin, held.holds()) for held in decision.held]
            bindings = [_binding(task, holds) for task in decision.allocated]
        except PluginError as error:
            return [Failure(task, task.node or "", str(error)) for task in decision.allocated]
        problem = await self._prebind(bindings, decision, calls)
        if problem is not None:
            return [Failure(binding.task, binding.node, problem) for binding in bindings]
        answers = await asyncio.gather(*(self._bind(binding) for binding in bindings), return_exceptions=True)
        outcomes = map(_outcome, bindings, answers)
        return [failure for failure in outcomes if failure is not None]

    async def evict(self, task: Task) -> bool:
        """Ask that a bound pod ends. Whether the cluster took it; where not, why is logged."""
        async with self._slots:
            try:
                await self._cluster.evict(task.pod)
            except ClusterError as error:
                _log.warning("eviction refused", pod=task.key, error=str(error))
                return False
        return True

    async def look(self, failure: Failure) -> Failure | None:
        """What became of a bind whose outcome is unknown: None where it was done, else why not, or that it still is."""
        async with self._slots:
            return await self._look(failure)

    async def _look(self, failure: Failure) -> Failure | None:
        asked = failure.task.pod.metadata
        try:
            pod = await self._cluster.get(Pod, asked.namespace, asked.name)
        except NotFound:
            return replace(failure, unknown=False)
        except ClusterError:
            return failure
        return None if failure.landed(pod) else replace(failure, unknown=False)

    async def _prebind(self, bindings: Sequence[Binding], decision: Decision, calls: HookCalls) -> str | None:
        """Why the group must not be bound, or None."""
        for call in calls.functions("prebind"):
            for binding in bindings:
                own = Binding(binding.task, binding.node, binding.holds.get(call.plugin, {}), binding.annotations)
                try:
                    await call.wait(own)
                    _check_annotations(call, own)
                except PluginError as error:
                    return f"{error} (pod {binding.task.key} of group {decision.group.key})"
        return None

    async def _bind(self, binding: Binding) -> Failure | None:
        pod = binding.pod
        async with self._slots:
            try:
                await self._cluster.bind(
                    pod.metadata.namespace,
                    pod.metadata.name,
                    node=binding.node,
                    uid=pod.metadata.uid,
                    resource_version=pod.metadata.resource_version,
                    annotations=binding.annotations,
                )
            except _REFUSED as error:
                return _sent(binding, error)
            except ClusterError as error:
                return await self._look(replace(_sent(binding, error), unknown=True))
        return None


def _sent(binding: Binding, error: BaseException) -> Failure:
    """The failure of a bind that was sent."""
    reason = f"binding to {binding.node} failed: {error}"
    return Failure(binding.task, binding.node, reason, sent=True, held=binding.annotations.get(HELD_ANNOTATION))


def _outcome(binding: Binding, answer: Failure | BaseException | None) -> Failure | None:
    """An error that nobody expected says as little as a lost answer."""
    if isinstance(answer, BaseException):
        return replace(_sent(binding, answer), unknown=True, error=answer)
    return answer


def unexpected(decision: Decision, error: BaseException) -> list[Failure]:
    """The failures where carrying out a decision itself broke off: any of its tasks may be bound."""
    return [
        Failure(task, task.node or "", f"binding failed: {error}", sent=True, unknown=True, error=error)
        for task in decision.allocated
    ]


def _binding(task: Task, holds: Sequence[tuple[str, Mapping[Task, Mapping[str, Any]]]]) -> Binding:
    held = {plugin: own[task] for plugin, own in holds if task in own}
    record = {"uid": task.uid, "plugins": held}
    annotations = {HELD_ANNOTATION: msgspec.json.encode(record, order="sorted").decode()} if held else {}
    return Binding(task, task.node or "", held, annotations)


def _check_annotations(call: HookCall, binding: Binding) -> None:
    for key, value in binding.annotations.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise call.wrong(f"{value!r} is no annotation ({key!r}): annotations are texts")


async def cancel(calls: HookCalls, allocation: Allocation) -> list[PluginError]:
    """Tell every plugin that a task's share is free; all are told, failures are returned."""
    failures = []
    for call in calls.functions("cancel"):
        try:
            await call.wait(allocation)
        except PluginError as error:
            failures.append(error)
    return failures


def holding_of(task: Task, plugin: str) -> Holding:
    """What a bound pod's annotation says that a plugin holds for it.

    Nonsense, and a record that was copied from another pod (its uid tells), count as nothing.
    """
    record = _record(task)
    part = record.plugins.get(plugin) if record is not None and record.uid == task.uid else None
    return Holding(task, task.node or "", part, task.pod.metadata.annotations)


def record_problem(task: Task) -> str | None:
    """Why what a bound pod's annotation says is not believed; None where it is, or says nothing."""
    if HELD_ANNOTATION not in task.pod.metadata.annotations:
        return None
    record = _record(task)
    if record is None:
        return f"pod {task.key}: annotation {HELD_ANNOTATION} is no record of what a pod holds: it is ignored"
    if record.uid != task.uid:
        return f"pod {task.key}: annotation {HELD_ANNOTATION} was written for another pod: it is ignored"
    return None


def _record(task: Task) -> _Record | None:
    try:
        return msgspec.json.decode(task.pod.metadata.annotations.get(HELD_ANNOTATION, "{}"), type=_Record)
    except msgspec.DecodeError:
        return None


class _Record(msgspec.Struct, frozen=True):
    """The annotation's form."""

    uid: str = ""
    plugins: dict[str, Any] = {}
