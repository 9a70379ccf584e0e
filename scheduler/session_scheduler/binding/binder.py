"""Carries decisions out: prebind for all members, the gang's plan, then all binds, many at once.

A binding cannot be taken back. So no bind of a group starts before every member's `prebind` has succeeded and the plan
of where they all go is written on their PodGroup; when a bind fails after that, only that member is placed again,
around those that are bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import msgspec
import structlog

from session_scheduler.binding.nomination import Announcer
from session_scheduler.binding.plan_store import (
    ATTEMPT_ANNOTATION,
    Plan,
    PlannedPod,
    PlanStore,
    new_attempt,
)
from session_scheduler.binding.pod_binder import PodBinder, Request, sent
from session_scheduler.cluster.errors import ClusterError, Conflict, Invalid, NotFound
from session_scheduler.cluster.port import Cluster
from session_scheduler.errors import AttemptError
from session_scheduler.framework.bindings import HELD_ANNOTATION, Allocation, Binding, Failure, Holding, Objects
from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError, PrebindCall
from session_scheduler.framework.observer import Stage
from session_scheduler.framework.statement import Decision, Mutation
from session_scheduler.model.field_checks import FieldError, check_annotations
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod, PodGroup

_log = structlog.get_logger(__name__)

LEADER_ANNOTATION = "fluence.flux-framework.org/leader"
"""On a Binding: which replica sends it, by which election; an admission policy can compare it with the Lease."""
_CANCEL_SECONDS = 1.0
"""What `cancel` may take: the share must be free before the next session, which waits for it."""
_NO_USE = "given up, for the pod is being deleted, or somebody else has bound it"
_LONGEST_ATTEMPT = "-" * 36
OF_BINDINGS = frozenset({ATTEMPT_ANNOTATION, HELD_ANNOTATION, LEADER_ANNOTATION})
"""The annotations that a pod gets by being bound."""


@dataclass(slots=True)
class Planning:
    """What the binding of a gang that has not started yet must agree with: the plan on its PodGroup."""

    pod_group: PodGroup
    previous: Plan | None = None
    """The plan that the PodGroup shows."""
    resumed: bool = False
    """Whether `previous` itself is carried out, instead of being replaced."""
    bound: Mapping[str, PlannedPod] = field(default_factory=dict)
    """By uid: the members that are bound already, of this start."""
    others: Sequence[Pod] = ()
    """The pods of `previous` that are neither bound nor to be bound now."""
    attempt: str = field(default_factory=new_attempt)
    written: PodGroup | None = None
    """The PodGroup with the plan, once it is written."""
    error: ClusterError | None = None
    """Why it could not be written."""
    settled: bool = False
    """Whether the plan stands, and nothing can be bound by the one before it any more."""


def _untimed(stage: Stage, seconds: float) -> None:
    """Do nothing."""


def _untold(pod: Pod, reason: str, note: str) -> None:
    """Do nothing."""


class _Timing:
    """Tells how long its block took, however it ended."""

    __slots__ = ("_name", "_started", "_tell")

    def __init__(self, name: Stage, tell: Callable[[Stage, float], None]) -> None:
        self._name = name
        self._tell = tell
        self._started = perf_counter()

    def __enter__(self) -> None:
        """The time runs from when it was made."""

    def __exit__(self, *_: object) -> None:
        self._tell(self._name, perf_counter() - self._started)


class Binder:
    """Binds through a cluster port, a bounded number of requests at once. `token` is the leader's, where there is."""

    def __init__(
        self,
        cluster: Cluster,
        in_flight: int = 64,
        *,
        holder: str = "",
        token: Callable[[], str] = str,
        timed: Callable[[Stage, float], None] = _untimed,
        objects: Objects = lambda kind: {},  # noqa: ARG005 (nothing of any kind)
        tell: Callable[[Pod, str, str], None] = _untold,
        nominated: Callable[[Task, str], None] = lambda task, node: None,  # noqa: ARG005
    ) -> None:
        """`objects` is what was seen of a kind: plugins wait for it in `prebind`; `tell` is what they say of a pod.

        `nominated` hears of the node that a pod's status is about to name.
        """
        self._cluster = cluster
        self._slots = asyncio.Semaphore(in_flight)
        self._token = token
        self._timed = timed
        self._objects = objects
        self._tell = tell
        self._asked: dict[str, set[asyncio.Timeout]] = {}
        """By pod uid, where a plugin is asked about it before it is bound: what bounds the wait for an answer."""
        self.plans = PlanStore(cluster, holder, self._slots)
        self.pods = PodBinder(cluster, self._slots, self.plans)
        self._announcer = Announcer(cluster, self._slots, nominated)

    async def carry_out(self, decision: Decision, calls: HookCalls, planning: Planning | None = None) -> list[Failure]:
        """Bind what the decision placed. Returns the tasks that are not known to be bound.

        The plugins still hold their share. Beside evictions nothing is bound: the room is there when those pods ended.
        """
        pods = {task: task.pod for task in decision.allocated}  # as they are before any plan is read
        if decision.evicted:
            return _failed(decision, f"waits for {len(decision.evicted)} evicted pods to end")
        try:
            bindings = self._bindings(decision)
            prebinds = _needed(bindings, decision, calls)
            if prebinds:
                with self._stage("prebind"):
                    if any(prebind.waits for prebind, _ in prebinds):
                        pods = await self._announcer.announce(pods)
                    await self._prebind(prebinds, decision)
            requests = [self._request(binding, pods[binding.task]) for binding in bindings]
            for request in requests:
                _check_size(request)
            if planning is not None:
                with self._stage("plan"):
                    requests = await self._planned(requests, bindings, planning)
        except (PluginError, ClusterError) as error:
            if planning is not None and isinstance(error, ClusterError):
                planning.error = error
            return _failed(decision, str(error))
        with self._stage("bind"):
            answers = await self._bound(requests)
        outcomes = map(_outcome, requests, answers)
        return [failure for failure in outcomes if failure is not None]

    async def _bound(self, requests: Sequence[Request]) -> list[Failure | BaseException | None]:
        """Each bind's answer."""
        if len(requests) == 1:  # a pod alone needs no task of its own
            return [await self.pods.bind(requests[0])]
        return await asyncio.gather(*map(self.pods.bind, requests), return_exceptions=True)

    def ends(self, uid: str) -> None:
        """A pod is to end, or is gone: what plugins wait for before it is bound is of no use any more."""
        for limit in self._asked.get(uid, ()):
            if not limit.expired():
                limit.reschedule(0.0)

    def _stage(self, name: Stage) -> _Timing:
        return _Timing(name, self._timed)

    async def evict(self, task: Task) -> bool:
        """Ask that a bound pod ends. Whether the cluster took it; where not, why is logged."""
        return await self._end(task, self._cluster.evict)

    async def evict_all(self, tasks: Sequence[Task], *, delete: bool = False) -> None:
        """Ask that these bound pods end; with `delete` whatever their disruption budgets say."""
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

    async def look(self, failure: Failure) -> Failure | None:
        """What became of a bind whose outcome is unknown: None where it was done, else why not, or that it still is."""
        return await self.pods.look(failure)

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
            _check_annotations(call, own)
        except PluginError as error:
            cut_short = isinstance(error.__cause__, TimeoutError) and _is_of_no_use(own)
            raise _of_pod(error, own, decision, _NO_USE if cut_short else error.problem) from error.__cause__
        finally:
            del self._asked[own.task.uid]

    def _bindings(self, decision: Decision) -> list[Binding]:
        """What is to be bound, with what is held for it. Raises PluginError."""
        if decision.holds is not None:
            bindings = [self._binding(task, decision.holds[task]) for task in decision.allocated]
        else:
            holds = [(held.plugin, held.holds()) for held in decision.held]
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

    def _request(self, binding: Binding, pod: Pod) -> Request:
        token = self._token()
        annotations = {**binding.annotations, LEADER_ANNOTATION: token} if token else binding.annotations
        return Request(binding.task, binding.node, pod, annotations)

    # ------------------------------------------------------------------ plans

    async def _planned(
        self, requests: Sequence[Request], bindings: Sequence[Binding], planning: Planning
    ) -> list[Request]:
        """The requests as parts of a plan, which is written. Raises ClusterError: then nothing must be bound."""
        if planning.resumed and planning.previous is not None:  # taken over: what its writer may still send is void
            pod_group = planning.written = await self.plans.restate(planning.pod_group, holder=self.plans.holder)
            planning.settled = True
            return [_of_plan(request, pod_group, planning.attempt) for request in requests]
        pods = {binding.task.uid: PlannedPod.of(binding.task.name, binding.node, binding.holds) for binding in bindings}
        plan = Plan(planning.attempt, self.plans.holder, {**planning.bound, **pods})
        now = await self._untied([request.pod for request in requests], planning)
        requests = [replace(request, pod=now.get(request.task.uid, request.pod)) for request in requests]
        pod_group = planning.written = await self.plans.swap(planning.written or planning.pod_group, plan)
        planning.settled = True
        return [_of_plan(request, pod_group, plan.attempt) for request in requests]

    async def _untied(self, pods: Sequence[Pod], planning: Planning) -> dict[str, Pod]:
        """Make sure that nothing can be bound by the plan before this one any more. Returns its pods as they are then.

        As for `abort`: a request of that plan that is still on its way must not come between. Raises ClusterError.
        """
        previous = planning.previous
        if previous is None:  # a PodGroup that is younger than its pods: the plan of the one before went with that
            created = planning.pod_group.metadata.creation_timestamp or ""
            older = [pod for pod in pods if (pod.metadata.creation_timestamp or "") < created]
            return {pod.metadata.uid: pod for pod in await self._touched(older) if pod is not None}
        tied = [pod for pod in (*pods, *planning.others) if pod.metadata.uid in previous.pods]
        if not tied:
            return {}
        planning.written = await self.plans.restate(planning.pod_group, state="abort")
        touched = [pod for pod in await self._touched(tied) if pod is not None]
        for pod in touched:
            if pod.spec.node_name:
                planning.written = await self.plans.restate(planning.written, state="active")
                raise Conflict(f"pod {pod.key} was bound by the plan before this one")
        return {pod.metadata.uid: pod for pod in touched}

    async def strike(self, planning: Planning) -> PodGroup:
        """Take the pods that are not bound out of a plan, its `others`. Returns the PodGroup. Raises ClusterError.

        Conflict where one of them was bound by it after all: then the plan stands.
        """
        await self._planned([], [], planning)
        return planning.written or planning.pod_group

    async def _touched(self, pods: Sequence[Pod]) -> list[Pod | None]:
        """Each pod as it is for good, None where it is gone. Raises ClusterError."""
        answers = await asyncio.gather(*map(self.pods.touch, pods), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NotFound):
                raise answer
        return [
            None if isinstance(answer, BaseException) or answer.metadata.uid != pod.metadata.uid else answer
            for pod, answer in zip(pods, answers, strict=True)
        ]

    async def abort(self, pod_group: PodGroup, plan: Plan, pods: Sequence[Pod]) -> PodGroup:
        """Take back a plan by which nothing was bound yet; where one of its `pods` was after all it stands again.

        Returns the PodGroup as it is then. Raises ClusterError: try again.
        """
        if plan.state == "active":
            pod_group = await self.plans.restate(pod_group, state="abort")
        bound = any(pod.spec.node_name for pod in pods)
        if not bound:  # as far as was known: only now nothing can be bound by it any more
            touched = await self._touched(pods)
            bound = any(pod is not None and pod.spec.node_name for pod in touched)
        if bound:
            return await self.plans.restate(pod_group, state="active")
        return await self.plans.swap(pod_group, None)


