"""Gangs with a hard spread and a plugin that places groups: the core calls it for one domain's share at a time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from session_scheduler import Refusal, hookimpl
from session_scheduler.testing import FakeCluster, node, pod, pod_group

ZONE = "zone"


class Greedy:
    """Fills the first rows with free capacity and ignores the spread; records its calls."""

    name = "greedy"

    def __init__(self):
        self.asked = []

    @hookimpl
    def place_group(self, session, tasks, room):
        open_rows = room[tasks[0].cls]
        names = [session.table.nodes[row].metadata.name for row in np.repeat(np.arange(len(open_rows)), open_rows)]
        self.asked.append((len(tasks), "".join(sorted({name[0] for name in names}))))
        return Share(dict(zip(tasks, sorted(names), strict=False))) if names else Refusal("full")


class Share:
    def __init__(self, nodes):
        self.nodes = nodes

    @property
    def holds(self):
        return {task: {} for task in self.nodes}

    def undo(self):
        pass

    def redo(self):
        pass

    def release(self, tasks):
        for task in tasks:
            del self.nodes[task]


def spread(skew=1, key=ZONE, **fields):
    return {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "g"}}, **fields}  # fmt: skip


def world(size, zones, *constraints, plugin=None, there=(), minimum=None):
    """A gang of pods of one cpu over nodes a1, a2, … of each zone with these cpus."""
    cluster = FakeCluster()
    for zone, cpus in zones.items():
        for number, cpu in enumerate(cpus, start=1):
            cluster.add(node(f"{zone}{number}", cpu=str(cpu), labels={ZONE: zone}))
    for number, name in enumerate(there):
        cluster.add(pod(f"there-{number}", cpu="1", bound_to=name, labels={"app": "g"}))
    cluster.add(pod_group("g", minimum or size))
    cluster.add(
        pod(f"g-{index}", cpu="1", group="g", labels={"app": "g"}, topology_spread_constraints=constraints)
        for index in range(size)
    )
    plugin = plugin or Greedy()
    cluster.run(plugin)
    placed = Counter(where[0] for index in range(size) if (where := cluster.node_of(f"g-{index}")))
    return plugin, placed


def test_the_plugin_is_called_once_for_the_share_of_each_domain():
    plugin, placed = world(9, {"a": [8, 8], "b": [8, 8], "c": [8, 8]}, spread())
    assert placed == {"a": 3, "b": 3, "c": 3}
    assert plugin.asked == [(3, "a"), (3, "b"), (3, "c")]


def test_shares_even_out_the_pods_already_there():
    plugin, placed = world(4, {"a": [8], "b": [8, 8], "c": [8, 8]}, spread(), there=["a1", "a1", "b1"])
    assert placed == {"a": 1, "b": 1, "c": 2}
    assert plugin.asked == [(2, "c"), (1, "b"), (1, "a")]


def test_the_share_of_a_full_domain_goes_to_others_within_the_skew():
    _, placed = world(6, {"a": [1, 1], "b": [8, 8]}, spread(skew=2))
    assert placed == {"a": 2, "b": 4}
    _, placed = world(6, {"a": [1, 1], "b": [8, 8]}, spread(skew=1))
    assert placed == {}


def test_with_fewer_than_min_domains_each_gets_at_most_the_skew():
    _, placed = world(5, {"a": [8, 8], "b": [8, 8]}, spread(skew=2, minDomains=3), minimum=4)
    assert placed == {"a": 2, "b": 2}


def test_a_spread_over_nodes_is_left_to_the_filter():
    plugin, placed = world(4, {"a": [8, 8], "b": [8, 8]}, spread(key="kubernetes.io/hostname"))
    assert sum(placed.values()) == 4
    assert plugin.asked[0] == (4, "ab")


class Quota:
    """Answers `domain_quota`."""

    name = "quota"

    def __init__(self, answer):
        self._answer = answer

    @hookimpl
    def domain_quota(self, session, cls, n):
        return self._answer(session, n)


@pytest.mark.parametrize(
    "answer",
    [
        lambda session, n: 5,
        lambda session, n: [5],
        lambda session, n: [(np.ones(session.table.size, np.int64), n)],
        lambda session, n: [(np.ones(session.table.size + 1, np.bool_), n)],
        lambda session, n: [(np.ones(session.table.size, np.bool_), -1)],
        lambda session, n: [(np.ones(session.table.size, np.bool_), "all")],
    ],
)
def test_an_invalid_quota_fails_its_group_only(answer):
    constraint = spread(key="kubernetes.io/hostname")  # PodTopologySpread answers None for it
    cluster = FakeCluster()
    cluster.add(node("a1", labels={ZONE: "a"}), node("b1", labels={ZONE: "b"}), pod_group("g", 2), pod("other"))
    cluster.add(
        pod(f"g-{index}", group="g", labels={"app": "g"}, topology_spread_constraints=(constraint,))
        for index in range(2)
    )
    cluster.run(Quota(answer), Greedy())
    cluster.assert_pending("g-0", "plugin quota failed in domain_quota:")
    cluster.assert_bound("other")
