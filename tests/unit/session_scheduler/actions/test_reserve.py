"""Single pods with a plugin that reserves a share of the node that the core picks."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from session_scheduler import Refusal, hookimpl
from session_scheduler.model.objects import PodStatus
from session_scheduler.testing import FakeCluster, node, pod, pod_group


class Shares:
    """Reserves a share of any node except those in `full`; records its calls."""

    name = "shares"

    def __init__(self, full=(), order=None):
        self.full, self.order = full, order
        self.asked = []
        self.undone = 0

    @hookimpl
    def on_session_open(self, session):
        if self.order is not None:
            rows = [self.order.index(found.metadata.name) for found in session.table.nodes[: session.table.size]]
            session.set_tie_break(np.array(rows, np.int64))

    @hookimpl
    def reserve(self, task, node):
        self.asked.append(("reserve", node))
        return Refusal("full") if node in self.full else Share(self, {task: node})

    @hookimpl
    def place_group(self, session, tasks, room):
        self.asked.append(("place_group", len(tasks)))
        rows = np.flatnonzero(room[tasks[0].cls])
        names = [session.table.nodes[row].metadata.name for row in rows]
        open_ = sorted(name for name in names if name not in self.full)
        return Share(self, dict(zip(tasks, open_, strict=False))) if open_ else Refusal("all of it is full")


class Share:
    def __init__(self, plugin, nodes):
        self.plugin, self.nodes = plugin, nodes

    @property
    def holds(self):
        return {task: {} for task in self.nodes}

    def undo(self):
        self.plugin.undone += 1

    def redo(self):
        pass

    def release(self, tasks):
        for task in tasks:
            del self.nodes[task]


def cluster_of(**cpus):
    cluster = FakeCluster()
    for name, cpu in cpus.items():
        cluster.add(node(name, cpu=str(cpu)))
    return cluster


def test_a_single_pod_gets_its_share_of_the_best_node():
    cluster, plugin = cluster_of(small=2, large=8), Shares()
    cluster.add(pod("p", cpu="1"))
    cluster.run(plugin)
    assert cluster.node_of("p") == "large"
    assert plugin.asked == [("reserve", "large")]


def test_a_nominated_pod_gets_its_share_of_that_node():
    cluster, plugin = cluster_of(small=2, large=8), Shares()
    cluster.add(replace(pod("p", cpu="1"), status=PodStatus(nominated_node_name="small")))
    cluster.run(plugin)
    assert cluster.node_of("p") == "small"
    assert plugin.asked == [("reserve", "small")]


def test_single_pods_are_spread_by_the_shares_of_earlier_pods():
    cluster, plugin = cluster_of(a=4, b=4), Shares(order=["a", "b"])
    cluster.add(pod(f"p{index}", cpu="1") for index in range(4))
    cluster.run(plugin)
    assert plugin.asked == [("reserve", name) for name in "abab"]


def test_the_plugin_chooses_a_node_if_it_refuses_the_best_one():
    cluster, plugin = cluster_of(small=2, large=8), Shares(full=("large",))
    cluster.add(pod("p", cpu="1"))
    cluster.run(plugin)
    assert cluster.node_of("p") == "small"
    assert plugin.asked == [("reserve", "large"), ("place_group", 1)]


def test_a_pod_that_fits_on_no_node_reports_the_reason_of_place_group():
    cluster, plugin = cluster_of(a=2), Shares(full=("a",))
    cluster.add(pod("p", cpu="1"))
    cluster.run(plugin)
    assert cluster.node_of("p") is None
    assert "all of it is full" in cluster.reasons("p")


def test_a_gang_is_placed_together():
    cluster, plugin = cluster_of(a=2, b=2), Shares()
    cluster.add(pod_group("g", 2))
    cluster.add(pod(f"g-{index}", cpu="1", group="g") for index in range(2))
    cluster.run(plugin)
    assert plugin.asked == [("place_group", 2)]


@pytest.mark.parametrize("order", [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]])
def test_a_plugins_tie_break_orders_equal_nodes(order):
    cluster, plugin = cluster_of(a=4, b=4, c=4), Shares(order=order)
    cluster.add(pod(f"p{index}", cpu="1") for index in range(3))
    cluster.run(plugin)
    assert [where for _, where in plugin.asked] == order


def test_a_plugin_without_reserve_places_single_pods_too():
    class Places(Shares):
        name = "places"
        reserve = None  # type: ignore[assignment]

    cluster, plugin, other = cluster_of(a=2), Places(), Shares()
    cluster.add(pod("p", cpu="1"))
    cluster.run(plugin, other)
    assert plugin.asked == [("place_group", 1)]
    assert other.asked == []


def test_an_invalid_tie_break_fails_the_session():
    class Floats:
        name = "floats"

        @hookimpl
        def on_session_open(self, session):
            session.set_tie_break(np.zeros(session.table.size))

    cluster = cluster_of(a=2)
    cluster.add(pod("p", cpu="1"))
    cluster.run(Floats())
    cluster.assert_pending(
        "p", "floats failed in on_session_open: ValueError: expected an int64 for each of the 1 rows"
    )
