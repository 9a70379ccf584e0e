"""The order of queues, groups and tasks: by registered keys, then by creation time and uid."""

from __future__ import annotations

from session_scheduler import hookimpl
from session_scheduler.testing import FakeCluster, gang, pod, pod_group


class Recorder:
    """Registers orders, and records the order in which tasks are placed."""

    name = "recorder"

    def __init__(self, **orders):
        self._orders = orders
        self.placed = []

    @hookimpl
    def on_session_open(self, session):
        for kind, key in self._orders.items():
            getattr(session, f"add_{kind}_order")(key)
        session.add_event_handler(allocate=lambda event: self.placed.append(event.task.name))


def order_of(*objects, queues=None, **orders):
    recorder = Recorder(**orders)
    cluster = FakeCluster()
    cluster.nodes(2)
    cluster.add(*objects)
    scheduler = cluster.start(recorder)
    for group in scheduler.cache.groups.values():
        group.queue = (queues or {}).get(group.name, "default")
    cluster.run()
    return recorder.placed


def test_the_higher_priority_comes_first_then_the_older():
    assert order_of(pod("z"), pod("b"), pod("a", priority=5)) == ["a", "z", "b"]


def test_a_group_is_as_old_as_its_pod_group():
    assert order_of(pod_group("g", 1), pod("alone"), pod("member", group="g")) == ["member", "alone"]


def test_job_orders_apply_in_order_of_registration_before_the_priority():
    groups = [pod("a", priority=9), pod("b"), pod("c")]
    assert order_of(*groups, job=lambda group: group.name != "c") == ["c", "a", "b"]


def test_task_orders_decide_within_a_group():
    placed = order_of(gang("g", 3), task=lambda task: -int(task.name[-1]))
    assert placed == ["g-2", "g-1", "g-0"]


def test_queue_orders_are_called_again_before_each_group():
    turns = {"x": 0, "y": 0}

    class Fair(Recorder):
        @hookimpl
        def on_session_open(self, session):
            session.add_queue_order(lambda queue: turns[queue])
            session.add_event_handler(allocate=self.note)

        def note(self, event):
            self.placed.append(event.task.name)
            turns[event.task.group.queue] += 1

    fair = Fair()
    cluster = FakeCluster()
    cluster.nodes(2)
    cluster.add(pod(name) for name in ("x1", "x2", "x3", "y1", "y2"))
    for group in cluster.start(fair).cache.groups.values():
        group.queue = group.name[0]
    cluster.run()
    assert fair.placed == ["x1", "y1", "x2", "y2", "x3"]


def order_of_pods(names, **callbacks):
    """The order in which pods are placed, and the cluster; the queue of each pod is its first letter."""

    class QueueOrder(Recorder):
        @hookimpl
        def on_session_open(self, session):
            session.add_queue_order(**callbacks)
            session.add_event_handler(allocate=lambda event: self.placed.append(event.task.name))

    recorder = QueueOrder()
    cluster = FakeCluster()
    cluster.nodes(2)
    cluster.add(pod(name) for name in names)
    for group in cluster.start(recorder).cache.groups.values():
        group.queue = group.name[0]
    cluster.run()
    return recorder.placed, cluster


def test_a_queue_order_that_reports_the_changed_queues_is_called_for_these_only():
    read, asked = [], []
    keys = {"x": [1, 3], "y": [2, 4], "z": [9]}
    answers = [["x", "y", "z"], ["x"], ["y"], []]

    def key(queue):
        read.append(queue)
        return keys[queue].pop(0)

    def changed(unlike):
        asked.append(list(unlike))
        return answers.pop(0)

    placed, _ = order_of_pods(("x1", "x2", "y1", "y2", "z1"), key=key, changed=changed)
    assert placed == ["x1", "y1", "x2", "y2", "z1"]
    assert read == ["x", "y", "z", "x", "y"]
    assert asked == [["x", "y", "z"], [], [], ["x"]]  # the pods request the same; at last, x has none left


def test_the_groups_of_all_queues_fail_if_it_does_not_return_queues():
    _, cluster = order_of_pods(("x1", "y1"), key=lambda queue: queue, changed=lambda unlike: 7)
    for name in ("x1", "y1"):
        cluster.assert_pending(name, "plugin recorder failed in changed queues: TypeError")


def test_without_queue_orders_the_queues_name_decides():
    queues = {"a": "two", "b": "one"}
    assert order_of(pod("a"), pod("b"), queues=queues) == ["b", "a"]