def _needed(
    bindings: Sequence[Binding], decision: Decision, calls: HookCalls
) -> list[tuple[PrebindCall, list[Binding]]]:
    """The plugins that have something to do before the bind, in turn, and for which members. Raises PluginError."""
    found = []
    for prebind in calls.prebinds:
        asked = []
        for binding in bindings:
            own = _own(binding, prebind.call.plugin) if binding.holds else binding
            try:
                if prebind.is_needed(own):
                    asked.append(own)
            except PluginError as error:
                raise _of_pod(error, own, decision, error.problem) from error.__cause__
        if asked:
            found.append((prebind, asked))
    return found


def _own(binding: Binding, plugin: str) -> Binding:
    """The binding with what one plugin holds."""
    return replace(binding, holds=binding.holds.get(plugin, {}))


def _of_pod(error: PluginError, binding: Binding, decision: Decision, problem: str) -> PluginError:
    """The error with the pod of which the plugin was asked."""
    cause = error.__cause__
    if decision.group.single and isinstance(cause, AttemptError):
        return error
    where = f"(pod {binding.task.key} of group {decision.group.key})"
    return PluginError(error.plugin, error.hook, f"{problem} {where}", cause)


def _is_of_no_use(binding: Binding) -> bool:
    """Whether the pod is gone, is to go, or is bound elsewhere: the cluster refuses to bind it."""
    task = binding.task
    return task.node != binding.node or task.pod.metadata.deletion_timestamp is not None


