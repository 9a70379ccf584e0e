"""Elastic gangs: their minimums start first, and preemption and reclaim evict the members above the minimum first."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.framework.victims import units_of
from session_scheduler.model.objects import Pod
from session_scheduler.testing.builders import gang, pod, pod_group
from session_scheduler.testing.fake_cluster import FakeCluster

LABEL = "fluence.flux-framework.org/queue"
QUEUES = QueueConfig(name="a", deserved={"cpu": 2}), QueueConfig(name="b", deserved={"cpu": 2})


def cluster_of(*cpus: int, queues: Any = ()) -> FakeCluster:
    config = SchedulerConfig(bindings_in_flight=1_000, queues=queues)
    cluster = FakeCluster(config=config)
    for number, cpu in enumerate(cpus, 1):
        cluster.node(f"n{number}", cpu=cpu)
    return cluster


def members(name: str, *nodes: str, **options: Any) -> list[Pod]:
    """Running members of a gang, one on each node."""
    return [pod(f"{name}-{number}", group=name, cpu="1", bound_to=node, **options) for number, node in enumerate(nodes)]


def ending(cluster: FakeCluster) -> set[str]:
    return {task.name for task in cluster.scheduler.cache.tasks.values() if task.pod.metadata.deletion_timestamp}


def running(cluster: FakeCluster, name: str) -> int:
    return sum(pod.startswith(f"default/{name}-") and node is not None for pod, node in cluster.placements().items())


# ------------------------------------------------------------------ starts


@pytest.mark.parametrize(("cpu", "first", "second"), [(3, 3, 0), (4, 2, 2), (5, 3, 2), (7, 4, 3), (9, 4, 4)])
def test_the_minimums_of_all_gangs_start_before_the_surplus_of_any(cpu: int, first: int, second: int) -> None:
    cluster = cluster_of(cpu)
    cluster.add(*gang("first", 4, min_count=2, cpu="1"), *gang("second", 4, min_count=2, cpu="1"))
    cluster.schedule()
    assert (running(cluster, "first"), running(cluster, "second")) == (first, second)


def test_a_pod_starts_before_the_surplus_of_a_gang() -> None:
    cluster = cluster_of(3)
    cluster.add(*gang("g", 4, min_count=2, cpu="1"), pod("single", cpu="1"))
    cluster.schedule()
    cluster.assert_bound("single")
    assert running(cluster, "g") == 2


def test_the_surplus_of_a_gang_starts_before_the_minimum_of_one_of_lower_priority() -> None:
    cluster = cluster_of(5)
    cluster.add(*gang("high", 4, min_count=2, cpu="1", priority=9), *gang("low", 2, cpu="1", priority=1))
    cluster.schedule()
    assert (running(cluster, "high"), running(cluster, "low")) == (4, 0)


# ------------------------------------------------------------------ victims


@pytest.mark.parametrize(
    ("minimum", "mode", "count"), [(3, None, 3), (3, "Pod", 1), (2, None, 1), (2, "PodGroup", 3), (1, None, 1)]
)
def test_preemption_evicts_members_above_the_minimum_or_the_whole_gang(
    minimum: int, mode: str | None, count: int
) -> None:
    cluster = cluster_of(1, 1, 1)
    cluster.add(pod_group("g", minimum, disruption_mode=mode), *members("g", "n1", "n2", "n3"))
    cluster.add(pod("high", cpu="1", priority=9))
    cluster.run()
    assert len(ending(cluster)) == count


def test_no_member_above_the_minimum_runs_without_the_minimum() -> None:
    """Three members leave room for the pod, and only the fourth could stay."""
    cluster = cluster_of(4)
    cluster.add(pod_group("g", 3), *members("g", "n1", "n1", "n1", "n1"), pod("high", cpu="3", priority=9))
    cluster.run()
    assert len(ending(cluster)) == 4


def test_several_preemptors_do_not_take_the_same_surplus() -> None:
    cluster = cluster_of(1, 1, 1)
    cluster.add(pod_group("g", 2), *members("g", "n1", "n2", "n3"))
    cluster.add(pod("high0", cpu="1", priority=9), pod("high1", cpu="1", priority=9))
    cluster.run()
    assert len(ending(cluster)) == 3, "with two victims one would be left of two"


def test_members_of_a_sub_group_at_its_minimum_are_no_surplus() -> None:
    cluster = cluster_of(1, 1, 1, 1)
    cluster.add(pod_group("g", 2, sub_groups="leader=1,worker=1"))
    for number, name in enumerate(("leader", "worker", "worker", "worker")):
        cluster.add(pod(f"{name}-{number}", group="g", sub_group=name, cpu="1", bound_to=f"n{number + 1}"))
    cluster.add(*(pod(f"high{number}", cpu="1", priority=9) for number in range(2)))
    cluster.run()
    assert len(ending(cluster)) == 2
    assert all(name.startswith("worker") for name in ending(cluster))


def test_one_surplus_member_of_each_gang_is_evicted_and_no_gang_as_a_whole() -> None:
    cluster = cluster_of(2, 2, 2, queues=(QUEUES[0], QUEUES[1]))
    for name in ("g", "h"):
        cluster.add(pod_group(name, 1, labels={LABEL: "a"}), *members(name, "n1", "n2", "n3", queue="a"))
    cluster.run()
    cluster.add(*gang("new", 2, cpu="1", queue="b"))
    cluster.run()
    assert sorted(name[0] for name in ending(cluster)) == ["g", "h"]


def test_surplus_members_are_evicted_rather_than_a_whole_gang_that_started_later() -> None:
    cluster = cluster_of(2, 2)
    cluster.add(pod_group("elastic", 1), *members("elastic", "n1", "n1"))
    cluster.add(pod_group("rigid", 2), *members("rigid", "n2", "n2"))
    cluster.add(pod("high", cpu="1", priority=9))
    cluster.run()
    assert len(ending(cluster)) == 1
    assert next(iter(ending(cluster))).startswith("elastic")


def test_a_queue_reclaims_a_gang_as_a_whole_if_its_minimum_is_larger_than_the_surplus() -> None:
    cluster = cluster_of(2, 1, queues=QUEUES)
    cluster.add(pod_group("g", 3, labels={LABEL: "a"}), *members("g", "n1", "n1", "n2", queue="a"))
    cluster.run()
    cluster.add(pod("b0", cpu="1", queue="b"))
    cluster.run()
    assert len(ending(cluster)) == 3


def test_terminating_members_of_higher_priority_are_no_victims() -> None:
    cluster = cluster_of(4)
    low, high = members("g", "n1", "n1", priority=1), pod("g-high", group="g", cpu="1", bound_to="n1", priority=9)
    cluster.add(pod_group("g", 2), *low, high)
    cluster.run()
    tasks = cluster.scheduler.cache.tasks_on("n1")
    units = units_of(tasks, 5, lambda task: task.name in ("g-0", "g-high"))
    assert [[task.name for task in unit.tasks] for unit in units] == [["g-0"], ["g-1"]]
