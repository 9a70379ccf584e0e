"""Preemption with queues: within a queue, only of preemptible pods, and also at the queue's limit."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.testing.builders import gang, pod
from session_scheduler.testing.fake_cluster import FakeCluster

LABEL = "fluence.flux-framework.org/queue"
PREEMPTIBILITY = "fluence.flux-framework.org/preemptibility"


def cluster_of(*queues: dict[str, Any], cpu: str = "4", actions: Any = ("allocate", "preempt")) -> FakeCluster:
    config = SchedulerConfig(
        bindings_in_flight=1_000, actions=actions, queues=tuple(QueueConfig(**queue) for queue in queues)
    )
    return FakeCluster(config=config).nodes(1, cpu=cpu)


def ending(cluster: FakeCluster) -> set[str]:
    return {task.name for task in cluster.scheduler.cache.tasks.values() if task.pod.metadata.deletion_timestamp}


@pytest.mark.parametrize(
    ("low", "labels", "high", "ends"),
    [
        (1, {}, 9, {"low"}),
        (1, {PREEMPTIBILITY: "non-preemptible"}, 9, set()),
        (100, {}, 200, set()),
        (100, {PREEMPTIBILITY: "preemptible"}, 200, {"low"}),
        (100, {}, 2_000_000_000, {"low"}),
    ],
)
def test_only_system_critical_pods_preempt_a_non_preemptible_pod_of_their_queue(
    low: int, labels: dict[str, str], high: int, ends: set[str]
) -> None:
    cluster = cluster_of({"name": "a"})
    cluster.add(pod("low", cpu="4", priority=low, queue="a", labels=labels))
    cluster.run()
    cluster.add(pod("high", cpu="4", priority=high, queue="a"))
    cluster.run()
    assert ending(cluster) == ends


@pytest.mark.parametrize("actions", [("allocate", "preempt"), ("allocate", "reclaim", "preempt")])
def test_at_its_queues_limit_a_pod_preempts_one_of_lower_priority(actions: Any) -> None:
    cluster = cluster_of({"name": "a", "limit": {"cpu": 2}}, cpu="8", actions=actions)
    cluster.add(*(pod(f"low{number}", cpu="1", priority=number, queue="a") for number in range(2)))
    cluster.run()
    cluster.add(pod("high", cpu="1", priority=9, queue="a"))
    cluster.run()
    assert ending(cluster) == {"low0"}
    cluster.run(cycles=2)
    assert ending(cluster) == {"low0"}, "it waits for its victim"
    cluster.finish_deletions()
    cluster.run(cycles=2)
    cluster.assert_bound("high")


@pytest.mark.parametrize(
    ("priority", "labels"),
    [(0, {}), (-1, {}), (0, {PREEMPTIBILITY: "non-preemptible"})],
    ids=["equal", "lower", "kept"],
)
def test_at_its_queues_limit_a_pod_preempts_no_other_pods(priority: int, labels: dict[str, str]) -> None:
    cluster = cluster_of({"name": "a", "limit": {"cpu": 2}}, cpu="8")
    cluster.add(*(pod(f"low{number}", cpu="1", priority=0, queue="a", labels=labels) for number in range(2)))
    cluster.add(pod("other", cpu="1", priority=-9, queue="default"))
    cluster.run()
    cluster.add(pod("high", cpu="1", priority=9 if labels else priority, queue="a"))
    cluster.run(cycles=2)
    assert ending(cluster) == set()
    cluster.assert_pending("high", "queue 'a' has reached its limit of cpu: limit 2, allocated 2, requested 1")


def test_at_its_queues_limit_a_gang_preempts_all_or_nothing() -> None:
    cluster = cluster_of({"name": "a", "limit": {"cpu": 3}}, cpu="8")
    cluster.add(*(pod(f"low{number}", cpu="1", priority=number, queue="a") for number in range(3)))
    cluster.run()
    cluster.add(*gang("g", 2, cpu="1", priority=2, labels={LABEL: "a"}))
    cluster.add(*gang("h", 3, cpu="1", priority=2, labels={LABEL: "a"}))
    cluster.run()
    assert ending(cluster) == {"low0", "low1"}
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert all(cluster.node_of(f"g-{number}") for number in range(2))


def test_several_pods_at_their_queues_limit_preempt_one_pod_each() -> None:
    cluster = cluster_of({"name": "top", "limit": {"cpu": 3}}, {"name": "a", "parent": "top"}, cpu="8")
    cluster.add(*(pod(f"low{number}", cpu="1", priority=number, queue="a") for number in range(3)))
    cluster.run()
    cluster.add(*(pod(f"high{number}", cpu="1", priority=9, queue="a") for number in range(2)))
    cluster.run()
    assert ending(cluster) == {"low0", "low1"}
    cluster.finish_deletions()
    cluster.run(cycles=2)
    for name in ("high0", "high1", "low2"):
        cluster.assert_bound(name)


@pytest.mark.parametrize(("cpu", "others", "ends"), [("2", "", {"low"}), ("2", "b", set()), ("1", "b", {"low"})])
def test_no_pod_is_preempted_for_one_that_reclaim_could_evict_again(cpu: str, others: str, ends: set[str]) -> None:
    """Queue a has three of four CPUs. Its share is two as long as b requests what it deserves."""
    cluster = cluster_of({"name": "a", "deserved": {"cpu": 2}}, {"name": "b", "deserved": {"cpu": 2}})
    cluster.add(pod("low", cpu="1", priority=1, queue="a"), pod("own", cpu="2", priority=9, queue="a"))
    cluster.run()
    cluster.add(pod("nowhere", cpu="2", queue=others, node_selector={"no": "where"}) if others else ())
    cluster.add(pod("free", cpu="1", bound_to="n1") if cpu == "1" else ())
    cluster.run()
    cluster.add(pod("high", cpu=cpu, priority=9, queue="a"))
    cluster.run()
    assert ending(cluster) == ends
