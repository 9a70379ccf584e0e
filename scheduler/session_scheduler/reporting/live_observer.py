"""The `Observer` of a live scheduler: turns its callbacks into events, conditions and metrics.

`messages` has the texts, which `recorder` writes asynchronously; `metrics` defines the metrics that this module counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from session_scheduler.base.clock import Clock
from session_scheduler.cluster.port import Change
from session_scheduler.framework.bindings import Failure
from session_scheduler.framework.coverage import unevaluated_fields
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.framework.observer import Observer, Stage
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import KubeObject, Pod, PodGroup
from session_scheduler.model.times import parsed_time
from session_scheduler.reporting import messages
from session_scheduler.reporting.kube_scheduler_metrics import AttemptResult
from session_scheduler.reporting.messages import SCHEDULED, SCHEDULER_ERROR, UNSCHEDULABLE
from session_scheduler.reporting.metrics import GroupResult, Metrics
from session_scheduler.reporting.recorder import Recorder

_log = structlog.get_logger(__name__)
_PATIENCE = 1.0
"""Seconds for which a group may lack pods, or a gated pod an object, that is being created, before it is reported."""
_NAMED = 10
"""The number of pods that one log line names."""
_REMEMBERED = 100_000
"""The limit of binds that wait for their event: more than are ever in flight."""


class LiveObserver(Observer):
    """Reports to a recorder and to metrics, and calls `finished` when work in flight completes."""

    def __init__(
        self, recorder: Recorder, metrics: Metrics, clock: Clock, profiles: Mapping[str, HookCalls] | None = None,
        finished: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`profiles` by schedulerName: to report constraints that no plugin evaluates."""
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._incomplete: dict[str, tuple[float, PlacementResult]] = {}
        """By group: since when it lacks pods, and its last outcome."""
        self._gated: dict[str, tuple[float, Task, str]] = {}
        """By pod uid: since when a plugin keeps it out of the queue, and why; until that is reported."""
        self._bound_at: dict[str, float] = {}
        """By pod uid: the time of the response to its bind, until the event."""
        self._profiles = profiles or {}
        self._absent: set[str] = set()
        """Missing plugins that were logged."""
        self._finished = finished
        self._started_at = clock.now()
        self._kube_scheduler = metrics.kube_scheduler

    # ------------------------------------------------------------------ called by the scheduler

    def finished(self) -> None:
        """See `Observer`."""
        self._finished()

    def stage(self, stage: Stage, seconds: float) -> None:
        """See `Observer`."""
        self._metrics.stage(stage, seconds)

    def decided(self, outcome: PlacementResult) -> None:
        """See `Observer`. A group that lacks pods is reported later, by `report_incomplete`."""
        group = outcome.group
        result: GroupResult = "scheduled" if outcome.scheduled else "error" if _is_error(outcome) else "unschedulable"
        self._metrics.groups(result)
        self._measure_attempt(outcome, "error" if result == "error" else "unschedulable")
        if outcome.filled_in:
            self._metrics.filled_in.add(count=len(outcome.placed))
        self._metrics.pods("error" if result == "error" else "unschedulable", len(outcome.reasons))
        if not outcome.scheduled and (group.missing or not group.suffice(group.tasks.values())):
            since, _ = self._incomplete.get(group.key, (self._clock.now(), outcome))
            self._incomplete[group.key] = (since, outcome)
            return
        self._incomplete.pop(group.key, None)
        self._report(outcome)

    def gated(self, task: Task, reason: str) -> None:
        """See `Observer`. The pod is reported later, by `report_incomplete`."""
        since = self._gated[task.uid][0] if task.uid in self._gated else self._clock.now()
        self._gated[task.uid] = (since, task, reason)

    def requeued(self, event: str, plugin: str, groups: Sequence[Group]) -> None:
        """See `Observer`."""
        self._metrics.requeued.add(event, plugin, count=len(groups))
        if self._kube_scheduler is not None:
            pods = sum(len(group.in_phase(Phase.PENDING)) for group in groups)
            self._kube_scheduler.incoming("active", event, pods)

    def bound(self, task: Task, node: str) -> None:
        """See `Observer`."""
        self._metrics.pods("scheduled")
        self._measure_bind(task)
        self._recorder.scheduled(task.pod, node)
        self._report_unevaluated(task.pod)
        if task.pod.spec.node_name:  # its event arrived before the response
            self._metrics.watch_lag.observe(0.0)
        elif len(self._bound_at) < _REMEMBERED:
            self._bound_at[task.uid] = self._clock.now()

    def _report_unevaluated(self, pod: Pod) -> None:
        calls = self._profiles.get(pod.spec.scheduler_name)
        for plugin, field in unevaluated_fields(pod, calls.instances) if calls is not None else ():
            message = messages.not_evaluated(field, plugin)
            self._recorder.record(pod, message)
            if plugin not in self._absent:
                self._absent.add(plugin)
                _log.warning(message.note, pod=pod.key, others="reported in their events only")

    def failed(self, task: Task, reason: str) -> None:
        """See `Observer`."""
        self._metrics.pods("error")
        self._count_failure(task, "error")
        self._recorder.failed(task.pod, reason)

    def bind_failed(self, failure: Failure) -> None:
        """See `Observer`."""
        if failure.sent:
            self._metrics.bind_error(failure.cause)
        pod, node, why = failure.task.key, failure.node, failure.reason
        if failure.why_unknown:
            _log.warning("bind has an unknown outcome", pod=pod, node=node, why=why, unknown=failure.why_unknown)
        else:
            _log.info("bind failed", pod=pod, node=node, why=why)

    def group_scheduled(self, pod_group: PodGroup, message: str) -> None:
        """See `Observer`."""
        self._recorder.group(pod_group, "True", SCHEDULED, message)

    def gang_started(self, group: Group) -> None:
        """See `Observer`."""
        created = min((task.pod.metadata.creation_timestamp or "" for task in group.tasks.values()), default="")
        age = self._age(created)
        if age is not None:
            self._metrics.gang_started(group.queue, age)

    def group_failed(self, pod_group: PodGroup, reason: str) -> None:
        """See `Observer`."""
        self._recorder.group(pod_group, "False", SCHEDULER_ERROR, reason)

    def gang_timed_out(self, group: Group, members: int, seconds: float) -> None:
        """See `Observer`."""
        self._metrics.groups("timeout")
        self._starts_over("gang timed out", group, messages.gang_timed_out(group, members, seconds))

    def gang_stale(self, group: Group, members: int, seconds: float) -> None:
        """See `Observer`."""
        self._starts_over("gang is stale", group, messages.gang_stale(group, members, seconds))

    def _starts_over(self, what: str, group: Group, text: str) -> None:
        """The scheduler evicts a gang's members."""
        self._metrics.evictions.add()
        _log.warning(what, group=group.key, why=text)
        if group.pod_group is not None:
            self._recorder.group(group.pod_group, "False", UNSCHEDULABLE, text)

    def preempts(self, group: Group, victims: Sequence[Task]) -> None:
        """See `Observer`."""
        self._metrics.preempted(len(victims))
        if self._kube_scheduler is not None and victims:
            self._kube_scheduler.preempted(len(victims))
        _log.info("preempting pods", by=group.key, number=len(victims), pods=_names(victims))

    def preempted(self, task: Task, text: str) -> None:
        """See `Observer`."""
        self._recorder.record(task.pod, messages.preempted(text))

    def moves(self, group: Group, victims: Sequence[Task]) -> None:
        """See `Observer`."""
        self._metrics.moved(len(victims))
        _log.info("moving pods", by=group.key, number=len(victims), pods=_names(victims))

    def moved(self, task: Task, text: str) -> None:
        """See `Observer`."""
        self._recorder.record(task.pod, messages.moved(text))

    def says(self, about: KubeObject, reason: str, note: str) -> None:
        """See `Observer`."""
        self._recorder.record(about, messages.of_plugin(reason, note))

    def recovered(self, what: str, pods: int) -> None:
        """See `Observer`."""
        self._metrics.recovered(what, pods)

    def problem(self, obj: KubeObject, text: str) -> None:
        """See `Observer`."""
        _log.warning(text)
        self._recorder.record(obj, messages.not_recovered(text))

    def wrong(self, obj: KubeObject, text: str) -> None:
        """See `Observer`."""
        _log.warning("an object is invalid", kind=type(obj).__name__, name=obj.key, why=text)
        self._recorder.record(obj, messages.not_readable(text))

    # ------------------------------------------------------------------ called by the loop

    def seen(self, change: Change, obj: KubeObject) -> None:
        """A change was applied."""
        uid = obj.metadata.uid
        if change is Change.DELETED:
            self._recorder.forget(uid)
            self._gated.pop(uid, None)
            self._bound_at.pop(uid, None)
            return
        if not isinstance(obj, Pod):
            return
        self._recorder.seen(obj)
        if change is Change.ADDED:
            self._count_arrival(obj)
        since = self._bound_at.pop(uid, None) if obj.spec.node_name else None
        if since is not None:
            self._metrics.watch_lag.observe(self._clock.now() - since)

    def report_incomplete(self, now: float) -> None:
        """Report the groups that have lacked pods, and the pods that were gated, for long enough."""
        for key, (since, outcome) in list(self._incomplete.items()):
            if now - since >= _PATIENCE:
                del self._incomplete[key]
                self._report(outcome)
        for uid, (since, task, reason) in list(self._gated.items()):
            if now - since >= _PATIENCE:
                del self._gated[uid]
                if task.phase is Phase.GATED and task.pod.metadata.deletion_timestamp is None:
                    self._recorder.gated(task.pod, reason)

    def next_time(self) -> float | None:
        """When to call `report_incomplete`."""
        since = [since for since, _ in self._incomplete.values()]
        since += [since for since, *_ in self._gated.values()]
        return min(since) + _PATIENCE if since else None

    # ------------------------------------------------------------------ durations and attempts

    def _count_arrival(self, pod: Pod) -> None:
        ours = not pod.spec.node_name and pod.spec.scheduler_name in self._profiles
        if ours and self._kube_scheduler is not None:
            self._kube_scheduler.incoming("gated" if pod.spec.scheduling_gates else "active", "PodAdd")

    def _measure_attempt(self, outcome: PlacementResult, result: AttemptResult) -> None:
        """The end of a session's attempt; placed pods are counted when they are bound."""
        group = outcome.group
        if outcome.placed and group.attempted is not None:
            entered = self._started_at if group.entered is None else group.entered
            self._metrics.queue_waited(group.queue, max(0.0, group.attempted - max(group.queued, entered)))
        for task in outcome.reasons:
            self._count_failure(task, result)
        if outcome.preempts and self._kube_scheduler is not None:
            self._kube_scheduler.preemption_attempted()

    def _count_failure(self, task: Task, result: AttemptResult) -> None:
        if self._kube_scheduler is not None:
            self._kube_scheduler.attempt(result, task.pod.spec.scheduler_name, self._since(task.group.attempted))
            self._kube_scheduler.incoming("backoff" if result == "error" else result, "ScheduleAttemptFailure")

    def _measure_bind(self, task: Task) -> None:
        group, attempts = task.group, task.group.failed_attempts + 1
        age = self._age(task.pod.metadata.creation_timestamp or "")
        if age is not None:
            self._metrics.pod_scheduled(group.queue, attempts, age)
        if self._kube_scheduler is not None:
            self._kube_scheduler.attempt("scheduled", task.pod.spec.scheduler_name, self._since(group.attempted))
            entered = self._started_at if group.entered is None else group.entered
            self._kube_scheduler.scheduled(attempts, self._clock.now() - entered)

    def _since(self, time: float | None) -> float | None:
        return None if time is None else self._clock.now() - time

    def _age(self, created: str) -> float | None:
        """Seconds since a creationTimestamp, to the second; None if there is none."""
        time = parsed_time(created)
        return None if time is None else max(0.0, self._clock.wall() - time.timestamp())

    # ------------------------------------------------------------------ reports

    def _report(self, outcome: PlacementResult) -> None:
        failed = _is_error(outcome)
        for task, reason in outcome.reasons.items():
            node = task.pod.status.nominated_node_name
            if outcome.nominated.get(task, node) != node:  # its condition is written with nominatedNodeName
                self._recorder.nominated(task.pod, reason)
            elif task.phase is Phase.PENDING:
                (self._recorder.failed if failed else self._recorder.unschedulable)(task.pod, reason)
        group, pod_group = outcome.group, outcome.group.pod_group
        if outcome.refusal is not None and pod_group is not None and not group.whole:
            reason = SCHEDULER_ERROR if failed else UNSCHEDULABLE
            self._recorder.group(pod_group, "False", reason, outcome.refusal.reason)


def _is_error(outcome: PlacementResult) -> bool:
    return outcome.refusal is not None and outcome.refusal.failed


def _names(tasks: Sequence[Task]) -> str:
    return ", ".join(sorted(task.key for task in tasks)[:_NAMED])
