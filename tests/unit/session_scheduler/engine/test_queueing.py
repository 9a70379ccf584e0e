"""The queue as users see it: who goes first, what counts as an attempt, and whose backoff stands.

Cases as in kube-scheduler's tests of its queue; the answers are those of Kubernetes 1.36.
"""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler import hookimpl
from session_scheduler.model.objects import Pod, Toleration
from session_scheduler.testing import FakeCluster, gang, node, pod, pod_group


class Order:
    """Notes in which order groups are tried."""

    name = "order"

    def __init__(self) -> None:
        self.tried: list[str] = []

    @hookimpl
    def prefilter(self, group: Any) -> None:
        self.tried.append(group.name)


class Queue(FakeCluster):
    """A cluster of one node, a second later with each step."""

    def __init__(self) -> None:
        super().__init__(checked=False)
        self.nodes(1)
        self.order = Order()
        self.run(self.order)

    def step(self, *objects: Any) -> list[str]:
        """Add objects and run a cycle. Returns what was tried in it."""
        self.advance(1)
        self.add(*objects)
        self.order.tried.clear()
        self.run()
        return list(self.order.tried)


@pytest.fixture
def queue() -> Queue:
    return Queue()


# ---------------------------------------------------------------------- who goes first


def test_a_pod_whose_gates_go_keeps_its_place_among_those_that_wait(queue: Queue) -> None:
    queue.step(pod("old", gates=["later"]))
    assert queue.step(pod("young"), pod("old")) == ["old", "young"]


def test_a_gang_that_waits_for_its_pods_keeps_its_place(queue: Queue) -> None:
    first, *others = gang("old", 2)
    queue.step(first, others[0])
    assert queue.step(pod("young"), *others) == ["old", "young"]


def test_who_was_refused_goes_behind_those_that_came_since(queue: Queue) -> None:
    queue.step(pod("older", gates=["later"]))
    queue.step(pod("old", cpu=8))
    queue.step(pod("young", cpu=8))
    queue.advance(10)
    assert queue.step(node("n2", cpu=9), pod("older", cpu=8)) == ["older", "old", "young"]


# ---------------------------------------------------------------------- what counts as an attempt


def test_a_gang_that_waits_for_its_pods_is_not_tried_and_has_no_backoff(queue: Queue) -> None:
    first, *others = gang("g", 4, cpu=9)
    queue.step(first)
    for other in others:
        queue.step(other)
    pending, now = queue.scheduler.queue, queue.clock.now()
    queue.add(node("n2", cpu=9))
    queue.run()
    assert not pending.is_active("PodGroup default/g", now + 0.9), "the first attempt was the one with all its pods"
    queue.advance(1)
    queue.add(node("n3", cpu=9))
    assert queue.step() == ["g"]


def test_a_pod_that_comes_again_by_the_same_name_has_failed_never(queue: Queue) -> None:
    queue.step(pod("p", cpu=9))
    queue.advance(10)
    queue.step(node("n1", cpu=8))
    queue.delete(Pod, "p")
    queue.step(pod("p", cpu=9))
    pending, now = queue.scheduler.queue, queue.clock.now()
    pending.requeue("Pod default/p", "a test")
    assert pending.next_after(now) == now + 1


# ---------------------------------------------------------------------- whose backoff stands


def test_a_pod_that_joins_a_gang_that_was_refused_does_not_cut_its_backoff_short(queue: Queue) -> None:
    queue.step(gang("g", 2, cpu=9))
    queue.scheduler.queue.failed("PodGroup default/g", queue.clock.now())
    queue.scheduler.queue.failed("PodGroup default/g", queue.clock.now())
    assert queue.step(pod("more", group="g", cpu=9)) == []
    assert queue.step() == ["g"]


def test_a_pod_that_joins_a_gang_that_sleeps_has_it_tried_again(queue: Queue) -> None:
    queue.step(gang("g", 2, cpu=9))
    queue.advance(10)
    assert queue.step(pod("more", group="g")) == ["g"]


@pytest.mark.parametrize("change", [{"labels": {"a": "b"}}, {"tolerations": (Toleration(operator="Exists"),)}])
def test_a_pod_that_changes_in_its_backoff_stays_there(queue: Queue, change: dict[str, Any]) -> None:
    queue.step(pod("p"))
    queue.add(pod("q", cpu=9))
    queue.run()
    queue.scheduler.queue.failed("Pod default/q", queue.clock.now())
    queue.scheduler.queue.failed("Pod default/q", queue.clock.now())
    assert queue.step(pod("q", cpu=9, **change)) == []
    assert queue.step() == ["q"]


# ---------------------------------------------------------------------- members that stand for themselves


def test_the_end_of_a_member_wakes_only_whom_it_can_help_where_members_stand_for_themselves(queue: Queue) -> None:
    queue.step(pod_group("g"), pod("runs", group="g"), pod("waits", group="g", node_selector={"disk": "ssd"}))
    queue.assert_bound("runs")
    queue.advance(10)
    queue.delete(Pod, "runs")
    assert queue.step() == []
    assert queue.step(node("n2", labels={"disk": "ssd"})) == ["g"]


def test_the_end_of_a_member_wakes_a_gang_that_is_placed_together(queue: Queue) -> None:
    queue.step(gang("g", 3, min_count=2, cpu=9))
    queue.advance(10)
    queue.delete(Pod, "g-2")
    assert queue.step() == ["g"]


# ---------------------------------------------------------------------- gangs that would fit in part


@pytest.mark.parametrize("cpus", [(3, 3), (1, 9)], ids=["as many as fit", "one of another class"])
def test_a_gang_of_which_a_part_would_fit_sleeps_until_something_helps(queue: Queue, cpus: tuple[int, int]) -> None:
    first, second = cpus
    queue.step(pod_group("g", 2), pod("a", group="g", cpu=first), pod("b", group="g", cpu=second))
    queue.advance(20)
    assert queue.step(pod("unrelated")) == ["unrelated"]
    assert queue.step(node("n2", cpu=9)) == ["g"]
    queue.assert_bound("b", "n2")


# ---------------------------------------------------------------------- objects that are wrong


def test_a_node_whose_quantities_are_none_counts_when_they_are_right_and_no_more_when_they_are_wrong(
    queue: Queue,
) -> None:
    queue.step(node("n2", cpu="much"), pod("p", cpu=9), pod("q", cpu=9))
    queue.advance(10)
    assert queue.step(node("n2", cpu=9)) == ["p", "q"]
    queue.assert_bound("p", "n2")
    queue.advance(10)
    assert queue.step(node("n2", cpu="much")) == []
    assert queue.step(node("n2", cpu=20)) == ["q"]
    queue.assert_bound("q", "n2")


# ---------------------------------------------------------------------- what is left over


def test_who_was_woken_in_its_backoff_is_known_to_be_left_where_others_went_first(queue: Queue) -> None:
    queue.step(pod("p", cpu=9))
    queue.add(pod("q", cpu=99), node("n2", cpu=10))
    queue.run()
    assert queue.node_of("p") is None
    assert queue.scheduler.left_over
    queue.run()
    queue.assert_bound("p", "n2")
    assert not queue.scheduler.left_over
