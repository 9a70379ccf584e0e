"""Preemption with a plugin that places groups and answers `reservable` for each node."""

from __future__ import annotations

from collections import Counter

import pytest

from session_scheduler import Refusal, hookimpl
from session_scheduler.testing import FakeCluster, node, pod

from ....tools.preempting import ended


class Rooms:
    """Allows `most` pods on each node; records its calls."""

    name = "rooms"

    def __init__(self, most=1, answers=True):
        self.most, self.answers = most, answers
        self.asked = []
        self.followed = Counter()

    @hookimpl
    def on_session_open(self, session):
        session.add_trial_handler(self._follow("removed"), self._follow("put back"))

    def _follow(self, what):
        return lambda event: self.followed.update([what])

    @hookimpl
    def place_group(self, session, tasks, room):
        self.asked.append("place_group")
        return Refusal("no room is left")

    @hookimpl
    def reservable(self, session, nodes, gone):
        self.asked.append(("reservable", *nodes))
        if not self.answers:
            return None
        tasks_on = session.snapshot.cache.tasks_on
        running = {name: sum(task not in gone for task in tasks_on(name)) for name in nodes}
        return [f"{running[name]} run there" if running[name] >= self.most else None for name in nodes]


class Follower:
    """Follows trials, and has no `reservable`."""

    name = "follower"

    @hookimpl
    def on_session_open(self, session):
        session.add_trial_handler(lambda event: None, lambda event: None)


def full(nodes=2, each=3):
    """Nodes full of pods; on each node the later pods are less important."""
    cluster = FakeCluster(checked=False)
    for name in [f"n{number}" for number in range(1, nodes + 1)]:
        cluster.add(node(name, cpu=str(each)))
        cluster.add(*(pod(f"{name}-{n}", cpu="1", priority=9 - n, bound_to=name) for n in range(each)))
    return cluster


def test_the_victims_follow_the_answers_of_reservable_without_a_placement():
    cluster, plugin = full(nodes=1), Rooms(most=2)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run(plugin)
    assert ended(cluster) == ["n1-1", "n1-2"]
    assert plugin.followed == {}
    assert "place_group" not in plugin.asked


def test_reservable_is_called_only_for_nodes_that_pass_the_filters():
    cluster, plugin = full(nodes=1), Rooms(most=3)
    cluster.add(pod("high", cpu="2", priority=10))
    cluster.run(plugin)
    assert ended(cluster) == ["n1-1", "n1-2"]
    # whether it answers at all; without all pods; with the first one back; the filters reject the return of the others
    assert plugin.asked == [("reservable",), ("reservable", "n1"), ("reservable", "n1")]


def test_later_pods_call_reservable_only_for_changed_nodes():
    cluster, plugin = full(nodes=3), Rooms(most=3)
    cluster.add(*(pod(f"high{number}", cpu="1", priority=10) for number in range(3)))
    cluster.run(plugin)
    assert len(ended(cluster)) == 3
    asked = Counter(name for entry in plugin.asked if "reservable" in entry for name in entry[1:])
    # three calls for each node by the first pod; two more calls for each node that has a nominated pod
    assert sorted(asked.values()) == [3, 5, 5]


def test_the_message_includes_the_plugins_reason_for_a_node():
    cluster, plugin = full(nodes=2), Rooms(most=0)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run(plugin)
    assert ended(cluster) == []
    cluster.assert_pending("high", "preemption: 0/2 nodes are available: 2 0 run there.")


@pytest.mark.parametrize("others", [[Rooms(answers=False)], [Rooms(most=2), Follower()]], ids=["no answer", "follower"])
def test_without_an_answer_of_reservable_the_removal_is_simulated(others):
    cluster = full(nodes=1)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run(*others)
    assert ended(cluster) == []  # its place_group refuses everything
    assert others[0].followed == {"removed": 3, "put back": 3}
    assert "place_group" in others[0].asked


@pytest.mark.parametrize("wrong", [["full"], [1, 2], [None] * 3, "ab", 5], ids=str)
def test_an_invalid_answer_fails_the_pod_with_the_plugins_name(wrong):
    class Wrong(Rooms):
        @hookimpl
        def reservable(self, nodes):  # type: ignore[override]
            return wrong if nodes else ()

    cluster = full(nodes=2)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run(Wrong())
    assert ended(cluster) == []
    cluster.assert_pending(
        "high", "plugin rooms failed in reservable: expected a list with a reason or None for each of 2 nodes"
    )
