"""The scheduler over time: events, requeueing, ended pods, memory, and the time limit of a cycle."""

from __future__ import annotations

import msgspec

from session_scheduler import hookimpl
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.model.objects import Pod, PodCondition
from session_scheduler.testing import FakeCluster, gang, node, pod, pod_group


class Tries:
    """Counts the attempts of each group, and records the cancelled allocations."""

    name = "tries"

    def __init__(self, clock=None):
        self.of = {}
        self.cancelled = []
        self._clock = clock

    @hookimpl
    def prefilter(self, group):
        self.of[group.name] = self.of.get(group.name, 0) + 1
        if self._clock is not None:
            self._clock.advance(1)

    @hookimpl
    async def cancel(self, allocation):
        self.cancelled.append((allocation.pod.metadata.name, allocation.node))


def waiting_cluster():
    """A pod that fits nowhere and was attempted once."""
    tries = Tries()
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("large", cpu="8"), pod("small"))
    cluster.run(tries)
    assert tries.of == {"large": 1, "small": 1}
    return cluster, tries


def with_status(obj, **status):
    return msgspec.structs.replace(obj, status=msgspec.structs.replace(obj.status, **status))


def test_a_refused_group_is_retried_after_the_flush_time():
    cluster, tries = waiting_cluster()
    cluster.run()
    cluster.advance(300)
    cluster.run()
    assert tries.of["large"] == 1
    cluster.advance(31)
    cluster.run()
    assert tries.of["large"] == 2
    cluster.advance(30)
    cluster.run()
    assert tries.of["large"] == 2


def test_a_condition_written_on_a_waiting_pod_does_not_requeue_it():
    cluster, tries = waiting_cluster()
    condition = PodCondition(type="PodScheduled", status="False", reason="Unschedulable")
    cluster.add(with_status(cluster.find(Pod, "large"), conditions=(condition,)))
    cluster.run()
    assert tries.of["large"] == 1


def test_a_nodes_heartbeat_requeues_no_pod_and_new_capacity_does():
    cluster, tries = waiting_cluster()
    cluster.add(with_status(node("n1"), conditions=(PodCondition(type="Ready", status="True", reason="new"),)))
    cluster.run()
    assert tries.of["large"] == 1
    cluster.add(node("n1", cpu="9"))
    cluster.run()
    cluster.assert_bound("large", "n1")


def test_a_pod_that_ends_requeues_waiting_pods_and_is_cancelled_once():
    tries, cluster = Tries(), FakeCluster()
    cluster.nodes(1).add(pod("small")).run(tries)
    cluster.add(pod("large", cpu="4")).run()
    cluster.end("small").run()
    assert tries.of["large"] == 2
    assert tries.cancelled == [("small", "n1")]
    cluster.delete(Pod, "small")
    cluster.run()
    assert tries.cancelled == [("small", "n1")]


def test_a_change_of_a_bound_member_does_not_requeue_its_group():
    tries = Tries()
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod_group("g"), pod("p", group="g"), pod("q", cpu="8", group="g"))
    cluster.run(tries)
    cluster.run()
    count = tries.of["g"]
    cluster.add(with_status(cluster.find(Pod, "p"), phase="Running"))
    cluster.run()
    assert tries.of["g"] == count


def test_a_waiting_pod_that_is_deleted_leaves_no_state():
    cluster, _ = waiting_cluster()
    cluster.delete(Pod, "large")
    cluster.run()
    scheduler = cluster.scheduler
    assert scheduler.outcomes == {}
    assert scheduler.queue.next_after(0.0) is None
    assert list(scheduler.cache.groups) == ["Pod default/small"]


def test_a_cycle_attempts_no_group_after_its_time_even_if_all_fail():
    cluster = FakeCluster(config=SchedulerConfig(cycle_seconds=2.5))
    tries = Tries(cluster.clock)
    cluster.nodes(1)
    cluster.add(pod(f"p{index}", cpu="8") for index in range(10))
    cluster.run(tries)
    assert len(tries.of) == 3
    assert cluster.scheduler.left_over
    cluster.run(cycles=2)
    assert len(tries.of) == 9
    cluster.run()
    assert len(tries.of) == 10
    assert not cluster.scheduler.left_over


def test_a_bound_pod_with_unreadable_requests_still_counts():
    tries = Tries()
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p", cpu="3"))
    cluster.run(tries)
    broken = msgspec.structs.replace(cluster.find(Pod, "p"), spec=pod("p", cpu="?", bound_to="n1").spec)
    cluster.add(broken)
    cluster.add(pod("q", cpu="3"))
    cluster.run()
    assert tries.cancelled == []
    assert "Pod default/p" in cluster.scheduler.cache.problems
    cluster.assert_pending("q", "Insufficient cpu")
    cluster.delete(Pod, "p")
    cluster.run()
    assert cluster.scheduler.cache.problems == {}
    cluster.assert_bound("q")


def test_pods_of_other_schedulers_count_if_they_run_and_are_ignored_if_they_wait():
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("theirs", cpu="3", bound_to="n1", scheduler="other"), pod("waiting", scheduler="other"))
    cluster.add(pod("p", cpu="2"))
    cluster.run()
    cluster.assert_pending("p", "Insufficient cpu")
    cluster.assert_pending("waiting", "does not serve")
    assert cluster.scheduler.cache.left_out == 1


def test_binding_creates_no_class_per_node():
    cluster = FakeCluster()
    cluster.nodes(5, cpu="1")
    cluster.add(pod(f"p{index}", cpu="1") for index in range(5))
    cluster.run()
    assert len({task.cls for task in cluster.scheduler.cache.tasks.values()}) == 1


def test_the_rest_of_a_gang_is_placed_when_a_member_is_replaced():
    cluster = FakeCluster()
    cluster.nodes(3, cpu="1")
    cluster.add(gang("g", 3, cpu="1"))
    cluster.run()
    cluster.delete(Pod, "g-1")
    cluster.run()
    cluster.add(pod("g-9", cpu="1", group="g"))
    cluster.run()
    cluster.assert_bound("g-9")
