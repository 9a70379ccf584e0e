"""The core's own placement of gangs whose members depend on each other beyond their node."""

from __future__ import annotations

import numpy as np
import pytest

from session_scheduler import hookimpl
from session_scheduler.testing import FakeCluster, node, pod, pod_group


class Follow:
    """A follower fits only in the zone of a leader: an affinity, which reads every node."""

    name = "follow"

    @hookimpl
    def class_key(self, pod):
        return pod.metadata.labels.get("role")

    @hookimpl
    def footprint(self, cls):
        return [("role", cls.pod.metadata.labels.get("role"))]

    @hookimpl
    def filter(self, session, cls, nodes, mask):
        if cls.pod.metadata.labels.get("role") == "follower":
            every = session.table.all_rows()
            led = every.label("zone")[every.counter(("role", "leader")) > 0]
            mask &= np.isin(nodes.label("zone"), led)


def gang_of(*members):
    cluster = FakeCluster()
    cluster.add(pod_group("g", len(members)))
    cluster.add(pod(name, cpu=cpu, group="g", labels={"role": role}) for name, cpu, role in members)
    return cluster


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_member_is_placed_after_the_one_that_it_needs_whatever_their_order(names):
    follower, leader = names
    cluster = gang_of((follower, "1", "follower"), (leader, "1", "leader"))
    cluster.add(node("n1", labels={"zone": "x"}))
    cluster.run(Follow())
    cluster.assert_bound(follower)
    cluster.assert_bound(leader)


def test_a_leader_moves_to_the_zone_where_its_followers_fit():
    cluster = gang_of(("leader", "1", "leader"), ("one", "2", "follower"), ("two", "2", "follower"))
    cluster.add(node("empty", cpu="3", labels={"zone": "x"}))
    cluster.add(node("n1", cpu="2", labels={"zone": "y"}), node("n2", cpu="2", labels={"zone": "y"}))
    cluster.add(node("n3", cpu="1", labels={"zone": "y"}))
    cluster.run(Follow())
    cluster.assert_bound("leader", "n3")
    assert {cluster.node_of("one"), cluster.node_of("two")} == {"n1", "n2"}


def test_the_search_packs_a_gang_that_fits_in_no_fixed_order():
    """4+3 and 3+2+2 fill two nodes of 7; a greedy placement on the emptiest node does not fit them."""
    cluster = gang_of(*((f"p{index}", str(cpu), "any") for index, cpu in enumerate((2, 2, 3, 3, 4))))
    cluster.add(node("n1", cpu="7"), node("n2", cpu="7"))
    cluster.run(Follow())
    assert None not in cluster.placements().values()
