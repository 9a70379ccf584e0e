"""kube-scheduler's names for what this scheduler also measures, for existing dashboards and alerts. Off by default.

Names, labels and buckets are kube-scheduler's. Fluence places groups in sessions, so an attempt is counted for each of
the group's pods, and its duration starts with the session.
Source: pkg/scheduler/metrics/metrics.go, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

AttemptResult = Literal["scheduled", "unschedulable", "error"]
QUEUES: Final = {"active": "due", "backoff": "backoff", "unschedulable": "unschedulable", "gated": "gated"}
"""Each of kube-scheduler's queues with its state in `fluence_pending_pods`. No queue has pods in flight."""
_MOST_ATTEMPTS: Final = 15


def _exponential(start: float, count: int) -> list[float]:
    return [start * 2**power for power in range(count)]


class KubeSchedulerMetrics:
    """The metrics `scheduler_...`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._attempts = Counter(
            "scheduler_schedule_attempts", "Attempts to schedule pods, by result.", ("result", "profile"),
            registry=registry,
        )  # fmt: skip
        self._duration = Histogram(
            "scheduler_scheduling_attempt_duration_seconds", "Time from the start of a session to a pod's result.",
            ("result", "profile"), buckets=_exponential(0.001, 15), registry=registry,
        )  # fmt: skip
        self._sli = Histogram(
            "scheduler_pod_scheduling_sli_duration_seconds", "Time from a pod's entry into the queue to its bind.",
            ("attempts",), buckets=_exponential(0.01, 20), registry=registry,
        )  # fmt: skip
        self._pod_attempts = Histogram(
            "scheduler_pod_scheduling_attempts", "Attempts to successfully schedule a pod.",
            buckets=_exponential(1, 5), registry=registry,
        )  # fmt: skip
        self._incoming = Counter(
            "scheduler_queue_incoming_pods", "Pods added to the queues, by event.", ("queue", "event"),
            registry=registry,
        )  # fmt: skip
        self._preemptions = Counter("scheduler_preemption_attempts", "Attempts to preempt.", registry=registry)
        self._victims = Histogram(
            "scheduler_preemption_victims", "Preempted pods.", buckets=_exponential(1, 7), registry=registry
        )

    def attempt(self, result: AttemptResult, profile: str, seconds: float | None) -> None:
        """An attempt to schedule a pod ended; `seconds` is None if no session made it."""
        self._attempts.labels(result, profile).inc()
        if seconds is not None:
            self._duration.labels(result, profile).observe(seconds)

    def scheduled(self, attempts: int, seconds: float) -> None:
        """A pod was bound in this attempt, this many seconds after it entered the queue."""
        self._sli.labels(str(attempts) if attempts < _MOST_ATTEMPTS else f"{_MOST_ATTEMPTS}+").observe(seconds)
        self._pod_attempts.observe(attempts)

    def incoming(self, queue: str, event: str, pods: int = 1) -> None:
        """An event put pods into a queue."""
        self._incoming.labels(queue, event).inc(pods)

    def preemption_attempted(self) -> None:
        """The scheduler searched for pods to preempt for a group."""
        self._preemptions.inc()

    def preempted(self, victims: int) -> None:
        """A group preempted this many pods."""
        self._victims.observe(victims)

    def follow_pending(self, pods: Callable[[], Mapping[str, int]]) -> None:
        """Call `pods` at each scrape: the pending pods by the state of `fluence_pending_pods`."""
        self._registry.register(_PendingPods(pods))


class _PendingPods:
    """The gauge `scheduler_pending_pods`, read at each scrape."""

    def __init__(self, pods: Callable[[], Mapping[str, int]]) -> None:
        self._pods = pods

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily("scheduler_pending_pods", "Pending pods, by queue.", labels=["queue"])
        counts = self._pods()
        for queue, state in QUEUES.items():
            family.add_metric([queue], counts.get(state, 0))
        yield family
