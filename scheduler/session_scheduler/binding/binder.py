"""The binding cycle, from a decision to its bound pods: read down from `Binder.carry_out`.

    prebind of all members → the gang's plan, by compare-and-swap → a Binding for each pod → its response

A Binding is irreversible. So the binder sends none for a group before every member's `prebind` has succeeded and the
plan with all members' nodes is on their PodGroup. If a Binding fails after that, the scheduler places that member again
and keeps the bound ones.

After a lost response the bind may have succeeded, or may still succeed. So the binder *touches* the pod
(`plan_store.touch`): a write that changes the resourceVersion which guarded the request. The pod's state after that is
final. If the touch gets no response either, the failure is `unknown`, and `Binder.resolve` retries later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from session_scheduler.binding.plan_store import PlanStore, PlanSwap, touch
from session_scheduler.cluster.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    NotLeading,
    TooManyRequests,
)
from session_scheduler.cluster.extender_client import ExtenderClient, ExtenderError
from session_scheduler.cluster.port import Cluster
from session_scheduler.errors import AttemptError
from session_scheduler.framework.bindings import HELD_ANNOTATION, Allocation, Binding, Failure, Objects
from session_scheduler.framework.callback_runner import Mutation
from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError, PrebindCall
from session_scheduler.framework.observer import Stage
from session_scheduler.framework.statement import Decision, Held
from session_scheduler.model.field_checks import FieldError, check_annotations
from session_scheduler.model.gang_plan import ATTEMPT_ANNOTATION, PlannedPod, is_active
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod, PodGroup

_log = structlog.get_logger(__name__)
_CHECK: Final = "a check of the binding"

LEADER_ANNOTATION = "fluence.flux-framework.org/leader"
"""On a Binding: the replica and its term of leadership, so that an admission policy can compare it with the Lease."""
OF_BINDINGS = frozenset({ATTEMPT_ANNOTATION, HELD_ANNOTATION, LEADER_ANNOTATION})
"""The annotations that a bind adds to a pod."""
_CANCEL_SECONDS = 1.0
"""The timeout of `cancel`: the next session waits until the allocation is free."""
_CANCELLED = "cancelled: the pod is being deleted, or another scheduler has bound it"
_LONGEST_ATTEMPT = "-" * 36
_BIND_TRIES = 4
"""Attempts to bind a pod that is still unbound and unchanged."""
_NOMINATION_TRIES = 3
"""Attempts to write a pod's status against concurrent writers."""
_REJECTED = (NotFound, Invalid, Forbidden, TooManyRequests, NotLeading)
"""Final responses: this request did not bind the pod. A conflict may be with our own earlier request."""


class Request(msgspec.Struct, frozen=True, eq=False):
    """A pod to bind, as it was at the time of the decision."""

    task: Task
    node: str
    pod: Pod
    """Its uid and resourceVersion guard the bind."""
    annotations: Mapping[str, str]
    pod_group: PodGroup | None = None
    """The PodGroup whose plan `attempt` contains this bind."""
    attempt: str = ""
    checks: Sequence[Callable[[], str | None]] = ()
    """Called directly before each attempt; a reason stops it."""


class BindResult(msgspec.Struct):
    """The result of a decision: the tasks that are not known to be bound, and the duration of each stage."""

    failures: list[Failure] = msgspec.field(default_factory=list)
    seconds: dict[Stage, float] = msgspec.field(default_factory=dict)


class _Timed:
    """Records the duration of its block."""

    __slots__ = ("_seconds", "_stage", "_started")

    def __init__(self, seconds: dict[Stage, float], stage: Stage) -> None:
        self._seconds, self._stage, self._started = seconds, stage, perf_counter()

    def __enter__(self) -> None:
        """The constructor starts the time."""

    def __exit__(self, *_: object) -> None:
        self._seconds[self._stage] = perf_counter() - self._started