def _of_plan(request: Request, pod_group: PodGroup, attempt: str) -> Request:
    annotations = {**request.annotations, ATTEMPT_ANNOTATION: attempt}
    return replace(request, annotations=annotations, pod_group=pod_group, attempt=attempt)


def _failed(decision: Decision, reason: str) -> list[Failure]:
    """Nothing of the decision was sent."""
    return [Failure(task, task.node or "", reason, task.pod) for task in decision.allocated]


def _outcome(request: Request, answer: Failure | BaseException | None) -> Failure | None:
    """An error that nobody expected says as little as a lost answer."""
    if isinstance(answer, BaseException):
        return replace(sent(request, answer), unknown=True, error=answer)
    return answer


def unexpected(decision: Decision, error: BaseException) -> list[Failure]:
    """The failures where carrying out a decision itself broke off: any of its tasks may be bound."""
    return [
        Failure(task, task.node or "", f"binding failed: {error}", task.pod, sent=True, unknown=True, error=error)
        for task in decision.allocated
    ]


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


def _check_annotations(call: HookCall, binding: Binding) -> None:
    for key, value in binding.annotations.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise call.wrong(f"{value!r} is no annotation ({key!r}): annotations are texts")


def _check_size(request: Request) -> None:
    """The API server does not look at a Binding's annotations, and then refuses every later change of the pod."""
    new = {**request.annotations, ATTEMPT_ANNOTATION: _LONGEST_ATTEMPT}
    try:
        check_annotations({**request.pod.metadata.annotations, **new}, "metadata.annotations")
    except FieldError as error:
        raise Invalid(f"pod {request.task.key}: {error}") from None


async def cancel(calls: HookCalls, allocation: Allocation) -> list[PluginError]:
    """Tell every plugin that a task's share is free; all are told, failures are returned."""
    failures = []
    for call in calls.functions("cancel"):
        try:
            await call.wait(allocation, patience=_CANCEL_SECONDS)
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


def held_by(task: Task) -> dict[str, Any]:
    """What a bound pod's annotation says that it holds, by plugin, as far as it is believed."""
    record = _record(task)
    return record.plugins if record is not None and record.uid == task.uid else {}


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
    except (msgspec.DecodeError, RecursionError):  # the second where it nests too deep
        return None


class _Record(msgspec.Struct, frozen=True):
    """The annotation's form."""

    uid: str = ""
    plugins: dict[str, Any] = {}
