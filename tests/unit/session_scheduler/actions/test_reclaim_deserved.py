"""A queue gets what it deserves: with larger victims, whatever its weight, and from several queues together."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.model.objects import Pod
from session_scheduler.testing.builders import gang, pod, pod_group
from session_scheduler.testing.fake_cluster import FakeCluster

LABEL = "fluence.flux-framework.org/queue"
GPU = "nvidia.com/gpu"


def queue(name: str, gpus: int | None = None, **options: Any) -> QueueConfig:
    """A queue that deserves this number of GPUs."""
    return QueueConfig(name=name, deserved={} if gpus is None else {GPU: gpus}, **options)


def cluster_of(*queues: QueueConfig, nodes: int = 1, gpus: int = 2, cpu: str = "16", args: Any = None) -> FakeCluster:
    config = SchedulerConfig(bindings_in_flight=1_000, actions=("allocate", "preempt", "reclaim"), queues=queues)
    cluster = FakeCluster(config=config).nodes(nodes, cpu=cpu, offers={GPU: gpus})
    return cluster if args is None else cluster.use("Proportion", args)


def of(name: str, queue: str, gpus: int = 1, **options: Any) -> Pod:
    return pod(name, queue=queue, requests={GPU: gpus} if gpus else {}, **options)


def ending(cluster: FakeCluster) -> set[str]:
    return {task.name for task in cluster.scheduler.cache.tasks.values() if task.pod.metadata.deletion_timestamp}


def run_to_the_end(cluster: FakeCluster) -> None:
    """Delete the victims, and run until no pod is evicted."""
    for _ in range(3):
        cluster.finish_deletions()
        cluster.run(cycles=2)
    assert not ending(cluster)


# ------------------------------------------------------------------ victims larger than the surplus


def test_a_queue_gets_a_deserved_gpu_from_a_pod_that_is_larger_than_the_surplus() -> None:
    cluster = cluster_of(queue("a", 1), queue("b", 1))
    cluster.add(of("big", "a", 2))
    cluster.run()
    cluster.add(of("b0", "b"))
    cluster.run()
    assert ending(cluster) == {"big"}
    cluster.add(of("big-again", "a", 2))
    run_to_the_end(cluster)
    cluster.assert_bound("b0")


def test_an_argument_of_proportion_keeps_victims_within_the_surplus() -> None:
    cluster = cluster_of(queue("a", 1), queue("b", 1), args={"largerVictims": False})
    cluster.add(of("big", "a", 2))
    cluster.run()
    cluster.add(of("b0", "b"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_a_queue_gets_a_deserved_gpu_from_a_gang_over_two_nodes() -> None:
    cluster = cluster_of(queue("a", 1), queue("b", 1), nodes=2, gpus=1)
    cluster.add(pod_group("g", 2, labels={LABEL: "a"}, disruption_mode="PodGroup"))
    cluster.add(*(of(f"g-{number}", "a", group="g") for number in range(2)))
    cluster.run()
    cluster.add(of("b0", "b"))
    cluster.run()
    assert ending(cluster) == {"g-0", "g-1"}
    run_to_the_end(cluster)
    cluster.assert_bound("b0")


def test_a_gang_gets_deserved_gpus_from_pods_that_are_larger_than_the_surplus() -> None:
    cluster = cluster_of(queue("a", 1), queue("b", 3), nodes=2)
    cluster.add(of("big0", "a", 2), of("big1", "a", 2))
    cluster.run()
    cluster.add(*gang("g", 3, queue="b", requests={GPU: 1}))
    cluster.run()
    assert ending(cluster) == {"big0", "big1"}
    run_to_the_end(cluster)
    assert all(cluster.node_of(f"g-{number}") for number in range(3))


def test_smaller_victims_are_preferred_to_one_that_is_larger_than_the_surplus() -> None:
    cluster = cluster_of(queue("a", 1), queue("b", 1), queue("c", 1), nodes=2)
    cluster.add(
        of("big", "a", 2, bound_to="n1"), of("c0", "c", bound_to="n2"), of("c1", "c", bound_to="n2", priority=9)
    )
    cluster.run()
    cluster.add(of("b0", "b"))
    cluster.run()
    assert ending(cluster) == {"c0"}


def test_no_larger_victim_is_evicted_for_a_share_that_the_queue_does_not_deserve() -> None:
    cluster = cluster_of(queue("a", 1), queue("b", 0), gpus=3)
    cluster.add(of("big", "a", 3))
    cluster.run()
    cluster.add(of("b0", "b"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_a_queue_at_its_deserved_share_loses_no_larger_pod() -> None:
    cluster = cluster_of(queue("a", 2), queue("b", 1))
    cluster.add(of("big", "a", 2))
    cluster.run()
    cluster.add(of("b0", "b"))
    cluster.run(cycles=2)
    assert not ending(cluster)


# ------------------------------------------------------------------ whatever the weight


def test_a_queue_without_weight_gets_the_gpus_that_it_deserves() -> None:
    """It has no share of cpu and pods."""
    cluster = cluster_of(queue("a", 0), queue("b", 1, over_quota_weight=0), cpu="2")
    cluster.add(of("a0", "a", cpu="1"), of("a1", "a", cpu="1"))
    cluster.run()
    cluster.add(of("b0", "b", cpu="1"), of("b1", "b", cpu="1"))
    cluster.run()
    assert len(ending(cluster)) == 1
    run_to_the_end(cluster)
    assert bool(cluster.node_of("b0")) != bool(cluster.node_of("b1"))


def test_pods_with_deserved_gpus_are_not_reclaimed_for_cpu_that_no_queue_deserves() -> None:
    cluster = cluster_of(queue("a"), queue("b", 1, over_quota_weight=0), cpu="2")
    cluster.add(of("b0", "b", cpu="1"), of("b-cpu", "b", 0, cpu="1"))
    cluster.run()
    cluster.add(of("a0", "a", 0, cpu="1"), of("a1", "a", 0, cpu="1"))
    cluster.run()
    assert ending(cluster) == {"b-cpu"}
    run_to_the_end(cluster)
    cluster.assert_bound("b0")


def test_a_queue_does_not_get_with_its_gpus_the_cpu_that_another_queue_deserves() -> None:
    queues = QueueConfig(name="a", deserved={"cpu": 2}), queue("b", 1, over_quota_weight=0)
    cluster = cluster_of(*queues, cpu="2")
    cluster.add(of("a0", "a", cpu="1"), of("a1", "a", cpu="1"))
    cluster.run()
    cluster.add(of("b0", "b", cpu="1"))
    cluster.run(cycles=2)
    assert not ending(cluster)


# ------------------------------------------------------------------ victims in several queues

DEPARTMENTS = (
    queue("d1"),
    queue("q0", parent="d1"),
    queue("d2", 4),
    queue("q1", 0, parent="d2"),
    queue("q2", 4, parent="d2"),
)


@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("priority", [0, 50])
@pytest.mark.parametrize("size", [1, 4])
def test_victims_are_in_a_sibling_queue_and_another_department_together(size: int, priority: int, larger: bool) -> None:
    """Each of the two holds two GPUs; without its sibling's, the department would have six of four."""
    cluster = cluster_of(*DEPARTMENTS, nodes=1, gpus=4, args={"largerVictims": larger})
    cluster.add(*(of(f"sibling{number}", "q1", priority=priority) for number in range(2)))
    cluster.add(*(of(f"other{number}", "q0", priority=20) for number in range(2)))
    cluster.run()
    cluster.add(of("new", "q2", 4) if size == 1 else gang("new", 4, queue="q2", requests={GPU: 1}))
    cluster.run()
    assert ending(cluster) == {"sibling0", "sibling1", "other0", "other1"}
    run_to_the_end(cluster)
    assert cluster.node_of("new" if size == 1 else "new-3")