class Binder:
    """Binds through a cluster port with a limited number of concurrent requests. `token` identifies the leader."""

    def __init__(
        self,
        cluster: Cluster,
        in_flight: int = 64,
        *,
        holder: str = "",
        token: Callable[[], str] = str,
        objects: Objects = lambda kind: {},  # noqa: ARG005 (no objects)
        record_event: Callable[[Pod, str, str], None] = lambda *_: None,
        nominated: Callable[[Task, str], None] = lambda *_: None,
        extender: Callable[[Pod], ExtenderClient | None] | None = None,
        namespace: str = "kube-system",
        serves: Callable[[str], bool] | None = None,
    ) -> None:
        """`objects` returns the known objects of a kind; `record_event` records events of plugins.

        `nominated` is called with the node before it is written to a pod's `nominatedNodeName`. `extender` returns the
        extender that binds a pod. `namespace` is the scheduler's. The binder calls `serves` with the node directly
        before each Binding.
        """
        self._cluster = cluster
        self._slots = asyncio.Semaphore(in_flight)
        self._token = token
        self._objects = objects
        self._record_event = record_event
        self._nominated = nominated
        self._extender = extender
        self._serves = serves
        self._asked: dict[str, set[asyncio.Timeout]] = {}
        """By pod uid, while a plugin's `prebind` runs for it: the timeouts to cut short."""
        self.plans = PlanStore(cluster, holder, self._slots, namespace)

    async def carry_out(self, decision: Decision, calls: HookCalls, swap: PlanSwap | None = None) -> BindResult:
        """Bind the placed tasks; plugins keep the allocations of those that fail.

        A decision that evicts pods binds nothing: the scheduler decides again after they have terminated.
        """
        result = BindResult()
        pods = {task: task.pod for task in decision.allocated}  # before any plan is read
        if decision.evicted:
            return _nothing_sent(result, decision, f"waiting for {len(decision.evicted)} evicted pods to terminate")
        try:
            bindings = self._bindings(decision)
            prebinds = _needed(bindings, decision, calls)
            if prebinds:
                with _Timed(result.seconds, "prebind"):
                    if any(prebind.waits for prebind, _ in prebinds):
                        pods = await self._nominate(pods)
                    await self._prebind(prebinds, decision)
            requests = [self._request(binding, pods[binding.task]) for binding in bindings]
            if swap is not None:
                with _Timed(result.seconds, "plan"):
                    requests = await self._planned(requests, bindings, swap)
        except (PluginError, ClusterError) as error:
            if swap is not None and isinstance(error, ClusterError):
                swap.error = error
            return _nothing_sent(result, decision, str(error))
        with _Timed(result.seconds, "bind"):
            if len(requests) == 1:  # no task for a single pod
                answers: list[Failure | BaseException | None] = [await self.bind(requests[0])]
            else:
                answers = await asyncio.gather(*map(self.bind, requests), return_exceptions=True)
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, BaseException):  # a bug has an unknown outcome, too
                result.failures.append(replace(sent(request, answer), unknown=True, error=answer))
            elif answer is not None:
                result.failures.append(answer)
        return result

    # ------------------------------------------------------------------ bindings with allocations

    def _bindings(self, decision: Decision) -> list[Binding]:
        """Raises PluginError."""
        if decision.holds is not None:
            bindings = [self._binding(task, decision.holds[task]) for task in decision.allocated]
        else:
            holds = [(held.plugin, _holds(held)) for held in decision.held]
            bindings = [
                self._binding(task, {plugin: own[task] for plugin, own in holds if task in own})
                for task in decision.allocated
            ]
            decision.held.clear()  # decisions are kept until their session has ended
        for binding in bindings if decision.mutations else ():
            for mutation in decision.mutations.get(binding.task, ()):
                _mutate(binding, mutation, decision)
        return bindings

    def _binding(self, task: Task, held: Mapping[str, Mapping[str, Any]]) -> Binding:
        record = {"uid": task.uid, "plugins": held}
        annotations = {HELD_ANNOTATION: msgspec.json.encode(record, order="sorted").decode()} if held else {}
        return Binding(task, task.node or "", held, self._cluster, self._objects, annotations, self._record_event)

    # ------------------------------------------------------------------ prebind

    async def _nominate(self, pods: Mapping[Task, Pod]) -> dict[Task, Pod]:
        """Set `status.nominatedNodeName` of all pods of a group before a `prebind` that waits.

        An autoscaler then knows that these pods have nodes, and a successor tries those nodes first. A failed write
        stops no bind. Returns the updated pods, whose versions guard the binds.

        Source: kube-scheduler 1.36, NominatedNodeNameForExpectation (pkg/scheduler/schedule_one.go).
        """
        tasks = [task for task in pods if task.node is not None]
        written = await asyncio.gather(*(self._nominate_one(task, task.node or "", pods[task]) for task in tasks))
        return {**pods, **dict(zip(tasks, written, strict=True))}

    async def _nominate_one(self, task: Task, node: str, pod: Pod) -> Pod:
        if task.node != node:  # the pod was deleted or bound by another scheduler meanwhile
            return pod
        self._nominated(task, node)
        if pod.status.nominated_node_name == node:
            return pod
        known = pod
        try:
            for _ in range(_NOMINATION_TRIES):
                version = known.metadata.resource_version
                try:
                    async with self._slots:
                        return await self._cluster.patch_status(
                            known, nominated_node_name=node, resource_version=version
                        )
                except Conflict:
                    async with self._slots:
                        fresh = await self._cluster.get(Pod, pod.metadata.namespace, pod.metadata.name)
                if not as_free(fresh, known):  # the bind will fail
                    break
                known = fresh
            raise Conflict(f"other clients keep updating pod {task.key}")
        except ClusterError as error:
            _log.warning("setting nominatedNodeName failed", pod=task.key, error=str(error))
            return pod

    async def _prebind(self, prebinds: Iterable[tuple[PrebindCall, Sequence[Binding]]], decision: Decision) -> None:
        """Call one plugin after the other, for all members at once. Raises PluginError with the failed pod."""
        for prebind, bindings in prebinds:
            asked = [self._prebound(prebind, own, decision) for own in bindings]
            if len(asked) == 1:
                await asked[0]
                continue
            try:
                async with asyncio.TaskGroup() as members:
                    for one in asked:
                        members.create_task(one)
            except BaseExceptionGroup as errors:  # the first error; it cancelled the others
                raise errors.exceptions[0] from errors.exceptions[0].__cause__

    async def _prebound(self, prebind: PrebindCall, own: Binding, decision: Decision) -> None:
        call, patience, known = prebind.call, prebind.patience, len(own.checks)
        limits = self._asked[own.task.uid] = set()
        try:
            if _cannot_bind(own):
                raise call.wrong(_CANCELLED)
            await (call.wait(own, limits=limits) if patience is None
                   else call.wait(own, patience=patience, limits=limits))  # fmt: skip
            for key, value in own.annotations.items():
                if not isinstance(key, str) or not isinstance(value, str):
                    raise call.wrong(f"expected a string as annotation {key!r}, got {value!r}")
            own.checks[known:] = [HookCall(call.plugin, _CHECK, check, call.budget) for check in own.checks[known:]]
        except PluginError as error:
            cut_short = isinstance(error.__cause__, TimeoutError) and _cannot_bind(own)
            raise _of_pod(error, own, decision, _CANCELLED if cut_short else error.problem) from error.__cause__
        finally:
            del self._asked[own.task.uid]

    def ends(self, uid: str) -> None:
        """A pod is being deleted, or is gone: cut the wait of its `prebind` short."""
        for limit in self._asked.get(uid, ()):
            if not limit.expired():
                limit.reschedule(0.0)

    # ------------------------------------------------------------------ the plan

    def _request(self, binding: Binding, pod: Pod) -> Request:
        """Raises Invalid for annotations that are too large.

        The API server does not validate a Binding's annotations, and then rejects every later update of the pod.
        """
        token = self._token()
        annotations = {**binding.annotations, LEADER_ANNOTATION: token} if token else binding.annotations
        longest = {**pod.metadata.annotations, **annotations, ATTEMPT_ANNOTATION: _LONGEST_ATTEMPT}
        try:
            check_annotations(longest, "metadata.annotations")
        except FieldError as error:
            raise Invalid(f"pod {binding.task.key}: {error}") from None
        return Request(binding.task, binding.node, pod, annotations, checks=binding.checks)

    async def _planned(self, requests: Sequence[Request], bindings: Sequence[Binding], swap: PlanSwap) -> list[Request]:
        """Put the gang's plan in force. Returns its requests. Raises ClusterError: then bind nothing."""
        planned = {one.task.uid: PlannedPod.of(one.task.name, one.node, one.holds) for one in bindings}
        pod_group, touched = await self.plans.put_in_force(swap, planned, [request.pod for request in requests])
        return [
            replace(
                request,
                pod=touched.get(request.task.uid, request.pod),
                annotations={**request.annotations, ATTEMPT_ANNOTATION: swap.attempt},
                pod_group=pod_group,
                attempt=swap.attempt,
            )
            for request in requests
        ]

    # ------------------------------------------------------------------ the Binding and its response

    async def bind(self, request: Request) -> Failure | None:
        """Bind a pod; retry while it is unbound and unchanged. Returns None if it is bound, else the failure."""
        async with self._slots:
            client = self._extender(request.pod) if self._extender is not None else None
            for left in reversed(range(_BIND_TRIES)):
                if (reason := self._stopped(request)) is not None:
                    return Failure(request.task, request.node, reason, request.pod)
                try:
                    if client is not None:
                        answer = await self._bind_by(client, request)
                        if not isinstance(answer, Request):
                            return answer
                        request, client = answer, None
                    error = await self._send(request)
                    if error is None:
                        return None
                    failure = sent(request, error)
                    if isinstance(error, _REJECTED):
                        return failure
                    is_lost = not isinstance(error, Conflict)
                    pod = await (touch(self._cluster, request.pod) if is_lost else self._read(request.pod))
                    if failure.landed(pod):
                        return None
                    if not left or not as_free(pod, request.pod) or not await self._is_planned(request):
                        return failure
                except NotFound:
                    return failure
                except ClusterError as unanswered:
                    return replace(failure, unknown=True, why_unknown=str(unanswered))
                except Exception as bug:  # noqa: BLE001 (raised when the decision is completed)
                    return replace(sent(request, bug), unknown=True, error=bug)
                request = replace(request, pod=pod)
        raise AssertionError("unreachable: the last attempt returns")

    def _stopped(self, request: Request) -> str | None:
        """Why the pod must not be bound after all."""
        if self._serves is not None and not self._serves(request.node):
            return f"node {request.node} has left the scheduler's partition"
        for check in request.checks:
            try:
                reason = check()
            except PluginError as error:
                return str(error)
            if reason is not None:
                return str(reason)
        return None

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

    async def _bind_by(self, client: ExtenderClient, request: Request) -> Request | Failure | None:
        """Let an extender bind the pod. Returns the request to send if that failed and the extender is ignorable.

        An extender adds no annotations, so they are written first. Its Binding has no resourceVersion: it may bind
        the pod later, which then looks like the bind of another scheduler.
        """
        written = await self._write_annotations(request)
        if not isinstance(written, Request):
            return written
        problem: ExtenderError | None = None
        try:
            await client.bind(written.pod, request.node)
        except ExtenderError as error:
            if client.config.ignorable:
                _log.info(
                    "skipping an ignorable extender", extender=client.name, pod=request.task.key, error=str(error)
                )
                return written
            problem = error
        failure = sent(written, problem or ExtenderError(f"extender {client.name} has not bound the pod"))
        try:
            pod = await self._read(request.pod)
        except NotFound:
            return failure
        except ClusterError as unanswered:
            return replace(failure, unknown=True, why_unknown=str(unanswered))
        if failure.landed(pod):
            return None
        if problem is not None:
            return failure
        return replace(failure, unknown=True, why_unknown="the extender may still bind the pod")

    async def _write_annotations(self, request: Request) -> Request | Failure | None:
        """Write the annotations of a bind. Returns the request with the new pod, a failure, or None if it is bound."""
        for left in reversed(range(_BIND_TRIES)):
            try:
                version = request.pod.metadata.resource_version
                pod = await self._cluster.patch_metadata(
                    request.pod, annotations=dict(request.annotations), resource_version=version
                )
            except ClusterError as error:
                failure = sent(request, error)
                try:
                    pod = await self._read(request.pod)
                except ClusterError:
                    return failure
                if failure.landed(pod):
                    return None
                if not left or not as_free(pod, request.pod) or not await self._is_planned(request):
                    return failure
                request = replace(request, pod=pod)
            else:
                return replace(request, pod=pod)
        raise AssertionError("unreachable: the last attempt returns")

    async def _read(self, pod: Pod) -> Pod:
        return await self._cluster.get(Pod, pod.metadata.namespace, pod.metadata.name)

    async def _is_planned(self, request: Request) -> bool:
        """Whether the plan is still active. Read it after the pod: an abort changes the plan before the pod."""
        if request.pod_group is None:
            return True
        try:
            pod_group = await self.plans.fresh(request.pod_group)
        except ClusterError:
            return False
        return is_active(pod_group, request.attempt)

    async def resolve(self, failure: Failure) -> Failure | None:
        """Find the outcome of an ambiguous bind.

        Returns None if the pod is bound, a failure if it is not, and the same failure if the outcome is still unknown.
        """
        async with self._slots:
            try:
                pod = await touch(self._cluster, failure.pod)
            except NotFound:
                return replace(failure, unknown=False)
            except ClusterError:
                return failure
        return None if failure.landed(pod) else replace(failure, unknown=False)

    # ------------------------------------------------------------------ evictions

    async def evict(self, task: Task) -> bool:
        """Evict a bound pod. Returns whether the cluster accepted it; logs an error."""
        return await self._remove(task, self._cluster.evict)

    async def evict_all(self, tasks: Sequence[Task], *, delete: bool = False) -> None:
        """Evict these bound pods; `delete` ignores their disruption budgets."""
        request = self._cluster.delete if delete else self._cluster.evict
        await asyncio.gather(*(self._remove(task, request) for task in tasks))

    async def _remove(self, task: Task, request: Callable[[Pod], Awaitable[None]]) -> bool:
        async with self._slots:
            try:
                await request(task.pod)
            except ClusterError as error:
                _log.warning("evicting a pod failed", pod=task.key, error=str(error))
                return False
        return True


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


