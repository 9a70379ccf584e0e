"""The visible behaviour of the queue: the order, the attempts, and the backoff.

The cases are those of kube-scheduler's tests of its queue; the answers are those of Kubernetes 1.36.
"""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler import hookimpl
from session_scheduler.model.objects import Pod, Toleration
from session_scheduler.testing import FakeCluster, gang, node, pod, pod_group


class Order:
    """Records the order in which groups are attempted."""

    name = "order"

    def __init__(self) -> None:
        self.tried: list[str] = []

    @hookimpl
    def prefilter(self, group: Any) -> None:
        self.tried.append(group.name)


class Queue(FakeCluster):
    """A cluster of one node; each step advances the clock by a second."""

    def __init__(self) -> None:
        super().__init__(checked=False)
        self.nodes(1)
        self.order = Order()
        self.run(self.order)

    def step(self, *objects: Any) -> list[str]:
        """Add objects and run a cycle. Returns the groups that it attempted."""
        self.advance(1)
        self.add(*objects)
        self.order.tried.clear()
        self.run()
        return list(self.order.tried)


@pytest.fixture
def queue() -> Queue:
    return Queue()


# ---------------------------------------------------------------------- the order


def test_a_pod_keeps_its_position_when_its_gates_are_removed(queue: Queue) -> None:
    queue.step(pod("old", gates=["later"]))
    assert queue.step(pod("young"), pod("old")) == ["old", "young"]


def test_a_gang_that_waits_for_its_pods_keeps_its_position(queue: Queue) -> None:
    first, *others = gang("old", 2)
    queue.step(first, others[0])
    assert queue.step(pod("young"), *others) == ["old", "young"]


def test_a_refused_pod_goes_behind_those_that_arrived_since(queue: Queue) -> None:
    queue.step(pod("older", gates=["later"]))
    queue.step(pod("old", cpu=8))
    queue.step(pod("young", cpu=8))
    queue.advance(10)
    assert queue.step(node("n2", cpu=24), pod("older", cpu=8)) == ["older", "old", "young"]


# ---------------------------------------------------------------------- attempts


def test_a_gang_that_waits_for_its_pods_is_not_attempted_and_has_no_backoff(queue: Queue) -> None:
    first, *others = gang("g", 4, cpu=9)
    queue.step(first)
    for other in others:
        queue.step(other)
    pending, now = queue.scheduler.queue, queue.clock.now()
    queue.add(node("n2", cpu=9))
    queue.run()
    assert not pending.is_active("PodGroup default/g", now + 0.9), "expected the first attempt with all pods"
    queue.advance(1)
    queue.add(node("n3", cpu=9))
    assert queue.step() == ["g"]


def test_a_recreated_pod_has_never_failed(queue: Queue) -> None:
    queue.step(pod("p", cpu=9))
    queue.advance(10)
    queue.step(node("n1", cpu=8))
    queue.delete(Pod, "p")
    queue.step(pod("p", cpu=9))
    pending, now = queue.scheduler.queue, queue.clock.now()
    pending.requeue("Pod default/p", "a test")
    assert pending.next_after(now) == now + 1


# ---------------------------------------------------------------------- the backoff


def test_a_pod_that_joins_a_refused_gang_does_not_shorten_its_backoff(queue: Queue) -> None:
    queue.step(gang("g", 2, cpu=9))
    queue.scheduler.queue.failed("PodGroup default/g", queue.clock.now())
    queue.scheduler.queue.failed("PodGroup default/g", queue.clock.now())
    assert queue.step(pod("more", group="g", cpu=9)) == []
    assert queue.step() == ["g"]


def test_a_pod_that_joins_an_unschedulable_gang_requeues_it(queue: Queue) -> None:
    queue.step(gang("g", 2, cpu=9))
    queue.advance(10)
    assert queue.step(pod("more", group="g")) == ["g"]


@pytest.mark.parametrize("change", [{"labels": {"a": "b"}}, {"tolerations": (Toleration(operator="Exists"),)}])
def test_a_pod_that_changes_in_its_backoff_stays_in_it(queue: Queue, change: dict[str, Any]) -> None:
    queue.step(pod("p"))
    queue.add(pod("q", cpu=9))
    queue.run()
    queue.scheduler.queue.failed("Pod default/q", queue.clock.now())
    queue.scheduler.queue.failed("Pod default/q", queue.clock.now())
    assert queue.step(pod("q", cpu=9, **change)) == []
    assert queue.step() == ["q"]


# ---------------------------------------------------------------------- members that are placed individually


def test_the_end_of_an_individually_placed_member_requeues_only_pods_it_can_help(queue: Queue) -> None:
    queue.step(pod_group("g"), pod("runs", group="g"), pod("waits", group="g", node_selector={"disk": "ssd"}))
    queue.assert_bound("runs")
    queue.advance(10)
    queue.delete(Pod, "runs")
    assert queue.step() == []
    assert queue.step(node("n2", labels={"disk": "ssd"})) == ["g"]


def test_the_end_of_a_member_requeues_a_gang_that_is_placed_together(queue: Queue) -> None:
    queue.step(gang("g", 3, min_count=2, cpu=9))
    queue.advance(10)
    queue.delete(Pod, "g-2")
    assert queue.step() == ["g"]


# ---------------------------------------------------------------------- gangs that would fit partly


@pytest.mark.parametrize("cpus", [(3, 3), (1, 9)], ids=["as many as fit", "one of another class"])
def test_a_gang_that_would_fit_partly_waits_until_an_event_helps(queue: Queue, cpus: tuple[int, int]) -> None:
    first, second = cpus
    queue.step(pod_group("g", 2), pod("a", group="g", cpu=first), pod("b", group="g", cpu=second))
    queue.advance(20)
    assert queue.step(pod("unrelated")) == ["unrelated"]
    assert queue.step(node("n2", cpu=9)) == ["g"]
    queue.assert_bound("b", "n2")


# ---------------------------------------------------------------------- invalid objects


def test_a_node_counts_exactly_while_its_quantities_are_valid(
    queue: Queue,
) -> None:
    queue.step(node("n2", cpu="much"), pod("p", cpu=9), pod("q", cpu=9))
    queue.advance(10)
    assert queue.step(node("n2", cpu=9)) == ["p"]
    queue.assert_bound("p", "n2")
    queue.advance(10)
    assert queue.step(node("n2", cpu="much")) == []
    assert queue.step(node("n2", cpu=20)) == ["q"]
    queue.assert_bound("q", "n2")


# ---------------------------------------------------------------------- groups left over


def test_a_group_requeued_in_its_backoff_is_left_over_if_others_go_first(queue: Queue) -> None:
    queue.step(pod("p", cpu=9))
    queue.add(pod("q", cpu=99), node("n2", cpu=10))
    queue.run()
    assert queue.node_of("p") is None
    assert queue.scheduler.left_over
    queue.run()
    queue.assert_bound("p", "n2")
    assert not queue.scheduler.left_over
