"""Groups: their pods, minimum counts and preemptibility, and all-or-nothing placement."""

from __future__ import annotations

import pytest

from session_scheduler import hookimpl
from session_scheduler.model.groups import PREEMPTIBILITY_LABEL, GroupRef
from session_scheduler.testing import FakeCluster, gang, pod, pod_group

LABEL = {
    "preemptible": {PREEMPTIBILITY_LABEL: "preemptible"},
    "non-preemptible": {PREEMPTIBILITY_LABEL: "non-preemptible"},
}


def group_of(*objects, name):
    cluster = FakeCluster()
    cluster.add(*objects)
    return cluster.start().cache.groups[name]


@pytest.mark.parametrize(
    ("on_group", "on_pod", "priority", "expected"),
    [
        ({}, {}, 99, True),
        ({}, {}, 100, False),
        ({}, LABEL["non-preemptible"], 0, False),
        ({}, LABEL["preemptible"], 5000, True),
        (LABEL["preemptible"], LABEL["non-preemptible"], 5000, True),
        (LABEL["non-preemptible"], LABEL["preemptible"], 0, False),
        ({PREEMPTIBILITY_LABEL: "maybe"}, {}, 0, True),
        ({PREEMPTIBILITY_LABEL: "maybe"}, {}, 100, False),
    ],
)
def test_preemptible_by_the_groups_label_then_a_pods_label_then_the_priority(on_group, on_pod, priority, expected):
    members = [pod("p", group="g", labels=on_pod, priority=priority), pod("q", group="g", priority=priority)]
    assert group_of(pod_group("g", 1, labels=on_group), members, name="PodGroup default/g").preemptible is expected


def test_a_single_pod_is_preemptible_below_priority_100():
    assert group_of(pod("p", priority=99), name="Pod default/p").preemptible
    assert not group_of(pod("p", priority=100), name="Pod default/p").preemptible


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("its schedulingGroup", {"group": "g"}),
        ("the native label", {"labels": {"scheduling.k8s.io/pod-group": "g"}}),
        (
            "the coscheduling label, where only native groups are served",
            {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        ),
    ],
)
def test_a_native_pod_group_is_named_by(how, options):
    group = group_of(pod_group("g", 2), pod("p", **options), pod("q", **options), name="PodGroup default/g")
    assert (group.min_count, len(group.tasks), group.missing) == (2, 2, False)


def test_the_coscheduling_label_names_a_coscheduling_group_where_that_api_is_served():
    label = {"scheduling.x-k8s.io/pod-group": "g"}
    cluster = FakeCluster()
    cluster.nodes(3, cpu="1")
    cluster.add(pod_group("g", 1), pod_group("g", 3, coscheduling=True))
    cluster.add(pod(f"p{index}", cpu="1", labels=label) for index in range(2))
    cluster.run()
    cluster.assert_pending("p0", "needs 3 pods to start and has 2")
    cluster.add(pod("p2", cpu="1", labels=label))
    cluster.run()
    for index in range(3):
        cluster.assert_bound(f"p{index}")


def test_pods_move_to_their_coscheduling_group_when_the_first_one_appears():
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p", labels={"scheduling.x-k8s.io/pod-group": "g"}))
    cluster.run()
    cluster.assert_pending("p", "PodGroup default/g (scheduling.k8s.io) does not exist; create it")
    cluster.add(pod_group("g", 1, coscheduling=True))
    cluster.run()
    cluster.assert_bound("p")


def test_a_pod_moves_to_another_group_with_its_label():
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p", labels={"scheduling.k8s.io/pod-group": "nowhere"}))
    cluster.run()
    cluster.assert_pending("p", "PodGroup default/nowhere")
    cluster.add(pod("p"))
    cluster.run()
    cluster.assert_bound("p")
    assert list(cluster.scheduler.cache.groups) == ["Pod default/p"]


class ByOwner:
    """Groups pods by the first part of their name, all three of them together."""

    name = "by-owner"

    @hookimpl
    def group_of(self, pod):
        owner, _, index = pod.metadata.name.partition("-")
        return GroupRef(pod.metadata.namespace, owner, 3, "Owner", "") if index else None


def test_a_plugin_groups_pods_that_name_no_group_themselves():
    cluster = FakeCluster()
    cluster.nodes(3)
    cluster.add(pod("a-0"), pod("a-1"), pod("alone"), gang("g-g", 1))
    cluster.run(ByOwner())
    cluster.assert_pending("a-0", "needs 3 pods to start and has 2")
    cluster.assert_bound("alone")
    cluster.assert_bound("g-g-0")
    cluster.add(pod("a-2"))
    cluster.run()
    cluster.assert_bound("a-1")


def test_gated_pods_are_left_out_and_counted_in_the_reason():
    cluster = FakeCluster()
    cluster.nodes(3)
    cluster.add(pod_group("g", 2), pod("p", group="g"), pod("q", group="g", gates=["wait"]), pod("r", gates=["x", "y"]))
    cluster.run()
    cluster.assert_pending("p", "needs 2 pods to start and has 2, 1 of them gated")
    cluster.assert_pending("q", "Scheduling is blocked due to non-empty scheduling gates: wait")
    cluster.assert_pending("r", "gates: x, y")
    cluster.add(pod("q", group="g"))
    cluster.run()
    cluster.assert_bound("p")
    cluster.assert_bound("q")


def test_a_gang_is_placed_all_or_nothing_and_its_other_pods_later():
    cluster = FakeCluster()
    cluster.nodes(2, cpu="1")
    cluster.add(gang("whole", 3, cpu="1"), gang("some", 3, min_count=2, cpu="1"))
    cluster.run()
    assert [cluster.node_of(f"whole-{index}") for index in range(3)] == [None] * 3
    assert sum(cluster.node_of(f"some-{index}") is not None for index in range(3)) == 2
    cluster.nodes(3, cpu="1")
    cluster.run()
    assert all(cluster.node_of(f"some-{index}") for index in range(3))


def test_the_pods_of_a_basic_group_are_placed_independently():
    cluster = FakeCluster()
    cluster.nodes(1, cpu="1")
    cluster.add(pod_group("g"), pod("small", group="g"), pod("large", cpu="2", group="g"))
    cluster.run()
    cluster.assert_bound("small")
    cluster.assert_pending("large", "0/1 nodes are available: 1 Insufficient cpu.")