def as_free(pod: Pod, asked: Pod) -> bool:
    """Whether the pod is unbound and unchanged since the decision, though its resourceVersion has changed."""
    now, before = pod.metadata, asked.metadata
    same = now.uid == before.uid and now.labels == before.labels and pod.spec == asked.spec
    free = not pod.spec.node_name and now.deletion_timestamp is None
    return same and free and now.resource_version != before.resource_version


def _nothing_sent(result: BindResult, decision: Decision, reason: str) -> BindResult:
    result.failures = [Failure(task, task.node or "", reason, task.pod) for task in decision.allocated]
    return result


def unexpected(decision: Decision, error: BaseException) -> BindResult:
    """The result if carrying out a decision raised: any of its tasks may be bound."""
    return BindResult([
        Failure(task, task.node or "", f"binding failed: {error}", task.pod, sent=True, unknown=True, error=error)
        for task in decision.allocated
    ])  # fmt: skip


def _holds(held: Held) -> Mapping[Task, Mapping[str, Any]]:
    """The allocations of a plugin's placement by task. Raises PluginError, including when they are not JSON."""

    def read() -> dict[Task, dict[str, Any]]:
        found = {task: dict(own) for task, own in held.placement.holds.items()}
        msgspec.json.encode(list(found.values()))
        return found

    answer: dict[Task, dict[str, Any]] = HookCall(held.plugin, "place_group", read, held.budget)()
    return answer


