"""A node that somebody else names in a pending pod's status is tried first, and taken where the pod fits on it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from session_scheduler.model.objects import Pod, PodStatus
from session_scheduler.testing import FakeCluster, gang, node, pod

from ....tools.volumes import claim, storage_class, using, volume


def named(one, where):
    """As if somebody had written where it should go."""
    return replace(one, status=PodStatus(nominated_node_name=where))


@pytest.fixture
def cluster():
    """Of two nodes the large one has the better scores."""
    found = FakeCluster()
    found.add(node("small", cpu="4"), node("large", cpu="64"))
    return found


@pytest.mark.parametrize(
    ("where", "cpu", "goes"),
    [
        ("", "1", "large"),
        ("small", "1", "small"),
        ("large", "1", "large"),
        ("small", "8", "large"),
        ("gone", "1", "large"),
    ],
)
def test_a_pod_that_was_never_tried_goes_there_where_it_fits(cluster: FakeCluster, where, cpu, goes) -> None:
    cluster.add(named(pod("p", cpu=cpu), where))
    cluster.run()
    cluster.assert_bound("p", goes)


def test_of_equal_pods_each_goes_to_its_own(cluster: FakeCluster) -> None:
    cluster.add(pod(f"p{number}", cpu="1") if number % 2 else named(pod(f"p{number}", cpu="1"), "small")
                for number in range(6))  # fmt: skip
    cluster.run()
    assert [cluster.node_of(f"p{number}") for number in range(6)] == ["small", "large"] * 3


def test_what_is_named_while_the_pod_waits_holds_when_it_is_tried_again(cluster: FakeCluster) -> None:
    cluster.add(pod("p", cpu="1", node_selector={"disk": "ssd"}))
    cluster.run()
    cluster.assert_pending("p")
    waits = cluster.find(Pod, "p", "default")
    asyncio.run(cluster.memory.patch_status(waits, nominated_node_name="small"))
    cluster.add(node("small", cpu="4", labels={"disk": "ssd"}), node("large", cpu="64", labels={"disk": "ssd"}))
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p", "small")


def test_others_of_its_priority_leave_it_its_place_until_it_is_tried(cluster: FakeCluster) -> None:
    cluster.add(node("large", cpu="64", unschedulable=True))
    cluster.add(named(pod("later", cpu="4", gates=["later"]), "small"), pod("now", cpu="1"))
    cluster.run()
    cluster.assert_pending("now")


def test_a_claim_gets_its_volume_there(cluster: FakeCluster) -> None:
    cluster.add(storage_class("local"), volume("a", on="large"), volume("b", on="small"), claim("c"))
    cluster.add(named(pod("p", cpu="1", volumes=using("c")), "small"))
    cluster.run()
    cluster.assert_bound("p", "small")


def test_members_of_a_gang_go_where_they_are_named_and_the_others_anywhere(cluster: FakeCluster) -> None:
    cluster.start()
    group, *pods = gang("g", 3, cpu="1")
    cluster.add(group, named(pods[0], "small"), pods[1], named(pods[2], "gone"))
    cluster.run()
    assert [cluster.node_of(f"g-{number}") for number in range(3)] == ["small", "large", "large"]


def test_a_member_that_does_not_fit_there_costs_the_others_nothing(cluster: FakeCluster) -> None:
    cluster.start()
    group, *pods = gang("g", 3, cpu="3")
    cluster.add(group, named(pods[0], "small"), named(pods[1], "small"), pods[2])
    cluster.run()
    assert [cluster.node_of(f"g-{number}") for number in range(3)] == ["small", "large", "large"]


def test_a_node_that_is_yet_to_come_is_kept_for_whom_it_is_named(cluster: FakeCluster) -> None:
    cluster.run()
    cluster.add(pod("first", cpu="100"))
    cluster.run()
    first = cluster.find(Pod, "first", "default")
    asyncio.run(cluster.memory.patch_status(first, nominated_node_name="huge"))
    cluster.add(pod("second", cpu="100"))
    cluster.run()
    cluster.assert_pending("second")
    cluster.add(node("huge", cpu="128"))
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("first", "huge")
    cluster.assert_pending("second")


def test_what_is_named_while_it_is_gated_holds_when_its_gates_go(cluster: FakeCluster) -> None:
    cluster.add(pod("p", cpu="1", gates=["later"]))
    cluster.run()
    gated = cluster.find(Pod, "p", "default")
    asyncio.run(cluster.memory.patch_status(gated, nominated_node_name="small"))
    cluster.run()
    gated = cluster.find(Pod, "p", "default")
    cluster.add(replace(gated, spec=replace(gated.spec, scheduling_gates=())))
    cluster.run()
    cluster.assert_bound("p", "small")
