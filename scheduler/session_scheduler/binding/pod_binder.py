"""One pod's bind through every answer that an API server can give, or fail to give.

An answer that was lost says nothing: the request may have been done, or may still be done later. So the pod is
*touched*: a write that moves its resourceVersion, by which the request was guarded. What the pod is after that, it is
for good. Where not even that gets an answer the failure is `unknown`, and is to be looked at again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from session_scheduler.binding.plan_store import ATTEMPT_ANNOTATION, PlanStore, is_active, new_attempt
from session_scheduler.cluster.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    NotLeading,
    TooManyRequests,
)
from session_scheduler.cluster.port import Cluster
from session_scheduler.framework.bindings import HELD_ANNOTATION, Failure
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod, PodGroup

_TRIES = 4
"""How often a pod is bound anew that turns out to be as free as before."""
_REFUSED = (NotFound, Invalid, Forbidden, TooManyRequests, NotLeading)
"""Answers that leave no doubt: the pod was not bound by this request. A conflict may be with our own, sent before."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A pod to be bound, as it was when that was decided."""

    task: Task
    node: str
    pod: Pod
    """Its uid and resourceVersion guard the request."""
    annotations: Mapping[str, str]
    pod_group: PodGroup | None = None
    """The PodGroup whose plan, `attempt`, this is a part of."""
    attempt: str = ""


def sent(request: Request, error: BaseException) -> Failure:
    """The failure of a bind that was sent."""
    return Failure(
        request.task,
        request.node,
        f"binding to {request.node} failed: {error}",
        request.pod,
        sent=True,
        held=request.annotations.get(HELD_ANNOTATION),
        cause=type(error).__name__,
    )


class PodBinder:
    """Binds pods one by one, `slots` of them at once."""

    def __init__(self, cluster: Cluster, slots: asyncio.Semaphore, plans: PlanStore) -> None:
        self._cluster = cluster
        self._slots = slots
        self._plans = plans

    async def bind(self, request: Request) -> Failure | None:
        """Bind a pod. None where it is bound now, else why not."""
        async with self._slots:
            for left in reversed(range(_TRIES)):
                try:
                    answer = await self._tried(request, last=not left)
                except Exception as error:  # noqa: BLE001 (a bug: it is raised once everything is settled)
                    return replace(sent(request, error), unknown=True, error=error)
                if not isinstance(answer, Request):
                    return answer
                request = answer
        raise AssertionError("unreachable: the last try returns")

    async def _tried(self, request: Request, *, last: bool) -> Failure | Request | None:
        """Bind once: None where it is bound now, why not, or the request to be sent next."""
        error = await self._send(request)
        if error is None:
            return None
        failure = sent(request, error)
        if isinstance(error, _REFUSED):
            return failure
        try:
            pod = await self._as_it_is(request.pod, read=isinstance(error, Conflict))
        except NotFound:
            return failure
        except ClusterError as doubt:
            return replace(failure, unknown=True, doubt=str(doubt))
        if failure.landed(pod):
            return None
        if last or not as_free(pod, request.pod) or not await self._may_go_on(request):
            return failure
        return replace(request, pod=pod)

    async def look(self, failure: Failure) -> Failure | None:
        """Find out what became of a bind whose outcome is unknown: None where it was done."""
        async with self._slots:
            try:
                pod = await self._as_it_is(failure.pod, read=False)
            except NotFound:
                return replace(failure, unknown=False)
            except ClusterError:
                return failure
        return None if failure.landed(pod) else replace(failure, unknown=False)

    async def touch(self, pod: Pod) -> Pod:
        """Make sure that no request that was guarded by this or an older resourceVersion can bind the pod any more.

        Returns the pod as it is then: bound, perhaps, by one that came before. Raises NotFound, ClusterError.
        """
        async with self._slots:
            return await self._as_it_is(pod, read=False)

    async def _send(self, request: Request) -> ClusterError | None:
        metadata = request.pod.metadata
        try:
            await self._cluster.bind(
                metadata.namespace,
                metadata.name,
                node=request.node,
                uid=metadata.uid,
                resource_version=metadata.resource_version,
                annotations=request.annotations,
            )
        except ClusterError as error:
            return error
        return None

    async def _as_it_is(self, pod: Pod, *, read: bool) -> Pod:
        """The pod as it is, for good where it is not only `read`: then whatever is under way for it is void."""
        metadata = pod.metadata
        if not read:
            try:
                return await self._cluster.patch_metadata(
                    pod, annotations={ATTEMPT_ANNOTATION: new_attempt()}, resource_version=metadata.resource_version
                )
            except Conflict:
                pass  # its resourceVersion has moved already
        return await self._cluster.get(Pod, metadata.namespace, metadata.name)

    async def _may_go_on(self, request: Request) -> bool:
        """Whether the plan still says so. Read after the pod: an abort changes the plan before it touches it."""
        if request.pod_group is None:
            return True
        try:
            pod_group = await self._plans.fresh(request.pod_group)
        except ClusterError:
            return False
        return is_active(pod_group, request.attempt)


def as_free(pod: Pod, asked: Pod) -> bool:
    """Whether the pod waits as it did when its place was decided, though its resourceVersion has moved."""
    now, before = pod.metadata, asked.metadata
    same = now.uid == before.uid and now.labels == before.labels and pod.spec == asked.spec
    free = not pod.spec.node_name and now.deletion_timestamp is None
    return same and free and now.resource_version != before.resource_version
