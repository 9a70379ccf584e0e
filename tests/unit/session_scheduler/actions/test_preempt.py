"""The preempt action: in each group's attempt, later as an action of its own, or not configured."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.model.objects import Pod, PodStatus
from session_scheduler.testing.builders import gang, pod
from session_scheduler.testing.fake_cluster import FakeCluster


def cluster_of(*actions: str, queues: Any = (), **options: Any) -> FakeCluster:
    config = SchedulerConfig(bindings_in_flight=1_000, actions=actions, queues=queues)
    return FakeCluster(config=config).nodes(1, cpu="4", **options)


def ending(cluster: FakeCluster) -> set[str]:
    return {task.name for task in cluster.scheduler.cache.tasks.values() if task.pod.metadata.deletion_timestamp}


@pytest.mark.parametrize(
    ("actions", "ends"),
    [
        (["allocate", "preempt"], {"low"}),
        (["allocate", "reclaim", "preempt"], {"low"}),
        (["allocate", "reclaim"], set()),
        (["allocate"], set()),
    ],
)
def test_pods_are_preempted_only_with_the_preempt_action(actions: list[str], ends: set[str]) -> None:
    cluster = cluster_of(*actions)
    cluster.add(pod("low", cpu="4", priority=1))
    cluster.run()
    cluster.add(pod("high", cpu="4", priority=9))
    cluster.run()
    assert ending(cluster) == ends
    if ends:
        cluster.assert_nominated("high", "n1")


def test_right_after_allocate_later_groups_respect_the_nominations_of_preemption() -> None:
    for actions, bound in ((["allocate", "preempt"], False), (["allocate", "reclaim", "preempt"], True)):
        cluster = cluster_of(*actions)
        cluster.add(pod("low", cpu="3", priority=1))
        cluster.run()
        cluster.add(pod("high", cpu="4", priority=9), pod("small", cpu="1", priority=5))
        cluster.run()
        assert bool(cluster.node_of("small")) is bound


def test_after_reclaim_a_group_that_got_its_share_preempts_no_pods() -> None:
    queues = tuple(QueueConfig(name=name, deserved={"cpu": 2}) for name in "ab")
    cluster = cluster_of("allocate", "reclaim", "preempt", queues=queues)
    cluster.add(pod("own", cpu="1", queue="b", priority=1),
                *(pod(f"theirs{number}", cpu="1", queue="a", priority=7) for number in range(3)))  # fmt: skip
    cluster.run()
    cluster.add(pod("high", cpu="1", queue="b", priority=9))
    cluster.run(cycles=2)
    assert len(ending(cluster)) == 1
    assert "own" not in ending(cluster)


def test_without_the_preempt_action_a_nomination_without_victims_is_removed() -> None:
    cluster = cluster_of("allocate")
    waits = pod("waits", cpu="2")
    cluster.add(pod("there", cpu="4", bound_to="n1"), replace(waits, status=PodStatus(nominated_node_name="n1")))
    cluster.run()
    assert not cluster.find(Pod, "waits").status.nominated_node_name


@pytest.mark.parametrize(
    "actions",
    [
        ("allocate", "preempt", "backfill"),
        ("allocate", "backfill", "preempt"),
        ("allocate", "reclaim", "preempt", "backfill"),
    ],
)
def test_a_gang_with_a_reservation_preempts_only_pods_of_lower_priority(actions: Any) -> None:
    for priority, ends in ((9, {"there"}), (0, set())):
        cluster = cluster_of(*actions).node("n2", cpu="4")
        cluster.add(pod("there", cpu="4", bound_to="n1", active_deadline_seconds=9000, priority=0))
        cluster.run()
        cluster.add(*gang("g", 2, cpu="4", priority=priority))
        cluster.run(cycles=2)
        assert ending(cluster) == ends
        assert cluster.scheduler.cache.nominations.nodes == 2
        assert bool(cluster.scheduler.cache.nominations.starts) is not bool(ends)
