"""When preemption is asked: in each group's try, later as an action of its own, or never."""

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
def test_pods_end_for_others_of_higher_priority_only_where_preempt_is_an_action(
    actions: list[str], ends: set[str]
) -> None:
    cluster = cluster_of(*actions)
    cluster.add(pod("low", cpu="4", priority=1))
    cluster.run()
    cluster.add(pod("high", cpu="4", priority=9))
    cluster.run()
    assert ending(cluster) == ends
    if ends:
        cluster.assert_nominated("high", "n1")


def test_right_after_allocate_the_place_that_is_made_is_kept_from_the_groups_that_come_later() -> None:
    for actions, bound in ((["allocate", "preempt"], False), (["allocate", "reclaim", "preempt"], True)):
        cluster = cluster_of(*actions)
        cluster.add(pod("low", cpu="3", priority=1))
        cluster.run()
        cluster.add(pod("high", cpu="4", priority=9), pod("small", cpu="1", priority=5))
        cluster.run()
        assert bool(cluster.node_of("small")) is bound


def test_after_reclaim_nobody_is_preempted_for_what_gets_its_share() -> None:
    queues = tuple(QueueConfig(name=name, deserved={"cpu": 2}) for name in "ab")
    cluster = cluster_of("allocate", "reclaim", "preempt", queues=queues)
    cluster.add(pod("own", cpu="1", queue="b", priority=1),
                *(pod(f"theirs{number}", cpu="1", queue="a", priority=7) for number in range(3)))  # fmt: skip
    cluster.run()
    cluster.add(pod("high", cpu="1", queue="b", priority=9))
    cluster.run(cycles=2)
    assert len(ending(cluster)) == 1
    assert "own" not in ending(cluster)


def test_a_place_for_which_nobody_ends_is_not_kept_where_preempt_is_no_action() -> None:
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
def test_pods_of_lower_priority_end_for_a_gang_for_which_nodes_are_kept_for_later_and_no_others(actions: Any) -> None:
    for priority, ends in ((9, {"there"}), (0, set())):
        cluster = cluster_of(*actions).node("n2", cpu="4")
        cluster.add(pod("there", cpu="4", bound_to="n1", active_deadline_seconds=9000, priority=0))
        cluster.run()
        cluster.add(*gang("g", 2, cpu="4", priority=priority))
        cluster.run(cycles=2)
        assert ending(cluster) == ends
        assert cluster.scheduler.cache.nominations.nodes == 2
        assert bool(cluster.scheduler.cache.nominations.starts) is not bool(ends)
