"""Scheduling queue: backoff, unschedulable groups, and what requeues them."""

from __future__ import annotations

from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.objects import Node, Pod
from session_scheduler.state.scheduling_queue import MOST_ASKED, SchedulingQueue
from session_scheduler.testing import node, pod


def test_each_failure_doubles_the_backoff_up_to_the_maximum():
    queue = SchedulingQueue(1.0, 10.0)
    assert [queue.failed("g", 0.0) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert not queue.is_due("g", 9.9)
    assert queue.is_due("g", 10.0)
    assert queue.is_due("other", 0.0)


def test_thousands_of_failures_do_not_overflow_the_backoff():
    queue = SchedulingQueue(1.0, 10.0)
    assert {queue.failed("g", 5.0) for _ in range(5000)} >= {15.0}


def test_requeue_now_ends_the_backoff_and_keeps_the_attempts():
    queue = SchedulingQueue(1.0, 10.0)
    queue.failed("g", 0.0)
    queue.failed("g", 0.0)
    queue.requeue_now("g", 0.5)
    assert queue.is_due("g", 0.5)
    assert queue.failed("g", 0.5) == 4.5
    queue.placed("g")
    assert queue.failed("g", 5.0) == 6.0


def test_next_after_returns_the_next_end_of_a_backoff():
    queue = SchedulingQueue(1.0, 10.0)
    assert queue.next_after(0.0) is None
    queue.failed("a", 3.0)
    queue.failed("b", 0.0)
    assert queue.next_after(0.5) == 1.0
    assert queue.next_after(2.0) == 4.0
    assert queue.next_after(4.0) is None


def rejected_class(name: str = "p") -> TaskClass:
    return ClassTable(NodeTable()).of(pod(name))


def wants(cls: TaskClass, *plugins: str) -> frozenset[tuple[TaskClass, frozenset[str]]]:
    return frozenset({(cls, frozenset(plugins or ("P",)))})


def test_a_rejected_group_is_unschedulable_until_an_event_and_then_in_backoff():
    queue, cls = SchedulingQueue(1.0, 10.0), rejected_class()
    queue.failed("g", 0.0, wants(cls))
    assert not queue.is_active("g", 100.0)
    assert not queue.is_hurried("g")
    queue.happened(ClusterEvent(Node, ActionType.ADD, None, node("n")))
    assert not queue.is_active("g", 0.5)
    assert queue.is_hurried("g")
    assert queue.next_after(0.5) == 1.0
    assert queue.is_active("g", 1.0)


def test_a_group_after_an_error_is_not_hurried_and_its_backoff_counts_only_errors():
    queue, cls = SchedulingQueue(1.0, 10.0), rejected_class()
    for _ in range(3):
        queue.failed("g", 0.0, wants(cls))
    assert queue.failed("g", 0.0) == 1.0
    assert not queue.is_hurried("g")
    assert queue.failed("g", 0.0) == 2.0
    assert queue.failed("g", 0.0, wants(cls)) == 8.0


def test_an_error_requeues_an_unschedulable_group():
    requeued: list[str] = []
    queue = SchedulingQueue(1.0, 10.0, on_requeued=requeued.append)
    queue.failed("g", 0.0, wants(rejected_class()))
    queue.failed("g", 0.0)
    assert requeued == ["g"]
    assert queue.is_active("g", 1.0)


def test_an_activation_during_an_attempt_is_kept_and_an_earlier_one_is_not():
    queue, cls = SchedulingQueue(1.0, 10.0), rejected_class()
    queue.activate("g", 0.0)
    queue.begin(["g"])
    queue.failed("g", 0.0, wants(cls))
    assert queue.is_unschedulable("g")
    queue.activate("g", 0.0)
    queue.begin(["g"])
    queue.activate("g", 0.0)
    queue.failed("g", 0.0, wants(cls))
    assert not queue.is_unschedulable("g")
    assert queue.is_hurried("g")


def test_the_queue_checks_the_unschedulable_timeout_every_thirty_seconds():
    events: list[tuple[str, str, list[str]]] = []
    queue = SchedulingQueue(1.0, 10.0, 300.0, on_event=lambda *what: events.append(what))
    cls = rejected_class()
    queue.failed("old", 0.0, wants(cls))
    queue.failed("new", 100.0, wants(cls))
    assert queue.next_after(0.0) == 30.0
    queue.flush(29.0)
    queue.flush(310.0)
    assert queue.is_active("old", 310.0)
    assert queue.is_unschedulable("new")
    queue.placed("old")
    queue.flush(339.0)
    queue.flush(401.0)
    assert queue.is_active("new", 401.0)
    assert events == [("UnschedulableTimeout", "", ["old"]), ("UnschedulableTimeout", "", ["new"])]


def test_the_queue_checks_a_shorter_timeout_as_often_as_its_length():
    queue = SchedulingQueue(1.0, 10.0, 5.0)
    queue.failed("one", 0.0, wants(rejected_class()))
    assert queue.next_after(0.0) == 5.0
    queue.flush(5.0)
    assert queue.is_unschedulable("one"), "not longer than that"
    queue.flush(10.0)
    assert queue.is_active("one", 10.0)


def test_groups_with_the_same_rejections_cost_one_hint_per_event():
    hinted: list[TaskClass] = []

    def hint(cls: TaskClass, _: ClusterEvent) -> bool:
        hinted.append(cls)
        return len(hinted) > 1

    registered = [ClusterEventWithHint(Node, ActionType.ADD, hint)]
    queue, cls = SchedulingQueue(1.0, 10.0, hints=lambda *_: registered), rejected_class()
    for number in range(10_000):
        queue.failed(f"g{number}", 0.0, wants(cls))
    assert not queue.wants(Pod)
    assert queue.wants(Node) == ActionType.ADD
    queue.happened(ClusterEvent(Pod, ActionType.ADD, None, pod("p", bound_to="n")))
    assert hinted == []
    queue.happened(ClusterEvent(Node, ActionType.ADD, None, node("n")))
    assert hinted == [cls]
    assert queue.is_unschedulable("g7")
    queue.happened(ClusterEvent(Node, ActionType.ADD, None, node("m")))
    assert hinted == [cls, cls]
    assert all(queue.is_hurried(f"g{number}") for number in range(10_000))
    assert not queue.wants(Node)


def test_a_changed_class_keeps_its_rejections():
    before, after = rejected_class("a"), rejected_class("b")
    hinted: list[TaskClass] = []
    registered = [ClusterEventWithHint(Node, ActionType.ALL, lambda cls, _: bool(hinted.append(cls)))]
    queue = SchedulingQueue(1.0, 10.0, hints=lambda *_: registered)
    queue.failed("g", 0.0, wants(before))
    queue.changed_class("g", before, after, alone=True)
    queue.happened(ClusterEvent(Node, ActionType.ADD, None, node("n")))
    assert hinted == [after]


def test_a_changed_plugin_requeues_only_the_groups_that_it_rejected():
    cls = rejected_class()
    events: list[tuple[str, str, list[str]]] = []
    queue = SchedulingQueue(1.0, 10.0, hints=lambda *_: (), on_event=lambda *what: events.append(what))
    for key, plugins in (("a", {"mine"}), ("b", {"other"}), ("c", {"other", "mine"})):
        queue.failed(key, 0.0, frozenset({(cls, frozenset(plugins))}))
    queue.plugin_changed("mine")
    assert [key for key in "abc" if queue.is_unschedulable(key)] == ["b"]
    assert not queue.is_active("a", 0.5)  # its backoff continues
    assert queue.is_active("a", 1.0)
    assert events == [("PluginChanged", "mine", ["a"]), ("PluginChanged", "mine", ["c"])]


def test_an_event_is_compared_with_a_limited_number_of_rejections_of_a_namespace():
    asked = []

    def hint(cls: TaskClass, _: ClusterEvent) -> bool:
        asked.append(cls.namespace)
        return False

    registered = ClusterEventWithHint(Node, ActionType.ADD, hint)
    queue, table = SchedulingQueue(hints=lambda *_: [registered]), ClassTable(NodeTable())
    for number in range(MOST_ASKED + 200):
        queue.failed(f"busy-{number}", 0.0, wants(table.of(pod("p", namespace="busy", cpu=number + 1))))
    queue.failed("calm", 0.0, wants(table.of(pod("p", namespace="calm"))))
    event = ClusterEvent(Node, ActionType.ADD, None, node("n"))
    queue.happened(event)
    assert (asked.count("busy"), asked.count("calm")) == (MOST_ASKED, 1)
    asked.clear()
    for number in range(150):  # those that were placed make room for the oldest of the others
        queue.placed(f"busy-{number}")
        queue.placed(f"busy-{MOST_ASKED + 199 - number}" if number < 40 else "none")
    queue.happened(event)
    assert asked.count("busy") == MOST_ASKED
    for number in range(MOST_ASKED + 200):
        queue.placed(f"busy-{number}")
    asked.clear()
    queue.happened(event)
    assert asked == ["calm"]
