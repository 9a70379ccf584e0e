"""The binding cycle, from a decision to its bound pods: read down from `Binder.carry_out`.

    prebind of all members → the gang's plan, by compare-and-swap → a Binding for each pod → what each answer means

A Binding cannot be taken back. So the binder sends none of a group before every member's `prebind` has succeeded and
the plan of where all of them go is on their PodGroup. When a Binding fails after that, the scheduler places only that
member again, around those that are bound.

A lost answer says nothing: the request may have been done, or may still be done later. So the pod is *touched*
(`plan_store.touch`): a write that moves the resourceVersion which guarded the request. What the pod shows after that is
final. Where even the touch gets no answer, the failure is `unknown`, and `Binder.resolve` asks again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import msgspec
import structlog

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

LEADER_ANNOTATION = "fluence.flux-framework.org/leader"
"""On a Binding: which replica sends it, by which election; an admission policy can compare it with the Lease."""
OF_BINDINGS = frozenset({ATTEMPT_ANNOTATION, HELD_ANNOTATION, LEADER_ANNOTATION})
"""The annotations that a pod gets by being bound."""
_CANCEL_SECONDS = 1.0
"""What `cancel` may take: the share must be free before the next session, which waits for it."""
_NO_USE = "given up, for the pod is being deleted, or somebody else has bound it"
_LONGEST_ATTEMPT = "-" * 36
_BIND_TRIES = 4
"""How often the binder sends the Binding of a pod that turns out to be as free as before."""
_NOMINATION_TRIES = 3
"""Of a write to a pod's status against other writers."""
_REFUSED = (NotFound, Invalid, Forbidden, TooManyRequests, NotLeading)
"""Answers that are final: the pod was not bound by this request. A conflict may be with our own, sent before."""


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


@dataclass(slots=True)
class BindResult:
    """What became of a decision: the tasks that are not known to be bound, and how long each stage took."""

    failures: list[Failure] = field(default_factory=list)
    seconds: dict[Stage, float] = field(default_factory=dict)


class _Timed:
    """Records how long its block takes, however it ends."""

    __slots__ = ("_seconds", "_stage", "_started")

    def __init__(self, seconds: dict[Stage, float], stage: Stage) -> None:
        self._seconds, self._stage, self._started = seconds, stage, perf_counter()

    def __enter__(self) -> None:
        """The time runs from when it was made."""

    def __exit__(self, *_: object) -> None:
        self._seconds[self._stage] = perf_counter() - self._started