def _mutate(binding: Binding, mutation: Mutation, decision: Decision) -> None:
    """Add a plugin's annotations to a binding. Raises PluginError."""
    own, call = mutation.annotations, mutation.call
    try:
        check_annotations(own, "annotations")
    except FieldError as error:
        wrong = call.wrong(str(error))
        raise _of_pod(wrong, binding, decision, wrong.problem) from error
    if taken := sorted(OF_BINDINGS.intersection(own)):
        wrong = call.wrong(f"the annotation {taken[0]!r} is reserved")
        raise _of_pod(wrong, binding, decision, wrong.problem)
    binding.annotations.update(own)


def _needed(
    bindings: Sequence[Binding], decision: Decision, calls: HookCalls
) -> list[tuple[PrebindCall, list[Binding]]]:
    """The plugins whose `prebind` is needed, in order, each with its view of the members' bindings.

    Raises PluginError.
    """
    found = []
    for prebind in calls.prebinds:
        asked = []
        for binding in bindings:
            plugin = prebind.call.plugin
            own = replace(binding, holds=binding.holds.get(plugin, {})) if binding.holds else binding
            try:
                if prebind.is_needed(own):
                    asked.append(own)
            except PluginError as error:
                raise _of_pod(error, own, decision, error.problem) from error.__cause__
        if asked:
            found.append((prebind, asked))
    return found


def _cannot_bind(binding: Binding) -> bool:
    """Whether the pod is gone, is being deleted, or is on another node: the cluster would reject the bind."""
    task = binding.task
    return task.node != binding.node or task.pod.metadata.deletion_timestamp is not None


def _of_pod(error: PluginError, binding: Binding, decision: Decision, problem: str) -> PluginError:
    """The error with the pod's name."""
    cause = error.__cause__
    if decision.group.single and isinstance(cause, AttemptError):
        return error
    where = f"(pod {binding.task.key} of group {decision.group.key})"
    return PluginError(error.plugin, error.hook, f"{problem} {where}", cause)


async def cancel(calls: Iterable[HookCall], allocation: Allocation) -> list[PluginError]:
    """Call these plugins' `cancel` to free a task's allocation. Returns the errors."""
    failures = []
    for call in calls:
        try:
            await call.wait(allocation, patience=_CANCEL_SECONDS)
        except PluginError as error:
            failures.append(error)
    return failures
