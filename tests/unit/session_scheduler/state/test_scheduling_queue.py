"""Backoff: doubled each time, bounded, ended by a wake-up, each group for itself."""

from __future__ import annotations

from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.objects import Node, Pod
from session_scheduler.state.scheduling_queue import SchedulingQueue
from session_scheduler.testing import node, pod


def test_a_group_that_keeps_failing_waits_twice_as_long_each_time_up_to_the_maximum():
    queue = SchedulingQueue(1.0, 10.0)
    assert [queue.failed("g", 0.0) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert not queue.is_due("g", 9.9)
    assert queue.is_due("g", 10.0)
    assert queue.is_due("other", 0.0)


def test_thousands_of_failures_do_not_overflow_the_backoff():
    queue = SchedulingQueue(1.0, 10.0)
    assert {queue.failed("g", 5.0) for _ in range(5000)} >= {15.0}


def test_a_wake_up_makes_due_at_once_but_forgets_no_attempt():
    queue = SchedulingQueue(1.0, 10.0)
    queue.failed("g", 0.0)
    queue.failed("g", 0.0)
    queue.requeue_now("g", 0.5)
    assert queue.is_due("g", 0.5)
    assert queue.failed("g", 0.5) == 4.5
    queue.placed("g")
    assert queue.failed("g", 5.0) == 6.0


def test_the_next_wait_to_end_is_told_and_none_that_has_ended():
    queue = SchedulingQueue(1.0, 10.0)
    assert queue.next_after(0.0) is None
    queue.failed("a", 3.0)
    queue.failed("b", 0.0)
    assert queue.next_after(0.5) == 1.0
    assert queue.next_after(2.0) == 4.0
    assert queue.next_after(4.0) is None


def refused_class(name: str = "p") -> TaskClass:
    return ClassTable(NodeTable()).of(pod(name))


def wants(cls: TaskClass, *plugins: str) -> frozenset[tuple[TaskClass, frozenset[str]]]:
    return frozenset({(cls, frozenset(plugins or ("P",)))})


def test_who_was_refused_sleeps_until_an_event_and_then_for_its_backoff_unless_nothing_else_is_due():
    queue, cls = SchedulingQueue(1.0, 10.0), refused_class()
    queue.failed("g", 0.0, wants(cls))
    assert not queue.is_active("g", 100.0)
    assert not queue.is_hurried("g")
    queue.happened(ClusterEvent(Node, ActionType.ADD, None, node("n")))
    assert not queue.is_active("g", 0.5)
    assert queue.is_hurried("g")
    assert queue.next_after(0.5) == 1.0
    assert queue.is_active("g", 1.0)


def test_who_failed_by_an_error_is_not_hurried_and_its_backoff_counts_its_errors_alone():
    queue, cls = SchedulingQueue(1.0, 10.0), refused_class()
    for _ in range(3):
        queue.failed("g", 0.0, wants(cls))
    assert queue.failed("g", 0.0) == 1.0
    assert not queue.is_hurried("g")
    assert queue.failed("g", 0.0) == 2.0
    assert queue.failed("g", 0.0, wants(cls)) == 8.0


def test_one_that_fails_by_an_error_while_it_sleeps_is_told_to_sleep_no_more():
    woken: list[str] = []
    queue = SchedulingQueue(1.0, 10.0, on_requeued=woken.append)
    queue.failed("g", 0.0, wants(refused_class()))
    queue.failed("g", 0.0)
    assert woken == ["g"]
    assert queue.is_active("g", 1.0)


def test_a_plugins_wish_while_the_group_is_tried_is_kept_and_one_from_before_is_not():
    queue, cls = SchedulingQueue(1.0, 10.0), refused_class()
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


def test_the_forgotten_are_tried_again_looked_for_every_thirty_seconds():
    woken: list[tuple[str, str, int]] = []
    queue = SchedulingQueue(1.0, 10.0, 300.0, on_event=lambda *what: woken.append(what))
    cls = refused_class()
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
    assert woken == [("UnschedulableTimeout", "", 1)] * 2


def test_a_sleep_that_is_shorter_than_thirty_seconds_is_looked_at_as_often():
    queue = SchedulingQueue(1.0, 10.0, 5.0)
    queue.failed("one", 0.0, wants(refused_class()))
    assert queue.next_after(0.0) == 5.0
    queue.flush(5.0)
    assert queue.is_unschedulable("one"), "not longer than that"
    queue.flush(10.0)
    assert queue.is_active("one", 10.0)


def test_thousands_that_were_refused_alike_cost_one_hint_and_an_event_that_nobody_waits_for_none():
    asked: list[TaskClass] = []

    def hint(cls: TaskClass, _: ClusterEvent) -> bool:
        asked.append(cls)
        return len(asked) > 1

    registered = [ClusterEventWithHint(Node, ActionType.ADD, hint)]
    queue, cls = SchedulingQueue(1.0, 10.0, hints=lambda *_: registered), refused_class()
    for number in range(10_000):
        queue.failed(f"g{number}", 0.0, wants(cls))
    assert not queue.wants(Pod)
    assert queue.wants(Node) == ActionType.ADD
    queue.happened(ClusterEvent(Pod, ActionType.ADD, None, pod("p", bound_to="n")))
    assert asked == []
    queue.happened(ClusterEvent(Node, ActionType.ADD, None, node("n")))
    assert asked == [cls]
    assert queue.is_unschedulable("g7")
    queue.happened(ClusterEvent(Node, ActionType.ADD, None, node("m")))
    assert asked == [cls, cls]
    assert all(queue.is_hurried(f"g{number}") for number in range(10_000))
    assert not queue.wants(Node)


def test_a_pod_of_another_class_sleeps_on_for_the_same_reasons():
    before, after = refused_class("a"), refused_class("b")
    asked: list[TaskClass] = []
    registered = [ClusterEventWithHint(Node, ActionType.ALL, lambda cls, _: bool(asked.append(cls)))]
    queue = SchedulingQueue(1.0, 10.0, hints=lambda *_: registered)
    queue.failed("g", 0.0, wants(before))
    queue.changed_class("g", before, after, alone=True)
    queue.happened(ClusterEvent(Node, ActionType.ADD, None, node("n")))
    assert asked == [after]


def test_a_plugin_that_changed_wakes_those_whom_it_refused_and_nobody_else():
    cls = refused_class()
    woken: list[tuple[str, str, int]] = []
    queue = SchedulingQueue(1.0, 10.0, hints=lambda *_: (), on_event=lambda *what: woken.append(what))
    for key, plugins in (("a", {"mine"}), ("b", {"other"}), ("c", {"other", "mine"})):
        queue.failed(key, 0.0, frozenset({(cls, frozenset(plugins))}))
    queue.plugin_changed("mine")
    assert [key for key in "abc" if queue.is_unschedulable(key)] == ["b"]
    assert not queue.is_active("a", 0.5)  # its backoff stands
    assert queue.is_active("a", 1.0)
    assert woken == [("PluginChanged", "mine", 1)] * 2
