"""Preemption beside a plugin that places groups and says of each node what would come of it there."""

from __future__ import annotations

from collections import Counter

import pytest

from session_scheduler import Refusal, hookimpl
from session_scheduler.testing import FakeCluster, node, pod

from ....tools.preempting import ended


class Rooms:
    """Lets so many pods run on each node; notes what it is asked."""

    name = "rooms"

    def __init__(self, most=1, tells=True):
        self.most, self.tells = most, tells
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
        if not self.tells:
            return None
        tasks_on = session.snapshot.cache.tasks_on
        running = {name: sum(task not in gone for task in tasks_on(name)) for name in nodes}
        return [f"{running[name]} run there" if running[name] >= self.most else None for name in nodes]


class Follower:
    """Follows what is thought away, and says nothing of nodes."""

    name = "follower"

    @hookimpl
    def on_session_open(self, session):
        session.add_trial_handler(lambda event: None, lambda event: None)


def full(nodes=2, each=3):
    """Nodes full of pods, the later ones of each the less important."""
    cluster = FakeCluster(checked=False)
    for name in [f"n{number}" for number in range(1, nodes + 1)]:
        cluster.add(node(name, cpu=str(each)))
        cluster.add(*(pod(f"{name}-{n}", cpu="1", priority=9 - n, bound_to=name) for n in range(each)))
    return cluster


def test_as_many_end_as_the_plugin_says_and_nothing_is_tried_out():
    cluster, plugin = full(nodes=1), Rooms(most=2)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run(plugin)
    assert ended(cluster) == ["n1-1", "n1-2"]
    assert plugin.followed == {}
    assert "place_group" not in plugin.asked


def test_only_nodes_that_pass_the_filters_are_asked_for():
    cluster, plugin = full(nodes=1), Rooms(most=3)
    cluster.add(pod("high", cpu="2", priority=10))
    cluster.run(plugin)
    assert ended(cluster) == ["n1-1", "n1-2"]
    # whether it answers at all; when all are gone; with the first of them back; filters refuse the others' return
    assert plugin.asked == [("reservable",), ("reservable", "n1"), ("reservable", "n1")]


def test_who_comes_later_asks_only_for_nodes_on_which_something_was_done():
    cluster, plugin = full(nodes=3), Rooms(most=3)
    cluster.add(*(pod(f"high{number}", cpu="1", priority=10) for number in range(3)))
    cluster.run(plugin)
    assert len(ended(cluster)) == 3
    asked = Counter(name for entry in plugin.asked if "reservable" in entry for name in entry[1:])
    # the first one asks three times for each node; after it two nodes are asked for twice more, beside who is nominated
    assert sorted(asked.values()) == [3, 5, 5]


def test_a_node_that_the_plugin_refuses_is_told_with_its_reason():
    cluster, plugin = full(nodes=2), Rooms(most=0)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run(plugin)
    assert ended(cluster) == []
    cluster.assert_pending("high", "preemption: 0/2 nodes are available: 2 0 run there.")


@pytest.mark.parametrize("others", [[Rooms(tells=False)], [Rooms(most=2), Follower()]], ids=["tells not", "follower"])
def test_where_a_plugin_cannot_tell_pods_are_thought_away(others):
    cluster = full(nodes=1)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run(*others)
    assert ended(cluster) == []  # it refuses whatever is asked of it then
    assert others[0].followed == {"removed": 3, "put back": 3}
    assert "place_group" in others[0].asked


@pytest.mark.parametrize("wrong", [["full"], [1, 2], [None] * 3, "ab", 5], ids=str)
def test_an_answer_that_is_none_fails_the_pod_with_the_plugins_name(wrong):
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
