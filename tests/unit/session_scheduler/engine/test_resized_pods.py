"""Pods that are resized in place: their effective requests decide what is free, what queues use, and who is evicted."""

from __future__ import annotations

from typing import Any

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, pod

from .requeue_world import resizing, running

LABEL = "fluence.flux-framework.org/queue"


def cluster_with(runs: Pod, *, cpu: int = 4, **config: Any) -> FakeCluster:
    return FakeCluster(config=SchedulerConfig(**config)).node("n1", cpu=cpu).add(runs).schedule()


def test_the_resources_of_a_pod_that_shrinks_are_free_once_its_status_says_so() -> None:
    cluster = cluster_with(running("runs", cpu=3)).pod("waits", cpu=3).schedule()
    cluster.add(resizing(running("runs", cpu=1), cpu=3)).advance(60).schedule()
    cluster.assert_pending("waits", "Insufficient cpu")
    cluster.add(resizing(running("runs", cpu=1))).advance(60).schedule()
    cluster.assert_bound("waits", "n1")


def test_the_resources_of_a_pod_that_grows_are_taken_at_once() -> None:
    cluster = cluster_with(running("runs", cpu=1))
    cluster.add(resizing(running("runs", cpu=3), cpu=1)).pod("waits", cpu=2).schedule()
    cluster.assert_pending("waits", "Insufficient cpu")


def test_a_scheduler_that_starts_counts_what_the_status_reports() -> None:
    cluster = cluster_with(resizing(running("runs", cpu=1), cpu=3)).pod("waits", cpu=2).schedule()
    cluster.assert_pending("waits", "Insufficient cpu")


def test_a_queue_uses_what_the_status_of_its_pod_reports() -> None:
    limited = (QueueConfig(name="a", limit={"cpu": 4}),)
    runs: dict[str, Any] = {"labels": {LABEL: "a"}}
    cluster = cluster_with(running("runs", cpu=3, **runs), cpu=9, queues=limited)
    cluster.add(resizing(running("runs", cpu=1, **runs), cpu=3)).pod("waits", cpu=2, **runs).schedule()
    reason = "queue 'a' has reached its limit of cpu: limit 4, allocated 3, requested 2"
    cluster.assert_pending("waits", reason)
    cluster.add(resizing(running("runs", cpu=1, **runs))).advance(60).schedule()
    cluster.assert_bound("waits", "n1")


def test_preemption_evicts_a_pod_for_what_it_still_has() -> None:
    cluster = cluster_with(running("small", cpu=1, priority=1))
    cluster.add(resizing(running("shrinks", cpu=1, priority=2), cpu=3))
    cluster.add(pod("urgent", cpu=3, priority=9)).schedule().finish_deletions().schedule()
    cluster.assert_bound("urgent", "n1").assert_bound("small", "n1")
    assert cluster.pods_on("n1") == ["default/small", "default/urgent"]