class Binder:
    """Binds through a cluster port, a bounded number of requests at once. `token` is the leader's, where there is."""

    def __init__(
        self,
        cluster: Cluster,
        in_flight: int = 64,
        *,
        holder: str = "",
        token: Callable[[], str] = str,
        objects: Objects = lambda kind: {},  # noqa: ARG005 (nothing of any kind)
        tell: Callable[[Pod, str, str], None] = lambda *_: None,
        nominated: Callable[[Task, str], None] = lambda *_: None,
    ) -> None:
        """`objects` is what was seen of a kind: plugins wait for it in `prebind`; `tell` records their events.

        `nominated` is called with the node that a pod's status is about to name.
        """
        self._cluster = cluster
        self._slots = asyncio.Semaphore(in_flight)
        self._token = token
        self._objects = objects
        self._tell = tell
        self._nominated = nominated
        self._asked: dict[str, set[asyncio.Timeout]] = {}
        """By pod uid, while a plugin's `prebind` runs for it: what bounds the wait for an answer."""
        self.plans = PlanStore(cluster, holder, self._slots)

    async def carry_out(self, decision: Decision, calls: HookCalls, swap: PlanSwap | None = None) -> BindResult:
        """Bind what the decision placed; plugins keep the share of the tasks that fail.

        Where the decision evicts pods it binds nothing: the scheduler decides again once those have ended.
        """
        result = BindResult()
        pods = {task: task.pod for task in decision.allocated}  # as they are before any plan is read
        if decision.evicted:
            return _nothing_sent(result, decision, f"waits for {len(decision.evicted)} evicted pods to end")
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
            if len(requests) == 1:  # a pod alone needs no task of its own
                answers: list[Failure | BaseException | None] = [await self.bind(requests[0])]
            else:
                answers = await asyncio.gather(*map(self.bind, requests), return_exceptions=True)
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, BaseException):  # a bug says as little as a lost answer
                result.failures.append(replace(sent(request, answer), unknown=True, error=answer))
            elif answer is not None:
                result.failures.append(answer)
        return result

    # ------------------------------------------------------------------ what is to be bound, with what it holds

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
        for binding in bindings if decision.mutations else ():
            for mutation in decision.mutations.get(binding.task, ()):
                _mutate(binding, mutation, decision)
        return bindings

    def _binding(self, task: Task, held: Mapping[str, Mapping[str, Any]]) -> Binding:
        record = {"uid": task.uid, "plugins": held}
        annotations = {HELD_ANNOTATION: msgspec.json.encode(record, order="sorted").decode()} if held else {}
        return Binding(task, task.node or "", held, self._cluster, self._objects, annotations, self._tell)

    # ------------------------------------------------------------------ prebind

    async def _nominate(self, pods: Mapping[Task, Pod]) -> dict[Task, Pod]:
        """Set `status.nominatedNodeName` of all pods of a group, one of which has to wait.

        An autoscaler then sees that these pods have a place, and a successor tries that node first. A write that fails
        stops no bind. Returns the pods as they are then: that guards their binds.

        Source: kube-scheduler 1.36, NominatedNodeNameForExpectation (pkg/scheduler/schedule_one.go).
        """
        tasks = [task for task in pods if task.node is not None]
        written = await asyncio.gather(*(self._nominate_one(task, task.node or "", pods[task]) for task in tasks))
        return {**pods, **dict(zip(tasks, written, strict=True))}

    async def _nominate_one(self, task: Task, node: str, pod: Pod) -> Pod:
        if task.node != node:  # the pod is gone, or another scheduler bound it, since this was started
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
                if not as_free(fresh, known):  # the bind finds out what has changed
                    break
                known = fresh
            raise Conflict(f"pod {task.key} is written by others")
        except ClusterError as error:
            _log.warning("the node that a pod is to be bound to is not written", pod=task.key, error=str(error))
            return pod

    async def _prebind(self, prebinds: Iterable[tuple[PrebindCall, Sequence[Binding]]], decision: Decision) -> None:
        """Ask every plugin in turn about all members at once. Raises PluginError, naming the pod that fails."""
        for prebind, bindings in prebinds:
            asked = [self._prebound(prebind, own, decision) for own in bindings]
            if len(asked) == 1:
                await asked[0]
                continue
            try:
                async with asyncio.TaskGroup() as members:
                    for one in asked:
                        members.create_task(one)
            except BaseExceptionGroup as errors:  # the first that failed; the others were cancelled
                raise errors.exceptions[0] from errors.exceptions[0].__cause__

    async def _prebound(self, prebind: PrebindCall, own: Binding, decision: Decision) -> None:
        call, patience = prebind.call, prebind.patience
        limits = self._asked[own.task.uid] = set()
        try:
            if _is_of_no_use(own):
                raise call.wrong(_NO_USE)
            await (call.wait(own, limits=limits) if patience is None
                   else call.wait(own, patience=patience, limits=limits))  # fmt: skip
            for key, value in own.annotations.items():
                if not isinstance(key, str) or not isinstance(value, str):
                    raise call.wrong(f"{value!r} is no annotation ({key!r}): annotations are texts")
        except PluginError as error:
            cut_short = isinstance(error.__cause__, TimeoutError) and _is_of_no_use(own)
            raise _of_pod(error, own, decision, _NO_USE if cut_short else error.problem) from error.__cause__
        finally:
            del self._asked[own.task.uid]

    def ends(self, uid: str) -> None:
        """A pod is to end, or is gone: cut short what its `prebind` waits for."""
        for limit in self._asked.get(uid, ()):
            if not limit.expired():
                limit.reschedule(0.0)

    # ------------------------------------------------------------------ the plan

    def _request(self, binding: Binding, pod: Pod) -> Request:
        """Raises Invalid where the annotations are too large.

        The API server does not check a Binding's annotations, and then refuses every later change of the pod.
        """
        token = self._token()
        annotations = {**binding.annotations, LEADER_ANNOTATION: token} if token else binding.annotations
        longest = {**pod.metadata.annotations, **annotations, ATTEMPT_ANNOTATION: _LONGEST_ATTEMPT}
        try:
            check_annotations(longest, "metadata.annotations")
        except FieldError as error:
            raise Invalid(f"pod {binding.task.key}: {error}") from None
        return Request(binding.task, binding.node, pod, annotations)

    async def _planned(self, requests: Sequence[Request], bindings: Sequence[Binding], swap: PlanSwap) -> list[Request]:
        """The requests as parts of the gang's plan, which is in force then. Raises ClusterError: bind nothing."""
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

    # ------------------------------------------------------------------ the Binding, and what its answer means

    async def bind(self, request: Request) -> Failure | None:
        """Bind a pod, trying again while it is as free as before. None where it is bound now, else why not."""
        async with self._slots:
            for left in reversed(range(_BIND_TRIES)):
                try:
                    error = await self._send(request)
                    if error is None:
                        return None
                    failure = sent(request, error)
                    if isinstance(error, _REFUSED):
                        return failure
                    is_lost = not isinstance(error, Conflict)
                    pod = await (touch(self._cluster, request.pod) if is_lost else self._read(request.pod))
                    if failure.landed(pod):
                        return None
                    if not left or not as_free(pod, request.pod) or not await self._may_go_on(request):
                        return failure
                except NotFound:
                    return failure
                except ClusterError as unanswered:
                    return replace(failure, unknown=True, why_unknown=str(unanswered))
                except Exception as bug:  # noqa: BLE001 (it is raised once the decision is completed)
                    return replace(sent(request, bug), unknown=True, error=bug)
                request = replace(request, pod=pod)
        raise AssertionError("unreachable: the last try returns")

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

    async def _read(self, pod: Pod) -> Pod:
        return await self._cluster.get(Pod, pod.metadata.namespace, pod.metadata.name)

    async def _may_go_on(self, request: Request) -> bool:
        """Whether the plan still says so. Read after the pod: an abort changes the plan before it touches it."""
        if request.pod_group is None:
            return True
        try:
            pod_group = await self.plans.fresh(request.pod_group)
        except ClusterError:
            return False
        return is_active(pod_group, request.attempt)

    async def resolve(self, failure: Failure) -> Failure | None:
        """Find out what became of a bind with unknown outcome.

        None where the pod is bound, else why not; the failure as it is where the cluster still does not say.
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
        """Evict a bound pod. Whether the cluster accepted it; where not, the log says why."""
        return await self._end(task, self._cluster.evict)

    async def evict_all(self, tasks: Sequence[Task], *, delete: bool = False) -> None:
        """Evict these bound pods; with `delete` whatever their disruption budgets say."""
        request = self._cluster.delete if delete else self._cluster.evict
        await asyncio.gather(*(self._end(task, request) for task in tasks))

    async def _end(self, task: Task, request: Callable[[Pod], Awaitable[None]]) -> bool:
        async with self._slots:
            try:
                await request(task.pod)
            except ClusterError as error:
                _log.warning("a pod is not ended", pod=task.key, error=str(error))
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
    """Whether the pod waits as it did when its place was decided, though its resourceVersion has moved."""
    now, before = pod.metadata, asked.metadata
    same = now.uid == before.uid and now.labels == before.labels and pod.spec == asked.spec
    free = not pod.spec.node_name and now.deletion_timestamp is None
    return same and free and now.resource_version != before.resource_version


def _nothing_sent(result: BindResult, decision: Decision, reason: str) -> BindResult:
    result.failures = [Failure(task, task.node or "", reason, task.pod) for task in decision.allocated]
    return result


def unexpected(decision: Decision, error: BaseException) -> BindResult:
    """The result where carrying out a decision itself broke off: any of its tasks may be bound."""
    return BindResult([
        Failure(task, task.node or "", f"binding failed: {error}", task.pod, sent=True, unknown=True, error=error)
        for task in decision.allocated
    ])  # fmt: skip


def _holds(held: Held) -> Mapping[Task, Mapping[str, Any]]:
    """What a plugin's placement holds for each task, read once. Raises PluginError, also where it is not JSON."""

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
        wrong = call.wrong(f"the annotation {taken[0]!r} is the core's own")
        raise _of_pod(wrong, binding, decision, wrong.problem)
    binding.annotations.update(own)


def _needed(
    bindings: Sequence[Binding], decision: Decision, calls: HookCalls
) -> list[tuple[PrebindCall, list[Binding]]]:
    """The plugins whose `prebind` is needed, in turn, each with the members' bindings as it sees them.

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


def _is_of_no_use(binding: Binding) -> bool:
    """Whether the pod is gone, is to go, or is bound elsewhere: the cluster refuses to bind it."""
    task = binding.task
    return task.node != binding.node or task.pod.metadata.deletion_timestamp is not None


def _of_pod(error: PluginError, binding: Binding, decision: Decision, problem: str) -> PluginError:
    """The error with the pod of which the plugin was asked."""
    cause = error.__cause__
    if decision.group.single and isinstance(cause, AttemptError):
        return error
    where = f"(pod {binding.task.key} of group {decision.group.key})"
    return PluginError(error.plugin, error.hook, f"{problem} {where}", cause)


async def cancel(calls: HookCalls, allocation: Allocation) -> list[PluginError]:
    """Call every plugin's `cancel`: a task's share is free. All are called; returns those that failed."""
    failures = []
    for call in calls.functions("cancel"):
        try:
            await call.wait(allocation, patience=_CANCEL_SECONDS)
        except PluginError as error:
            failures.append(error)
    return failures
