"""A pending pod with a nominated node: the scheduler tries that node first, and uses it if the pod fits."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from session_scheduler.model.objects import Pod, PodStatus
from session_scheduler.testing import FakeCluster, gang, node, pod

from ....tools.volumes import claim, storage_class, using, volume


def named(one, where):
    """Set the pod's nominatedNodeName, as another component would."""
    return replace(one, status=PodStatus(nominated_node_name=where))


@pytest.fixture
def cluster():
    """Two nodes; the large one has the better scores."""
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
def test_a_new_pod_is_placed_on_its_nominated_node_if_it_fits(cluster: FakeCluster, where, cpu, goes) -> None:
    cluster.add(named(pod("p", cpu=cpu), where))
    cluster.run()
    cluster.assert_bound("p", goes)


def test_equal_pods_are_placed_on_their_own_nominated_nodes(cluster: FakeCluster) -> None:
    cluster.add(pod(f"p{number}", cpu="1") if number % 2 else named(pod(f"p{number}", cpu="1"), "small")
                for number in range(6))  # fmt: skip
    cluster.run()
    assert [cluster.node_of(f"p{number}") for number in range(6)] == ["small", "large"] * 3


def test_a_nomination_of_a_waiting_pod_holds_for_its_next_attempt(cluster: FakeCluster) -> None:
    cluster.add(pod("p", cpu="1", node_selector={"disk": "ssd"}))
    cluster.run()
    cluster.assert_pending("p")
    waits = cluster.find(Pod, "p", "default")
    asyncio.run(cluster.memory.patch_status(waits, nominated_node_name="small"))
    cluster.add(node("small", cpu="4", labels={"disk": "ssd"}), node("large", cpu="64", labels={"disk": "ssd"}))
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p", "small")


def test_pods_of_the_same_priority_leave_room_for_a_nominated_pod(cluster: FakeCluster) -> None:
    cluster.add(node("large", cpu="64", unschedulable=True))
    cluster.add(named(pod("later", cpu="4", gates=["later"]), "small"), pod("now", cpu="1"))
    cluster.run()
    cluster.assert_pending("now")


def test_a_claim_gets_its_volume_on_the_nominated_node(cluster: FakeCluster) -> None:
    cluster.add(storage_class("local"), volume("a", on="large"), volume("b", on="small"), claim("c"))
    cluster.add(named(pod("p", cpu="1", volumes=using("c")), "small"))
    cluster.run()
    cluster.assert_bound("p", "small")


def test_members_of_a_gang_are_placed_on_their_nominated_nodes(cluster: FakeCluster) -> None:
    cluster.start()
    group, *pods = gang("g", 3, cpu="1")
    cluster.add(group, named(pods[0], "small"), pods[1], named(pods[2], "gone"))
    cluster.run()
    assert [cluster.node_of(f"g-{number}") for number in range(3)] == ["small", "large", "large"]


def test_a_member_that_does_not_fit_on_its_nominated_node_does_not_affect_the_others(cluster: FakeCluster) -> None:
    cluster.start()
    group, *pods = gang("g", 3, cpu="3")
    cluster.add(group, named(pods[0], "small"), named(pods[1], "small"), pods[2])
    cluster.run()
    assert [cluster.node_of(f"g-{number}") for number in range(3)] == ["small", "large", "large"]


def test_a_future_node_is_kept_for_the_pod_that_is_nominated_for_it(cluster: FakeCluster) -> None:
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


def test_a_nomination_of_a_gated_pod_holds_when_its_gates_are_removed(cluster: FakeCluster) -> None:
    cluster.add(pod("p", cpu="1", gates=["later"]))
    cluster.run()
    gated = cluster.find(Pod, "p", "default")
    asyncio.run(cluster.memory.patch_status(gated, nominated_node_name="small"))
    cluster.run()
    gated = cluster.find(Pod, "p", "default")
    cluster.add(replace(gated, spec=replace(gated.spec, scheduling_gates=())))
    cluster.run()
    cluster.assert_bound("p", "small")