def test_a_department_loses_nothing_if_the_siblings_pods_are_not_preemptible() -> None:
    kept = {"fluence.flux-framework.org/preemptibility": "non-preemptible"}
    cluster = cluster_of(queue("d1"), queue("q0", parent="d1"), queue("d2", 4), queue("q1", 2, parent="d2"),
                         queue("q2", 4, parent="d2"), gpus=4)  # fmt: skip
    cluster.add(*(of(f"sibling{number}", "q1", labels=kept) for number in range(2)))
    cluster.add(*(of(f"other{number}", "q0") for number in range(2)))
    cluster.run()
    cluster.add(of("new", "q2", 4))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_a_pods_victims_are_in_several_queues_as_their_shares_allow() -> None:
    """The two least important pods are of one queue, which has only one beyond its share."""
    cluster = cluster_of(queue("a", 1), queue("b", 2), queue("c", 1), gpus=4)
    cluster.add(*(of(f"a{number}", "a", priority=1) for number in range(2)))
    cluster.add(*(of(f"c{number}", "c", priority=9) for number in range(2)))
    cluster.run()
    cluster.add(of("b0", "b", 2))
    cluster.run()
    assert sorted(name[0] for name in ending(cluster)) == ["a", "c"]


def test_among_the_queues_of_a_department_the_one_above_its_share_loses_a_pod() -> None:
    """The pod of q1 is less important, but q1 has what it deserves."""
    cluster = cluster_of(queue("d1", 1), queue("q1", 1, parent="d1"), queue("q2", 0, parent="d1"), queue("d2", 1))
    cluster.add(of("q1-0", "q1", priority=1), of("q2-0", "q2", priority=9))
    cluster.run()
    cluster.add(of("new", "d2"))
    cluster.run()
    assert ending(cluster) == {"q2-0"}
